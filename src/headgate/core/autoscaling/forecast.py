"""Forecasts a pool's demand at the time when an endpoint requested now will be ready.

Several simple forecasters run in parallel. At every step, each of them predicts the demand one lead ahead. The
prediction is later compared with the actual demand. Two values are measured for each forecaster:

- Headroom: the 95th percentile of the amount by which demand exceeded the prediction.
- Loss: the distance between demand and the prediction with headroom. A shortfall weighs nineteen times as much as a
  surplus. The forecaster with the lowest loss is used, and it is replaced only by one that is clearly better.

Demand is in millionths of one endpoint's time. A step is one period of the autoscaler. Known limitation: after the lead
changes, errors measured with the old lead keep their full weight until they decay.
"""

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from headgate.model.units import MINUTE, Duration, Instant

QUANTUM_PPM: Final = 1_000
"""Predictions are rounded to thousandths of an endpoint, so that no decision depends on the last digit."""
HEADROOM_PERCENT_MAX: Final = 100
STEPS_MAX: Final = 720
"""Maximum forecast horizon in steps."""
_FEW_PPM: Final = 50_000
"""Minimum denominator of relative errors: a twentieth of an endpoint."""
_PRIOR_PERCENT: Final = 20
_PRIOR_ERRORS: Final = 30
_PRIOR_TOTAL: Final = 240
"""Prior of the error histogram: `_PRIOR_ERRORS` of `_PRIOR_TOTAL` predictions were `_PRIOR_PERCENT` percent too low."""
_FORGET_AFTER: Final = 8_640
"""Number of recorded errors at which all counts are halved."""
_IN_TWENTY: Final = 19
_LOSS_SHIFT: Final = 9
"""Decay of losses as a bit shift. Losses decay over about five hundred steps."""
_CLEARLY_SHIFT: Final = 4
"""Minimum improvement for switching to another forecaster, as a bit shift: one sixteenth."""
_PEAK_STEPS: Final = 12
_LEVEL_GAIN: Final = 0.25
_TREND_GAIN: Final = 0.05
_DAMPING: Final = 0.96
_MINUTES: Final = 1_440
_UNKNOWN: Final = -1
_DAYS: Final = 14
_NEIGHBOUR_MINUTES: Final = 2
"""Minutes before and after a minute that are averaged with it to reduce noise."""


class Forecaster(Protocol):
    def observe(self, ppm: int, now: Instant) -> None:
        """Records the demand of the step that ends now."""
        ...

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        """Predicts the demand `steps` steps, or `ahead_ns`, after the last observation."""
        ...


class LastValue:
    """Predicts that demand stays the same."""

    __slots__ = ("_ppm",)

    def __init__(self) -> None:
        self._ppm = 0

    def observe(self, ppm: int, now: Instant) -> None:
        self._ppm = ppm

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        return self._ppm


class RecentPeak:
    """Predicts the maximum demand of the last steps."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=_PEAK_STEPS)

    def observe(self, ppm: int, now: Instant) -> None:
        self._last.append(ppm)

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        return max(self._last)


class DampedTrend:
    """Continues the current trend with damping."""

    __slots__ = ("_level", "_reach", "_trend")

    def __init__(self) -> None:
        self._level: float | None = None
        self._trend = 0.0
        self._reach = (0, 0.0)
        """Cached trend factor: (steps ahead, factor)."""

    def observe(self, ppm: int, now: Instant) -> None:
        if self._level is None:
            self._level = float(ppm)
            return
        expected = self._level + _DAMPING * self._trend
        error = ppm - expected
        self._level = expected + _LEVEL_GAIN * error
        self._trend = _DAMPING * self._trend + _TREND_GAIN * error

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        assert self._level is not None, "ahead() called before observe()"
        if self._reach[0] != steps:
            reach, weight = 0.0, 1.0
            for _ in range(steps):
                weight *= _DAMPING
                reach += weight
            self._reach = (steps, reach)
        return max(0, round(self._level + self._reach[1] * self._trend))


class DayProfile:
    """Predicts the usual change for this time of day, averaged over the last two weeks."""

    __slots__ = ("_count", "_days", "_minute", "_ppm", "_profile", "_total")

    def __init__(self) -> None:
        self._profile = array("q", [_UNKNOWN]) * _MINUTES
        self._days = bytearray(_MINUTES)
        self._minute = _UNKNOWN
        self._total = self._count = 0
        self._ppm = 0

    def observe(self, ppm: int, now: Instant) -> None:
        minute = now // MINUTE % _MINUTES
        if minute != self._minute:
            self._close()
            self._minute, self._total, self._count = minute, 0, 0
        self._total += ppm
        self._count += 1
        self._ppm = ppm

    def _close(self) -> None:
        """Adds a minute to the profile once it is over, so that a prediction never uses the current minute."""
        if self._count:
            mean, minute = self._total // self._count, self._minute
            days = self._days[minute] = min(_DAYS, self._days[minute] + 1)
            self._profile[minute] += (mean - self._profile[minute]) // days

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        here = self._around(self._minute)
        there = self._around((self._minute + ahead_ns // MINUTE) % _MINUTES)
        if here is None or there is None:
            return self._ppm
        return max(0, self._ppm + there - here)

    def _around(self, minute: int) -> int | None:
        """Returns the mean over the neighbouring minutes. None if none of them is known."""
        total = known = 0
        for each in range(minute - _NEIGHBOUR_MINUTES, minute + _NEIGHBOUR_MINUTES + 1):
            # The modulo wraps around midnight in both directions.
            if (ppm := self._profile[each % _MINUTES]) != _UNKNOWN:
                total += ppm
                known += 1
        return total // known if known else None


FORECASTERS: Final[Mapping[str, Callable[[], Forecaster]]] = MappingProxyType(
    {"last value": LastValue, "damped trend": DampedTrend, "day profile": DayProfile, "peak": RecentPeak}
)
DEFAULT_FORECASTER: Final = "last value"
"""Forecaster used until something has been measured."""


class ForecastErrors:
    """Histogram of the percentage by which demand exceeded one forecaster's predictions."""

    __slots__ = ("_above", "_counts", "_total", "headroom_percent")

    def __init__(self) -> None:
        self._counts = [0] * (HEADROOM_PERCENT_MAX + 1)
        self._counts[0], self._counts[_PRIOR_PERCENT] = _PRIOR_TOTAL - _PRIOR_ERRORS, _PRIOR_ERRORS
        self._total = _PRIOR_TOTAL
        self._above = 0
        """Number of errors above the headroom."""
        self.headroom_percent = _PRIOR_PERCENT
        """Smallest percentage that covers 95 percent of the errors."""

    def add(self, forecast_ppm: int, actual_ppm: int) -> None:
        lacking = max(0, actual_ppm - forecast_ppm)
        percent = min(HEADROOM_PERCENT_MAX, -(-100 * lacking // max(_FEW_PPM, forecast_ppm)))
        self._counts[percent] += 1
        self._total += 1
        if percent > self.headroom_percent:
            self._above += 1
        if self._total >= _FORGET_AFTER:
            self._forget_half()
        self._settle()

    def _settle(self) -> None:
        # Each error moves the headroom only slightly, so adjusting it step by step is cheaper than recomputing it.
        counts, allowed = self._counts, self._total // (_IN_TWENTY + 1)
        while self._above > allowed:
            self.headroom_percent += 1
            self._above -= counts[self.headroom_percent]
        while self.headroom_percent and self._above + counts[self.headroom_percent] <= allowed:
            self._above += counts[self.headroom_percent]
            self.headroom_percent -= 1

    def _forget_half(self) -> None:
        self._counts = [each // 2 for each in self._counts]
        self._total = sum(self._counts)
        self._above = sum(self._counts[self.headroom_percent + 1 :])


class ScoredForecaster:
    """A forecaster with its measured errors and loss."""

    __slots__ = ("errors", "forecaster", "loss", "name", "pending")

    def __init__(self, name: str) -> None:
        self.name = name
        self.forecaster = FORECASTERS[name]()
        self.errors = ForecastErrors()
        self.loss = 0
        self.pending: deque[tuple[int, int]] = deque(maxlen=STEPS_MAX)
        """Pending predictions as (prediction, prediction with headroom)."""

    def score(self, actual_ppm: int, steps: int) -> None:
        """Scores the prediction for the step that has just been observed, if there is one."""
        said = self.pending
        while len(said) > steps:
            said.popleft()
        if len(said) < steps:
            return
        bare_ppm, with_headroom_ppm = said.popleft()
        self.errors.add(bare_ppm, actual_ppm)
        off = actual_ppm - with_headroom_ppm
        self.loss += (_IN_TWENTY * off if off > 0 else -off) - (self.loss >> _LOSS_SHIFT)

    def predict(self, steps: int, ahead_ns: Duration) -> int:
        ppm = self.forecaster.predict(steps, ahead_ns)
        ppm = (ppm + QUANTUM_PPM // 2) // QUANTUM_PPM * QUANTUM_PPM
        self.pending.append((ppm, ppm * (100 + self.errors.headroom_percent) // 100))
        return ppm


class DemandForecast(NamedTuple):
    ppm: int
    headroom_percent: int
    forecaster: str
    """Name of the forecaster."""


class ForecasterSet:
    """All forecasters of one pool."""

    __slots__ = ("_all", "_chosen")

    def __init__(self) -> None:
        self._all = {name: ScoredForecaster(name) for name in FORECASTERS}
        self._chosen = self._all[DEFAULT_FORECASTER]

    @property
    def forecaster(self) -> str:
        return self._chosen.name

    @property
    def headroom_percent(self) -> int:
        return self._chosen.errors.headroom_percent

    def step(self, ppm: int, now: Instant, *, steps: int, ahead_ns: Duration) -> DemandForecast:
        """Records the demand of this step and returns the forecast `steps` steps ahead.

        The forecaster and its headroom are those chosen before this step. Higher demand therefore never lowers the
        forecast.
        """
        chosen, headroom_percent = self._chosen, self._chosen.errors.headroom_percent
        forecast = DemandForecast(0, headroom_percent, chosen.name)
        for each in self._all.values():
            each.forecaster.observe(ppm, now)
            each.score(ppm, steps)
            said = each.predict(steps, ahead_ns)
            if each is chosen:
                forecast = DemandForecast(said, headroom_percent, chosen.name)
        self._choose()
        return forecast

    def clear_pending(self) -> None:
        """Drops pending predictions after a gap in the observations."""
        for each in self._all.values():
            each.pending.clear()

    def _choose(self) -> None:
        best = min(self._all.values(), key=_loss)
        if best.loss < self._chosen.loss - (self._chosen.loss >> _CLEARLY_SHIFT):
            self._chosen = best


def _loss(tested: ScoredForecaster) -> int:
    return tested.loss
