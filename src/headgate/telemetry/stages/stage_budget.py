"""Compares the stages of a request with the time budgets of its class.

The result lists the stages that exceeded their budgets and, for a late request, the stage that made it late. A request
is late if it missed a target of its class (`meters.py`). Both targets start when the scheduler receives the request,
and a stream that was never served counts as late for its first token.

Durations are in the same unit as the given stages. Budgets are in nanoseconds; `unit` is the number of nanoseconds per
unit of the stages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.model.outcome import Outcome
from headgate.model.stage import STAGES_SINCE_ARRIVAL, STAGES_TO_FIRST_TOKEN, Stage
from headgate.model.units import Duration
from headgate.telemetry.meter_types import UNAVAILABLE_OUTCOMES

StageInterval = tuple[Stage, int | None, int, int]
"""Stage, attempt, begin and end, as returned by `stage_times`."""
Times = Iterable[StageInterval]


class LatencyTarget(StrEnum):
    """Latency target that a request can miss."""

    TTFT = "ttft"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class ClassStageBudget:
    """One class's time budgets. A missing or None budget means unlimited."""

    stages: Mapping[Stage, Duration] = field(default_factory=dict[Stage, Duration])
    ttft_ns: Duration | None = None
    """Target for the first token of a stream."""
    duration_ns: Duration | None = None
    """Target for the total duration of a completed request."""

    @property
    def is_empty(self) -> bool:
        return not self.stages and self.ttft_ns is None and self.duration_ns is None


NO_STAGE_BUDGET = ClassStageBudget()


@dataclass(frozen=True, slots=True)
class StageBreakdown:
    """Breakdown of the time spent on one request."""

    durations: Mapping[Stage, int]
    """Duration of each stage, summed over all attempts."""
    over_budget: tuple[Stage, ...]
    """Stages that exceeded their budget."""
    missed_targets: Mapping[LatencyTarget, Stage]
    """For each missed target, the stage that took the most time. If a stream was not served, this is the stage in which
    it ended.
    """


def stage_breakdown(
    times: Times, budget: ClassStageBudget, *, stream: bool, outcome: str | None, unit: int = 1
) -> StageBreakdown:
    pieces = list(times)
    lengths = stage_totals(pieces)
    over = tuple(stage for stage, length in lengths.items() if length * unit > budget.stages.get(stage, length * unit))
    late: dict[LatencyTarget, Stage] = {}
    arrived = [piece for piece in pieces if piece[0] in STAGES_SINCE_ARRIVAL]
    allowed = budget.ttft_ns if stream else None
    if allowed is not None and (spender := _ttft_culprit(arrived, outcome, allowed // unit)) is not None:
        late[LatencyTarget.TTFT] = spender
    if outcome == Outcome.COMPLETED and arrived and budget.duration_ns is not None:
        whole = arrived[-1][3] - arrived[0][2]
        if whole * unit > budget.duration_ns:
            late[LatencyTarget.DURATION] = _longest_stage(stage_totals(arrived))
    return StageBreakdown(lengths, over, late)


def _ttft_culprit(arrived: Sequence[StageInterval], outcome: str | None, allowed: int) -> Stage | None:
    """The stage that made a stream late for its first token; None if it was not late."""
    before = [piece for piece in arrived if piece[0] in STAGES_TO_FIRST_TOKEN]
    if not before:
        return None
    # A response whose tokens all arrive at the same time has no decode stage.
    if outcome == Outcome.COMPLETED or any(stage is Stage.DECODE for stage, *_ in arrived):
        return _longest_stage(stage_totals(before)) if before[-1][3] - before[0][2] > allowed else None
    return _ending_stage(before) if outcome in UNAVAILABLE_OUTCOMES else None


def _ending_stage(before: Sequence[StageInterval]) -> Stage:
    """Last stage other than ROUTE, which only returns the rejection."""
    return next((stage for stage, *_ in reversed(before) if stage is not Stage.ROUTE), Stage.ROUTE)


def stage_totals(pieces: Times) -> dict[Stage, int]:
    """Total duration of each stage."""
    lengths: dict[Stage, int] = {}
    for stage, _, begin, end in pieces:
        lengths[stage] = lengths.get(stage, 0) + end - begin
    return lengths


def _longest_stage(lengths: Mapping[Stage, int]) -> Stage:
    return max(lengths, key=lengths.__getitem__)
