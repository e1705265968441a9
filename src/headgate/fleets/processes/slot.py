"""How does one endpoint live that is a process of ours: from being wanted to being gone?

A slot is a place for one process at a time. While it is wanted it holds one: it starts it, looks at it until it serves,
has it answer a first request, and only then says that it has started. A process that ends by itself is replaced after a
pause that grows from crash to crash. The endpoint keeps its name over all of them, yet between two it is given up and
forgotten by the scheduler, so that nothing learned of the old process is believed of the new one.

Where another endpoint still has its name, such as that of a fleet which drains because the configuration has changed, a
slot first waits until that one is forgotten; otherwise each would be taken for the other.

A slot that is no longer wanted drains: it names its endpoint no more and waits until the scheduler has forgotten it,
which is when the last attempt has ended; the classes' `total_max` bounds that. Only then the process ends. A slot that
is wanted again meanwhile goes on with the process it has.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.fleets.processes.child import Child
from headgate.fleets.processes.terms import HOST, NoPort, ProcessTerms, filled
from headgate.model.endpoint import EndpointState
from headgate.model.units import SECOND, Duration, EndpointId
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import FleetEndpoint, FleetObserver, Look, Lookup, Phase, WarmUp

LOOK_EVERY_S: Final = 0.25
"""How often a starting engine is looked at."""
DRAIN_POLL_S: Final = 0.1
JOIN_S_MAX: Final = 15.0
"""A start is told after so long whether or not the scheduler has heard of it by then."""
CRASHES_TOLD: Final = 3
"""After so many in a row it is a loop: told once more, and then silent until it is over."""
LOG_TAIL_BYTES: Final = 600


@dataclass(frozen=True, slots=True)
class Ways:
    """How a slot reaches the world around it."""

    look: Look
    warm_up: WarmUp
    lookup: Lookup
    observer: FleetObserver
    take_port: Callable[[], int]
    changed: Callable[[], None]


class Slot:
    def __init__(self, number: int, terms: ProcessTerms, ways: Ways) -> None:
        self.number = number
        self.id = EndpointId(f"{terms.pool}/{number}")
        self.port = 0
        self.wanted = True
        self._terms = terms
        self._ways = ways
        self._hurries = False
        self._woken = asyncio.Event()
        self._named = ways.lookup(self.id) is None
        self._started = False
        self._seen_leaving = False
        """Whether the scheduler has drained this endpoint since the endpoint got its current name."""
        self._child: Child | None = None
        self._failures = 0
        """Processes in a row that ended before they had been of use for a while."""
        self._watch = _StopWatch()

    # What others want of it

    def endpoint(self) -> FleetEndpoint | None:
        """None where it is not there for the scheduler."""
        if not self._named:
            return None
        terms = self._terms
        device, zone = (
            filled(text, terms.values(slot=self.number, port=self.port))
            for text in (terms.options.device, terms.options.zone)
        )
        return FleetEndpoint(
            self.id, self.url, terms.options.in_flight_max, device=device, zone=zone, started=self._started
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def serves(self) -> bool:
        return self._started

    @property
    def phase(self) -> Phase | None:
        """The phase of its start; None if it serves or is not starting."""
        return None if self._started or not self.wanted else self._watch.phase

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def returns(self) -> bool:
        """Whether it is draining, and could still go on with the process that it has."""
        return not self.wanted and not self._hurries and self._started

    def change(self, terms: ProcessTerms, ways: Ways) -> None:
        """For the next process; what says how the endpoint is used holds at once."""
        self._terms, self._ways = terms, ways

    def give_up(self, *, hurry: bool = False) -> None:
        self.wanted = False
        self._hurries = self._hurries or hurry
        self._woken.set()

    def take_back(self) -> None:
        assert self.returns, f"{self.id} is not draining"
        self.wanted = True
        self._woken.set()

    # Its life

    async def live(self) -> None:
        """Until it is wanted no more and its process is gone."""
        try:
            await self._until_its_name_is_free()
            while self.wanted:
                self._name_if_it_is_coming()
                if self._failures:
                    await self._woken_within(self._pause_s())
                if self.wanted:
                    # Only from here on, since a pause after a crash is no part of how long a start takes.
                    self._watch.begin(Phase.PENDING)
                    await self._hold_process()
                await self._leave()
        finally:
            self._named = False
            await self._end_process()

    async def _until_its_name_is_free(self) -> None:
        while not self._named and self.wanted:
            await self._woken_within(DRAIN_POLL_S)
            self._named = self._ways.lookup(self.id) is None

    def _pause_s(self) -> float:
        options = self._terms.options
        return min(options.restart_ns * 2 ** min(self._failures - 1, 30), options.restart_ns_max) / SECOND

    async def _hold_process(self) -> None:
        """One process, from its start to its end or to the moment it is wanted no more."""
        try:
            self.port = self._ways.take_port()
            self._child = child = await self._spawn()
        except (OSError, NoPort) as error:
            self._failed(f"could not be started: {error}")
            return
        self._watch.begin(Phase.PROCESS)
        # Once more, for the port is another one.
        self._name_if_it_is_coming()
        exit_status = asyncio.create_task(child.wait())
        problem: str | None = None
        try:
            problem = await self._until_ready(exit_status)
            if problem is None and self.wanted:
                problem = await self._serve(exit_status)
        finally:
            exit_status.cancel()
        if problem is not None:
            self._failed(problem)

    async def _spawn(self) -> Child:
        terms, log = self._terms, self._log()
        values = terms.values(slot=self.number, port=self.port)
        log.parent.mkdir(parents=True, exist_ok=True)
        return await Child.start(
            [filled(word, values) for word in terms.options.command],
            environment={name: filled(value, values) for name, value in terms.options.environment.items()},
            folder=None if terms.options.folder is None else Path(terms.options.folder),
            log=log,
        )

    async def _until_ready(self, exit_status: asyncio.Task[int]) -> str | None:
        """Until it has answered a request; what went wrong if it has not. None too where it is wanted no more."""
        preparing = asyncio.create_task(self._prepare())
        give_up_at = asyncio.get_running_loop().time() + self._terms.options.start_ns_max / SECOND
        try:
            while self.wanted and (left_s := give_up_at - asyncio.get_running_loop().time()) > 0:
                await self._first_of(exit_status, preparing, within_s=left_s)
                if exit_status.done():
                    return f"ended with status {exit_status.result()} before it served"
                if preparing.done():
                    preparing.result()
                    return None
        finally:
            preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await preparing
        if not self.wanted:
            return None
        why = self._watch.problem or "it did not answer"
        within_s = self._terms.options.start_ns_max / SECOND
        return f"did not serve within {within_s:g} s ({why}); raise fleet.start_max if it loads longer"

    async def _prepare(self) -> None:
        """Looks at the engine until it serves, and has it answer once."""
        while (seen := await self._ways.look(self.url)).state is not ProbeState.READY:
            self._watch.problem = seen.problem
            if seen.state is ProbeState.LOADING:
                self._watch.begin(Phase.WEIGHTS)
            await asyncio.sleep(LOOK_EVERY_S)
        self._watch.begin(Phase.WARM_UP)
        while (problem := await self._ways.warm_up(self.url)) is not None:
            self._watch.problem = problem
            await asyncio.sleep(LOOK_EVERY_S)

    async def _serve(self, exit_status: asyncio.Task[int]) -> str | None:
        """Until it ends or is wanted no more, drains included; what went wrong where it ended by itself."""
        self._watch.begin(Phase.JOIN)
        serving_since = asyncio.get_running_loop().time()
        self._started = True
        self._name(True)  # noqa: FBT003
        joining = asyncio.create_task(self._until_joined())
        await self._first_of(exit_status, joining, within_s=JOIN_S_MAX)
        joining.cancel()
        if not exit_status.done() and self.wanted:
            self._ways.observer.started(self.id, self._watch.end())
        stable_at = serving_since + self._terms.options.restart_ns_max / SECOND
        while not exit_status.done():
            if not self.wanted and await self._drained(exit_status):
                return None
            await self._first_of(exit_status, within_s=max(0.0, stable_at - asyncio.get_running_loop().time()) or None)
            if asyncio.get_running_loop().time() >= stable_at and self._failures:
                self._failures = 0
                self._ways.observer.recovered(self.id)
        return f"ended with status {exit_status.result()}"

    async def _until_joined(self) -> None:
        while (  # noqa: ASYNC110 (the scheduler is asked, and does not call)
            known := self._ways.lookup(self.id)
        ) is None or known.state is not EndpointState.READY:
            await asyncio.sleep(DRAIN_POLL_S)

    async def _drained(self, exit_status: asyncio.Task[int]) -> bool:
        """Whether its last attempt has ended; not where it ended itself before, or is wanted again."""
        began = asyncio.get_running_loop().time()
        self._name(False)  # noqa: FBT003
        while not self._forgotten() and not self._hurries:
            if exit_status.done():
                return False
            if self.wanted:
                self._name(True)  # noqa: FBT003
                return False
            await self._first_of(exit_status, within_s=DRAIN_POLL_S)
        took_s = asyncio.get_running_loop().time() - began
        # From here on there is no way back.
        self._started = False
        if not self._hurries:
            self._ways.observer.drained(self.id, Duration(round(took_s * SECOND)))
        return True

    async def _leave(self) -> None:
        """Has the process ended and the endpoint forgotten, so that its name may be used again."""
        self._name(False)  # noqa: FBT003
        await self._end_process()
        self._started = False
        while not self._forgotten() and not self._hurries:
            await self._woken_within(DRAIN_POLL_S)
        self._ways.changed()

    def _forgotten(self) -> bool:
        """Whether the scheduler has removed this endpoint after it left.

        Another slot may have joined under the same name between two polls; then the known endpoint is not leaving.
        """
        known = self._ways.lookup(self.id)
        if known is not None and known.leaving:
            self._seen_leaving = True
            return False
        return known is None or self._seen_leaving

    async def _end_process(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end(within_s=self._terms.options.stop_ns_max / SECOND)

    # What it needs for that

    def _name(self, named: bool) -> None:  # noqa: FBT001 (it is what it says)
        if named:
            self._seen_leaving = False
        self._named = named
        self._ways.changed()

    def _name_if_it_is_coming(self) -> None:
        """In a loop of crashes nothing is coming that a request should wait for, until it serves."""
        self._name(self._failures < CRASHES_TOLD)

    def _failed(self, problem: str) -> None:
        """A crash is told when it is the first, and once more when it has become a loop."""
        self._failures += 1
        again = f"it is started again after {self._pause_s():g} s"
        if self._failures == 1:
            self._ways.observer.troubled(self.id, f"{problem}; {again}{self._tail()}")
        elif self._failures == CRASHES_TOLD:
            loop = f"{problem}; that was {self._failures} times in a row"
            much = f"{again}, then ever later, at most {self._terms.options.restart_ns_max / SECOND:g} s"
            self._ways.observer.troubled(self.id, f"{loop}; {much}; mend fleet.command{self._tail()}")

    def _log(self) -> Path:
        return self._terms.log_of(self.number)

    def _tail(self) -> str:
        """The end of its log, as far as there is one."""
        try:
            with self._log().open("rb") as log:
                log.seek(max(0, self._log().stat().st_size - LOG_TAIL_BYTES))
                said = log.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f"; its log {self._log()} ends in: {said}" if said else f"; its log {self._log()} is empty"

    async def _first_of(self, *tasks: "asyncio.Task[int] | asyncio.Task[None]", within_s: float | None) -> None:
        """Until one of these is done, somebody changes what is wanted, or the time is up."""
        woken = asyncio.create_task(self._woken.wait())
        await asyncio.wait({*tasks, woken}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()
        # Only here, so that a word spoken while nobody waited is heard as well.
        self._woken.clear()

    async def _woken_within(self, within_s: float) -> None:
        await self._first_of(within_s=within_s)


class _StopWatch:
    """How long a start has been in each phase."""

    def __init__(self) -> None:
        self._at: dict[Phase, float] = {}
        self.problem = ""
        """Why it did not serve when it was last looked at."""

    def begin(self, phase: Phase) -> None:
        """The first time counts; with the first phase all begins anew."""
        if phase is Phase.PENDING:
            self._at.clear()
            self.problem = ""
        self._at.setdefault(phase, asyncio.get_running_loop().time())

    @property
    def phase(self) -> Phase | None:
        """The last phase that has begun."""
        return next((phase for phase in reversed(Phase) if phase in self._at), None)

    def end(self) -> dict[Phase, Duration]:
        """Every phase; one that was never seen took no time."""
        end = asyncio.get_running_loop().time()
        took: dict[Phase, Duration] = {}
        for phase in reversed(Phase):
            began = self._at.get(phase, end)
            took[phase] = Duration(round((end - began) * SECOND))
            end = began
        return {phase: took[phase] for phase in Phase}
