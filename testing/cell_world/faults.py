"""Random faults for one run, drawn from the seed.

A run has a few faults of any kind, some of them concurrent. Each affects a process, the store or the current scheduler.
All faults end by `CALM_AT`.
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
    """`degree` percent of the messages to and from this process are lost."""
    REPETITION = "repetition"
    REORDERING = "reordering"
    DELAY = "delay"
    PARTITION = "partition"
    DEAF = "deaf"
    """The process receives no messages, but the messages it sends arrive."""
    MUTE = "mute"
    PAUSE = "pause"
    """The process pauses and, when it resumes, handles the messages that have arrived in the meantime."""
    CRASH = "crash"
    """The process dies, loses its state and restarts when the fault ends."""
    STORE_PAUSE = "store pause"
    STORE_CRASH = "store crash"
    """The store restarts with all its data."""
    STORE_EMPTY = "store empty"
    STORE_STALE = "store stale"
    LEASE_LOST = "lease lost"
    """The store loses only the scheduler's lease, so two schedulers may run at the same time."""
    POLICY = "policy"
    """The processes read a new policy one after another."""
    RESTART = "restart"
    """The process shuts down gracefully, at the latest when the fault ends, and starts again."""
    DAMAGE = "damage"
    """`degree` percent of the entries that this process sends are damaged in transit."""
    LIES = "lies"
    """`degree` percent of this process's entries have false content. The process restarts afterwards."""
    SKEW = "skew"
    """The process's protocol version is off by one or two. If it is off by two, others cannot read its messages."""
    CLOCK_STEP = "clock step"
    """The wall clock of the store, or of a process that restarts, jumps by one hour."""
    TWIN = "twin"
    """A second process starts with the same name and is killed when the fault ends."""
    SECOND_CELL = "second cell"
    """A second cell starts with the cell's name in the same store and is killed when the fault ends."""


SCHEDULER: Final = "the scheduler"
STORE: Final = "the store"
ALL_PROCESSES: Final = "everybody"

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
"""Kinds drawn by a separate random generator, so that they do not change the other faults for a seed."""
DUPLICATES: Final = (Kind.TWIN, Kind.SECOND_CELL)
"""Kinds drawn by a third random generator, for the same reason."""
_PLAIN: Final = tuple(kind for kind in Kind if kind not in (*HOSTILE, *DUPLICATES))


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    target: str
    at: Instant
    lasts_ns: Duration
    degree: int = 0
    """Strength of the fault: a percentage of messages, milliseconds, a version difference, the size of a clock step in
    hours, or a variant of the second cell.
    """

    @property
    def over(self) -> Instant:
        return Instant(self.at + self.lasts_ns)


def draw_faults(seed: int, names: list[str]) -> list[Fault]:
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
                target = ALL_PROCESSES
        else:
            target = ALL_PROCESSES if kind is Kind.POLICY else STORE
        if faults and random.random() < 0.3:
            # Overlapping faults find more bugs than separate ones.
            at = Instant(
                min(CALM_AT - lasts, max(FAULTS_FROM, faults[-1].at + random.randrange(-300, 300) * MILLISECOND))
            )
        degree = random.choice((5, 20, 50, 90)) if kind is not Kind.DELAY else random.choice((20, 200, 700))
        faults.append(Fault(kind, target, at, lasts, degree))
        if kind is Kind.LEASE_LOST and random.random() < 0.6:
            # The scheduler does not notice that it has lost the lease.
            faults.append(Fault(random.choice((Kind.PAUSE, Kind.PARTITION, Kind.DELAY)), SCHEDULER, at, lasts, 700))
    return sorted(faults, key=lambda fault: fault.at)


def draw_hostile_faults(seed: int, names: list[str]) -> list[Fault]:
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


def draw_duplicate_faults(seed: int, names: list[str]) -> list[Fault]:
    random = Random(f"{seed} doubles drawn")
    faults: list[Fault] = []
    for kind, share in ((Kind.TWIN, 0.4), (Kind.SECOND_CELL, 0.2)):
        if random.random() < share:
            at = Instant(random.randrange(FAULTS_FROM, CALM_AT - 3 * SECOND))
            lasts = Duration(random.randrange(SECOND, CALM_AT - SECOND - at))
            target = random.choice(names) if kind is Kind.TWIN else ALL_PROCESSES
            faults.append(Fault(kind, target, at, lasts, random.randrange(4)))
            if kind is Kind.SECOND_CELL and random.random() < 0.5:
                # Crash the scheduler so that a process from the second cell can take over.
                faults.append(Fault(Kind.CRASH, SCHEDULER, Instant(at + lasts // 3), Duration(lasts // 3)))
    return faults
