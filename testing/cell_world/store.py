"""Simulated store of a cell, and the link between each process and the store.

The store carries entries and keeps a lease and a snapshot. Messages to a stopped store are lost; messages to a paused
store are held until it resumes. Each link has its own delay and loses, repeats, reorders or delays messages as the
current faults dictate.
"""

from collections.abc import Callable
from random import Random

from headgate.hosts.cell.protocol.lease import Claim, claim_lease, release_lease
from headgate.hosts.cell.protocol.member_names import NameEntry
from headgate.hosts.cell.protocol.messages import Epoch, Lease, SnapshotId
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after
from headgate.simulation.virtual.timeline import Timeline
from testing.cell_world.faults import ALL_PROCESSES, SCHEDULER, Fault, Kind
from testing.cell_world.member_names import NameStore

HOUR_NS = Duration(3_600 * SECOND)
_STALE_NS = Duration(3 * SECOND)
"""Age of the backup from which a store recovers after losing its latest data."""


class Store:
    def __init__(self, timeline: Timeline, clock: Callable[[], Instant], random: Random) -> None:
        self._timeline = timeline
        self._clock = clock
        self._random = random
        self.up = True
        self.paused = False
        self._waiting: list[Callable[[], None]] = []
        self.lease: Lease | None = None
        self.snapshot: bytes | None = None
        self._skew_ns = random.randrange(-1_000, 1_000) * SECOND
        self._at: dict[bytes, SnapshotId] = {}
        """Epoch and number of each snapshot, stored next to its bytes."""
        self.names = NameStore(self._now, clock)
        self._history: list[tuple[Instant, Lease | None, bytes | None, dict[str, NameEntry]]] = []
        self.granted: dict[tuple[int, str], Instant] = {}
        """For each epoch, the true time at which its lease expires."""

    def _now(self) -> Instant:
        return Instant(self._clock() + self._skew_ns + 2_000 * SECOND)

    def receive(self, action: Callable[[], None]) -> None:
        """Handle a message that has reached the store."""
        if self.paused:
            self._waiting.append(action)
        elif self.up:
            action()

    def claim(self, claim: Claim) -> Lease:
        self.lease = claim_lease(self.lease, claim, self._now())
        if self.lease.epoch == claim.epoch:
            key = (claim.epoch.number, claim.epoch.id)
            self.granted[key] = after(self._clock(), claim.duration_ns)
        self._save_history()
        return self.lease

    def release(self, epoch: Epoch) -> None:
        self.lease = release_lease(self.lease, epoch, self._now())
        self._save_history()

    def write(self, written: bytes, at: SnapshotId) -> SnapshotId:
        """Write a snapshot unless the store has a newer one. Return the snapshot that the store then holds."""
        held = self._at.get(self.snapshot or b"")
        if held is not None and (held.epoch, held.number) > (at.epoch, at.number):
            return held
        self.snapshot, self._at[written] = written, at
        self._save_history()
        return at

    def _save_history(self) -> None:
        self._history.append((self._clock(), self.lease, self.snapshot, dict(self.names.entries)))
        del self._history[:-200]

    # Faults

    def inject(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.STORE_PAUSE:
                self.paused = True
            case Kind.LEASE_LOST:
                self.lease = None
            case Kind.CLOCK_STEP:
                self._step(fault.degree)
            case _:
                self.up = False

    def end_fault(self, fault: Fault) -> None:
        if fault.kind is Kind.STORE_PAUSE:
            self.paused = False
            waiting, self._waiting = self._waiting, []
            for action in waiting:
                self.receive(action)
            return
        if fault.kind is Kind.CLOCK_STEP:
            self._step(-fault.degree)
            return
        self.up = True
        if fault.kind is Kind.STORE_EMPTY:
            self.lease = self.snapshot = None
            self.names.lose({})
        elif fault.kind is Kind.STORE_STALE:
            then = self._clock() - fault.lasts_ns - _STALE_NS
            old = [each for each in self._history if each[0] <= then]
            self.lease, self.snapshot, names = old[-1][1:] if old else (None, None, {})
            self.names.lose(names)

    def _step(self, hours: int) -> None:
        """Step the clock. A step forward expires all names."""
        self._skew_ns += hours * HOUR_NS
        if hours > 0:
            self.names.lose({})
        else:
            self.names.clock_set_back()


class StoreLink:
    """The link between one process and the store, in both directions."""

    def __init__(self, name: str, timeline: Timeline, clock: Callable[[], Instant], random: Random) -> None:
        self.name = name
        self._timeline = timeline
        self._clock = clock
        self._random = random
        self.faults: list[Fault] = []

    def active_fault(self, kind: Kind) -> Fault | None:
        return next((each for each in self.faults if each.kind is kind), None)

    def deliver(self, action: Callable[[], None], *, outward: bool) -> None:
        """Deliver a message to the other end of the link, subject to the current faults."""
        if not self.faults:
            self._timeline.schedule(
                after(self._clock(), Duration(self._random.randrange(100_000, 1_000_000))), _do, action
            )
            return
        if self.active_fault(Kind.PARTITION) or self.active_fault(Kind.MUTE if outward else Kind.DEAF):
            return
        random = self._random
        if (loss := self.active_fault(Kind.LOSS)) is not None and random.randrange(100) < loss.degree:
            return
        times = 1
        if (again := self.active_fault(Kind.REPETITION)) is not None and random.randrange(100) < again.degree:
            times = 2
        for _ in range(times):
            self._timeline.schedule(after(self._clock(), self._delay()), _do, action)

    def _delay(self) -> Duration:
        random = self._random
        delay = random.randrange(100_000, 1_000_000)
        if (late := self.active_fault(Kind.DELAY)) is not None:
            delay += random.randrange(late.degree * MILLISECOND)
        if (mixed := self.active_fault(Kind.REORDERING)) is not None and random.randrange(100) < mixed.degree:
            delay += random.randrange(400 * MILLISECOND)
        return Duration(delay)


def _do(action: Callable[[], None]) -> None:
    action()


def affects(fault: Fault, name: str, scheduler: str | None) -> bool:
    return fault.target in (name, ALL_PROCESSES) or (fault.target == SCHEDULER and scheduler == name)
