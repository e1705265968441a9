"""Resolves a name or a service (SRV) using a given name server.

dnspython encodes and parses the messages. Queries use UDP, or TCP if the UDP response is truncated. The UDP socket is
connected, so the kernel drops datagrams from other hosts and reports a closed port immediately. Malformed datagrams and
responses to other queries are ignored until the timeout. Parsing takes about 55 µs per address and blocks the event
loop.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from headgate.fleets.dns.resolve import HostPort, LookupFailed, Resolve

try:
    from dns.asyncbackend import get_default_backend
    from dns.asyncquery import udp_with_fallback
    from dns.exception import DNSException
    from dns.flags import Flag
    from dns.inet import af_for_address, is_address
    from dns.message import Message, QueryMessage, make_query
    from dns.name import Name, root
    from dns.rcode import Rcode
    from dns.rcode import to_text as rcode_text
    from dns.rdata import Rdata
    from dns.rdatatype import RdataType
    from dns.rdtypes.IN.A import A
    from dns.rdtypes.IN.AAAA import AAAA
    from dns.rdtypes.IN.SRV import SRV
    from dns.resolver import NoResolverConfiguration, Resolver
    from dns.rrset import RRset
except ImportError as error:
    raise ImportError("querying a name server requires dnspython; pip install 'headgate[dns]'") from error

TRIES: Final = 2
TRY_S_MAX: Final = 1.5
UDP_BYTES_MAX: Final = 4096
SERVER_PORT: Final = 53


def name_server_resolver(
    name: str, port: int | None, server: HostPort | None, *, try_s_max: float = TRY_S_MAX
) -> Resolve:
    """Returns a function that looks up the addresses of a name, or its services if `port` is None.

    If `server` is None, the first name server in the system's configuration is used.
    """

    async def resolve() -> list[HostPort]:
        lookup = _Lookup(server or _system_server(), try_s_max)
        if port is None:
            return await lookup.services(name)
        return await lookup.addresses(name, port)

    return resolve


@dataclass(frozen=True, slots=True)
class _Answer:
    records: list[Rdata]
    """Records of the queried type. Empty if the name does not exist or has none."""
    additional: list[RRset]


class _Lookup:
    """Queries to one server."""

    def __init__(self, server: HostPort, try_s_max: float) -> None:
        self._server = server
        self._try_s_max = try_s_max

    async def addresses(self, name: str | Name, port: int) -> list[HostPort]:
        """Returns the addresses of both families. If only one of the two queries fails, the other's result is used."""
        queries = self._ask(name, RdataType.A), self._ask(name, RdataType.AAAA)
        results = await asyncio.gather(*queries, return_exceptions=True)
        answers = [result for result in results if not isinstance(result, BaseException)]
        found = {(ip, port) for answer in answers for ip in _ips(answer.records)}
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures and not found:
            raise failures[0]
        return sorted(found)

    async def services(self, name: str) -> list[HostPort]:
        """Returns the services with the highest priority. Weights are ignored, because the scheduler knows the load."""
        answer = await self._ask(name, RdataType.SRV)
        # A root target means that the service is not available.
        services = [each for each in answer.records if isinstance(each, SRV) and each.target != root]
        first = min((each.priority for each in services), default=0)
        found: set[HostPort] = set()
        for each in services:
            if each.priority == first:
                ips = [ip for rrset in answer.additional if rrset.name == each.target for ip in _ips(rrset)]
                found.update([(ip, each.port) for ip in ips] or await self.addresses(each.target, each.port))
        return sorted(found)

    async def _ask(self, name: str | Name, kind: RdataType) -> _Answer:
        """Sends a query, with retries. Raises `LookupFailed` if all of them fail."""
        problem = ""
        for _ in range(TRIES):
            try:
                query = make_query(name, kind, use_edns=0, payload=UDP_BYTES_MAX)
                async with asyncio.timeout(self._try_s_max):
                    return _answer(await _response(query, self._server))
            except TimeoutError:
                problem = f"no valid response within {self._try_s_max:g} s"
            except OSError as error:
                problem = (error.strerror or "the connection was lost").lower()
            except EOFError:
                problem = "the response was truncated"
            except DNSException as error:
                problem = str(error)
        host, port = self._server
        raise LookupFailed(f"query for {name} {kind.name} to name server {host} port {port} failed: {problem}")


class _Connect(Protocol):
    """Type of dnspython's `make_socket`, which has no annotations."""

    async def __call__(self, af: int, socktype: int, *, destination: HostPort) -> AbstractAsyncContextManager[Any]: ...


async def _response(query: QueryMessage, server: HostPort) -> Message:
    host, port = server
    if not is_address(host):
        loop = asyncio.get_running_loop()
        host = str((await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0][4][0])
    connect = cast("_Connect", get_default_backend().make_socket)
    async with await connect(af_for_address(host), socket.SOCK_DGRAM, destination=(host, port)) as udp:
        response, _ = await udp_with_fallback(query, host, port=port, udp_sock=udp, ignore_errors=True)
    return response


def _answer(response: Message) -> _Answer:
    """Reads a response. Raises `DNSException` if it is an error."""
    if response.rcode() not in (Rcode.NOERROR, Rcode.NXDOMAIN):
        raise DNSException(f"the server returned {rcode_text(response.rcode())}")
    if response.flags & Flag.TC:
        raise DNSException("the response is truncated over TCP too")
    assert isinstance(response, QueryMessage), "the response to a query has the query's class"
    records = response.resolve_chaining().answer
    return _Answer(list(records or ()), response.additional)


def _ips(records: Iterable[Rdata]) -> list[str]:
    return [each.address for each in records if isinstance(each, A | AAAA)]


def _system_server() -> HostPort:
    """Returns the first name server in the system's configuration. Raises `LookupFailed`."""
    try:
        return str(Resolver().nameservers[0]), SERVER_PORT
    except (NoResolverConfiguration, ValueError) as error:
        raise LookupFailed(f"the system's configuration has no name server ({error}); set fleet.nameserver") from None
