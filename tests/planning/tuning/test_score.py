"""When is a changed configuration better?"""

import pytest

from headgate.planning.tuning.score import Benefit, Comparison, interval
from tests.planning.tuning.builders import BATCH, CHAT, OBJECTIVES, a_score

SEEDS = 6
CONFIDENCE = 0.95


def compared(before: list[float], after: list[float], **changed: float) -> Comparison:
    """Compares attainments of one class, by seed. `changed` is the rest of the score after the change."""
    return Comparison([a_score(each) for each in before], [a_score(each, **changed) for each in after], OBJECTIVES)  # type: ignore[arg-type]


def test_comparison_finds_a_missed_objective_that_is_held_after_the_change() -> None:
    found = compared([0.80, 0.82, 0.81, 0.79, 0.80, 0.83], [0.96, 0.97, 0.96, 0.97, 0.98, 0.96])

    assert found.benefit(CONFIDENCE) is Benefit.OBJECTIVES
    assert found.attainment(CHAT) == (pytest.approx(0.80833, abs=1e-5), pytest.approx(0.96667, abs=1e-5))


def test_missed_objective_is_worth_a_higher_cost_but_goodput_is_not() -> None:
    lower = compared([0.80, 0.82, 0.81, 0.79, 0.80, 0.83], [0.96] * SEEDS, cost=9.0)
    better = compared([0.96] * SEEDS, [0.99] * SEEDS, cost=9.0)

    assert lower.benefit(CONFIDENCE) is Benefit.OBJECTIVES
    assert better.benefit(CONFIDENCE) is None
    assert not better.looks_better


def test_goodput_counts_if_all_objectives_are_held() -> None:
    assert compared([0.96] * SEEDS, [0.99] * SEEDS).benefit(CONFIDENCE) is Benefit.GOODPUT


def test_gain_below_the_minimum_is_no_benefit() -> None:
    assert compared([0.990] * SEEDS, [0.995] * SEEDS).benefit(CONFIDENCE) is None


def test_lower_cost_is_a_benefit_only_without_loss() -> None:
    assert compared([0.99] * SEEDS, [0.99] * SEEDS, cost=4.0).benefit(CONFIDENCE) is Benefit.COST
    assert compared([0.99] * SEEDS, [0.97] * SEEDS, cost=4.0).benefit(CONFIDENCE) is None


def test_lower_cost_is_no_benefit_if_more_and_more_requests_are_waiting() -> None:
    assert compared([0.99] * SEEDS, [0.99] * SEEDS, cost=4.0, waiting=200).benefit(CONFIDENCE) is None


def test_change_is_rejected_if_a_class_no_longer_holds_its_objective() -> None:
    found = Comparison([a_score(0.70, 0.93)] * SEEDS, [a_score(0.99, 0.89)] * SEEDS, OBJECTIVES)

    assert found.newly_missed() == [BATCH]
    assert found.benefit(CONFIDENCE) is None


def test_change_is_rejected_if_a_class_that_loses_might_miss_its_objective() -> None:
    before = [a_score(0.70, 0.93)] * SEEDS
    after = [a_score(0.99, each) for each in (0.93, 0.93, 0.93, 0.93, 0.93, 0.80)]
    found = Comparison(before, after, OBJECTIVES)

    assert found.newly_missed() == []
    assert found.newly_missed(CONFIDENCE) == [BATCH]
    assert found.benefit(CONFIDENCE) is None


def test_class_that_missed_its_objective_before_does_not_block_a_change() -> None:
    found = Comparison([a_score(0.70, 0.89)] * SEEDS, [a_score(0.99, 0.88)] * SEEDS, OBJECTIVES)

    assert found.benefit(CONFIDENCE) is Benefit.OBJECTIVES


def test_change_is_rejected_if_it_shortens_the_responses() -> None:
    found = compared([0.80] * SEEDS, [0.99] * SEEDS, full=0.9)

    assert found.shortened() == [CHAT, BATCH]
    assert found.benefit(CONFIDENCE) is None


def test_noise_is_no_benefit() -> None:
    found = compared([0.80, 0.90, 0.85, 0.99, 0.70, 0.93], [0.91, 0.85, 0.93, 0.88, 0.86, 0.83])

    assert interval(found.goodput_change, CONFIDENCE).low < 0 < interval(found.goodput_change, CONFIDENCE).high
    assert found.benefit(CONFIDENCE) is None


def test_free_change_ranks_before_one_that_costs_more() -> None:
    free = compared([0.80] * SEEDS, [0.960] * SEEDS)
    costly = compared([0.80] * SEEDS, [0.999] * SEEDS, cost=9.0)

    assert free.merit() > costly.merit()


def test_free_change_ranks_first_if_both_changes_hold_all_objectives() -> None:
    before = [0.80] * SEEDS
    free = compared(before, [0.97, 0.98, 0.94, 0.97, 0.96, 0.97])
    costly = compared(before, [0.999] * SEEDS, cost=9.0)

    assert sum(free.shortfall_change) > sum(costly.shortfall_change)
    assert free.merit() > costly.merit()
