"""Who needs how many GPU-hours for the same attainment?

Everybody who scales has a target that trades hours against attainment. Each is swept over its own, so that it draws a
curve; and at the attainment of one point of ours the curves of the others are compared: by the least hours on a
straight line between two neighbouring targets. The point of ours is the cheapest that reaches the SLO.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.command import tell
from bench.scaling.baselines import QueueDepth, RequestRate, Utilisation
from bench.scaling.demand import Step, Window, demand, read_windows
from bench.scaling.fluid import Contender, Outcome, run
from bench.scaling.oracle import SLO, oracle, trading
from bench.scaling.ours import Headgate
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B, EngineProfile

PROFILE: Final = RTXPRO6000_LLAMA_8B
TRACES: Final = {"m-large": 1.0, "m-mid": 0.25, "m-small": 1.0}
"""By how much every client's rate is multiplied: all three ask for ten to thirteen endpoints on the mean."""
COLD_STARTS_S: Final = (0, 30, 60, 120, 300)
USUAL_COLD_START_S: Final = 120
OURS: Final = "headgate"
SPARE: Final = 2
"""Nobody may have more than so many times what the oracle has at its peak."""


@dataclass(frozen=True, slots=True)
class Days:
    """The fourteen days of one trace."""

    trace: str
    windows: Sequence[Window]
    steps: Sequence[Step]
    profile: EngineProfile = PROFILE

    @property
    def rate_each(self) -> float:
        """Requests a second that one endpoint can do, on the mean of all days."""
        return sum(each.rate for each in self.windows) / sum(each.work for each in self.windows)


@dataclass(frozen=True, slots=True)
class Point:
    target: float
    attainment: float
    gpu_hours: float
    starts: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of scaling."""

    what: str
    """Its target, in words."""
    targets: Sequence[float]
    make: Callable[[float, Days, int], Contender]
    """By its target, the days, and the most endpoints that there may be."""


KINDS: Final[Mapping[str, Kind]] = {
    OURS: Kind(
        "load, %",
        (70, 85, 100, 105, 110, 115),
        lambda target, days, most: Headgate(round(target), days.profile, endpoints_max=most),
    ),
    "utilisation": Kind(
        "share of what endpoints can do",
        (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.905),
        lambda target, _days, _most: Utilisation(target),
    ),
    "request rate": Kind(
        "requests a second and endpoint, of what it can do on the mean",
        (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
        lambda target, days, _most: RequestRate(target * days.rate_each),
    ),
    "queue depth": Kind(
        "requests waiting per endpoint",
        (0.1, 0.3, 1, 3, 10, 30),
        lambda target, _days, _most: QueueDepth(target),
    ),
    "open requests": Kind(
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
    """Of the oracle that may choose whom to miss, at the attainment of our point."""
    curves: Mapping[str, Sequence[Point]]
    ours: Point

    def over_oracle(self, gpu_hours: float) -> float:
        return gpu_hours / self.oracle.gpu_hours

    @property
    def at_ours(self) -> dict[str, float | None]:
        """What each of the others needs for the attainment of our point; None where it reaches it at no target."""
        return {name: hours_at(self.curves[name], self.ours.attainment) for name in self.curves if name != OURS}

    @property
    def best(self) -> float | None:
        return min((hours for hours in self.at_ours.values() if hours is not None), default=None)


def read_days(data: Path, trace: str, *, seed: int) -> Days:
    windows = read_windows(data, trace, PROFILE, keep=TRACES[trace])
    return Days(trace, windows, demand(windows, seed=seed))


def compared(days: Days, cold_start_s: int, *, kinds: Mapping[str, Kind] = KINDS) -> Comparison:
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
        tell(f"  {days.trace}, cold start {cold_start_s} s: {name} at {len(kind.targets)} targets, at best {best:.2%}")
    ours = chosen(curves[OURS])
    trader = trading(days.windows, cold_start_s=cold_start_s, attainment=ours.attainment)
    return Comparison(days.trace, cold_start_s, least, trader.gpu_hours, curves, ours)


def chosen(points: Sequence[Point]) -> Point:
    """The cheapest that reaches the SLO; where none does, the one that comes nearest."""
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
