"""Prompt and output length distributions."""

from math import exp, log
from random import Random
from typing import Final, assert_never

from headgate.simulation.options import LengthDistribution, LogNormal, Uniform

NORMAL_P95: Final = 1.6448536269514722
"""The 95th percentile of a standard normal distribution."""


def draw_length(lengths: LengthDistribution, rng: Random) -> int:
    match lengths:
        case Uniform(least, most):
            return max(1, rng.randint(least, most))
        case LogNormal():
            spread = log(lengths.p95 / lengths.median) / NORMAL_P95
            length = lengths.median * exp(spread * rng.normalvariate(0, 1))
            return max(1, round(min(length, lengths.max)))
        case _:
            assert_never(lengths)
