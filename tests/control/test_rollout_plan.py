"""Comparison of two routes and the steps of a rollout."""

import random
from dataclasses import replace

import pytest

from headgate.control.rollouts.comparison import (
    ALPHA,
    SAMPLES_MIN,
    Interval,
    MeanOfLogs,
    Proportion,
    bound,
    difference,
    ratio,
)
from headgate.control.rollouts.plan import (
    STEPS_PERCENT,
    Action,
    InvalidRollout,
    Measurement,
    Rollout,
    RolloutPhase,
    decide,
    measurements,
    new_rollout,
    rollout_of,
)
from headgate.control.rollouts.samples import RouteSamples
from headgate.model.policy import Model
from headgate.model.routes import ModelRoute, RouteMatch
from headgate.model.tenant import Plan
from testing.builders import at

ROLLOUT = Rollout("m", "old", "new", 100, (("third", 7),))
ROUTES = (ModelRoute("old", ("a",), 95), ModelRoute("new", ("b",), 5))
MODEL = Model("m", ("a",), routes=ROUTES)


def logs(values: list[float]) -> MeanOfLogs:
    found = MeanOfLogs()
    for each in values:
        found.add(each)
    return found


# Comparison


def test_ratio_interval_contains_the_ratio_and_narrows_with_more_values() -> None:
    draws = random.Random(1)
    base = logs([draws.lognormvariate(0, 0.3) for _ in range(20_000)])
    few = logs([1.4 * draws.lognormvariate(0, 0.3) for _ in range(40)])
    many = logs([1.4 * draws.lognormvariate(0, 0.3) for _ in range(4_000)])
    wide, narrow = ratio(base, few, 1), ratio(base, many, 1)

    assert wide is not None
    assert narrow is not None
    assert wide.low < 1.4 < wide.high
    assert 1.3 < narrow.low < 1.4 < narrow.high < 1.5
    assert narrow.high - narrow.low < wide.high - wide.low


def test_later_looks_are_stricter() -> None:
    assert [round(bound(look), 1) for look in (1, 10, 100)] == [3.5, 4.5, 5.4]


def test_few_values_give_no_interval() -> None:
    assert ratio(logs([1.0] * SAMPLES_MIN), logs([1.0] * (SAMPLES_MIN - 1)), 1) is None
    assert difference(Proportion(SAMPLES_MIN - 1), Proportion(SAMPLES_MIN), 1) is None


def test_values_that_are_not_positive_are_ignored() -> None:
    assert logs([0.0, -1.0]).count == 0


def test_difference_of_shares_without_hits_has_an_upper_bound() -> None:
    found = difference(Proportion(10_000), Proportion(1_000), 1)

    assert found is not None
    assert (found.estimate, found.low < 0 < found.high) == (0.0, True)
    assert found.high < 0.02


def test_equal_routes_are_seldom_found_to_differ_however_often_they_are_compared() -> None:
    """A test at the usual 95 % would report a difference in most of these runs."""
    draws, alarms, runs = random.Random(7), 0, 100
    for _ in range(runs):
        base, candidate = MeanOfLogs(), MeanOfLogs()
        for look in range(1, 201):
            for _ in range(5):
                base.add(draws.lognormvariate(0, 0.5))
                candidate.add(draws.lognormvariate(0, 0.5))
            found = ratio(base, candidate, look)
            if found is not None and not found.low <= 1 <= found.high:
                alarms += 1
                break

    assert alarms <= ALPHA * runs


# State


def test_override_parameters_keep_the_state() -> None:
    moved = replace(ROLLOUT, percent=25, step_s=60, tolerance_percent=5, phase=RolloutPhase.DONE)

    assert rollout_of("m", moved.terms()) == moved
    assert all(isinstance(each, int) for each in moved.terms().values())


@pytest.mark.parametrize("terms", [{}, {"phase": 0, "base a": 1}, {"phase": 9, "base a": 1, "candidate b": 0}])
def test_parameters_of_another_version_are_ignored(terms: dict[str, int]) -> None:
    assert rollout_of("m", terms) is None


def test_weights_divide_the_sum_of_both_routes_and_keep_the_others() -> None:
    assert ROLLOUT.weights() == (("old", 9_900), ("new", 100), ("third", 700))
    assert ROLLOUT.reverted().weights() == (("old", 10_000), ("new", 0), ("third", 700))


def test_steps_end_with_all_traffic() -> None:
    percents, rollout = [], ROLLOUT
    while rollout.phase is RolloutPhase.RUNNING:
        percents.append(rollout.percent)
        rollout = rollout.next_step()

    assert tuple(percents) == STEPS_PERCENT
    assert (rollout.phase, rollout.percent) == (RolloutPhase.DONE, 100)


def test_new_rollout_takes_the_other_route_of_the_group_as_its_base() -> None:
    assert new_rollout(MODEL, "new", None, step_s=60, tolerance_percent=5) == Rollout(
        "m", "old", "new", 100, percent=1, step_s=60, tolerance_percent=5
    )


def test_routes_with_another_match_are_left_out() -> None:
    free = ModelRoute("free", ("a",), match=RouteMatch(plans=(Plan.FREE,)))
    third = ModelRoute("third", ("c",), 7)
    found = new_rollout(replace(MODEL, routes=(*ROUTES, free, third)), "new", "old", step_s=60, tolerance_percent=5)

    assert found.others == (("third", 7),)


@pytest.mark.parametrize(
    ("candidate", "base", "said"),
    [
        ("gone", None, 'model "m" has no route "gone"; available: old, new, third, free'),
        ("new", None, 'the group of route "new" has 2 other routes; name the base'),
        ("new", "free", 'route "free" is not another route in the group of "new"'),
        ("zero", None, 'routes "off" and "zero" both have weight 0; give the base a weight'),
    ],
)
def test_invalid_rollout_is_rejected(candidate: str, base: str | None, said: str) -> None:
    routes = (*ROUTES, ModelRoute("third", ("c",)), ModelRoute("free", ("a",), match=RouteMatch(plans=(Plan.FREE,))))
    if candidate == "zero":
        routes = (ModelRoute("off", ("a",), 0), ModelRoute("zero", ("b",), 0))

    with pytest.raises(InvalidRollout) as raised:
        new_rollout(replace(MODEL, routes=routes), candidate, base, step_s=60, tolerance_percent=5)
    assert str(raised.value) == said


# Decisions


def measured(name: str = "TPOT", low: float = 0.9, high: float = 1.1, limit: float | None = 1.1) -> Measurement:
    return Measurement(name, Interval(low, (low + high) / 2, high), limit, "ratio")


ERRORS = Measurement("errors", Interval(-0.01, 0, 0.005), 0.01, "points")
UNKNOWN = Measurement("TTFT", None, 1.1, "ratio")


@pytest.mark.parametrize(
    ("found", "after_s", "action", "why"),
    [
        ((measured(low=1.11, high=1.5), ERRORS), 0, Action.REVERT, "the candidate is worse: TPOT x 1.305"),
        ((measured(), ERRORS), 299, Action.WAIT, "the step lasts at least another 1 s"),
        (
            (measured(), ERRORS),
            300,
            Action.ADVANCE,
            "the candidate is good enough: TPOT x 1.000 [0.900, 1.100]; errors",
        ),
        ((measured(high=1.2), ERRORS), 300, Action.WAIT, "not yet good enough for 100 %: TPOT x 1.050 [0.900, 1.200]"),
        ((UNKNOWN, ERRORS), 300, Action.ADVANCE, "the candidate is good enough: TTFT: too few samples"),
        ((UNKNOWN, replace(ERRORS, interval=None)), 300, Action.WAIT, "not yet good enough for 100 %: TTFT"),
        ((measured(high=9, limit=None), ERRORS), 300, Action.ADVANCE, "the candidate is good enough"),
    ],
)
def test_decision_follows_the_evidence(
    found: tuple[Measurement, ...], after_s: float, action: Action, why: str
) -> None:
    taken, reason = decide(replace(ROLLOUT, percent=50), found, stepped_at=at(0), now=at(after_s))

    assert taken is action
    assert reason.startswith(why)


def test_smaller_step_needs_less_evidence() -> None:
    loose = (measured(high=1.4), replace(ERRORS, interval=Interval(-0.01, 0, 0.04)))
    taken = {
        percent: decide(replace(ROLLOUT, percent=percent), loose, stepped_at=at(0), now=at(300))[0]
        for percent in STEPS_PERCENT[:-1]
    }

    assert taken == {1: Action.ADVANCE, 5: Action.ADVANCE, 25: Action.WAIT, 50: Action.WAIT}


def test_last_step_needs_no_further_evidence() -> None:
    last = replace(ROLLOUT, percent=100)

    assert decide(last, (UNKNOWN, ERRORS), stepped_at=at(0), now=at(300))[0] is Action.ADVANCE


def test_ended_rollout_waits() -> None:
    found = decide(ROLLOUT.reverted(), (measured(low=2, high=3), ERRORS), stepped_at=at(0), now=at(300))

    assert found == (Action.WAIT, "the rollout is reverted")


def test_measurements_without_samples_have_no_interval() -> None:
    found = measurements(ROLLOUT, {"old": RouteSamples()}, 1)

    assert [each.name for each in found] == ["TTFT", "TPOT", "errors", "missed targets", "cost"]
    assert {each.interval for each in found} == {None}
