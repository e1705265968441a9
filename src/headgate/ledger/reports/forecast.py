"""What will it have cost when the month ends?

Days that are past are continued in one of two ways: by the mean of the last seven, or by that mean times what each day
of the week usually is of it, which takes two weeks to know. With more than two weeks both are tried on days whose
outcome is known, and the one that was nearer is used; its error there is told. The growth from one week to the next is
not continued: on days that grow by a percent each it takes a tenth off the error, and adds a fifth where days wander.

How far the truth may be off follows from how far single days were: days that differ by chance even out over a month, a
level that was misjudged does not, so both are in the interval; and where whole sums were further off than that, as they
are when cost grows, those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

WEEK: Final = 7
WEEKS_MAX: Final = 5
"""How much of the past counts."""
TRIALS_MAX: Final = 14
CERTAINTY_PERCENT: Final = 80
_Z: Final = 1.2816
"""So many standard deviations to either side hold that much."""
_SPREAD: Final = 1.2533
"""A standard deviation, beside the mean of how far off things are."""


@dataclass(frozen=True, slots=True)
class Outlook:
    expected: int
    low: int
    high: int
    method: str
    error: float | None


_Method = Callable[[Sequence[int], int], float]
"""(days, how many days after the last) -> what that day will cost."""


def outlook(days: Sequence[int], *, so_far: int, today: int, today_left: float, ahead: int) -> Outlook:
    """`days` are whole, up to yesterday. `so_far` was spent this month, `today` of it today, of which some is left."""
    begun = next((place for place, cost in enumerate(days) if cost), len(days))
    # What had not begun yet teaches nothing.
    days = days[max(begun, len(days) - WEEKS_MAX * WEEK) :]
    if not days:
        return _by_today_alone(so_far, today, today_left, ahead)
    name, error = chosen(days, ahead + 1)
    method = _METHODS[name]
    rest = today_left * method(days, 1)
    for place in range(2, ahead + 2):
        rest += method(days, place)
    expected = so_far + round(rest)
    length = today_left + ahead
    deviation = _deviation(method, days)
    if deviation is None:
        # A day or two say nothing of how days differ.
        return Outlook(expected, so_far, so_far + round(2 * rest), name, None)
    off = _Z * max(deviation * sqrt(length + length * length / WEEK), _SPREAD * (error or 0.0) * rest)
    return Outlook(expected, max(so_far, round(expected - off)), round(expected + off), name, error)


def chosen(days: Sequence[int], length: int) -> tuple[str, float | None]:
    """Which method was nearer on days that are past, and how near."""
    mean = _error(_by_mean, days, length, WEEK if len(days) > WEEK else 3)
    if len(days) < 2 * WEEK:
        return "mean", mean
    errors = {name: _error(method, days, length, 2 * WEEK) for name, method in _METHODS.items()}
    # The first of them, should they be alike.
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
    # Whole weeks: what lies a week, two weeks, … before the day that is asked for.
    alike = whole[(ahead - 1) % WEEK :: WEEK]
    return level * (sum(alike) / len(alike)) / usual


_METHODS: Final[dict[str, _Method]] = {"weekday": _by_weekday, "mean": _by_mean}


def _error(method: _Method, days: Sequence[int], length: int, known_min: int) -> float | None:
    """Of sums over as many days as are asked for, or as are known: the mean of how far off, as a part of the truth."""
    errors: list[float] = []
    for known in range(max(known_min, len(days) - TRIALS_MAX), len(days)):
        truth = days[known : known + length]
        thought = 0.0
        for place in range(1, len(truth) + 1):
            thought += method(days[:known], place)
        if sum(truth):
            errors.append(abs(thought - sum(truth)) / sum(truth))
    return sum(errors) / len(errors) if errors else None


def _deviation(method: _Method, days: Sequence[int]) -> float | None:
    """Of single days from what would have been said on the eve of each."""
    known_min = 2 * WEEK if method is not _by_mean and len(days) >= 2 * WEEK + 3 else 3
    before = method if known_min >= 2 * WEEK else _by_mean
    off = [before(days[:known], 1) - days[known] for known in range(known_min, len(days))]
    return sqrt(sum(each * each for each in off) / len(off)) if len(off) >= 2 else None


def _by_today_alone(so_far: int, today: int, today_left: float, ahead: int) -> Outlook:
    gone = 1.0 - today_left
    day = today / gone if gone > 0 else 0.0
    rest = day * (today_left + ahead)
    return Outlook(so_far + round(rest), so_far, so_far + round(2 * rest), "mean", None)
