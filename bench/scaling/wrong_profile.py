"""Measures the effect of a wrong engine profile when the replica count is corrected by measured attainment.

The autoscaler gets the work predicted by a profile whose times are all off by the same factor. Without the correction
the fleet would stay too large or too small by that factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.cli import print_progress
from bench.scaling.compare import SPARE, USUAL_COLD_START_S, Days
from bench.scaling.fluid import run
from bench.scaling.headgate_scaler import HeadgateScaler
from bench.scaling.oracle import oracle

WORK_PERCENTS: Final = (100, 130, 70)
"""Predicted work as a percentage of the actual work, for profiles that are accurate, too slow and too fast."""
RIGHT: Final = 100
LOAD_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class CorrectedRun:
    """Result of running fourteen days with a wrong profile."""

    trace: str
    work_percent: int
    attainment: float
    over_oracle: float
    """GPU-hours relative to the oracle."""
    factor: float
    """Correction factor for the predicted work at the end of the run."""


def corrected_runs(days: Days, *, percents: Sequence[int] = WORK_PERCENTS) -> list[CorrectedRun]:
    least = oracle(days.windows, cold_start_s=USUAL_COLD_START_S)
    most = SPARE * max(least.ready)
    found: list[CorrectedRun] = []
    for percent in percents:
        ours = HeadgateScaler(LOAD_PERCENT, days.profile, endpoints_max=most, work_percent=percent, corrects=True)
        outcome = run(
            days.steps,
            ours,
            days.profile,
            first=least.ready[0],
            endpoints_max=most,
            cold_start_s=USUAL_COLD_START_S,
        )
        over = outcome.gpu_hours / least.gpu_hours
        found.append(CorrectedRun(days.trace, percent, outcome.attainment, over, ours.factor))
        print_progress(
            f"  {days.trace}, predicted work {percent} % of actual: attainment {outcome.attainment:.2%}, "
            f"GPU-hours relative to oracle {over:.3f}"
        )
    return found
