"""Load generator: starts each request at its scheduled time.

This is an open loop: requests start on schedule, no matter how many are still open. The generator's own lateness, due
to a busy CPU or a lack of connections, is measured for every request. If the generator falls behind, the results say
little about the server, and the report warns about it.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic_ns, process_time
from typing import Final

from headgate.loadtest.client import LoadTestClient
from headgate.loadtest.connection_pool import ConnectionPool
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.loadtest.schedule import Schedule
from headgate.simulation.report.latency_summary import LatencySummary

LATE_P99_NS_MAX: Final = 20_000_000
"""Maximum p99 lateness. Above this, the generator counts as having fallen behind."""
_STARTS_AT_ONCE: Final = 32
"""Number of overdue requests to start before reading responses again."""


def _nanoseconds() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class RunCounts:
    """Counts for a run, updated while it is in progress."""

    planned: int
    started: int = 0
    ended: int = 0
    outcomes: dict[LoadTestOutcome, int] = field(default_factory=lambda: dict.fromkeys(LoadTestOutcome, 0))
    lateness_ns: "array[int]" = field(default_factory=_nanoseconds)
    elapsed_ns: int = 0
    """Time from the start of the run to the end of the last request."""
    cpu_s: float = 0.0
    stopped_early: bool = False
    connections: ConnectionPool | None = None

    @property
    def open(self) -> int:
        return self.started - self.ended

    @property
    def lateness(self) -> LatencySummary | None:
        return LatencySummary.of(self.lateness_ns)

    @property
    def connection_waits(self) -> int:
        return 0 if self.connections is None else self.connections.waits

    @property
    def is_behind(self) -> bool:
        spread = self.lateness
        return self.connection_waits > 0 or (spread is not None and spread.percentiles[99] > LATE_P99_NS_MAX)


class Generator:
    def __init__(
        self,
        schedule: Schedule,
        connections: ConnectionPool,
        client: LoadTestClient,
        *,
        start_ns: int,
        on_request: Callable[[LoadTestRequest], None],
        next_turn: Callable[[LoadTestRequest, int], LoadTestRequest | None] = lambda _ended, _number: None,
        drain_s: float = 120.0,
    ) -> None:
        self._schedule = schedule
        self._connections = connections
        self._client = client
        self._start_ns = start_ns
        self._on_request = on_request
        self._next_turn = next_turn
        self._drain_s = drain_s
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        """Set while no request is open and no turn of a session is due."""
        self._accepts_turns = True
        self._error: BaseException | None = None
        self.counts = RunCounts(len(schedule), connections=connections)

    def stop(self) -> None:
        """Stops starting requests and cancels open ones. `run` returns with the results so far."""
        self.counts.stopped_early = True
        self._stopping.set()

    async def run(self) -> RunCounts:
        cpu_s = process_time()
        stopping = asyncio.create_task(self._stopping.wait())
        sending = asyncio.create_task(self._send())
        await asyncio.wait([sending, stopping], return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        if self._open:
            drained = asyncio.create_task(self._idle.wait())
            # Sessions go on until the end of the schedule, even if their first requests all came early.
            left_s = max(0, self._schedule.length_ns - self._now_ns()) / 1e9
            await asyncio.wait([drained, stopping], timeout=left_s + self._drain_s, return_when=asyncio.FIRST_COMPLETED)
            drained.cancel()
        self._accepts_turns = False
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        stopping.cancel()
        if self._error is not None:
            raise self._error
        self._connections.close()
        await asyncio.sleep(0)  # Closed transports get their callback in the next iteration of the event loop.
        self.counts.elapsed_ns = self._now_ns()
        self.counts.cpu_s = process_time() - cpu_s
        return self.counts

    async def _send(self) -> None:
        due_at_ns = self._schedule.at_ns
        for number in range(len(self._schedule)):
            await self._sleep_until(due_at_ns[number])
            self._begin(number)
            if number % _STARTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _sleep_until(self, due_ns: int) -> None:
        # Timers have a resolution of 1 ms and may fire up to 0.5 ms early.
        while (wait_ns := due_ns - self._now_ns()) > 0:  # noqa: ASYNC110 (waits for a time)
            await asyncio.sleep(wait_ns / 1e9)

    def _begin(self, number: int) -> None:
        schedule = self._schedule
        story = LoadTestRequest(
            number=number,
            sender=schedule.sender[number],
            prompt_tokens_requested=schedule.prompt_tokens[number],
            output_tokens_requested=schedule.output_tokens[number],
            scheduled_ns=schedule.at_ns[number],
            blocks=schedule.prefixes.get(number, ()),
        )
        self._start(story, self._client.run(story))

    def _start(self, story: LoadTestRequest, work: Coroutine[object, object, None]) -> None:
        self.counts.started += 1
        self._idle.clear()
        task = asyncio.create_task(work)
        self._open.add(task)
        task.add_done_callback(lambda done: self._end(done, story))

    def _start_next_turn(self, ended: LoadTestRequest) -> None:
        """Sends the next turn of a session after its think time. Turns due after the schedule are not sent."""
        story = self._next_turn(ended, self.counts.planned)
        if story is not None and story.scheduled_ns < self._schedule.length_ns:
            self.counts.planned += 1
            self._start(story, self._run_later(story))

    async def _run_later(self, story: LoadTestRequest) -> None:
        await self._sleep_until(story.scheduled_ns)
        await self._client.run(story)

    def _end(self, task: asyncio.Task[None], story: LoadTestRequest) -> None:
        self._open.discard(task)
        if task.cancelled() and story.conversation is not None and story.scheduled_ns > self._now_ns():
            # The run ended during the think time, so this turn was never sent.
            self.counts.started -= 1
            self.counts.planned -= 1
            return
        if task.cancelled():  # The task may be cancelled before it has started.
            story.end_ns = self._now_ns()
        elif (mistake := task.exception()) is not None:
            self._error = mistake
            self._stopping.set()
        begun_ns = story.end_ns if story.started_ns is None else story.started_ns
        self.counts.lateness_ns.append(max(0, begun_ns - story.scheduled_ns))
        self.counts.ended += 1
        self.counts.outcomes[story.outcome] += 1
        self._on_request(story)
        if self._accepts_turns:
            self._start_next_turn(story)
        if not self._open:
            self._idle.set()

    def _now_ns(self) -> int:
        return monotonic_ns() - self._start_ns
