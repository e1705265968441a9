"""Endpoints discovered through a DNS name, such as that of a headless Kubernetes Service.

The name is resolved every few seconds, and each address is an endpoint. A new address joins immediately. Removal is
slow, because a failing name server is more likely than all endpoints disappearing:

- Failed lookups change nothing, however many there are. Known endpoints stay, and the operator is notified.
- An address is removed after it has been missing from several consecutive responses, because some servers return only
  part of a long list.
- Responses without addresses empty the fleet only if they continue for some time without interruption.

An endpoint that stays listed too long does little harm: its engine does not respond, so the endpoint is ejected like
any other.

A second name can list addresses that are not ready yet, such as a Service with `publishNotReadyAddresses`. Addresses
that only the second name lists are starting endpoints. Only the first name decides when they receive requests, because
the second one also lists terminating addresses.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import HostPort, LookupFailed, Resolve
from headgate.model.units import SECOND, EndpointId, PoolName
from headgate.ports.fleet import FleetEndpoint, FleetObserver

FAILURES_REPORTED: Final = 2
"""Number of consecutive failed lookups after which a problem is reported. Each lookup includes retries."""
ENDPOINTS_MAX: Final = 1_000
"""Maximum number of endpoints. Additional addresses are ignored, so that an incorrect record cannot flood the fleet."""


class Membership:
    """Current addresses, based on the responses so far. It has no clock and no network access."""

    def __init__(self, *, misses_max: int, empty_s_max: float, endpoints_max: int) -> None:
        self.misses_max = misses_max
        self.empty_s_max = empty_s_max
        self._endpoints_max = endpoints_max
        self._misses: dict[HostPort, int] = {}
        """For each current address, the number of consecutive responses that did not contain it."""
        self._empty_since: float | None = None
        self.dropped = 0
        """Number of addresses in the last response that were beyond the limit."""

    @property
    def found(self) -> tuple[HostPort, ...]:
        return tuple(self._misses)

    def record_failure(self) -> None:
        """Records a failed lookup. Its only effect is to restart the period without addresses, which must be
        uninterrupted.
        """
        self._empty_since = None

    def record_answer(self, found: list[HostPort], now: float) -> None:
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
        self.dropped = max(0, len(new) - room)


class StartingAddresses:
    """Listed addresses that have not been ready since they were first listed."""

    def __init__(self) -> None:
        self._listed: dict[HostPort, None] = {}
        self._been_ready: set[HostPort] = set()
        """Listed addresses that have been ready. If they are no longer ready, they are terminating."""

    def record_answer(self, listed: list[HostPort], ready: tuple[HostPort, ...]) -> None:
        self._listed = dict.fromkeys(listed)
        self._been_ready = (self._been_ready | set(ready)) & self._listed.keys()

    @property
    def found(self) -> tuple[HostPort, ...]:
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
        """Creates the fleet. `resolve_starting` resolves `not_ready_name`."""
        self._pool = pool
        self._resolve_starting = resolve_starting
        self._starting = StartingAddresses()
        self._options = options
        self._endpoints_max = endpoints_max
        self._resolve = resolve
        self._observer = observer
        self._members = Membership(
            misses_max=options.misses_max, empty_s_max=options.empty_after_ns / SECOND, endpoints_max=endpoints_max
        )
        self._resolve_task: asyncio.Task[None] | None = None
        self.looked_up = False
        """Whether the first lookup has ended, even if it failed."""
        self._failures = 0
        """Number of consecutive failed lookups. An empty response is not a failure, because there may be no ready
        engine.
        """
        self._problem = ""
        """Why the last lookup failed."""
        self._failure_reported = self._overflow_reported = False

    def reconfigure(self, options: DnsOptions, resolve: Resolve, resolve_starting: Resolve | None) -> None:
        """Applies a new configuration. Known addresses stay until they are missing from enough responses."""
        self._options, self._resolve, self._resolve_starting = options, resolve, resolve_starting
        if resolve_starting is None:
            self._starting = StartingAddresses()
        self._members.misses_max = options.misses_max
        self._members.empty_s_max = options.empty_after_ns / SECOND

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        room = max(0, self._endpoints_max - len(self._members.found))
        starting = [each for each in self._starting.found if each not in self._members.found][:room]
        return (
            *(self._endpoint(_text(each), started=True) for each in self._members.found),
            *(self._endpoint(_text(each), started=False) for each in starting),
        )

    def _endpoint(self, text: str, *, started: bool) -> FleetEndpoint:
        endpoint_id, options = EndpointId(f"{self._pool}/{text}"), self._options
        url = f"{options.scheme}://{text}"
        return FleetEndpoint(endpoint_id, url, options.in_flight_max, zone=options.zone, started=started)

    @property
    def problem(self) -> str | None:
        """Why the name cannot be resolved; None if it can."""
        if self._failures < FAILURES_REPORTED:
            return None
        known = "the known endpoints stay in use" if self._members.found else "no endpoint is known"
        return f"{self._problem}, and {known}"

    async def start(self, changed: Callable[[], None]) -> None:
        self._resolve_task = asyncio.create_task(self._resolve_forever(changed), name=f"resolve {self._options.name}")
        self._resolve_task.add_done_callback(_ended)

    async def stop(self, *, drain: bool = False) -> None:
        """Stops the lookups. The gateway does not own the endpoints, so they keep running."""
        if self._resolve_task is not None:
            self._resolve_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._resolve_task

    async def _resolve_forever(self, changed: Callable[[], None]) -> None:
        while True:
            before = self.endpoints()
            try:
                await self._resolve_once()
                await self._resolve_not_ready()
                if self.endpoints() != before:
                    changed()
            finally:
                self.looked_up = True
            await asyncio.sleep(self._options.resolve_interval_ns / SECOND)

    async def _resolve_once(self) -> None:
        try:
            found = await self._resolve()
        except LookupFailed as problem:
            self._members.record_failure()
            self._failures, self._problem = self._failures + 1, str(problem)
            if self._failures == FAILURES_REPORTED:
                self._failure_reported = True
                stays = f"known endpoints stay in use ({len(self._members.found)})"
                self._observer.problem_found(self._options.name, f"{problem}; {stays}; check the name server")
            return
        self._failures = 0
        if self._failure_reported:
            self._failure_reported = False
            self._observer.problem_cleared(self._options.name)
        self._members.record_answer(found, asyncio.get_running_loop().time())
        self._report_overflow()

    async def _resolve_not_ready(self) -> None:
        """Resolves the second name. Failures are ignored here, because they are reported for the first name."""
        if self._resolve_starting is not None:
            with contextlib.suppress(LookupFailed):
                self._starting.record_answer(await self._resolve_starting(), self._members.found)

    def _report_overflow(self) -> None:
        if self._members.dropped and not self._overflow_reported:
            many = f"{self._members.dropped} addresses exceed the limit of {self._endpoints_max} per pool"
            self._observer.problem_found(self._options.name, f"{many} and are ignored; split them across several pools")
        self._overflow_reported = bool(self._members.dropped)


def _text(found: HostPort) -> str:
    host, port = found
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (mistake := task.exception()) is not None:
        message = f"the task {task.get_name()!r} failed with an internal error"
        task.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": task})
