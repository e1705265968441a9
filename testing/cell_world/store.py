"""What does the store of a simulated cell do, and on which way do messages reach it?

A store carries entries and keeps a lease and a snapshot. While it is down what is sent to it is lost; while it is
paused that waits. Between each process and the store is a way with a delay of its own, which loses, repeats, reorders
and holds up as the faults of the moment say.
"""

from collections.abc import Callable
from random import Random

from headgate.hosts.cell.protocol.lease import Claim, claimed, released
from headgate.hosts.cell.protocol.messages import Epoch, Lease, Snapshots
from headgate.hosts.cell.protocol.names import NameEntry
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after
from headgate.simulation.virtual.timeline import Timeline
from testing.cell_world.faults import EVERYBODY, SCHEDULER, Fault, Kind
from testing.cell_world.names import NameStore

HOUR_NS = Duration(3_600 * SECOND)
_STALE_NS = Duration(3 * SECOND)
"""How old the copy is from which a store comes back that has lost the latest."""


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
        self._at: dict[bytes, Snapshots] = {}
        """Epoch and number of each snapshot, which the store keeps beside its bytes."""
        self.names = NameStore(self._now, clock)
        self._history: list[tuple[Instant, Lease | None, bytes | None, dict[str, NameEntry]]] = []
        self.granted: dict[tuple[int, str], Instant] = {}
        """Until when each epoch has had the lease, by the true time."""

    def _now(self) -> Instant:
        return Instant(self._clock() + self._skew_ns + 2_000 * SECOND)

    def reach(self, action: Callable[[], None]) -> None:
        """Something has come to the store."""
        if self.paused:
            self._waiting.append(action)
        elif self.up:
            action()

    def claim(self, claim: Claim) -> Lease:
        self.lease = claimed(self.lease, claim, self._now())
        if self.lease.epoch == claim.epoch:
            key = (claim.epoch.number, claim.epoch.id)
            self.granted[key] = after(self._clock(), claim.lasts_ns)
        self._remember()
        return self.lease

    def release(self, epoch: Epoch) -> None:
        self.lease = released(self.lease, epoch, self._now())
        self._remember()

    def write(self, written: bytes, at: Snapshots) -> Snapshots:
        """Writes a snapshot unless there is a newer one; returns the one that is there afterwards."""
        held = self._at.get(self.snapshot or b"")
        if held is not None and (held.epoch, held.number) > (at.epoch, at.number):
            return held
        self.snapshot, self._at[written] = written, at
        self._remember()
        return at

    def _remember(self) -> None:
        self._history.append((self._clock(), self.lease, self.snapshot, dict(self.names.entries)))
        del self._history[:-200]

    # Faults

    def befall(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.STORE_PAUSE:
                self.paused = True
            case Kind.LEASE_LOST:
                self.lease = None
            case Kind.CLOCK_STEP:
                self._step(fault.degree)
            case _:
                self.up = False

    def recover(self, fault: Fault) -> None:
        if fault.kind is Kind.STORE_PAUSE:
            self.paused = False
            waiting, self._waiting = self._waiting, []
            for action in waiting:
                self.reach(action)
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
        """Step the clock; entries that expire within these hours are lost."""
        self._skew_ns += hours * HOUR_NS
        if hours > 0:
            self.names.lose({})
        else:
            self.names.set_back()


class Way:
    """Between one process and the store, in both directions."""

    def __init__(self, name: str, timeline: Timeline, clock: Callable[[], Instant], random: Random) -> None:
        self.name = name
        self._timeline = timeline
        self._clock = clock
        self._random = random
        self.faults: list[Fault] = []

    def concerned(self, kind: Kind) -> Fault | None:
        return next((each for each in self.faults if each.kind is kind), None)

    def carry(self, action: Callable[[], None], *, outward: bool) -> None:
        """Brings something to the other end, or not."""
        if not self.faults:
            self._timeline.at(after(self._clock(), Duration(self._random.randrange(100_000, 1_000_000))), _do, action)
            return
        if self.concerned(Kind.PARTITION) or self.concerned(Kind.MUTE if outward else Kind.DEAF):
            return
        random = self._random
        if (loss := self.concerned(Kind.LOSS)) is not None and random.randrange(100) < loss.degree:
            return
        times = 1
        if (again := self.concerned(Kind.REPETITION)) is not None and random.randrange(100) < again.degree:
            times = 2
        for _ in range(times):
            self._timeline.at(after(self._clock(), self._delay()), _do, action)

    def _delay(self) -> Duration:
        random = self._random
        delay = random.randrange(100_000, 1_000_000)
        if (late := self.concerned(Kind.DELAY)) is not None:
            delay += random.randrange(late.degree * MILLISECOND)
        if (mixed := self.concerned(Kind.REORDERING)) is not None and random.randrange(100) < mixed.degree:
            delay += random.randrange(400 * MILLISECOND)
        return Duration(delay)


def _do(action: Callable[[], None]) -> None:
    action()


def concerns(fault: Fault, name: str, scheduler: str | None) -> bool:
    return fault.target in (name, EVERYBODY) or (fault.target == SCHEDULER and scheduler == name)
