"""Process for the stream benchmark: cell members with open streams, or one candidate for scheduler.

    python -m bench.cell_streams.member_streams PLAN

Each member is a `CellHost` on a real store, as in a gateway. A request arrives, waits for its grant, reports its first
token and then its progress in the gateway's usual interval, and ends after a fixed time. There is no HTTP and no
engine, but the scheduler receives the same events as for a real stream.

The process exchanges lines of JSON with its parent. It sends a `ProcessReport` once all of its hosts follow a scheduler
or, for a candidate, are part of the cell. Then it sends one for each `Load` that it receives.
"""

import asyncio
import logging
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from bench.cell_streams.stages import (
    Grant,
    MemberTimes,
    SchedulerObserver,
    SchedulerTimes,
    TakeoverTimes,
    TimedStore,
    is_sampled,
    now_us,
)
from bench.load_generator import arrivals
from bench.precise_timer import PreciseTimer
from bench.scheduler_workload import workload_endpoints, workload_policy, workload_ticket
from headgate.core.commands import Abort, Dispatch
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointReady,
    FirstToken,
    PolicyChanged,
)
from headgate.edge.open_attempts import SWEEP_EVERY_S, SweepLateness
from headgate.engines.engine_watch import START_STEP_S
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.command_channel import HostCommandChannel
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.hosts.local.clock import SystemClock
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import RequestId
from headgate.model.usage import Usage, UsageSource

CELL = "streams"
PLACES = 72
"""Slots per endpoint."""
OCCUPIED = 0.8
"""Share of the slots that the open streams occupy."""
TENANTS = 1_000
TOKENS_PER_S = 30
FIRST_TOKEN_S = 0.2
"""Time from the grant to the first token."""
_TURN_PROBE_S = 0.002
"""Interval between two measurements of the event loop's turns."""


def endpoint_count(rate: float, stream_s: float) -> int:
    """Return how many endpoints the streams of this load occupy as far as planned."""
    return max(8, round(rate * stream_s / OCCUPIED / PLACES))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    members: tuple[str, ...]
    first_rank: int
    """Number of the first of these members in the cell."""
    of: int
    """Number of members in the cell."""
    schedules: bool
    endpoints: int
    stream_s: float
    """Duration of a stream, from its grant to its end."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    rate: float | None = None
    """New requests per second from now on. None keeps the current rate."""
    reset: bool = False
    """Whether to begin a new measurement of the longest turn after the report."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    leads: bool
    follows: bool
    """Whether all members follow a scheduler or this process is the scheduler."""
    open: int
    offered: int
    ended: int
    lost: dict[str, int]
    """Number of requests that did not complete, by reason."""
    islands: int
    """Number of times that a member of this process became an island."""
    granted: list[Grant]
    """Grants since the last report."""
    progress: int
    """Progress reports about one stream each since the start."""
    late_us: list[int]
    """Delay of each arrival since the last report, compared with its planned time."""
    requests: list[MemberTimes]
    """Sampled requests that were granted since the last report."""
    decisions: list[SchedulerTimes]
    """Sampled requests that this process granted as the scheduler since the last report."""
    round_trips_us: list[int]
    """Round trips to the store since the last report."""
    takeovers: list[TakeoverTimes]
    """All leases that this process was granted."""
    turn_ms: float
    """Longest turn of the event loop in this measurement, by the wall clock. 0 in a process that cannot schedule."""
    turn_cpu_ms: float
    """Longest turn of the event loop in this measurement, in CPU time."""


class OpenStream:
    """A stream whose attempt is running."""

    __slots__ = ("_sleeping", "attempt", "begun_s", "interruption", "request_id", "tokens")

    def __init__(self, request_id: RequestId, attempt: int) -> None:
        self.request_id, self.attempt = request_id, attempt
        self.begun_s: float | None = None
        """Time of the first token. None before it."""
        self.tokens = 0
        self.interruption: str | None = None
        """Command by which the scheduler interrupted the stream, with its reason."""
        self._sleeping: asyncio.Future[None] | None = None

    def interrupt(self, command: Abort | Dispatch) -> None:
        if self.interruption is None:
            self.interruption = f"{type(command).__name__}: {getattr(command, 'reason', '')}"
            self._wake()

    async def sleep_unless_interrupted(self, seconds: float) -> bool:
        """Sleep, unless the stream is interrupted. Return whether it was."""
        if self.interruption is None:
            loop = asyncio.get_running_loop()
            self._sleeping = loop.create_future()
            timer = loop.call_later(max(0.0, seconds), self._wake)
            await self._sleeping
            timer.cancel()
        return self.interruption is not None

    def _wake(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)


class StreamingMember:
    """One gateway of the cell, with its open streams."""

    def __init__(self, plan: Plan, number: int, rank: int) -> None:
        self.rank, self._plan = rank, plan
        self.store = TimedStore(plan.store, cell=CELL, member=plan.members[number])
        self.scheduling = SchedulerObserver(self.store)
        self.host = _host(plan, plan.members[number], rank, self.store, self.scheduling)
        self.streams: dict[RequestId, OpenStream] = {}
        self.progress = self.islands = 0
        self._was_island = False

    async def sweep_forever(self, start_after_s: float) -> None:
        """Report the progress of all open streams, as a gateway does."""
        loop_time, lateness = asyncio.get_running_loop().time, SweepLateness()
        await asyncio.sleep(start_after_s)
        lateness.record_sweep(loop_time())
        while True:
            due = loop_time() + SWEEP_EVERY_S
            await asyncio.sleep(SWEEP_EVERY_S)
            woke_at = loop_time()
            is_island = self.host.view().mode is MemberMode.ISLAND
            self.islands += is_island and not self._was_island
            self._was_island = is_island
            if lateness.record_wakeup(due=due, now=woke_at):
                self._report_progress(woke_at, late=lateness.late)
                lateness.record_sweep(woke_at)

    def _report_progress(self, now_s: float, *, late: bool) -> None:
        progress: list[AttemptProgress] = []
        for stream in self.streams.values():
            if stream.begun_s is not None:
                tokens = int((now_s - stream.begun_s) * TOKENS_PER_S)
                if tokens > stream.tokens:
                    progress.append(AttemptProgress(stream.request_id, stream.attempt, tokens - stream.tokens))
                    stream.tokens = tokens
        self.progress += len(progress)
        if progress:
            self.host.report(AttemptsProgressed(tuple(progress), late))

    async def stream(self, order: Dispatch, line: HostCommandChannel, stream: OpenStream) -> None:
        """Carry out one attempt."""
        loop = asyncio.get_running_loop()
        request_id = order.request_id
        self.streams[request_id] = stream
        ending, tokens = AttemptEnding.COMPLETED, round((self._plan.stream_s - FIRST_TOKEN_S) * TOKENS_PER_S)
        if not await stream.sleep_unless_interrupted(min(FIRST_TOKEN_S, self._plan.stream_s / 2)):
            stream.begun_s = loop.time()
            self.host.report(FirstToken(request_id, order.attempt))
        if await stream.sleep_unless_interrupted(self._plan.stream_s - FIRST_TOKEN_S):
            ending, tokens = AttemptEnding.ABORTED, stream.tokens
        del self.streams[request_id]
        usage = Usage(300, tokens, 0, UsageSource.ENGINE)
        self.host.report(AttemptEnded(request_id, order.attempt, ending, usage=usage))


class StreamLoad:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._members = [StreamingMember(plan, number, plan.first_rank + number) for number in range(len(plan.members))]
        self._chance = random.Random(f"streams {plan.members}")
        self._number = self._offered = self._ended = 0
        self._open: set[asyncio.Task[None]] = set()
        self._lost: dict[str, int] = {}
        self._granted: list[Grant] = []
        self._late_us: list[int] = []
        self._sampled: list[MemberTimes] = []
        self._turns = LoopTurns()
        self._load_number = 0

    async def run(self) -> None:
        lines = await _stdin()
        for member in self._members:
            _start(member.host, self._plan)
        while not all(_is_ready(member.host) for member in self._members):
            # The parent may have been interrupted before it could stop this process.
            if lines.at_eof():
                return
            await asyncio.sleep(0.05)
        tune_garbage_collector()
        background = [
            asyncio.create_task(member.sweep_forever(number * SWEEP_EVERY_S / len(self._members)))
            for number, member in enumerate(self._members)
        ]
        if self._plan.schedules:
            self._turns.start()
        alarm = PreciseTimer(asyncio.get_running_loop())
        _print_json(self._report())
        while line := await lines.readline():
            load = msgspec.json.decode(line, type=Load)
            if load.rate is not None:
                self._set_rate(alarm, load.rate)
            _print_json(self._report())
            if load.reset:
                self._turns.reset()
        for task in (*background, *self._open):
            task.cancel()
        for member in self._members:
            member.host.stop()
            await member.host.store.stop()

    def _report(self) -> ProcessReport:
        granted, self._granted = self._granted, []
        late_us, self._late_us = self._late_us, []
        sampled, self._sampled = self._sampled, []
        decisions: list[SchedulerTimes] = []
        round_trips_us: list[int] = []
        for member in self._members:
            decisions += member.scheduling.pop_decided()
            round_trips_us += member.store.pop_round_trips()
        hosts = [member.host for member in self._members]
        return ProcessReport(
            leads=any(host.is_leader for host in hosts),
            follows=all(_is_ready(host) for host in hosts),
            open=len(self._open),
            offered=self._offered,
            ended=self._ended,
            lost=self._lost,
            islands=sum(member.islands for member in self._members),
            granted=granted,
            progress=sum(member.progress for member in self._members),
            late_us=late_us,
            requests=sampled,
            decisions=decisions,
            round_trips_us=round_trips_us,
            takeovers=[times for member in self._members for times in member.store.takeovers],
            turn_ms=round(self._turns.longest_s * 1e3, 1),
            turn_cpu_ms=round(self._turns.longest_cpu_s * 1e3, 1),
        )

    def _set_rate(self, alarm: PreciseTimer, rate: float) -> None:
        self._load_number += 1
        if rate:
            seed = self._chance.randrange(1 << 30)
            self._schedule_arrivals(alarm, arrivals(time.monotonic_ns(), rate, seed), self._load_number)

    def _schedule_arrivals(self, alarm: PreciseTimer, moments: Iterator[int], number: int) -> None:
        due_ns = next(moments)

        def arrive() -> None:
            if number == self._load_number:
                self._late_us.append(max(0, time.monotonic_ns() - due_ns) // 1_000)
                self._arrive()
                self._schedule_arrivals(alarm, moments, number)

        alarm.schedule(due_ns, arrive)

    def _arrive(self) -> None:
        self._number += 1
        self._offered += 1
        member = self._members[self._number % len(self._members)]
        task = asyncio.get_running_loop().create_task(self._run_request(member, self._ticket()))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _run_request(self, member: StreamingMember, ticket: Ticket) -> None:
        arrived_s = time.monotonic()
        stream = OpenStream(ticket.request_id, 1)
        times = MemberTimes(ticket.request_id, now_us()) if is_sampled(ticket.request_id) else None
        if times is not None:
            member.store.unsent.append(times)
        line = member.host.open(ticket, stream.interrupt)
        order = await line.next()
        while isinstance(order, Dispatch):
            granted_s = time.monotonic()
            self._granted.append(Grant(round(granted_s * 1e6), round((granted_s - arrived_s) * 1e6), member.rank))
            if times is not None:
                times.received_us, times.granted_us = member.store.received_us, now_us()
                self._sampled.append(times)
                times = None
            stream.attempt = order.attempt
            await member.stream(order, line, stream)
            order = await line.next()
        line.close()
        what = f"{order.outcome.value}: {order.reason}"
        if stream.interruption is not None:
            what = f"interrupted by the scheduler: {stream.interruption}"
        elif order.outcome is Outcome.COMPLETED:
            self._ended += 1
            return
        self._lost[what] = self._lost.get(what, 0) + 1

    def _ticket(self) -> Ticket:
        name = f"{self._plan.members[0]}-{self._number:020d}"
        return workload_ticket(name, self._number, TENANTS, self._chance)


class LoopTurns:
    """Longest time between two runs of a frequent timer, which includes at least one turn of the event loop."""

    def __init__(self) -> None:
        self._wall_s = self._cpu_s = 0.0
        self.longest_s = self.longest_cpu_s = 0.0

    def start(self) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()
        asyncio.get_running_loop().call_later(_TURN_PROBE_S, self._measure)

    def reset(self) -> None:
        self.longest_s = self.longest_cpu_s = 0.0

    def _measure(self) -> None:
        self.longest_s = max(self.longest_s, time.monotonic() - self._wall_s - _TURN_PROBE_S)
        self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - self._cpu_s)
        self.start()


def _host(plan: Plan, name: str, rank: int, store: TimedStore, scheduling: SchedulerObserver) -> CellHost:
    clock = SystemClock()
    node = Node(
        name,
        time.time_ns(),
        clock.now(),
        lambda: secrets.token_hex(8),
        share=Share(rank, plan.of),
        candidate=plan.schedules,
        serves=not plan.schedules,
        observers=(scheduling,),
    )

    def watch_engines(watches: bool) -> None:  # noqa: FBT001  The parameter is a state.
        """Report the endpoints as ready one by one when this host starts probing, as the scheduler or as an island."""
        if watches:
            scheduling.note_scheduler()
            known = set(host.ready_endpoints())
            new = [each.id for each in workload_endpoints(plan.endpoints, PLACES) if each.id not in known]
            for number, endpoint_id in enumerate(new):
                delay_s = number * START_STEP_S
                asyncio.get_running_loop().call_later(delay_s, host.report, EndpointReady(endpoint_id))

    host = CellHost(node, store, clock, (), _stop, on_engine_watch=watch_engines, on_policy_agreed=lambda _: None)
    return host


def _start(host: CellHost, plan: Plan) -> None:
    host.start()
    policy = workload_policy(TENANTS, kv_tokens=500_000, requests_per_minute=10_000_000)
    host.report(PolicyChanged(policy, "bench"))
    for endpoint in workload_endpoints(plan.endpoints, PLACES):
        host.report(EndpointJoined(endpoint))


def _is_ready(host: CellHost) -> bool:
    return host.is_leader or host.view().mode is MemberMode.FOLLOWING


def _stop(mistake: BaseException) -> None:
    """Exit as a gateway would, because the process state cannot be trusted after an internal error."""
    print(f"internal error: {mistake!r}", file=sys.stderr, flush=True)
    os._exit(70)


def _print_json(what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    # An overloaded machine would print hundreds of lines about islands. The report counts them.
    logging.getLogger("headgate").setLevel(logging.ERROR)
    uvloop.run(StreamLoad(msgspec.json.decode(sys.argv[1], type=Plan)).run())
