"""Resolves a name using the system resolver.

The system resolver supports search domains, local files and caches. It is used unless the configuration specifies a
name server. It cannot look up services (SRV); `name_server.py` can.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

SYSTEM_S_MAX: Final = 5.0
# Error codes for a name that does not exist. Other errors mean that the resolver failed.
_NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

HostPort = tuple[str, int]
"""IP address and port of one endpoint."""
Resolve = Callable[[], Awaitable[list[HostPort]]]
"""Function that looks up the name once. It returns an empty list if the name does not exist, and raises `LookupFailed`
on failure.
"""


class LookupFailed(Exception):
    """The lookup failed, so nothing is known about the name. The message gives the reason."""


def system_resolver(name: str, port: int) -> Resolve:
    """Returns a function that looks up the addresses of a name using the system resolver."""

    async def resolve() -> list[HostPort]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SYSTEM_S_MAX):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise LookupFailed(f"the system resolver did not resolve {name} within {SYSTEM_S_MAX:g} s") from None
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return []
            raise LookupFailed(f"the system resolver failed for {name}: {error.strerror}") from None
        except OSError as error:
            raise LookupFailed(f"the system resolver failed for {name}: {error.strerror}") from None
        return sorted({(str(address[0]), port) for *_, address in found})

    return resolve
