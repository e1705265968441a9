"""TLS of the connections to a pool's engines.

All connections of a pool share one context. When its files have changed, a new context replaces it: new connections use
the new one, and open connections continue with the old one. If the new files cannot be used, the old context is kept.
"""

import asyncio
import ssl

from headgate.ports.tls import ClientTlsOptions, InvalidTlsFile, client_context


class EngineTls:
    def __init__(self, options: ClientTlsOptions) -> None:
        """Reads the files. If they cannot be used, `context` raises an error until they can."""
        self.options = options
        self.problem: str | None = None
        """Why the files cannot be used at present. None if they can."""
        self._context: ssl.SSLContext | None = None
        try:
            self._context = client_context(options)
        except InvalidTlsFile as error:
            self.problem = str(error)

    @property
    def context(self) -> ssl.SSLContext:
        """Context for a new connection. Raises `InvalidTlsFile` if there has never been a usable one."""
        if self._context is None:
            raise InvalidTlsFile(self.problem or "the TLS files have not been read")
        return self._context

    @property
    def server_name(self) -> str | None:
        """Name that the engine's certificate must contain. None for the host in the URL."""
        return self.options.server_name

    async def reload(self) -> bool:
        """Reads the files again. Returns whether they could be used."""
        try:
            # Reading the authorities takes a while, and streams must keep running in the meantime.
            self._context = await asyncio.to_thread(client_context, self.options)
        except InvalidTlsFile as error:
            self.problem = str(error)
            return False
        self.problem = None
        return True
