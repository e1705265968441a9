"""Addresses of the engines' hosts. While the resolver fails, the last known addresses stay in use.

A resolver that does not answer blocks `getaddrinfo` for many seconds. Callers wait for a short time only, so that
neither a request nor a probe takes the delay for a fault of the engine. The lookup continues meanwhile. There is at
most one at a time per host and port, since the threads for lookups are few.
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

RESOLVED_S_MAX: Final = 10.0
"""Time for which addresses are used without another lookup."""
ANSWER_S_MAX: Final = 1.5
"""Longest wait for a lookup; shorter than the time limit of a probe."""
FAILING_S: Final = 5.0
"""The resolver fails if it has failed, or not answered, for this long. The first try of a lookup may be lost."""
ASKED_S_MAX: Final = 15.0
"""A host that was not looked up for this long is not in use any more: probes look up each host in use."""
HOSTS_MAX: Final = 4_096

Address = tuple[Any, ...]
"""As `getaddrinfo` returns it."""
LookUp = Callable[[str, int], Awaitable[Sequence[Address]]]


async def by_system(host: str, port: int) -> Sequence[Address]:
    return cast("Sequence[Address]", await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


class _Host:
    __slots__ = ("addresses", "asked_at", "began_at", "failing_since", "failures", "lookup", "until")

    def __init__(self) -> None:
        self.asked_at = 0.0
        self.addresses: list[Address] = []
        self.until = -inf
        self.lookup: asyncio.Task[Sequence[Address]] | None = None
        self.began_at = 0.0
        """When the last lookup began."""
        self.failures = 0
        """Lookups in a row that failed."""
        self.failing_since: float | None = None


class HostNames:
    """Shared by all that connect to engines. Made inside a running loop."""

    def __init__(
        self,
        look_up: LookUp = by_system,
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
        """Raises `OSError` if the name does not exist, or if the resolver fails and no address is known."""
        known, now_s = self._of(host, port), self._now_s()
        if known.lookup is None and now_s - known.asked_at > ASKED_S_MAX:
            # That a lookup failed long ago says nothing about the resolver now.
            known.failing_since, known.failures = None, 0
        known.asked_at = now_s
        if now_s <= known.until or self._is_overdue(known, now_s):
            return known.addresses
        if known.lookup is None:
            known.lookup = asyncio.create_task(self._resolve(known, host, port), name=f"resolve {host}")
            known.lookup.add_done_callback(_retrieve)
        try:
            async with asyncio.timeout(self._answer_s_max):
                await asyncio.shield(known.lookup)
        except TimeoutError:
            if not known.addresses:
                message = f"the resolver has not answered within {self._answer_s_max:g} s"
                raise socket.gaierror(socket.EAI_AGAIN, message) from None
        except OSError as error:
            if not known.addresses or fault_of(error, Fault.CONNECTION) is not Fault.GATEWAY:
                raise
        return known.addresses

    def problems(self, urls: Iterable[str]) -> list[str]:
        """Problems of the resolver with the hosts of these addresses."""
        if not (failing := self.failing()):
            return []
        hosts = {urlsplit(url).hostname for url in urls}
        return [problem for host, problem in failing.items() if host in hosts]

    def failing(self) -> dict[str, str]:
        """Host names for which the resolver fails, with the problem as a sentence."""
        now_s, found = self._now_s(), dict[str, str]()
        for (host, _), each in self._hosts.items():
            if each.failing_since is None or now_s - each.asked_at > ASKED_S_MAX:
                continue
            if now_s - each.failing_since >= FAILING_S and (each.failures > 1 or each.lookup is not None):
                known = "its last known addresses stay in use" if each.addresses else "no address of it is known"
                found[host] = f"the resolver cannot resolve {host}, and {known}"
        return found

    def _is_overdue(self, known: _Host, now_s: float) -> bool:
        """Whether a lookup runs for too long and addresses are known, so that there is no point in waiting."""
        if known.lookup is None or not known.addresses:
            return False
        return now_s - known.began_at >= self._answer_s_max

    def _of(self, host: str, port: int) -> _Host:
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
                # The name does not exist any more.
                known.failing_since, known.failures, known.addresses = None, 0, []
            raise
        finally:
            known.lookup = None
        known.failing_since, known.failures = None, 0
        known.addresses = [(family, kind, protocol, "", address) for family, kind, protocol, _, address in found]
        known.until = self._now_s() + RESOLVED_S_MAX
        return known.addresses


class SharedResolver(AbstractResolver):
    """Lets the sessions that read pages of engines use the same addresses."""

    def __init__(self, names: HostNames) -> None:
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
        """The owner of the names keeps them."""


def _retrieve(lookup: "asyncio.Task[Sequence[Address]]") -> None:
    """Take the failure of a lookup that no caller waits for any more."""
    if not lookup.cancelled():
        lookup.exception()
