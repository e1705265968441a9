"""Times of the stages of a grant and of a takeover, in the stream benchmark.

All processes run on one machine, so their times on the monotonic clock can be compared. A grant is measured for one
request in `SAMPLED_ONE_IN`, from its arrival at the member to the start of its attempt. A takeover is measured from the
kill of the scheduler to the first grants of its successor.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from bench.load_generator import quantile
from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointReady, Event, PolicyChanged
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import Lease, SnapshotId
from headgate.hosts.cell.protocol.store import Receiver, StoreBatch
from headgate.hosts.cell.redis.store import RedisStore
from headgate.model.units import Instant, RequestId

SAMPLED_ONE_IN: Final = 13
"""A prime number, so that all members' requests are sampled."""
GRANT_STAGES: Final = ("member_sends", "scheduler_decides", "scheduler_sends", "member_receives", "member_starts")
TAKEOVER_STAGES: Final = ("lease", "begin", "gather", "adopt", "first_grant", "all_granted")


def is_sampled(request_id: RequestId) -> bool:
    return not int(request_id[-8:]) % SAMPLED_ONE_IN


def now_us() -> int:
    return time.monotonic_ns() // 1_000


class Grant(msgspec.Struct, frozen=True, array_like=True):
    at_us: int
    """Time of the grant on the monotonic clock."""
    wait_us: int
    """Time from the arrival to the grant."""
    member: int


class MemberTimes(msgspec.Struct, array_like=True):
    """Times of one granted request at its member."""

    request_id: RequestId
    arrived_us: int
    sent_us: int = 0
    """Time at which the arrival was sent to the store."""
    received_us: int = 0
    """Time at which the entry with the grant was received from the store."""
    granted_us: int = 0
    """Time at which the attempt started."""


class SchedulerTimes(msgspec.Struct, array_like=True):
    """Times of one granted request at the scheduler."""

    request_id: RequestId
    decided_us: int
    sent_us: int = 0


class TakeoverTimes(msgspec.Struct, array_like=True):
    """Times in the start of one scheduler. 0 for a step that it has not reached."""

    leased_us: int
    begun_us: int = 0
    """Time at which the process became the scheduler, after reading the last snapshot."""
    gathered_us: int = 0
    """Time at which it began to adopt the reports."""
    adopted_us: int = 0
    """Time at which the reports were adopted, and the first endpoint became ready."""


class TimedStore(RedisStore):
    """Store that records when a sampled request's entries are sent and received."""

    def __init__(self, url: str, *, cell: str, member: str) -> None:
        super().__init__(url, cell=cell, member=member)
        self.unsent: list[MemberTimes | SchedulerTimes] = []
        """Sampled requests whose entries the next batch contains."""
        self.round_trips_us: list[int] = []
        self.received_us = 0
        self._batch_sent_us = 0
        self.takeovers: list[TakeoverTimes] = []
        """Leases that this process was granted."""

    def start(self, receiver: Receiver) -> None:
        super().start(_TimedReceiver(receiver, self))

    def send(self, batch: StoreBatch) -> None:
        self._batch_sent_us = now_us()
        for times in self.unsent:
            times.sent_us = self._batch_sent_us
        self.unsent.clear()
        super().send(batch)

    def pop_round_trips(self) -> list[int]:
        taken, self.round_trips_us = self.round_trips_us, []
        return taken

    def note_idle(self) -> None:
        if self._batch_sent_us:
            self.round_trips_us.append(now_us() - self._batch_sent_us)
            self._batch_sent_us = 0


class _TimedReceiver:
    def __init__(self, receiver: Receiver, store: TimedStore) -> None:
        self._receiver, self._store = receiver, store
        self._epoch = 0

    def from_outbox(self, entries: list[bytes]) -> None:
        self._store.received_us = now_us()
        self._receiver.from_outbox(entries)

    def from_inbox(self, entries: list[bytes]) -> None:
        self._receiver.from_inbox(entries)

    def lease_received(self, claim: Claim, lease: Lease) -> None:
        if lease.epoch == claim.epoch and lease.epoch.number > self._epoch:
            self._epoch = lease.epoch.number
            self._store.takeovers.append(TakeoverTimes(now_us()))
        self._receiver.lease_received(claim, lease)

    def snapshot_stored(self, at: SnapshotId, kept: SnapshotId) -> None:
        self._receiver.snapshot_stored(at, kept)

    def snapshot_read(self, written: bytes | None) -> None:
        self._receiver.snapshot_read(written)

    def store_idle(self) -> None:
        self._store.note_idle()
        self._receiver.store_idle()

    def store_changed(self, up: bool, problem: str | None) -> None:  # noqa: FBT001  The state is the argument.
        self._receiver.store_changed(up, problem)


class SchedulerObserver:
    """Observes the decisions of this process as the cell's scheduler."""

    def __init__(self, store: TimedStore) -> None:
        self._store = store
        self.decided: list[SchedulerTimes] = []
        """Sampled grants since the last report."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del now
        if isinstance(event, PolicyChanged | EndpointReady):
            self._note_step(event)
        for command in commands:
            if isinstance(command, Dispatch) and is_sampled(command.request_id):
                times = SchedulerTimes(command.request_id, now_us())
                self.decided.append(times)
                self._store.unsent.append(times)

    def pop_decided(self) -> list[SchedulerTimes]:
        taken, self.decided = self.decided, []
        return taken

    def _note_step(self, event: PolicyChanged | EndpointReady) -> None:
        takeovers = self._store.takeovers
        if takeovers and isinstance(event, PolicyChanged):
            takeovers[-1].gathered_us = takeovers[-1].gathered_us or now_us()
        elif takeovers:
            takeovers[-1].adopted_us = takeovers[-1].adopted_us or now_us()

    def note_scheduler(self) -> None:
        """Record that this process is the scheduler now."""
        if (takeovers := self._store.takeovers) and not takeovers[-1].begun_us:
            takeovers[-1].begun_us = now_us()


def grant_stages(
    members: Iterable[MemberTimes], schedulers: Iterable[SchedulerTimes]
) -> dict[str, tuple[float, float]]:
    """Return the p50 and p99 of each stage in milliseconds, over the requests that both sides have measured."""
    decided = {each.request_id: each for each in schedulers}
    stages: dict[str, list[int]] = {name: [] for name in GRANT_STAGES}
    for member in members:
        scheduler = decided.get(member.request_id)
        if scheduler is None or not (member.sent_us and scheduler.sent_us):
            continue
        moments = (
            member.arrived_us,
            member.sent_us,
            scheduler.decided_us,
            scheduler.sent_us,
            member.received_us,
            member.granted_us,
        )
        for number, name in enumerate(GRANT_STAGES):
            stages[name].append(moments[number + 1] - moments[number])
    return {name: p50_and_p99_ms(took) for name, took in stages.items() if took}


def p50_and_p99_ms(took_us: Iterable[int]) -> tuple[float, float]:
    ordered = sorted(took_us)
    return round(quantile(ordered, 0.5) / 1e3, 2), round(quantile(ordered, 0.99) / 1e3, 2)


def takeover_stages(times: TakeoverTimes, killed_us: int, granted: Sequence[Grant]) -> dict[str, float]:
    """Return the duration of each stage in milliseconds. The last one ends when all members have new grants."""
    first: dict[int, int] = {}
    for grant in granted:
        if grant.at_us >= times.adopted_us:
            first[grant.member] = min(grant.at_us, first.get(grant.member, grant.at_us))
    ends = (
        times.leased_us,
        times.begun_us,
        times.gathered_us,
        times.adopted_us,
        min(first.values(), default=times.adopted_us),
        max(first.values(), default=times.adopted_us),
    )
    return {
        name: round((end - start) / 1e3, 1)
        for name, start, end in zip(TAKEOVER_STAGES, (killed_us, *ends[:-1]), ends, strict=True)
    }
