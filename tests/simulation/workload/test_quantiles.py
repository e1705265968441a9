"""Are lengths met again that were reduced to quantiles?"""

from random import Random
from statistics import fmean

import pytest

from headgate.simulation.workload.quantiles import LEVELS, Quantiles, pooled

RISING = [100, 110, 120, 150, 200, 250, 300, 400, 500, 600, 800, 1_000, 2_000, 4_000, 8_000, 9_000]


def quantiles_of(lengths: list[int]) -> Quantiles:
    ordered = sorted(lengths)
    return Quantiles([ordered[min(int(level * len(ordered)), len(ordered) - 1)] for level in LEVELS])


def test_at_each_level_stands_its_quantile() -> None:
    told = Quantiles(RISING)

    assert [told.at(level) for level in LEVELS[:-1]] == RISING[:-1]
    assert told.at(1 - 1e-12) == RISING[-1]


def test_between_levels_the_logarithm_grows_evenly() -> None:
    assert Quantiles(RISING).at(0.925) == pytest.approx((1_000 * 2_000) ** 0.5, abs=1)


def test_no_length_is_below_one() -> None:
    assert Quantiles([0] * 16).at(0.5) == 1


def test_draws_meet_the_mean_of_what_was_reduced() -> None:
    chance = Random("lengths")
    lengths = [round(chance.lognormvariate(6, 1.2)) for _ in range(20_000)]
    told = quantiles_of(lengths)

    assert fmean(told.at(chance.random()) for _ in range(20_000)) == pytest.approx(fmean(lengths), rel=0.05)


def test_a_pool_of_one_is_that_one() -> None:
    alone = pooled([(2.0, Quantiles(RISING))])

    assert [alone.at(level) for level in (0.1, 0.5, 0.9)] == pytest.approx([150, 400, 1_000], rel=0.05)


def test_a_pool_counts_each_part_by_its_weight() -> None:
    both = pooled([(3.0, Quantiles([100] * 16)), (1.0, Quantiles([900] * 16))])

    assert [both.at(level) for level in (0.0, 0.3, 0.69, 0.81, 0.99)] == [100, 100, 100, 900, 900]


def test_a_part_without_weight_counts_nothing() -> None:
    alone = pooled([(1.0, Quantiles([100] * 16)), (0.0, Quantiles([900] * 16))])

    assert alone.at(0.999) == 100
