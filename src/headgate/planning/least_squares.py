"""Least-squares minimization of functions that are not smooth, such as a simulation.

A small change in a parameter can move a request to another step, which makes its time jump. Derivatives are therefore
computed as differences over a width that starts coarse and is halved when a round finds no improvement (implicit
filtering). Each round solves the linearized problem with several damping values and keeps the best point found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

Point = tuple[float, ...]
Residuals = Callable[[Point], Sequence[float]]

WIDTH_START: Final = 0.2
WIDTH_MIN: Final = 0.01
STEP_MAX: Final = 0.5
"""Maximum change to a parameter in one round."""
DAMPING: Final = (0.001, 0.03, 1.0)
GAIN_MIN: Final = 0.002
"""Relative improvement in a round below which the width is halved."""


@dataclass(frozen=True, slots=True)
class Trial:
    number: int
    point: Point
    residuals: Sequence[float]
    squared_error: float


def minimize(residuals: Residuals, start: Point, *, trials_max: int) -> Iterator[Trial]:
    """Yields the best point so far after each round. The last one is the result."""
    numbers = count(1)

    def attempt(point: Point) -> Trial:
        found = residuals(point)
        return Trial(next(numbers), point, found, sum(each * each for each in found))

    best, width = attempt(start), WIDTH_START
    # A round tries two points per parameter and one per damping value.
    for _ in range((trials_max - 1) // (2 * len(start) + len(DAMPING))):
        around = [
            (attempt(_moved(best.point, at, width)), attempt(_moved(best.point, at, -width))) for at in _axes(best)
        ]
        ahead = [attempt(_sum(best.point, stride)) for stride in _damped_steps(best, around, width)]
        found = min([*ahead, *(each for pair in around for each in pair)], key=lambda each: each.squared_error)
        if found.squared_error > best.squared_error * (1 - GAIN_MIN):
            width /= 2
        best = min(best, found, key=lambda each: each.squared_error)
        yield best
        if width < WIDTH_MIN:
            return


def _axes(trial: Trial) -> range:
    return range(len(trial.point))


def _moved(point: Point, axis: int, by: float) -> Point:
    return (*point[:axis], point[axis] + by, *point[axis + 1 :])


def _sum(point: Point, stride: Sequence[float]) -> Point:
    return tuple(at + max(-STEP_MAX, min(STEP_MAX, by)) for at, by in zip(point, stride, strict=True))


def _damped_steps(best: Trial, around: Sequence[tuple[Trial, Trial]], width: float) -> list[list[float]]:
    """Solutions of the linearized problem, one for each damping value."""
    slopes = [
        [(up - down) / (2 * width) for up, down in zip(high.residuals, low.residuals, strict=True)]
        for high, low in around
    ]
    matrix = [[_dot(one, other) for other in slopes] for one in slopes]
    wanted = [-_dot(slope, best.residuals) for slope in slopes]
    return [_solve(_damped(matrix, damping), wanted) for damping in DAMPING]


def _damped(matrix: list[list[float]], damping: float) -> list[list[float]]:
    # Without this, a parameter that has no influence would make the matrix singular.
    least = 1e-12 + 1e-9 * max(row[at] for at, row in enumerate(matrix))
    return [
        [value + (damping * value + least if at == place else 0) for at, value in enumerate(row)]
        for place, row in enumerate(matrix)
    ]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _solve(matrix: list[list[float]], wanted: list[float]) -> list[float]:
    """Gaussian elimination. The matrix is positive definite, so pivoting is unnecessary."""
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
