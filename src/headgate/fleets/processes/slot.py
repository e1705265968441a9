"""Lifecycle of an endpoint whose process is started by the gateway.

While a slot is needed, it holds one process at a time. It starts the process, probes it until it is ready, sends it a
warm-up request and then reports it as started. A process that exits is replaced after a backoff that increases with
each crash. The endpoint keeps its name. Between two processes, the scheduler removes the endpoint, so that measurements
of the old process are not applied to the new one.

If another endpoint still has the same name, for example in a fleet that is draining after a configuration change, the
slot waits until the scheduler has removed that endpoint. Otherwise the two would be confused.

A slot that is no longer needed drains: it withdraws its endpoint and waits until the scheduler has removed it, which
happens when the last attempt has ended. This takes at most the classes' `attempt_timeout`. Then the process is stopped.
A draining slot that is needed again keeps its process.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.fleets.processes.child_process import ChildProcess
from headgate.fleets.processes.spec import HOST, NoFreePort, ProcessSpec, fill_placeholders
from headgate.model.endpoint import EndpointState
from headgate.model.units import SECOND, Duration, EndpointId
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import EndpointLookup, FleetEndpoint, FleetObserver, Phase, ProbeEngine, WarmUp

PROBE_INTERVAL_S: Final = 0.25
"""Interval between probes of a starting engine, in seconds."""
DRAIN_POLL_S: Final = 0.1
JOIN_S_MAX: Final = 15.0
"""Maximum time in seconds to wait for the scheduler to know about a started endpoint. After that, the start is reported
anyway.
"""
CRASH_LOOP_FAILURES: Final = 3
"""Number of consecutive crashes that count as a crash loop. A crash loop is reported once, and not again until the
endpoint has recovered.
"""
LOG_TAIL_BYTES: Final = 600


@dataclass(frozen=True, slots=True)
class SlotContext:
    """Dependencies of a slot."""

    look: ProbeEngine
    warm_up: WarmUp
    lookup: EndpointLookup
    observer: FleetObserver
    allocate_port: Callable[[], int]
    changed: Callable[[], None]


class Slot:
    def __init__(self, number: int, terms: ProcessSpec, ways: SlotContext) -> None:
        self.number = number
        self.id = EndpointId(f"{terms.pool}/{number}")
        self.port = 0
        self.desired = True
        self._spec = terms
        self._context = ways
        self._stop_now = False
        self._wake = asyncio.Event()
        self._published = ways.lookup(self.id) is None
        self._started = False
        self._seen_leaving = False
        """Whether the scheduler has been seen draining this endpoint since it was last announced."""
        self._child: ChildProcess | None = None
        self._failures = 0
        """Number of consecutive processes that exited before they became stable."""
        self._start_timer = _StartTimer()

    # For the fleet

    def endpoint(self) -> FleetEndpoint | None:
        """Returns the endpoint, or None if the scheduler should not know about it."""
        if not self._published:
            return None
        terms = self._spec
        device, zone = (
            fill_placeholders(text, terms.values(slot=self.number, port=self.port))
            for text in (terms.options.device, terms.options.zone)
        )
        return FleetEndpoint(
            self.id, self.url, terms.options.in_flight_max, device=device, zone=zone, started=self._started
        )

    @property
    def url(self) -> str:
        return f"{self._spec.options.scheme}://{HOST}:{self.port}"

    @property
    def is_serving(self) -> bool:
        return self._started

    @property
    def phase(self) -> Phase | None:
        """Phase of the start. None if the endpoint is ready or not starting."""
        return None if self._started or not self.desired else self._start_timer.phase

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def can_resume(self) -> bool:
        """Whether the slot is draining and could still keep its process."""
        return not self.desired and not self._stop_now and self._started

    def reconfigure(self, terms: ProcessSpec, ways: SlotContext) -> None:
        """Applies new options to the next process. Options that affect how the endpoint is used apply immediately."""
        self._spec, self._context = terms, ways

    def release(self, *, immediately: bool = False) -> None:
        self.desired = False
        self._stop_now = self._stop_now or immediately
        self._wake.set()

    def reclaim(self) -> None:
        assert self.can_resume, f"{self.id} is not draining"
        self.desired = True
        self._wake.set()

    # Lifecycle

    async def run(self) -> None:
        """Runs until the slot is no longer needed and its process has exited."""
        try:
            await self._wait_for_free_name()
            while self.desired:
                self._publish_unless_crash_loop()
                if self._failures:
                    await self._sleep(self._backoff_s())
                if self.desired:
                    # The cold start begins here, because the backoff after a crash is not part of it.
                    self._start_timer.begin(Phase.PENDING)
                    await self._run_process()
                await self._retire()
        finally:
            self._published = False
            await self._end_process()

    async def _wait_for_free_name(self) -> None:
        while not self._published and self.desired:
            await self._sleep(DRAIN_POLL_S)
            self._published = self._context.lookup(self.id) is None

    def _backoff_s(self) -> float:
        options = self._spec.options
        return (
            min(options.restart_backoff_ns * 2 ** min(self._failures - 1, 30), options.restart_backoff_ns_max) / SECOND
        )

    async def _run_process(self) -> None:
        """Runs one process until it exits or the slot is no longer needed."""
        try:
            self.port = self._context.allocate_port()
            self._child = child = await self._spawn()
        except (OSError, NoFreePort) as error:
            self._record_failure(f"failed to start: {error}")
            return
        self._start_timer.begin(Phase.PROCESS)
        # Announce the endpoint again with its new port.
        self._publish_unless_crash_loop()
        exit_status = asyncio.create_task(child.wait())
        problem: str | None = None
        try:
            problem = await self._wait_until_ready(exit_status)
            if problem is None and self.desired:
                problem = await self._serve(exit_status)
        finally:
            exit_status.cancel()
        if problem is not None:
            self._record_failure(problem)

    async def _spawn(self) -> ChildProcess:
        terms, log = self._spec, self._log()
        values = terms.values(slot=self.number, port=self.port)
        log.parent.mkdir(parents=True, exist_ok=True)
        return await ChildProcess.start(
            [fill_placeholders(word, values) for word in terms.options.command],
            environment={name: fill_placeholders(value, values) for name, value in terms.options.environment.items()},
            folder=None if terms.options.working_directory is None else Path(terms.options.working_directory),
            log=log,
        )

    async def _wait_until_ready(self, exit_status: asyncio.Task[int]) -> str | None:
        """Waits until the engine has answered a warm-up request. Returns a description of the problem, or None if the
        engine is ready or no longer needed.
        """
        preparing = asyncio.create_task(self._probe_and_warm_up())
        give_up_at = asyncio.get_running_loop().time() + self._spec.options.start_timeout_ns / SECOND
        try:
            while self.desired and (left_s := give_up_at - asyncio.get_running_loop().time()) > 0:
                await self._wait_any(exit_status, preparing, within_s=left_s)
                if exit_status.done():
                    return f"exited with status {exit_status.result()} before it was ready"
                if preparing.done():
                    preparing.result()
                    return None
        finally:
            preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await preparing
        if not self.desired:
            return None
        why = self._start_timer.problem or "no response"
        within_s = self._spec.options.start_timeout_ns / SECOND
        return f"was not ready within {within_s:g} s ({why}); raise fleet.start_timeout if loading takes longer"

    async def _probe_and_warm_up(self) -> None:
        """Probes the engine until it is ready, and warms it up."""
        while (seen := await self._context.look(self.url)).state is not ProbeState.READY:
            self._start_timer.problem = seen.problem
            if seen.state is ProbeState.LOADING:
                self._start_timer.begin(Phase.WEIGHTS)
            await asyncio.sleep(PROBE_INTERVAL_S)
        self._start_timer.begin(Phase.WARM_UP)
        while (problem := await self._context.warm_up(self.url)) is not None:
            self._start_timer.problem = problem
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def _serve(self, exit_status: asyncio.Task[int]) -> str | None:
        """Waits until the process exits or has drained. Returns the problem if it exited unexpectedly."""
        self._start_timer.begin(Phase.JOIN)
        serving_since = asyncio.get_running_loop().time()
        self._started = True
        self._publish(True)  # noqa: FBT003
        joining = asyncio.create_task(self._wait_until_joined())
        await self._wait_any(exit_status, joining, within_s=JOIN_S_MAX)
        joining.cancel()
        if not exit_status.done() and self.desired:
            self._context.observer.started(self.id, self._start_timer.end())
        stable_at = serving_since + self._spec.options.restart_backoff_ns_max / SECOND
        while not exit_status.done():
            if not self.desired and await self._drain(exit_status):
                return None
            await self._wait_any(exit_status, within_s=max(0.0, stable_at - asyncio.get_running_loop().time()) or None)
            if asyncio.get_running_loop().time() >= stable_at and self._failures:
                self._failures = 0
                self._context.observer.problem_cleared(self.id)
        return f"exited with status {exit_status.result()}"

    async def _wait_until_joined(self) -> None:
        while (  # noqa: ASYNC110 (the scheduler has no callback for this)
            known := self._context.lookup(self.id)
        ) is None or known.state is not EndpointState.READY:
            await asyncio.sleep(DRAIN_POLL_S)

    async def _drain(self, exit_status: asyncio.Task[int]) -> bool:
        """Drains the endpoint. Returns false if the process exits first or the slot is needed again."""
        began = asyncio.get_running_loop().time()
        self._publish(False)  # noqa: FBT003
        while not self._is_removed() and not self._stop_now:
            if exit_status.done():
                return False
            if self.desired:
                self._publish(True)  # noqa: FBT003
                return False
            await self._wait_any(exit_status, within_s=DRAIN_POLL_S)
        took_s = asyncio.get_running_loop().time() - began
        # From here on, the slot cannot return to service.
        self._started = False
        if not self._stop_now:
            self._context.observer.drained(self.id, Duration(round(took_s * SECOND)))
        return True

    async def _retire(self) -> None:
        """Stops the process and waits until the scheduler has removed the endpoint, so that its name is free."""
        self._publish(False)  # noqa: FBT003
        await self._end_process()
        self._started = False
        while not self._is_removed() and not self._stop_now:
            await self._sleep(DRAIN_POLL_S)
        self._context.changed()

    def _is_removed(self) -> bool:
        """Returns whether the scheduler has removed this endpoint after draining it.

        If another slot joined with the same name between two polls, the known endpoint is not draining.
        """
        known = self._context.lookup(self.id)
        if known is not None and known.leaving:
            self._seen_leaving = True
            return False
        return known is None or self._seen_leaving

    async def _end_process(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.terminate(within_s=self._spec.options.stop_timeout_ns / SECOND)

    # Helpers

    def _publish(self, named: bool) -> None:  # noqa: FBT001 (the flag is the new value)
        if named:
            self._seen_leaving = False
        self._published = named
        self._context.changed()

    def _publish_unless_crash_loop(self) -> None:
        """Announces the endpoint, unless it is in a crash loop, when requests should not wait for it."""
        self._publish(self._failures < CRASH_LOOP_FAILURES)

    def _record_failure(self, problem: str) -> None:
        """Counts a crash. Reports the first crash, and the one that makes it a crash loop."""
        self._failures += 1
        again = f"restarting in {self._backoff_s():g} s"
        if self._failures == 1:
            self._context.observer.problem_found(self.id, f"{problem}; {again}{self._log_tail()}")
        elif self._failures == CRASH_LOOP_FAILURES:
            loop = f"{problem}; it has crashed {self._failures} times in a row"
            much = (
                f"{again}, with exponential backoff of up to {self._spec.options.restart_backoff_ns_max / SECOND:g} s"
            )
            self._context.observer.problem_found(self.id, f"{loop}; {much}; correct fleet.command{self._log_tail()}")

    def _log(self) -> Path:
        return self._spec.log_of(self.number)

    def _log_tail(self) -> str:
        """Returns the end of the log for a message; empty if there is no log."""
        try:
            with self._log().open("rb") as log:
                log.seek(max(0, self._log().stat().st_size - LOG_TAIL_BYTES))
                said = log.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f"; end of the log {self._log()}: {said}" if said else f"; the log {self._log()} is empty"

    async def _wait_any(self, *tasks: "asyncio.Task[int] | asyncio.Task[None]", within_s: float | None) -> None:
        """Waits until one of the tasks is done, `desired` changes, or the timeout expires."""
        woken = asyncio.create_task(self._wake.wait())
        await asyncio.wait({*tasks, woken}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()
        # Cleared only here, so that a change between two waits is noticed as well.
        self._wake.clear()

    async def _sleep(self, within_s: float) -> None:
        await self._wait_any(within_s=within_s)


class _StartTimer:
    """Measures how long a cold start spends in each phase."""

    def __init__(self) -> None:
        self._at: dict[Phase, float] = {}
        self.problem = ""
        """Result of the last probe, if it found that the engine was not ready."""

    def begin(self, phase: Phase) -> None:
        """Records when a phase first begins. Beginning the first phase resets all others."""
        if phase is Phase.PENDING:
            self._at.clear()
            self.problem = ""
        self._at.setdefault(phase, asyncio.get_running_loop().time())

    @property
    def phase(self) -> Phase | None:
        """Most recent phase that has begun."""
        return next((phase for phase in reversed(Phase) if phase in self._at), None)

    def end(self) -> dict[Phase, Duration]:
        """Returns the duration of every phase. A phase that never began has a duration of 0."""
        end = asyncio.get_running_loop().time()
        took: dict[Phase, Duration] = {}
        for phase in reversed(Phase):
            began = self._at.get(phase, end)
            took[phase] = Duration(round((end - began) * SECOND))
            end = began
        return {phase: took[phase] for phase in Phase}
