"""At which addresses does a name stand, by the word of a name server or of the system?

The system knows search domains, its own files and its caches, and is asked for addresses wherever no server is named.
It cannot be asked for services (SRV), and it blocks a thread while it waits; a server that is named we ask ourselves,
over UDP and, where the answer is too long for that, over TCP.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from headgate.fleets.dns_packets import Address, Kind, Malformed, Record, Refused, Service, Truncated, question, records

TRIES: Final = 2
TRY_S_MAX: Final = 1.5
SYSTEM_S_MAX: Final = 5.0
SERVER_PORT: Final = 53
_RESOLV: Final = Path("/etc/resolv.conf")
# What the system says of a name that is not there, in contrast to a server that is not.
_NOT_THERE: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Found = tuple[str, int]
"""Host, as an address, and port."""
Resolve = Callable[[], Awaitable[list[Found]]]
"""All that a name stands for at this moment; nothing where there is no such name. Raises `Unanswered`."""


class Unanswered(Exception):
    """Nobody could say what the name stands for. The message says why."""


def by_system(name: str, port: int) -> Resolve:
    """The addresses of a name, as this machine finds them."""

    async def resolve() -> list[Found]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SYSTEM_S_MAX):
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise Unanswered(f"the system did not resolve {name} within {SYSTEM_S_MAX:g} s") from None
        except socket.gaierror as error:
            if error.errno in _NOT_THERE:
                return []
            raise Unanswered(f"the system could not resolve {name}: {error.strerror}") from None
        except OSError as error:
            raise Unanswered(f"the system could not resolve {name}: {error.strerror}") from None
        return sorted({(str(address[0]), port) for *_, address in found})

    return resolve


def by_server(name: str, port: int | None, server: Found | None) -> Resolve:
    """The addresses of a name, or with no port the services of it, as this server says; None for the system's."""

    async def resolve() -> list[Found]:
        asked = _Asked(server or _system_server())
        return await (asked.services(name) if port is None else asked.addresses(name, port))

    return resolve


class _Asked:
    """One server, while it is asked for one name."""

    def __init__(self, server: Found) -> None:
        self._server = server

    async def addresses(self, name: str, port: int) -> list[Found]:
        """Those of both families. A family of which the server cannot tell must not hide the other."""
        answers = await asyncio.gather(self._ask(name, Kind.A), self._ask(name, Kind.AAAA), return_exceptions=True)
        known = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not any(told for told, _ in known):
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
        return sorted({(each.address, port) for told, _ in known for each in told if isinstance(each, Address)})

    async def services(self, name: str) -> list[Found]:
        """Those of the first priority; weights are left to the scheduler, which knows who is loaded."""
        told, beside = await self._ask(name, Kind.SRV)
        # The root as target says that there is no such service.
        services = [each for each in told if isinstance(each, Service) and each.target]
        first = min((each.priority for each in services), default=0)
        found: set[Found] = set()
        for each in services:
            if each.priority == first:
                known = [(other.address, each.port) for other in _addresses(beside) if other.name == each.target]
                found.update(known or await self.addresses(each.target, each.port))
        return sorted(found)

    async def _ask(self, name: str, kind: Kind) -> tuple[list[Record], list[Record]]:
        problem = ""
        for _ in range(TRIES):
            number = secrets.randbelow(1 << 16)
            try:
                asked = question(name, kind, number=number)
                async with asyncio.timeout(TRY_S_MAX):
                    try:
                        return records(await _over_udp(asked, self._server), name, kind, number=number)
                    except Truncated:
                        return records(await _over_tcp(asked, self._server), name, kind, number=number)
            except TimeoutError:
                problem = f"no answer within {TRY_S_MAX:g} s"
            except OSError as error:
                problem = (error.strerror or "the connection was lost").lower()
            except (Malformed, Refused, ValueError) as error:
                # A target is a name that somebody else chose.
                problem = str(error)
            except (Truncated, asyncio.IncompleteReadError):
                problem = "the answer broke off"
        host, port = self._server
        raise Unanswered(f"the name server at {host} port {port} does not tell {name} {kind.name}: {problem}")


def _addresses(told: list[Record]) -> list[Address]:
    return [each for each in told if isinstance(each, Address)]


async def _over_udp(asked: bytes, server: Found) -> bytes:
    """The first packet that comes back from there. The socket is connected, so the system drops those of others."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Listening(answer), remote_addr=server)
    try:
        transport.sendto(asked)
        return await answer
    finally:
        transport.close()


class _Listening(asyncio.DatagramProtocol):
    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._answer.done():
            self._answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc)


async def _over_tcp(asked: bytes, server: Found) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(struct.pack("!H", len(asked)) + asked)
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        return await reader.readexactly(length)
    finally:
        writer.close()


def _system_server() -> Found:
    """The first that the system's own file names. Raises `Unanswered`."""
    try:
        lines = _RESOLV.read_text().splitlines()
    except OSError as error:
        raise Unanswered(f"{_RESOLV} cannot be read: {error.strerror}; set fleet.nameserver") from None
    servers = [words[1] for line in lines if len(words := line.split()) > 1 and words[0] == "nameserver"]
    if not servers:
        raise Unanswered(f"{_RESOLV} names no name server; set fleet.nameserver")
    return servers[0], SERVER_PORT
