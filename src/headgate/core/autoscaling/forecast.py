"""How much will be asked of a pool when what is ordered at this moment can serve?

A few simple forecasters run side by side. Each says at every step what it expects one lead ahead; when that moment has
come its word is compared with what was asked in fact. From this follow two things, both measured and not assumed:

- its headroom: by how much demand exceeded its forecast at the lead, in nineteen cases of twenty;
- its loss: how far demand was from its forecast with that headroom, where too little weighs nineteen times as much as
  too much. The one with the least loss is believed, and another only once it is clearly better.

Demand is in millionths of one endpoint's time. Each step is one period of the autoscaler. What is not ideal: the errors
of a lead that has changed since count like those of the present one, until they are forgotten.
"""

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from headgate.model.units import MINUTE, Duration, Instant

QUANTUM_PPM: Final = 1_000
"""A forecast is rounded to thousandths of an endpoint, so that nothing hangs on the last digit of an estimate."""
HEADROOM_PERCENT_MAX: Final = 100
STEPS_MAX: Final = 720
"""No further ahead is anything forecast."""
_FEW_PPM: Final = 50_000
"""An error is seen in relation to what was forecast, and to no less than a twentieth of an endpoint."""
_FIRST_PERCENT: Final = 20
_FIRST_ERRORS: Final = 30
_FIRST_TOTAL: Final = 240
"""What is thought before anything was measured: so many errors of so many percent among so many forecasts."""
_FORGET_AFTER: Final = 8_640
"""When so many errors are remembered, half of them are forgotten."""
_IN_TWENTY: Final = 19
_LOSS_SHIFT: Final = 9
"""Losses are forgotten over some five hundred steps."""
_CLEARLY_SHIFT: Final = 4
"""Better by a sixteenth."""
_PEAK_STEPS: Final = 12
_LEVEL_GAIN: Final = 0.25
_TREND_GAIN: Final = 0.05
_DAMPED: Final = 0.96
_MINUTES: Final = 1_440
_UNKNOWN: Final = -1
_DAYS: Final = 14
_AROUND: Final = 2
"""So many minutes before and after one are looked at with it: a single one is noise."""


class Forecaster(Protocol):
    def observe(self, ppm: int, now: Instant) -> None:
        """So much was asked in the step that ends here."""
        ...

    def ahead(self, steps: int, ahead_ns: Duration) -> int:
        """What will be asked so many steps, which take so long, after the last one that was observed."""
        ...


class LastValue:
    """It goes on as it is."""

    __slots__ = ("_ppm",)

    def __init__(self) -> None:
        self._ppm = 0

    def observe(self, ppm: int, now: Instant) -> None:
        self._ppm = ppm

    def ahead(self, steps: int, ahead_ns: Duration) -> int:
        return self._ppm


class Peak:
    """It is as much as it was at most during the last minutes."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=_PEAK_STEPS)

    def observe(self, ppm: int, now: Instant) -> None:
        self._last.append(ppm)

    def ahead(self, steps: int, ahead_ns: Duration) -> int:
        return max(self._last)


class DampedTrend:
    """It rises or falls as it does, and less and less so."""

    __slots__ = ("_level", "_reach", "_trend")

    def __init__(self) -> None:
        self._level: float | None = None
        self._trend = 0.0
        self._reach = (0, 0.0)
        """So many steps ahead the trend counts so many times."""

    def observe(self, ppm: int, now: Instant) -> None:
        if self._level is None:
            self._level = float(ppm)
            return
        expected = self._level + _DAMPED * self._trend
        error = ppm - expected
        self._level = expected + _LEVEL_GAIN * error
        self._trend = _DAMPED * self._trend + _TREND_GAIN * error

    def ahead(self, steps: int, ahead_ns: Duration) -> int:
        assert self._level is not None, "nothing has been observed"
        if self._reach[0] != steps:
            reach, weight = 0.0, 1.0
            for _ in range(steps):
                weight *= _DAMPED
                reach += weight
            self._reach = (steps, reach)
        return max(0, round(self._level + self._reach[1] * self._trend))


class DayProfile:
    """It changes from here on as it did at this time of the day, on the mean of the last two weeks."""

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
        """A minute enters the profile when it is over, so that a forecast never looks at itself."""
        if self._count:
            mean, minute = self._total // self._count, self._minute
            days = self._days[minute] = min(_DAYS, self._days[minute] + 1)
            self._profile[minute] += (mean - self._profile[minute]) // days

    def ahead(self, steps: int, ahead_ns: Duration) -> int:
        here = self._around(self._minute)
        there = self._around((self._minute + ahead_ns // MINUTE) % _MINUTES)
        if here is None or there is None:
            return self._ppm
        return max(0, self._ppm + there - here)

    def _around(self, minute: int) -> int | None:
        """The mean of the minutes about this one; None where none of them is known."""
        total = known = 0
        for each in range(minute - _AROUND, minute + _AROUND + 1):
            # A negative place counts from the end of the day, as it should.
            if (ppm := self._profile[each % _MINUTES]) != _UNKNOWN:
                total += ppm
                known += 1
        return total // known if known else None


FORECASTERS: Final[Mapping[str, Callable[[], Forecaster]]] = MappingProxyType(
    {"last value": LastValue, "damped trend": DampedTrend, "day profile": DayProfile, "peak": Peak}
)
FIRST: Final = "last value"
"""Who is believed before anything was measured."""


class Errors:
    """By how much demand exceeded what one forecaster had said: a histogram of whole percents."""

    __slots__ = ("_above", "_counts", "_total", "headroom_percent")

    def __init__(self) -> None:
        self._counts = [0] * (HEADROOM_PERCENT_MAX + 1)
        self._counts[0], self._counts[_FIRST_PERCENT] = _FIRST_TOTAL - _FIRST_ERRORS, _FIRST_ERRORS
        self._total = _FIRST_TOTAL
        self._above = 0
        """How many are beyond the headroom."""
        self.headroom_percent = _FIRST_PERCENT
        """The least that covers nineteen in twenty."""

    def add(self, said_ppm: int, was_ppm: int) -> None:
        lacking = max(0, was_ppm - said_ppm)
        percent = min(HEADROOM_PERCENT_MAX, -(-100 * lacking // max(_FEW_PPM, said_ppm)))
        self._counts[percent] += 1
        self._total += 1
        if percent > self.headroom_percent:
            self._above += 1
        if self._total >= _FORGET_AFTER:
            self._forget_half()
        self._settle()

    def _settle(self) -> None:
        # Each error moves the headroom by little, so going there step by step is cheaper than counting anew.
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


class Tested:
    """A forecaster and how well it has done at the lead."""

    __slots__ = ("errors", "forecaster", "loss", "name", "said")

    def __init__(self, name: str) -> None:
        self.name = name
        self.forecaster = FORECASTERS[name]()
        self.errors = Errors()
        self.loss = 0
        self.said: deque[tuple[int, int]] = deque(maxlen=STEPS_MAX)
        """What it has said of steps to come, and with headroom."""

    def judge(self, was_ppm: int, steps: int) -> None:
        """Compares what it said of the step that has just been observed, if it has."""
        said = self.said
        while len(said) > steps:
            said.popleft()
        if len(said) < steps:
            return
        bare_ppm, with_headroom_ppm = said.popleft()
        self.errors.add(bare_ppm, was_ppm)
        off = was_ppm - with_headroom_ppm
        self.loss += (_IN_TWENTY * off if off > 0 else -off) - (self.loss >> _LOSS_SHIFT)

    def say(self, steps: int, ahead_ns: Duration) -> int:
        ppm = self.forecaster.ahead(steps, ahead_ns)
        ppm = (ppm + QUANTUM_PPM // 2) // QUANTUM_PPM * QUANTUM_PPM
        self.said.append((ppm, ppm * (100 + self.errors.headroom_percent) // 100))
        return ppm


class Forecast(NamedTuple):
    ppm: int
    headroom_percent: int
    by: str
    """Which forecaster says so."""


class Forecasts:
    """All forecasters of one pool."""

    __slots__ = ("_all", "_chosen")

    def __init__(self) -> None:
        self._all = {name: Tested(name) for name in FORECASTERS}
        self._chosen = self._all[FIRST]

    @property
    def by(self) -> str:
        return self._chosen.name

    @property
    def headroom_percent(self) -> int:
        return self._chosen.errors.headroom_percent

    def step(self, ppm: int, now: Instant, *, steps: int, ahead_ns: Duration) -> Forecast:
        """What will be asked so many steps ahead, after so much was asked in this one.

        Who is believed, and with how much headroom, goes by what was known before this step. So if more is asked,
        never less is forecast.
        """
        chosen, headroom_percent = self._chosen, self._chosen.errors.headroom_percent
        forecast = Forecast(0, headroom_percent, chosen.name)
        for each in self._all.values():
            each.forecaster.observe(ppm, now)
            each.judge(ppm, steps)
            said = each.say(steps, ahead_ns)
            if each is chosen:
                forecast = Forecast(said, headroom_percent, chosen.name)
        self._choose()
        return forecast

    def lost_track(self) -> None:
        """So long was nothing observed that what was said of that time is not worth comparing."""
        for each in self._all.values():
            each.said.clear()

    def _choose(self) -> None:
        best = min(self._all.values(), key=_loss)
        if best.loss < self._chosen.loss - (self._chosen.loss >> _CLEARLY_SHIFT):
            self._chosen = best


def _loss(tested: Tested) -> int:
    return tested.loss
