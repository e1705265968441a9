"""Which parameters make a sum of squares least, when the function is a simulation?

A simulation is not smooth: where a parameter is a little greater one request gets into another step, and its time
jumps. Derivatives are therefore differences over a width that is coarse at first and halved when it finds nothing
better (implicit filtering); each round solves the linear problem they give, with more or less damping, and keeps the
best point of all that it tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

Point = tuple[float, ...]
Residuals = Callable[[Point], Sequence[float]]

WIDTH_FIRST: Final = 0.2
WIDTH_LAST: Final = 0.01
STRIDE_MAX: Final = 0.5
"""How far a round may go in any one parameter."""
DAMPING: Final = (0.001, 0.03, 1.0)
GAIN_MIN: Final = 0.002
"""A round that gains a smaller share of the sum is followed by a narrower one."""


@dataclass(frozen=True, slots=True)
class Trial:
    number: int
    point: Point
    residuals: Sequence[float]
    square: float


def rounds(residuals: Residuals, start: Point, *, trials_max: int) -> Iterator[Trial]:
    """The best point so far, after each round of the search; the last one given is the answer."""
    numbers = count(1)

    def attempt(point: Point) -> Trial:
        found = residuals(point)
        return Trial(next(numbers), point, found, sum(each * each for each in found))

    best, width = attempt(start), WIDTH_FIRST
    # A round tries two points per parameter and one per damping.
    for _ in range((trials_max - 1) // (2 * len(start) + len(DAMPING))):
        around = [
            (attempt(_moved(best.point, at, width)), attempt(_moved(best.point, at, -width))) for at in _axes(best)
        ]
        ahead = [attempt(_sum(best.point, stride)) for stride in _strides(best, around, width)]
        found = min([*ahead, *(each for pair in around for each in pair)], key=lambda each: each.square)
        if found.square > best.square * (1 - GAIN_MIN):
            width /= 2
        best = min(best, found, key=lambda each: each.square)
        yield best
        if width < WIDTH_LAST:
            return


def _axes(trial: Trial) -> range:
    return range(len(trial.point))


def _moved(point: Point, axis: int, by: float) -> Point:
    return (*point[:axis], point[axis] + by, *point[axis + 1 :])


def _sum(point: Point, stride: Sequence[float]) -> Point:
    return tuple(at + max(-STRIDE_MAX, min(STRIDE_MAX, by)) for at, by in zip(point, stride, strict=True))


def _strides(best: Trial, around: Sequence[tuple[Trial, Trial]], width: float) -> list[list[float]]:
    """Where the linear problem has its least sum, once for each damping."""
    slopes = [
        [(up - down) / (2 * width) for up, down in zip(high.residuals, low.residuals, strict=True)]
        for high, low in around
    ]
    matrix = [[_dot(one, other) for other in slopes] for one in slopes]
    wanted = [-_dot(slope, best.residuals) for slope in slopes]
    return [_solved(_damped(matrix, damping), wanted) for damping in DAMPING]


def _damped(matrix: list[list[float]], damping: float) -> list[list[float]]:
    # A parameter that nothing depends on would otherwise leave the matrix without an inverse.
    least = 1e-12 + 1e-9 * max(row[at] for at, row in enumerate(matrix))
    return [
        [value + (damping * value + least if at == place else 0) for at, value in enumerate(row)]
        for place, row in enumerate(matrix)
    ]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solved(matrix: list[list[float]], wanted: list[float]) -> list[float]:
    """By elimination; the matrix is positive definite, so no rows need to be swapped."""
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    for at, pivot in enumerate(rows):
        for other in rows[at + 1 :]:
            share = other[at] / pivot[at]
            for place in range(at, len(pivot)):
                other[place] -= share * pivot[place]
    solution: list[float] = []
    for at in reversed(range(len(rows))):
        known = _dot(rows[at][at + 1 : -1], solution)
        solution.insert(0, (rows[at][-1] - known) / rows[at][at])
    return solution
