"""Forecasts the cost of the current month.

There are two methods: the mean of the last seven days, and the same mean multiplied by a factor for each weekday, which
requires two weeks of data. With more than two weeks, both are backtested on past days, the more accurate one is used,
and its error is reported. Week-to-week growth is not extrapolated. Doing so would reduce the error by a tenth if costs
grow by 1% a day, but increase it by a fifth if they fluctuate.

The forecast interval is derived from the errors on individual days. Random daily variation averages out over a month,
but a wrong mean does not; the interval includes both. If the backtest errors for whole sums were larger, as they are
while costs are growing, the interval uses those instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

WEEK: Final = 7
WEEKS_MAX: Final = 5
"""Maximum number of weeks that the forecast uses."""
BACKTESTS_MAX: Final = 14
CONFIDENCE_PERCENT: Final = 80
_Z: Final = 1.2816
"""Number of standard deviations on either side of the mean for this confidence level."""
_STD_PER_MEAN_ERROR: Final = 1.2533
"""Ratio of the standard deviation to the mean absolute error, for a normal distribution."""


@dataclass(frozen=True, slots=True)
class MonthForecast:
    expected: int
    low: int
    high: int
    method: str
    error: float | None


_Method = Callable[[Sequence[int], int], float]
"""Function that takes past daily costs and a number of days ahead, and returns the forecast for that day."""


def forecast_month(days: Sequence[int], *, so_far: int, today: int, today_left: float, ahead: int) -> MonthForecast:
    """Forecast until the end of the month.

    `days` are the costs of complete days up to yesterday, `so_far` is the cost of this month including `today`,
    `today_left` is the remaining fraction of today, and `ahead` the number of days after today.
    """
    begun = next((place for place, cost in enumerate(days) if cost), len(days))
    # Skip the days before the first recorded cost.
    days = days[max(begun, len(days) - WEEKS_MAX * WEEK) :]
    if not days:
        return _by_today_alone(so_far, today, today_left, ahead)
    name, error = choose_method(days, ahead + 1)
    method = _METHODS[name]
    rest = today_left * method(days, 1)
    for place in range(2, ahead + 2):
        rest += method(days, place)
    expected = so_far + round(rest)
    length = today_left + ahead
    deviation = _deviation(method, days)
    if deviation is None:
        # One or two days are too few to estimate the variation.
        return MonthForecast(expected, so_far, so_far + round(2 * rest), name, None)
    off = _Z * max(deviation * sqrt(length + length * length / WEEK), _STD_PER_MEAN_ERROR * (error or 0.0) * rest)
    return MonthForecast(expected, max(so_far, round(expected - off)), round(expected + off), name, error)


def choose_method(days: Sequence[int], length: int) -> tuple[str, float | None]:
    """Whichever method is more accurate on past days, and its error."""
    mean = _error(_by_mean, days, length, WEEK if len(days) > WEEK else 3)
    if len(days) < 2 * WEEK:
        return "mean", mean
    errors = {name: _error(method, days, length, 2 * WEEK) for name, method in _METHODS.items()}
    # If they are tied, the first method wins.
    name = min(_METHODS, key=lambda each: errors[each] or 0.0)
    return name, errors[name]


def _by_mean(days: Sequence[int], _: int) -> float:
    last = days[-WEEK:]
    return sum(last) / len(last)


def _by_weekday(days: Sequence[int], ahead: int) -> float:
    level = _by_mean(days, ahead)
    whole = days[len(days) % WEEK :]
    usual = sum(whole) / len(whole)
    if not usual:
        return level
    # Days that are one week, two weeks and so on before the forecast day.
    alike = whole[(ahead - 1) % WEEK :: WEEK]
    return level * (sum(alike) / len(alike)) / usual


_METHODS: Final[dict[str, _Method]] = {"weekday": _by_weekday, "mean": _by_mean}


def _error(method: _Method, days: Sequence[int], length: int, known_min: int) -> float | None:
    """Mean relative error of backtested sums over `length` days, or over as many days as are known."""
    errors: list[float] = []
    for known in range(max(known_min, len(days) - BACKTESTS_MAX), len(days)):
        truth = days[known : known + length]
        thought = 0.0
        for place in range(1, len(truth) + 1):
            thought += method(days[:known], place)
        if sum(truth):
            errors.append(abs(thought - sum(truth)) / sum(truth))
    return sum(errors) / len(errors) if errors else None


def _deviation(method: _Method, days: Sequence[int]) -> float | None:
    """Standard deviation of daily costs from the forecasts made on the previous day."""
    known_min = 2 * WEEK if method is not _by_mean and len(days) >= 2 * WEEK + 3 else 3
    before = method if known_min >= 2 * WEEK else _by_mean
    off = [before(days[:known], 1) - days[known] for known in range(known_min, len(days))]
    return sqrt(sum(each * each for each in off) / len(off)) if len(off) >= 2 else None


def _by_today_alone(so_far: int, today: int, today_left: float, ahead: int) -> MonthForecast:
    gone = 1.0 - today_left
    day = today / gone if gone > 0 else 0.0
    rest = day * (today_left + ahead)
    return MonthForecast(so_far + round(rest), so_far, so_far + round(2 * rest), "mean", None)
