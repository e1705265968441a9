"""Which stage of a request took longer than it may, and which one spent the time of one that came too late?

Late is what the objectives of a class call so (`meters.py`): both begin when the scheduler is told of the request, and
a stream that was not served at all is late for its first token.

Lengths are in whatever unit the stages are given in; budgets are in nanoseconds, and `unit` says how many of these one
of the others is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.model.outcome import Outcome
from headgate.model.stage import SINCE_ARRIVAL, TO_FIRST_TOKEN, Stage
from headgate.model.units import Duration
from headgate.telemetry.counts import NOT_SERVED

Piece = tuple[Stage, int | None, int, int]
"""As `stage_times` gives them: stage, attempt, begin and end."""
Times = Iterable[Piece]


class Goal(StrEnum):
    """What a request can be too late for."""

    TTFT = "ttft"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class ClassBudget:
    """What is allowed to requests of one class; None and absent where nothing is said."""

    stages: Mapping[Stage, Duration] = field(default_factory=dict[Stage, Duration])
    ttft_ns: Duration | None = None
    """Of streams."""
    duration_ns: Duration | None = None
    """Of requests that completed."""

    @property
    def says_nothing(self) -> bool:
        return not self.stages and self.ttft_ns is None and self.duration_ns is None


NOTHING_SAID = ClassBudget()


@dataclass(frozen=True, slots=True)
class Spending:
    """Where the time of one request went."""

    lengths: Mapping[Stage, int]
    """Of each stage that it went through, over all attempts."""
    over: tuple[Stage, ...]
    """Those that took longer than they may."""
    late: Mapping[Goal, Stage]
    """What it was too late for, and the stage that took the most of that time; of a stream that was not served the one
    in which it ended."""


def spending(times: Times, budget: ClassBudget, *, stream: bool, outcome: str | None, unit: int = 1) -> Spending:
    pieces = list(times)
    lengths = sums(pieces)
    over = tuple(stage for stage, length in lengths.items() if length * unit > budget.stages.get(stage, length * unit))
    late: dict[Goal, Stage] = {}
    arrived = [piece for piece in pieces if piece[0] in SINCE_ARRIVAL]
    allowed = budget.ttft_ns if stream else None
    if allowed is not None and (spender := _spent_to_first_token(arrived, outcome, allowed // unit)) is not None:
        late[Goal.TTFT] = spender
    if outcome == Outcome.COMPLETED and arrived and budget.duration_ns is not None:
        whole = arrived[-1][3] - arrived[0][2]
        if whole * unit > budget.duration_ns:
            late[Goal.DURATION] = _most(sums(arrived))
    return Spending(lengths, over, late)


def _spent_to_first_token(arrived: Sequence[Piece], outcome: str | None, allowed: int) -> Stage | None:
    """The stage by which a stream was late for its first token; None where it was not."""
    before = [piece for piece in arrived if piece[0] in TO_FIRST_TOKEN]
    if not before:
        return None
    # An answer that came at once takes no time to decode.
    if outcome == Outcome.COMPLETED or any(stage is Stage.DECODE for stage, *_ in arrived):
        return _most(sums(before)) if before[-1][3] - before[0][2] > allowed else None
    return _last(before) if outcome in NOT_SERVED else None


def _last(before: Sequence[Piece]) -> Stage:
    """The way back from where it ended is not what ended it."""
    return next((stage for stage, *_ in reversed(before) if stage is not Stage.ROUTE), Stage.ROUTE)


def sums(pieces: Times) -> dict[Stage, int]:
    """Of each stage what it took altogether."""
    lengths: dict[Stage, int] = {}
    for stage, _, begin, end in pieces:
        lengths[stage] = lengths.get(stage, 0) + end - begin
    return lengths


def _most(lengths: Mapping[Stage, int]) -> Stage:
    return max(lengths, key=lengths.__getitem__)
