"""GPU-hours that each autoscaler needs for the same attainment.

Each autoscaler has a target that trades GPU-hours against attainment. A sweep over its targets gives a curve. The
curves are compared at the attainment of one Headgate point, the cheapest one that reaches the SLO. The other
autoscalers' GPU-hours at that attainment are interpolated between neighbouring targets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.cli import print_progress
from bench.scaling.baselines import QueueDepth, RequestRate, Utilisation
from bench.scaling.demand import Step, Window, demand, read_windows
from bench.scaling.fluid import Outcome, Scaler, run
from bench.scaling.headgate_scaler import HeadgateScaler
from bench.scaling.oracle import SLO, cheapest_for_attainment, oracle
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B, EngineProfile

PROFILE: Final = RTXPRO6000_LLAMA_8B
TRACES: Final = {"m-large": 1.0, "m-mid": 0.25, "m-small": 1.0}
"""Multiplier for every client's request rate. With it, each trace needs ten to thirteen endpoints on average."""
COLD_STARTS_S: Final = (0, 30, 60, 120, 300)
USUAL_COLD_START_S: Final = 120
OURS: Final = "headgate"
SPARE: Final = 2
"""Maximum fleet size as a multiple of the oracle's peak."""


@dataclass(frozen=True, slots=True)
class Days:
    """Fourteen days of one trace."""

    trace: str
    windows: Sequence[Window]
    steps: Sequence[Step]
    profile: EngineProfile = PROFILE

    @property
    def rate_each(self) -> float:
        """Mean capacity of one endpoint over all days, in requests per second."""
        return sum(each.rate for each in self.windows) / sum(each.work for each in self.windows)


@dataclass(frozen=True, slots=True)
class Point:
    target: float
    attainment: float
    gpu_hours: float
    starts: int


@dataclass(frozen=True, slots=True)
class ScalerKind:
    """One type of autoscaler."""

    what: str
    """Description of the target."""
    targets: Sequence[float]
    make: Callable[[float, Days, int], Scaler]
    """Creates the autoscaler from its target, the days and the maximum number of endpoints."""


KINDS: Final[Mapping[str, ScalerKind]] = {
    OURS: ScalerKind(
        "load in percent",
        (70, 85, 100, 105, 110, 115),
        lambda target, days, most: HeadgateScaler(round(target), days.profile, endpoints_max=most),
    ),
    "utilisation": ScalerKind(
        "share of endpoint capacity",
        (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.905),
        lambda target, _days, _most: Utilisation(target),
    ),
    "request rate": ScalerKind(
        "requests per second per endpoint, as a fraction of the mean endpoint capacity",
        (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
        lambda target, days, _most: RequestRate(target * days.rate_each),
    ),
    "queue depth": ScalerKind(
        "requests waiting per endpoint",
        (0.1, 0.3, 1, 3, 10, 30),
        lambda target, _days, _most: QueueDepth(target),
    ),
    "open requests": ScalerKind(
        "requests waiting or running per endpoint",
        (10, 15, 20, 30, 40, 60, 80),
        lambda target, _days, _most: QueueDepth(target, with_running=True),
    ),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    trace: str
    cold_start_s: int
    oracle: Outcome
    trading_hours: float
    """GPU-hours of the trading oracle at Headgate's attainment."""
    curves: Mapping[str, Sequence[Point]]
    ours: Point

    def over_oracle(self, gpu_hours: float) -> float:
        return gpu_hours / self.oracle.gpu_hours

    @property
    def hours_at_our_attainment(self) -> dict[str, float | None]:
        """GPU-hours of each other autoscaler at Headgate's attainment; None if no target reaches it."""
        return {name: hours_at(self.curves[name], self.ours.attainment) for name in self.curves if name != OURS}

    @property
    def best(self) -> float | None:
        return min((hours for hours in self.hours_at_our_attainment.values() if hours is not None), default=None)


def read_days(data: Path, trace: str, *, seed: int) -> Days:
    windows = read_windows(data, trace, PROFILE, keep=TRACES[trace])
    return Days(trace, windows, demand(windows, seed=seed))


def compare(days: Days, cold_start_s: int, *, kinds: Mapping[str, ScalerKind] = KINDS) -> Comparison:
    least = oracle(days.windows, cold_start_s=cold_start_s)
    most = SPARE * max(least.ready)
    curves: dict[str, list[Point]] = {}
    for name, kind in kinds.items():
        curves[name] = []
        for target in kind.targets:
            outcome = run(
                days.steps,
                kind.make(target, days, most),
                days.profile,
                first=least.ready[0],
                endpoints_max=most,
                cold_start_s=cold_start_s,
            )
            curves[name].append(Point(target, outcome.attainment, outcome.gpu_hours, outcome.starts))
        best = max(each.attainment for each in curves[name])
        print_progress(
            f"  {days.trace}, cold start {cold_start_s} s: {name}, {len(kind.targets)} targets, at best {best:.2%}"
        )
    ours = cheapest_meeting_slo(curves[OURS])
    trader = cheapest_for_attainment(days.windows, cold_start_s=cold_start_s, attainment=ours.attainment)
    return Comparison(days.trace, cold_start_s, least, trader.gpu_hours, curves, ours)


def cheapest_meeting_slo(points: Sequence[Point]) -> Point:
    """The cheapest point that reaches the SLO, or the point with the highest attainment if none reaches it."""
    reaching = [each for each in points if each.attainment >= SLO]
    if reaching:
        return min(reaching, key=lambda each: each.gpu_hours)
    return max(points, key=lambda each: each.attainment)


def hours_at(points: Sequence[Point], attainment: float) -> float | None:
    found = [each.gpu_hours for each in points if each.attainment >= attainment]
    for one, other in pairwise(points):
        if min(one.attainment, other.attainment) < attainment <= max(one.attainment, other.attainment):
            share = (attainment - one.attainment) / (other.attainment - one.attainment)
            found.append(one.gpu_hours + share * (other.gpu_hours - one.gpu_hours))
    return min(found, default=None)
