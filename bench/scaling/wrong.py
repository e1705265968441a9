"""What does a wrong engine profile cost, if measured attainment corrects the want?

The autoscaler is given the predicted work of a profile whose times are all wrong by the same factor. Without the
correction it would keep as many endpoints too many or too few for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.command import tell
from bench.scaling.compare import SPARE, USUAL_COLD_START_S, Days
from bench.scaling.fluid import run
from bench.scaling.oracle import oracle
from bench.scaling.ours import Headgate

WORK_PERCENTS: Final = (100, 130, 70)
"""Predicted work in percent of the real one: a right profile, one that is too slow and one that is too fast."""
RIGHT: Final = 100
LOAD_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class Corrected:
    """Fourteen days with a profile that is wrong by this much."""

    trace: str
    work_percent: int
    attainment: float
    over_oracle: float
    """GPU-hours over the oracle's."""
    factor: float
    """By which the predicted work is multiplied in the end."""


def corrected(days: Days, *, percents: Sequence[int] = WORK_PERCENTS) -> list[Corrected]:
    least = oracle(days.windows, cold_start_s=USUAL_COLD_START_S)
    most = SPARE * max(least.ready)
    found: list[Corrected] = []
    for percent in percents:
        ours = Headgate(LOAD_PERCENT, days.profile, endpoints_max=most, work_percent=percent, corrects=True)
        outcome = run(
            days.steps,
            ours,
            days.profile,
            first=least.ready[0],
            endpoints_max=most,
            cold_start_s=USUAL_COLD_START_S,
        )
        over = outcome.gpu_hours / least.gpu_hours
        found.append(Corrected(days.trace, percent, outcome.attainment, over, ours.factor))
        tell(f"  {days.trace}, predicted work {percent} % of the real one: {outcome.attainment:.2%} at {over:.3f}")
    return found
