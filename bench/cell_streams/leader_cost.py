"""Measures the CPU time of a cell's scheduler with many open streams, without a store and in virtual time.

Members without HTTP exchange entries with one `Leader` through the real codec. Only the scheduler's work is measured:
reading entries, deciding and writing entries. Because time is virtual, the figures depend on the speed of the machine
but not on other processes, unlike those of the cell with a store (streams.py).

After the measurement a second scheduler takes over. Its work is measured in pieces as they occur in the event loop: one
piece for each entry or timer.
"""

import gc
import random
from collections import deque
from dataclasses import dataclass
from time import process_time_ns

from bench.cell_streams.member_streams import FIRST_TOKEN_S, PLACES, TENANTS, TOKENS_PER_S, endpoint_count
from bench.scheduler_workload import workload_endpoints, workload_policy, workload_ticket
from headgate.core.commands import Dispatch, End
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
from headgate.edge.open_attempts import SWEEP_EVERY_S
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.codec import (
    decode_member_entry,
    decode_scheduler_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Epoch, Share
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.model.usage import Usage, UsageSource

STEP_NS = Duration(10 * MILLISECOND)
"""Interval at which each member sends. At 1,000 requests per second, members of a real cell send about as often."""
SWEEP_STEPS = round(SWEEP_EVERY_S * SECOND) // STEP_NS
SETTLE_STEPS = 100
"""Number of steps from the start of a scheduler until it is certainly deciding."""


@dataclass(frozen=True, slots=True)
class LeaderCost:
    open: int
    cpu_cores: float
    """CPU time of the scheduler per second of virtual time, without the store and the event loop."""
    cpu_us_per_request: float
    reading_us: float
    """Part of the time per request that is spent on decoding entries."""
    writing_us: float
    snapshot_turn_ms: float
    """Longest time to take and encode a snapshot."""
    adoption_cpu_s: float
    """CPU time of a new scheduler from its start until it decides."""
    adoption_turn_ms: float
    """Longest piece of that work."""


class _Stream:
    __slots__ = ("attempt", "begun_at", "granted_at", "member", "request_id", "tokens")

    def __init__(self, member: int, order: Dispatch, now: Instant) -> None:
        self.member, self.request_id, self.attempt = member, order.request_id, order.attempt
        self.granted_at = now
        self.begun_at = Instant(now + round(FIRST_TOKEN_S * SECOND))
        self.tokens = 0


class VirtualCell:
    """One scheduler, and members with open streams."""

    def __init__(self, *, rate: float, stream_s: float, members: int, endpoints: int) -> None:
        self._rate, self._stream_ns, self._seed = rate, round(stream_s * SECOND), random.Random(1)
        self._rules = PolicyChanged(workload_policy(TENANTS, kv_tokens=500_000, requests_per_minute=10_000_000), "h")
        self._endpoints = KnownEndpoints()
        for endpoint in workload_endpoints(endpoints, PLACES):
            self._endpoints.apply_event(EndpointJoined(endpoint))
            self._endpoints.apply_event(EndpointReady(endpoint.id))
        self.now = Instant(1_000_000 * SECOND)
        self._members = [Member(f"member-{each}", 1, self.now, share=Share(each, members)) for each in range(members)]
        for member in self._members:
            member.handle(self._rules, self.now)
        self._by_name = {member.name: number for number, member in enumerate(self._members)}
        self._running: list[dict[str, _Stream]] = [{} for _ in self._members]
        self._starting: deque[_Stream] = deque()
        self._ending: deque[_Stream] = deque()
        self._steps = self._opened = self.ended = 0
        self._due = 0.0
        self.reading_ns = self.deciding_ns = self.writing_ns = 0
        self.snapshot_turn_ns = self.longest_ns = 0
        self._written_snapshot: bytes | None = None
        self.leader = self._new_leader(1)

    def _new_leader(self, epoch: int) -> Leader:
        snapshot = None if self._written_snapshot is None else decode_snapshot(self._written_snapshot)
        return Leader(Epoch(epoch, f"epoch {epoch}"), self._rules, self._endpoints, snapshot, self.now)

    @property
    def open(self) -> int:
        return self._opened - self.ended

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * SECOND) // STEP_NS):
            self._due += self._rate * STEP_NS / SECOND
            while self._due >= 1:
                self._due -= 1
                self._arrive()
            self.step()

    def _arrive(self) -> None:
        ticket = workload_ticket(f"request-{self._opened:026d}", self._opened, TENANTS, self._seed)
        self._members[self._opened % len(self._members)].open(ticket, self.now)
        self._opened += 1

    def step(self) -> None:
        self.now, self._steps = Instant(self.now + STEP_NS), self._steps + 1
        self._start_and_end_streams()
        for number in range(self._steps % SWEEP_STEPS, len(self._members), SWEEP_STEPS):
            self._sweep(number)
        self._exchange()

    def _start_and_end_streams(self) -> None:
        while self._starting and self._starting[0].begun_at <= self.now:
            stream = self._starting.popleft()
            self._members[stream.member].handle(FirstToken(stream.request_id, stream.attempt), self.now)
            self._running[stream.member][stream.request_id] = stream
        while self._ending and self.now - self._ending[0].granted_at >= self._stream_ns:
            stream = self._ending.popleft()
            del self._running[stream.member][stream.request_id]
            usage = Usage(300, (self.now - stream.begun_at) * TOKENS_PER_S // SECOND, 0, UsageSource.ENGINE)
            event = AttemptEnded(stream.request_id, stream.attempt, AttemptEnding.COMPLETED, usage=usage)
            self._members[stream.member].handle(event, self.now)
            self.ended += 1

    def _sweep(self, number: int) -> None:
        progress: list[AttemptProgress] = []
        for stream in self._running[number].values():
            tokens = (self.now - stream.begun_at) * TOKENS_PER_S // SECOND
            if tokens > stream.tokens:
                progress.append(AttemptProgress(stream.request_id, stream.attempt, tokens - stream.tokens))
                stream.tokens = tokens
        self._members[number].handle(AttemptsProgressed(tuple(progress)), self.now)

    def _exchange(self) -> None:
        """Send all messages that are due in both directions."""
        written = [
            each for member in self._members for entry in member.outgoing(self.now) for each in encode_entry(entry)
        ]
        for name, each in self._lead(written):
            number = self._by_name[name]
            for command in self._members[number].receive(decode_scheduler_entry(each), self.now):
                if isinstance(command, Dispatch):
                    stream = _Stream(number, command, self.now)
                    self._starting.append(stream)
                    self._ending.append(stream)
                else:
                    assert not isinstance(command, End) or command.outcome is Outcome.COMPLETED, f"{command}"
        for member in self._members:
            member.tick(self.now)

    # Measured part

    def _lead(self, written: list[bytes]) -> list[tuple[str, bytes]]:
        leader, now = self.leader, self.now
        start = process_time_ns()
        for each in written:
            began = process_time_ns()
            entry = decode_member_entry(each)
            read = process_time_ns()
            leader.receive(entry, now)
            self._note_turn(began)
            self.reading_ns += read - began
        began = process_time_ns()
        leader.tick(now)
        leader.next_wakeup()
        self._note_turn(began)
        decided = process_time_ns()
        answers = [(name, each) for name, entry in leader.outgoing(now) for each in encode_entry(entry)]
        wrote = process_time_ns()
        self._note_turn(decided)
        self.deciding_ns += decided - start
        self.writing_ns += wrote - decided
        self._take_snapshot()
        return answers

    def _note_turn(self, began_ns: int) -> None:
        self.longest_ns = max(self.longest_ns, process_time_ns() - began_ns)

    def _take_snapshot(self) -> None:
        began = process_time_ns()
        snapshot = self.leader.take_snapshot(self.now)
        if snapshot is not None:
            self._written_snapshot = encode_snapshot(snapshot)
            took = process_time_ns() - began
            self.snapshot_turn_ns = max(self.snapshot_turn_ns, took)
            self.deciding_ns += took
            self.leader.snapshot_stored(snapshot.at, self.now)

    def begin_measurement(self) -> None:
        self.reading_ns = self.deciding_ns = self.writing_ns = self.longest_ns = self.snapshot_turn_ns = 0

    @property
    def spent_ns(self) -> int:
        """CPU time of the scheduler since `begin_measurement`."""
        return self.deciding_ns + self.writing_ns

    def take_over(self) -> None:
        """Replace the scheduler, and continue until the new one is deciding."""
        self.leader = self._new_leader(self.leader.epoch.number + 1)
        for _ in range(SETTLE_STEPS):
            self.step()
            if not self.leader.gathering:
                break


def measure(*, rate: float, stream_s: float, members: int, seconds: float) -> LeaderCost:
    cell = VirtualCell(rate=rate, stream_s=stream_s, members=members, endpoints=endpoint_count(rate, stream_s))
    for _ in range(SETTLE_STEPS):
        cell.step()
    cell.run(stream_s + 1)
    thresholds = gc.get_threshold()
    tune_garbage_collector()
    cell.begin_measurement()
    ended = cell.ended
    cell.run(seconds)
    requests = max(1, cell.ended - ended)
    spent_us, reading_us, writing_us = (each / 1e3 for each in (cell.spent_ns, cell.reading_ns, cell.writing_ns))
    snapshot_turn_ms, open_streams = cell.snapshot_turn_ns / 1e6, cell.open
    # A candidate holds no requests, so its garbage collector has nothing to scan at the start of a takeover.
    tune_garbage_collector()
    cell.begin_measurement()
    cell.take_over()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return LeaderCost(
        open=open_streams,
        cpu_cores=round(spent_us / 1e6 / seconds, 3),
        cpu_us_per_request=round(spent_us / requests, 1),
        reading_us=round(reading_us / requests, 1),
        writing_us=round(writing_us / requests, 1),
        snapshot_turn_ms=round(snapshot_turn_ms, 1),
        adoption_cpu_s=round(cell.spent_ns / 1e9, 3),
        adoption_turn_ms=round(cell.longest_ns / 1e6, 1),
    )
