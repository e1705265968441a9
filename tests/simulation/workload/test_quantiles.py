"""Tests for length distributions that are stored as quantiles."""

from random import Random
from statistics import fmean

import pytest

from headgate.simulation.workload.quantiles import QUANTILE_LEVELS, Quantiles, pool_quantiles

RISING = [100, 110, 120, 150, 200, 250, 300, 400, 500, 600, 800, 1_000, 2_000, 4_000, 8_000, 9_000]


def quantiles_of(lengths: list[int]) -> Quantiles:
    ordered = sorted(lengths)
    return Quantiles([ordered[min(int(level * len(ordered)), len(ordered) - 1)] for level in QUANTILE_LEVELS])


def test_value_at_each_level_is_its_quantile() -> None:
    told = Quantiles(RISING)

    assert [told.value_at(level) for level in QUANTILE_LEVELS[:-1]] == RISING[:-1]
    assert told.value_at(1 - 1e-12) == RISING[-1]


def test_values_between_levels_are_interpolated_logarithmically() -> None:
    assert Quantiles(RISING).value_at(0.925) == pytest.approx((1_000 * 2_000) ** 0.5, abs=1)


def test_lengths_are_at_least_one() -> None:
    assert Quantiles([0] * 16).value_at(0.5) == 1


def test_drawn_lengths_have_the_same_mean_as_the_original_lengths() -> None:
    chance = Random("lengths")
    lengths = [round(chance.lognormvariate(6, 1.2)) for _ in range(20_000)]
    told = quantiles_of(lengths)

    assert fmean(told.value_at(chance.random()) for _ in range(20_000)) == pytest.approx(fmean(lengths), rel=0.05)


def test_pool_of_one_distribution_equals_that_distribution() -> None:
    alone = pool_quantiles([(2.0, Quantiles(RISING))])

    assert [alone.value_at(level) for level in (0.1, 0.5, 0.9)] == pytest.approx([150, 400, 1_000], rel=0.05)


def test_pool_weights_its_distributions() -> None:
    both = pool_quantiles([(3.0, Quantiles([100] * 16)), (1.0, Quantiles([900] * 16))])

    assert [both.value_at(level) for level in (0.0, 0.3, 0.69, 0.81, 0.99)] == [100, 100, 100, 900, 900]


def test_pool_ignores_distributions_with_zero_weight() -> None:
    alone = pool_quantiles([(1.0, Quantiles([100] * 16)), (0.0, Quantiles([900] * 16))])

    assert alone.value_at(0.999) == 100
