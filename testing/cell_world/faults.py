"""What goes wrong in one run, and when?

Drawn from the seed: a handful of faults of all kinds, some at the same time, aimed at any process, at the store or at
whoever is the scheduler at that moment. All are over at `CALM_AT`.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from headgate.model.units import MILLISECOND, SECOND, Duration, Instant

FAULTS_FROM: Final = Instant(1_500 * MILLISECOND)
CALM_AT: Final = Instant(8 * SECOND)


class Kind(StrEnum):
    LOSS = "loss"
    """Of what this process sends or is sent, so many in a hundred are lost."""
    REPETITION = "repetition"
    REORDERING = "reordering"
    DELAY = "delay"
    PARTITION = "partition"
    DEAF = "deaf"
    """Nothing reaches it, what it says is heard."""
    MUTE = "mute"
    PAUSE = "pause"
    """It stands still; what was sent to it is waiting when it goes on."""
    CRASH = "crash"
    """It dies, with all that it held, and starts again when the fault is over."""
    STORE_PAUSE = "store pause"
    STORE_CRASH = "store crash"
    """It comes back with all that it had."""
    STORE_EMPTY = "store empty"
    STORE_STALE = "store stale"
    LEASE_LOST = "lease lost"
    """The store forgets who is the scheduler, and nothing else: two of them at once."""
    POLICY = "policy"
    """New rules are read by one process after the other."""
    RESTART = "restart"
    """It leaves in peace, ending what it has, at the latest when the fault is over, and starts again."""
    DAMAGE = "damage"
    """`degree` percent of the entries that this process sends are damaged in transit."""
    LIES = "lies"
    """`degree` percent of the entries of this process have false content. The process is restarted afterwards."""
    SKEW = "skew"
    """The process uses a protocol version that is one apart, or two apart and unreadable for the other processes."""
    CLOCK_STEP = "clock step"
    """The wall clock of the store, or of a process that is restarted, steps by one hour."""
    TWIN = "twin"
    """A second process starts under the same name and is killed when the fault is over."""
    SECOND_CELL = "second cell"
    """A second cell starts under the name of the cell in the same store and is killed when the fault is over."""


SCHEDULER: Final = "the scheduler"
STORE: Final = "the store"
EVERYBODY: Final = "everybody"

_AT_PROCESS: Final = (
    Kind.LOSS,
    Kind.REPETITION,
    Kind.REORDERING,
    Kind.DELAY,
    Kind.PARTITION,
    Kind.DEAF,
    Kind.MUTE,
    Kind.PAUSE,
    Kind.CRASH,
    Kind.RESTART,
)


HOSTILE: Final = (Kind.DAMAGE, Kind.LIES, Kind.SKEW, Kind.CLOCK_STEP)
"""Drawn by a separate generator, so that they do not change the other faults of a seed."""
DOUBLES: Final = (Kind.TWIN, Kind.SECOND_CELL)
"""Drawn by a separate generator as well."""
_PLAIN: Final = tuple(kind for kind in Kind if kind not in (*HOSTILE, *DOUBLES))


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    target: str
    at: Instant
    lasts_ns: Duration
    degree: int = 0
    """Percentage of messages, milliseconds, version difference, hours of a clock step, or kind of second cell."""

    @property
    def over(self) -> Instant:
        return Instant(self.at + self.lasts_ns)


def drawn(seed: int, names: list[str]) -> list[Fault]:
    random = Random(f"{seed} faults")
    faults: list[Fault] = []
    for _ in range(random.choice((1, 1, 2, 2, 3, 4, 6))):
        kind = random.choice(_PLAIN)
        at = Instant(random.randrange(FAULTS_FROM, CALM_AT - SECOND))
        longest = min(CALM_AT - at, 6 * SECOND)
        lasts = Duration(random.randrange(100 * MILLISECOND, longest))
        if kind in _AT_PROCESS:
            target = random.choice([*names, SCHEDULER, SCHEDULER])
            if kind in (Kind.LOSS, Kind.REPETITION, Kind.REORDERING, Kind.DELAY) and random.random() < 0.5:
                target = EVERYBODY
        else:
            target = EVERYBODY if kind is Kind.POLICY else STORE
        if faults and random.random() < 0.3:
            # What goes wrong together is worse than what goes wrong one by one.
            at = Instant(
                min(CALM_AT - lasts, max(FAULTS_FROM, faults[-1].at + random.randrange(-300, 300) * MILLISECOND))
            )
        degree = random.choice((5, 20, 50, 90)) if kind is not Kind.DELAY else random.choice((20, 200, 700))
        faults.append(Fault(kind, target, at, lasts, degree))
        if kind is Kind.LEASE_LOST and random.random() < 0.6:
            # The scheduler does not notice that it has lost the lease.
            faults.append(Fault(random.choice((Kind.PAUSE, Kind.PARTITION, Kind.DELAY)), SCHEDULER, at, lasts, 700))
    return sorted(faults, key=lambda fault: fault.at)


def drawn_hostile(seed: int, names: list[str]) -> list[Fault]:
    random = Random(f"{seed} hostile")
    faults: list[Fault] = []
    for kind in random.sample(HOSTILE, random.choice((1, 1, 2))):
        at = Instant(random.randrange(FAULTS_FROM, CALM_AT - SECOND))
        lasts = Duration(random.randrange(100 * MILLISECOND, min(CALM_AT - at, 6 * SECOND)))
        targets = [*names, STORE, STORE] if kind is Kind.CLOCK_STEP else names
        degree = random.choice((-1, 1, 2)) if kind is Kind.SKEW else random.choice((5, 20, 50, 90))
        if kind is Kind.CLOCK_STEP:
            degree = random.choice((-1, 1))
        faults.append(Fault(kind, random.choice(targets), at, lasts, degree))
    return faults


def drawn_doubles(seed: int, names: list[str]) -> list[Fault]:
    random = Random(f"{seed} doubles drawn")
    faults: list[Fault] = []
    for kind, share in ((Kind.TWIN, 0.4), (Kind.SECOND_CELL, 0.2)):
        if random.random() < share:
            at = Instant(random.randrange(FAULTS_FROM, CALM_AT - 3 * SECOND))
            lasts = Duration(random.randrange(SECOND, CALM_AT - SECOND - at))
            target = random.choice(names) if kind is Kind.TWIN else EVERYBODY
            faults.append(Fault(kind, target, at, lasts, random.randrange(4)))
            if kind is Kind.SECOND_CELL and random.random() < 0.5:
                # Lets a process of the second cell become the scheduler.
                faults.append(Fault(Kind.CRASH, SCHEDULER, Instant(at + lasts // 3), Duration(lasts // 3)))
    return faults
