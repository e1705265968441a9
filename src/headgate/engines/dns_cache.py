"""DNS cache for engine hosts. While the resolver fails, the last known addresses stay in use.

An unresponsive resolver can block `getaddrinfo` for many seconds. Callers wait only briefly, so that requests and
probes do not mistake the delay for an engine failure. The lookup continues in the background. At most one lookup runs
per host and port, because few threads are available for lookups.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from headgate.engines.faults import fault_of
from headgate.model.fault import Fault

CACHED_S_MAX: Final = 10.0
"""How long addresses are used without another lookup, in seconds."""
ANSWER_S_MAX: Final = 1.5
"""Maximum wait for a lookup, in seconds. Shorter than the probe timeout."""
FAILING_S: Final = 5.0
"""How long lookups may go without success before the resolver counts as failing, in seconds.

A single failed lookup is not enough.
"""
IN_USE_S_MAX: Final = 15.0
"""How long after its last use a host counts as unused, in seconds. Probes look up every host that is in use."""
HOSTS_MAX: Final = 4_096

Address = tuple[Any, ...]
"""Address in the format returned by `getaddrinfo`."""
LookUp = Callable[[str, int], Awaitable[Sequence[Address]]]


async def system_lookup(host: str, port: int) -> Sequence[Address]:
    return cast("Sequence[Address]", await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


class _Host:
    __slots__ = ("addresses", "began_at", "failing_since", "failures", "lookup", "used_at", "valid_until")

    def __init__(self) -> None:
        self.used_at = 0.0
        self.addresses: list[Address] = []
        self.valid_until = -inf
        self.lookup: asyncio.Task[Sequence[Address]] | None = None
        self.began_at = 0.0
        """Time at which the last lookup started."""
        self.failures = 0
        """Number of consecutive failed lookups."""
        self.failing_since: float | None = None


class DnsCache:
    """Address cache shared by all connections to engines. Must be created inside an event loop."""

    def __init__(
        self,
        look_up: LookUp = system_lookup,
        *,
        now_s: Callable[[], float] | None = None,
        answer_s_max: float = ANSWER_S_MAX,
        hosts_max: int = HOSTS_MAX,
    ) -> None:
        self._look_up = look_up
        self._now_s = now_s or asyncio.get_running_loop().time
        self._answer_s_max = answer_s_max
        self._hosts_max = hosts_max
        self._hosts: dict[tuple[str, int], _Host] = {}

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Returns the addresses of a host.

        Raises `OSError` if the name does not exist, or if the resolver fails and no address is known.
        """
        known, now_s = self._entry(host, port), self._now_s()
        if known.lookup is None and now_s - known.used_at > IN_USE_S_MAX:
            # A lookup that failed long ago does not mean that the resolver is failing now.
            known.failing_since, known.failures = None, 0
        known.used_at = now_s
        if now_s <= known.valid_until or self._is_overdue(known, now_s):
            return known.addresses
        if known.lookup is None:
            known.lookup = asyncio.create_task(self._resolve(known, host, port), name=f"resolve {host}")
            known.lookup.add_done_callback(_consume_exception)
        try:
            async with asyncio.timeout(self._answer_s_max):
                await asyncio.shield(known.lookup)
        except TimeoutError:
            if not known.addresses:
                message = f"the resolver has not responded within {self._answer_s_max:g} s"
                raise socket.gaierror(socket.EAI_AGAIN, message) from None
        except OSError as error:
            if not known.addresses or fault_of(error, Fault.CONNECTION) is not Fault.GATEWAY:
                raise
        return known.addresses

    def problems(self, urls: Iterable[str]) -> list[str]:
        """Returns the resolver's problems with the hosts of these URLs."""
        if not (failing := self.failing()):
            return []
        hosts = {urlsplit(url).hostname for url in urls}
        return [problem for host, problem in failing.items() if host in hosts]

    def failing(self) -> dict[str, str]:
        """Returns the host names for which the resolver is failing, each with a description of the problem."""
        now_s, found = self._now_s(), dict[str, str]()
        for (host, _), each in self._hosts.items():
            if each.failing_since is None or now_s - each.used_at > IN_USE_S_MAX:
                continue
            if now_s - each.failing_since >= FAILING_S and (each.failures > 1 or each.lookup is not None):
                known = "its last known addresses stay in use" if each.addresses else "it has no known address"
                found[host] = f"the resolver cannot resolve {host}, and {known}"
        return found

    def _is_overdue(self, known: _Host, now_s: float) -> bool:
        """Returns whether a lookup has run for too long while addresses are known, so that there is no point in
        waiting.
        """
        if known.lookup is None or not known.addresses:
            return False
        return now_s - known.began_at >= self._answer_s_max

    def _entry(self, host: str, port: int) -> _Host:
        known = self._hosts.get((host, port))
        if known is None:
            if len(self._hosts) >= self._hosts_max:
                del self._hosts[next(iter(self._hosts))]
            known = self._hosts[host, port] = _Host()
        return known

    async def _resolve(self, known: _Host, host: str, port: int) -> Sequence[Address]:
        known.began_at = self._now_s()
        if known.failing_since is None:
            known.failing_since = known.began_at
        try:
            found = await self._look_up(host, port)
        except OSError as error:
            known.failures += 1
            if fault_of(error, Fault.CONNECTION) is not Fault.GATEWAY:
                # The name no longer exists.
                known.failing_since, known.failures, known.addresses = None, 0, []
            raise
        finally:
            known.lookup = None
        known.failing_since, known.failures = None, 0
        known.addresses = [(family, kind, protocol, "", address) for family, kind, protocol, _, address in found]
        known.valid_until = self._now_s() + CACHED_S_MAX
        return known.addresses


class CachedResolver(AbstractResolver):
    """aiohttp resolver backed by the cache, for the sessions that read engine pages."""

    def __init__(self, names: DnsCache) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=of,
                proto=protocol,
                flags=int(socket.AI_NUMERICHOST | socket.AI_NUMERICSERV),
            )
            for of, _, protocol, _, address in await self._names.addresses(host, port)
            if family in (socket.AF_UNSPEC, of)
        ]

    async def close(self) -> None:
        """Does nothing, because the cache is owned elsewhere."""


def _consume_exception(lookup: "asyncio.Task[Sequence[Address]]") -> None:
    """Retrieves the exception of a lookup that no caller awaits, so that asyncio does not log it."""
    if not lookup.cancelled():
        lookup.exception()
