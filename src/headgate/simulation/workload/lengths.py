"""How long is a prompt, or an answer, that nobody recorded?"""

from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Final, assert_never

NORMAL_P95: Final = 1.6448536269514722
"""How many standard deviations p95 of a normal distribution lies above its median."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from the least to the most is as likely as the next."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Half are below the median and one in twenty above p95; what would be longer than the most is the most."""

    median: int
    p95: int
    most: int


Lengths = Uniform | LogNormal


def draw_length(lengths: Lengths, chance: Random) -> int:
    match lengths:
        case Uniform(least, most):
            return max(1, chance.randint(least, most))
        case LogNormal():
            spread = log(lengths.p95 / lengths.median) / NORMAL_P95
            length = lengths.median * exp(spread * chance.normalvariate(0, 1))
            return max(1, round(min(length, lengths.most)))
        case _:
            assert_never(lengths)
