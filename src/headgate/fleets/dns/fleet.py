"""Which endpoints does a name stand for, and when has one of them really gone?

A headless service of Kubernetes, or any name with several addresses: it is resolved every few seconds, and each address
is an endpoint. Whoever appears joins at once. Leaving is slow, because name servers fail more often than they are
right about everybody being gone:

- an answer that fails says nothing, however often: who is known stays, and the operator is told;
- an address leaves when so many answers in a row did not have it, since some servers give only some of many addresses;
- answers that name nobody at all empty the fleet only when nothing else has come for a good while.

An endpoint that is named wrongly for so long costs little: its engine does not answer, so it is ejected as any other.

A second name may list addresses that are not ready yet, such as a Service with `publishNotReadyAddresses`. Those of its
addresses that the first name does not have are endpoints that are starting. The first name alone decides when they take
requests, because the second one also has addresses that are terminating.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import Found, Resolve, Unanswered
from headgate.model.units import SECOND, EndpointId, PoolName
from headgate.ports.fleet import FleetEndpoint, FleetObserver

FAILURES_TOLD: Final = 2
"""Lookups that fail in a row before they count as a problem. Each tries more than once."""
ENDPOINTS_MAX: Final = 1_000
"""Beyond these, addresses are left out: a wrong record must not fill the fleet."""


class Membership:
    """Who is there, by the answers so far. No clock and no network: it is told what came, and when."""

    def __init__(self, *, misses_max: int, empty_s_max: float, endpoints_max: int) -> None:
        self.misses_max = misses_max
        self.empty_s_max = empty_s_max
        self._endpoints_max = endpoints_max
        self._misses: dict[Found, int] = {}
        """Of each that is there, in how many answers in a row it was missing."""
        self._empty_since: float | None = None
        self.left_out = 0
        """How many the last answer named beyond the bound."""

    @property
    def found(self) -> tuple[Found, ...]:
        return tuple(self._misses)

    def failed(self) -> None:
        """Nothing follows for anybody. Only that nobody is there must be heard without a break to be believed."""
        self._empty_since = None

    def answered(self, found: list[Found], now: float) -> None:
        if not found:
            self._empty_since = now if self._empty_since is None else self._empty_since
            if now - self._empty_since >= self.empty_s_max:
                self._misses.clear()
            return
        self._empty_since = None
        named = dict.fromkeys(found)
        counted = {each: 0 if each in named else misses + 1 for each, misses in self._misses.items()}
        self._misses = {each: misses for each, misses in counted.items() if misses < self.misses_max}
        new = [each for each in named if each not in self._misses]
        room = self._endpoints_max - len(self._misses)
        self._misses |= dict.fromkeys(new[:room], 0)
        self.left_out = max(0, len(new) - room)


class StartingAddresses:
    """Addresses that are listed, and have not been ready since."""

    def __init__(self) -> None:
        self._listed: dict[Found, None] = {}
        self._been_ready: set[Found] = set()
        """Listed addresses that have been ready; once they are ready no longer, they are terminating."""

    def answered(self, listed: list[Found], ready: tuple[Found, ...]) -> None:
        self._listed = dict.fromkeys(listed)
        self._been_ready = (self._been_ready | set(ready)) & self._listed.keys()

    @property
    def found(self) -> tuple[Found, ...]:
        return tuple(each for each in self._listed if each not in self._been_ready)


class DnsFleet:
    def __init__(
        self,
        pool: PoolName,
        options: DnsOptions,
        resolve: Resolve,
        observer: FleetObserver,
        *,
        resolve_starting: Resolve | None = None,
        endpoints_max: int = ENDPOINTS_MAX,
    ) -> None:
        """`resolve_starting` resolves `starting_name`."""
        self._pool = pool
        self._resolve_starting = resolve_starting
        self._starting = StartingAddresses()
        self._options = options
        self._endpoints_max = endpoints_max
        self._resolve = resolve
        self._observer = observer
        self._members = Membership(
            misses_max=options.misses_max, empty_s_max=options.empty_ns_max / SECOND, endpoints_max=endpoints_max
        )
        self._asking: asyncio.Task[None] | None = None
        self._failures = 0
        """Lookups in a row that failed. An answer without addresses is no failure: perhaps no engine is ready."""
        self._problem = ""
        """Why the last lookup failed."""
        self._told_failing = self._told_full = False

    def change(self, options: DnsOptions, resolve: Resolve, resolve_starting: Resolve | None) -> None:
        """Another configuration. Who is known stays until enough answers have come without it."""
        self._options, self._resolve, self._resolve_starting = options, resolve, resolve_starting
        if resolve_starting is None:
            self._starting = StartingAddresses()
        self._members.misses_max = options.misses_max
        self._members.empty_s_max = options.empty_ns_max / SECOND

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        room = max(0, self._endpoints_max - len(self._members.found))
        starting = [each for each in self._starting.found if each not in self._members.found][:room]
        return (
            *(self._endpoint(_text(each), started=True) for each in self._members.found),
            *(self._endpoint(_text(each), started=False) for each in starting),
        )

    def _endpoint(self, text: str, *, started: bool) -> FleetEndpoint:
        endpoint_id, options = EndpointId(f"{self._pool}/{text}"), self._options
        return FleetEndpoint(endpoint_id, f"http://{text}", options.in_flight_max, zone=options.zone, started=started)

    @property
    def problem(self) -> str | None:
        """Why the name cannot be resolved; None if it can."""
        if self._failures < FAILURES_TOLD:
            return None
        known = "the known endpoints stay in use" if self._members.found else "no endpoint is known"
        return f"{self._problem}, and {known}"

    async def start(self, changed: Callable[[], None]) -> None:
        self._asking = asyncio.create_task(self._ask_for_ever(changed), name=f"resolve {self._options.name}")
        self._asking.add_done_callback(_ended)

    async def stop(self, *, drain: bool = False) -> None:
        """Its endpoints are somebody else's, so that there is nothing to end but the asking."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    async def _ask_for_ever(self, changed: Callable[[], None]) -> None:
        while True:
            before = self.endpoints()
            await self._ask()
            await self._ask_for_starting()
            if self.endpoints() != before:
                changed()
            await asyncio.sleep(self._options.every_ns / SECOND)

    async def _ask(self) -> None:
        try:
            found = await self._resolve()
        except Unanswered as problem:
            self._members.failed()
            self._failures, self._problem = self._failures + 1, str(problem)
            if self._failures == FAILURES_TOLD:
                self._told_failing = True
                stays = f"the {len(self._members.found)} endpoints that are known stay"
                self._observer.troubled(self._options.name, f"{problem}; {stays}; look at the name server")
            return
        self._failures = 0
        if self._told_failing:
            self._told_failing = False
            self._observer.recovered(self._options.name)
        self._members.answered(found, asyncio.get_running_loop().time())
        self._tell_full()

    async def _ask_for_starting(self) -> None:
        """An answer that fails changes nothing; a failing name server is reported for the first name."""
        if self._resolve_starting is not None:
            with contextlib.suppress(Unanswered):
                self._starting.answered(await self._resolve_starting(), self._members.found)

    def _tell_full(self) -> None:
        if self._members.left_out and not self._told_full:
            many = f"stands for {self._members.left_out} addresses more than the {self._endpoints_max} of a pool"
            self._observer.troubled(self._options.name, f"{many}; they are left out; divide them over several pools")
        self._told_full = bool(self._members.left_out)


def _text(found: Found) -> str:
    host, port = found
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (mistake := task.exception()) is not None:
        message = f"the task {task.get_name()!r} ended by a mistake of ours"
        task.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": task})
