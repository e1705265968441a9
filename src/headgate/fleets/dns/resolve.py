"""Which addresses does the system find for a name?

The system resolver knows search domains, local files and caches, and is used unless the configuration names a name
server. It cannot look up services (SRV): name_server.py asks a server for those.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

SYSTEM_S_MAX: Final = 5.0
# Error numbers for a name that does not exist, in contrast to a resolver that failed.
_NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Found = tuple[str, int]
"""IP address and port of one endpoint."""
Resolve = Callable[[], Awaitable[list[Found]]]
"""Looks the name up once. Returns an empty list if the name does not exist. Raises `Unanswered`."""


class Unanswered(Exception):
    """The lookup failed, so nothing is known about the name. The message gives the reason."""


def by_system(name: str, port: int) -> Resolve:
    """Look up the addresses of a name with the system resolver."""

    async def resolve() -> list[Found]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SYSTEM_S_MAX):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise Unanswered(f"the system did not resolve {name} within {SYSTEM_S_MAX:g} s") from None
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return []
            raise Unanswered(f"the system could not resolve {name}: {error.strerror}") from None
        except OSError as error:
            raise Unanswered(f"the system could not resolve {name}: {error.strerror}") from None
        return sorted({(str(address[0]), port) for *_, address in found})

    return resolve
