"""Schedule of a setting trial, the intervals of its effects, and its decision."""

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from headgate.control.rollouts.comparison import Interval
from headgate.control.trials.effect_interval import BlockGroup, effect_interval, groups_needed
from headgate.control.trials.harm import harm
from headgate.control.trials.mean_effect import groups_for_mean, mean_lower_bound
from headgate.control.trials.plan import (
    ALPHA,
    BASELINE_BLOCKS,
    Effect,
    InvalidTrial,
    KeepIf,
    SettingTrial,
    Subject,
    TrialPhase,
    TrialResult,
    check_schedule,
    decide,
    effects,
    pooled_difference,
    setting_override,
    trial_of,
)
from headgate.control.trials.samples import BlockTally, ClassTally, OpenCount
from headgate.model.overrides import SetSetting
from testing.builders import at

TRIAL = SettingTrial("headroom.kv_percent", 95, 80, 50, 30, 1_200, seed=7)
CLASS = "chat"


def tally(number: int, good: int, bad: int = 0, *, new: bool = False, cost: int = 0) -> BlockTally:
    return BlockTally(number, new, at(0), {CLASS: ClassTally(good, bad)}, cost_nano_usd=cost)


# Intervals


def test_interval_contains_the_effect_and_narrows_with_more_groups() -> None:
    draws = random.Random(1)
    groups = [BlockGroup((draws.gauss(0.5, 0.05), draws.gauss(0.8, 0.05)), 1) for _ in range(100)]
    wide, narrow = effect_interval(groups[:12], 0.05), effect_interval(groups, 0.05)

    assert wide is not None
    assert narrow is not None
    assert wide.low < 0.3 < wide.high
    assert 0.25 < narrow.low < 0.3 < narrow.high < 0.35
    assert narrow.high - narrow.low < wide.high - wide.low


def test_interval_of_few_groups_excludes_nothing() -> None:
    one = effect_interval([BlockGroup((0.0, 1.0), 1)], 0.05)

    assert effect_interval([], 0.05) is None
    assert one is not None
    assert (one.low, one.estimate, one.high) == (-4.0, 1.0, 4.0)


def test_interval_survives_extreme_values() -> None:
    found = effect_interval([BlockGroup((-4.0, 4.0), 0)] * 20, 0.05)

    assert found is not None
    assert all(map(math.isfinite, (found.low, found.high)))


LONG = pytest.mark.nightly
"""Mark of the long versions of tests that CI runs with fewer trials."""


@pytest.mark.parametrize(
    ("size", "runs"), [(2, 60), (4, 30), *(pytest.param(size, 300, marks=LONG) for size in (2, 4, 10))]
)
def test_equal_values_are_seldom_found_to_differ_however_often_they_are_compared(size: int, runs: int) -> None:
    """The load of neighbouring blocks depends on each other."""
    draws, alarms, shown = random.Random(size), 0, 0.05
    for _ in range(runs):
        groups: list[BlockGroup] = []
        load = 0.0
        for _ in range(20):
            values: list[float] = []
            for _ in range(size):
                load = 0.9 * load + draws.gauss(0, 0.1)
                values.append(1 / (1 + math.exp(-load)))
            groups.append(BlockGroup(tuple(values), draws.randrange(size)))
        if any(
            found is not None and not found.low <= 0 <= found.high
            for found in (effect_interval(groups[:seen], shown) for seen in (8, 14, 20))
        ):
            alarms += 1

    assert alarms <= shown * runs


def test_groups_needed_is_the_least_number_that_can_decide() -> None:
    needed = groups_needed(2, 0.05)
    sure = [BlockGroup((0.0, 1.0), 1)] * (needed - 1)
    found = effect_interval(sure, 0.05)

    assert needed == 6
    assert found is not None
    assert found.low < 0


# Lower bound of the mean


def uneven_effect(draws: random.Random) -> float:
    """Most blocks are slightly better and a few are much worse. The mean is -0.2 points."""
    return -0.13 if draws.random() < 0.2 else 0.03


@pytest.mark.parametrize("runs", [40, pytest.param(1_000, marks=LONG)])
def test_bound_of_the_mean_seldom_exceeds_the_mean_of_uneven_effects(runs: int) -> None:
    draws, alarms = random.Random(1), 0
    for _ in range(runs):
        effects_seen = [uneven_effect(draws) for _ in range(60)]
        found = [x + draws.gauss(0, 0.02) for x in effects_seen]
        alarms += any(
            mean_lower_bound(found[:seen], 0.05) > sum(effects_seen[:seen]) / seen for seen in range(5, 61, 5)
        )

    assert alarms <= 0.05 * runs


def test_bound_of_the_mean_approaches_it_from_below() -> None:
    bounds = [mean_lower_bound([-0.1] * number, 0.05) for number in (1, 20, 200)]

    assert bounds == sorted(bounds)
    assert bounds[0] >= -1
    assert -0.15 < bounds[-1] < -0.1
    assert mean_lower_bound([], 0.05) == pytest.approx(-1)
    assert mean_lower_bound([-1.0] * 50, 0.05) == pytest.approx(-1)


def test_groups_for_mean_is_the_least_number_that_shows_a_difference() -> None:
    needed = groups_for_mean(0.3, 0.05)

    assert mean_lower_bound([0.3] * needed, 0.05) == 0
    assert mean_lower_bound([0.3] * (needed - 1), 0.05) < 0


def test_relative_effect_is_bounded_and_has_a_mean_of_0_for_equal_values() -> None:
    values = (0.0, 0.0, -9.0, 5.0)

    assert sum(BlockGroup(values, new).relative_effect() for new in range(4)) == pytest.approx(0)
    assert BlockGroup((0.0, 50.0), 1).relative_effect() == pytest.approx(1)
    assert BlockGroup((math.log(2), math.log(1)), 1).relative_effect() == pytest.approx(-0.5)


# Decisions of simulated trials


LOOKS = (9, 14, 19, 24, 30, 40, 50)
"""Numbers of groups after which simulated trials decide. The intervals hold for more, but need time."""


def simulated_trial(
    seed: int,
    effect: float,
    *,
    share: int = 50,
    keep_if: KeepIf = KeepIf.BETTER,
    noise: float = 0.05,
    base: float = 0.85,
    duration_s: int = 1_860,
    tolerance: int = 1,
    uneven: bool = False,
) -> TrialResult:
    """300 requests per block. The share of good requests varies between blocks, as under changing load."""
    draws = random.Random(seed)
    trial = replace(
        TRIAL,
        share_percent=share,
        duration_s=duration_s,
        seed=seed,
        keep_if=keep_if,
        tolerance_percent=tolerance,
    )
    blocks: dict[int, BlockTally] = {}
    load, result = 0.0, TrialResult.NONE
    for number in range(trial.blocks):
        load = 0.5 * load + draws.gauss(0, noise)
        new = trial.has_new_value(number)
        added = 3 * uneven_effect(draws) if uneven else effect
        share_good = min(1.0, max(0.0, base + load + added * new))
        good = round(draws.gauss(300 * share_good, math.sqrt(300 * share_good * (1 - share_good))))
        blocks[number] = tally(number, good, max(0, 300 - good), new=new)
        groups, rest = divmod(number - BASELINE_BLOCKS + 1, trial.group_size)
        over = number == trial.blocks - 1
        if over or (rest == 0 and groups in LOOKS):
            result, _ = decide(trial, effects(trial, blocks, [CLASS]), over=over)
            if result is not TrialResult.NONE:
                break
    return result


def results(runs: int, effect: float, **more: Any) -> Counter[TrialResult]:
    return Counter(simulated_trial(seed, effect, **more) for seed in range(runs))


@pytest.mark.parametrize(
    ("share", "runs"), [(50, 20), (25, 20), *(pytest.param(share, 200, marks=LONG) for share in (50, 25, 10))]
)
def test_equal_value_is_seldom_kept_or_called_worse(share: int, runs: int) -> None:
    found = results(runs, 0.0, share=share)

    assert found[TrialResult.IMPROVED] + found[TrialResult.WORSE] <= ALPHA * runs
    assert found[TrialResult.UNDECIDED] == runs - found[TrialResult.IMPROVED] - found[TrialResult.WORSE]


def test_clear_improvement_is_kept() -> None:
    found = results(20, 0.3, base=0.5)

    assert found[TrialResult.IMPROVED] == 20


def test_clear_harm_is_reverted() -> None:
    found = results(20, -0.3)

    assert found[TrialResult.WORSE] == 20


def test_small_harm_is_never_kept() -> None:
    found = results(15, -0.05)

    assert found[TrialResult.IMPROVED] == 0


@pytest.mark.parametrize(("share", "runs"), [(50, 25), *(pytest.param(share, 200, marks=LONG) for share in (50, 25))])
def test_uneven_effect_whose_mean_is_negative_is_seldom_kept(share: int, runs: int) -> None:
    """9 points better in 80 % of the blocks and 39 points worse in the others, in up to 25 groups."""
    found = results(runs, 0.0, share=share, uneven=True, noise=0.005, duration_s=1_560 * 50 // share)

    assert found[TrialResult.IMPROVED] <= ALPHA * runs


def test_harm_is_not_kept_as_harmless() -> None:
    more: dict[str, Any] = {"keep_if": KeepIf.HARMLESS, "tolerance": 10, "duration_s": 3_660, "base": 1.0, "noise": 0.0}
    worse, equal = (results(10, effect, **more) for effect in (-0.15, 0.0))

    assert worse[TrialResult.HARMLESS] == 0
    assert equal[TrialResult.HARMLESS] == 10


# Decisions


def effect(subject: Subject, low: float, high: float, name: str = "x") -> Effect:
    return Effect(subject, name, Interval(low, (low + high) / 2, high), 9, min(low, 0.0))


PROMISE, GOODPUT, COST = Subject.PROMISE, Subject.GOODPUT, Subject.COST
UNKNOWN = Effect(PROMISE, "batch", None, 0, -1.0)


@pytest.mark.parametrize(
    ("found", "over", "expected"),
    [
        ((effect(PROMISE, 0.01, 0.3), effect(GOODPUT, -0.1, 0.2)), False, TrialResult.IMPROVED),
        ((effect(PROMISE, 0.01, 0.3), UNKNOWN), False, TrialResult.IMPROVED),
        ((effect(PROMISE, 0.01, 0.3), effect(PROMISE, -0.3, -0.02)), False, TrialResult.WORSE),
        ((effect(PROMISE, 0.01, 0.3), effect(PROMISE, -0.3, -0.005)), True, TrialResult.UNDECIDED),
        ((effect(PROMISE, 0.01, 0.3), effect(PROMISE, -0.3, 0.2)), False, TrialResult.NONE),
        ((effect(PROMISE, -0.1, 0.1), effect(GOODPUT, 0.01, 0.2)), False, TrialResult.IMPROVED),
        ((effect(PROMISE, -0.1, 0.1), effect(GOODPUT, -0.1, 0.1), effect(COST, 0.1, 0.2)), False, TrialResult.NONE),
        ((effect(PROMISE, -0.01, 0.1), effect(GOODPUT, -0.1, 0.1), effect(COST, 0.1, 0.2)), True, TrialResult.IMPROVED),
        ((UNKNOWN, effect(COST, 0.1, 0.2)), False, TrialResult.NONE),
        ((effect(PROMISE, -0.1, 0.1), effect(COST, -0.3, -0.2)), False, TrialResult.NONE),
        ((effect(PROMISE, -0.1, 0.1),), True, TrialResult.UNDECIDED),
    ],
)  # fmt: skip
def test_new_value_is_kept_if_it_is_better(found: tuple[Effect, ...], over: bool, expected: TrialResult) -> None:
    assert decide(TRIAL, found, over=over)[0] is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((effect(PROMISE, -0.01, 0.01), effect(GOODPUT, -0.1, 0.1), UNKNOWN), TrialResult.HARMLESS),
        ((effect(PROMISE, -0.02, 0.01),), TrialResult.NONE),
        ((UNKNOWN,), TrialResult.NONE),
        ((effect(PROMISE, -0.01, 0.01), effect(GOODPUT, -0.3, -0.1)), TrialResult.WORSE),
    ],
)
def test_harmless_value_is_kept_if_that_is_enough(found: tuple[Effect, ...], expected: TrialResult) -> None:
    assert decide(replace(TRIAL, keep_if=KeepIf.HARMLESS), found, over=False)[0] is expected


def test_reason_contains_the_figures() -> None:
    _, reason = decide(TRIAL, (effect(PROMISE, 0.1, 0.3, "chat"), effect(GOODPUT, -0.1, 0.1, "goodput")), over=False)
    _, unknown = decide(TRIAL, (UNKNOWN, effect(GOODPUT, -0.1, 0.1, "goodput")), over=True)

    assert reason == "the new value is better: chat +20.0 points [+10.0, +30.0]"
    assert unknown.endswith("shows too little: batch: too few blocks; goodput +0.0 % [-10.0, +10.0]")


def test_groups_with_too_few_requests_or_the_wrong_value_are_left_out() -> None:
    trial = replace(TRIAL, seed=1)
    blocks = {number: tally(number, 20, new=trial.has_new_value(number), cost=10) for number in range(8)}
    blocks[3].classes[CLASS].good = 9
    blocks[4].wrong_value = True
    del blocks[7]
    promise, goodput, cost = effects(trial, blocks, [CLASS])

    assert (promise.groups, goodput.groups, cost.groups) == (0, 1, 1)
    assert effects(trial, {}, [])[0].interval is None


def test_groups_after_one_that_is_not_settled_do_not_count_yet() -> None:
    """The requests of block 2 that are still open may end badly."""
    blocks = {number: tally(number, 20, new=TRIAL.has_new_value(number)) for number in range(20) if number != 2}

    assert {each.groups for each in effects(TRIAL, blocks, [CLASS])} == {0}
    blocks[2] = tally(2, 0, 20, new=TRIAL.has_new_value(2))
    assert effects(TRIAL, blocks, [CLASS])[0].groups == 9


# Classes with few requests


def blocks_with_a_small_class(*, bad_new: int) -> dict[int, BlockTally]:
    """Class chat becomes better with the new value. Class vip has 9 requests per block."""
    blocks: dict[int, BlockTally] = {}
    for number in range(TRIAL.blocks):
        new = TRIAL.has_new_value(number)
        blocks[number] = tally(number, 95 if new else 20, 5 if new else 80, new=new)
        bad = bad_new if new else 0
        blocks[number].classes["vip"] = ClassTally(9 - bad, bad)
    return blocks


@pytest.mark.parametrize("keep_if", list(KeepIf))
@pytest.mark.parametrize(("bad_new", "is_kept"), [(9, False), (1, False), (0, True)])
def test_value_that_harms_a_class_with_few_requests_is_not_kept(keep_if: KeepIf, bad_new: int, is_kept: bool) -> None:
    trial = replace(TRIAL, keep_if=keep_if)
    found = effects(trial, blocks_with_a_small_class(bad_new=bad_new), [CLASS, "vip"])
    result, _ = decide(trial, found, over=True)

    assert found[1].interval is None
    assert found[1].pooled == pytest.approx(-bad_new / 9)
    assert (result in (TrialResult.IMPROVED, TrialResult.HARMLESS)) is is_kept


def test_small_class_without_requests_of_one_value_is_compared_with_good_ones() -> None:
    blocks = [tally(0, 0), tally(1, 3, 1, new=True)]

    assert pooled_difference(CLASS, blocks) == -0.25
    assert pooled_difference("other", blocks) is None


def test_harm_to_a_class_with_few_requests_is_noticed_over_several_blocks() -> None:
    blocks = blocks_with_a_small_class(bad_new=9)
    seen = [block for number, block in blocks.items() if number < 12]
    block = next(each for each in reversed(seen) if each.has_new_value)
    said = harm(block, seen, {}, 1)

    assert "requests of class vip missed their targets or failed with the new value, and 0 of" in said
    equal = [block for number, block in blocks_with_a_small_class(bad_new=0).items() if number < 12]
    assert harm(equal[block.number], equal, {}, 1) == ""


# Safety


def test_harm_within_one_block_is_noticed() -> None:
    old = [tally(0, 60, 3), tally(1, 50, 2), tally(2, 5, 5)]
    new = tally(3, 5, 40, new=True)

    assert harm(new, old, {}, 1).startswith("40 of 45 requests of class chat missed their targets or failed")
    assert harm(tally(3, 43, 2, new=True), old, {}, 1) == ""
    assert harm(tally(3, 5, 20, new=True), old, {}, 1) == "", "too few requests"


def test_open_requests_count_for_safety_if_they_are_late() -> None:
    old, begun = [tally(0, 60, 3)], BlockTally(3, True, at(0))

    assert harm(begun, old, {CLASS: OpenCount(40, 40)}, 1)
    assert harm(begun, old, {CLASS: OpenCount(40, 3)}, 1) == ""
    assert harm(begun, old, {"other": OpenCount(40, 40)}, 1) == "", "there is nothing to compare with"


def alarm(seed: int, *, noise: float) -> bool:
    """Returns whether an equal value is reverted within a block. The load varies from block to block."""
    draws, trial, load, looks = random.Random(seed), replace(TRIAL, seed=seed), 0.0, 0
    old: list[BlockTally] = []
    for number in range(trial.blocks):
        load = 0.5 * load + draws.gauss(0, noise)
        seen = tally(number, 0, new=trial.has_new_value(number))
        for request in range(300):
            seen.count(CLASS, good=draws.random() < 0.85 + load)
            if seen.has_new_value and request % 15 == 0:
                looks += 1
                if harm(seen, old, {}, looks):
                    return True
        if not seen.has_new_value:
            old.append(seen)
    return False


@pytest.mark.parametrize("runs", [20, pytest.param(300, marks=LONG)])
def test_bursts_are_seldom_mistaken_for_harm(runs: int) -> None:
    assert sum(alarm(seed, noise=0.1) for seed in range(runs)) <= 0.05 * runs


# State


def test_override_parameters_keep_the_state() -> None:
    kept = replace(TRIAL, keep_if=KeepIf.HARMLESS).ended(TrialPhase.KEPT, TrialResult.HARMLESS)

    assert trial_of(TRIAL.setting, kept.terms()) == kept
    assert all(isinstance(each, int) for each in kept.terms().values())


@pytest.mark.parametrize("changes", [{"phase": 9}, {"result": 99}, {"keep_if": -1}, {"block_s": 0}])
def test_parameters_of_another_version_are_ignored(changes: dict[str, int]) -> None:
    assert trial_of("s", TRIAL.terms() | changes) is None
    assert trial_of("s", {}) is None


def test_override_sets_the_new_value_only_in_blocks_and_once_it_is_kept() -> None:
    def value(trial: SettingTrial) -> int | None:
        found = setting_override("trial", trial.setting, trial.terms(), at(9))
        return None if found is None else found.value

    assert value(TRIAL) == 95
    assert value(TRIAL.ended(TrialPhase.KEPT, TrialResult.IMPROVED)) == 80
    assert value(TRIAL.ended(TrialPhase.REVERTED, TrialResult.WORSE)) is None
    block = setting_override("trial_block", "s", {"before": 1, "value": 2}, at(9))
    assert block == SetSetting("s", 1, 2, at(9))
    assert setting_override("trial_block", "s", {}, at(9)) is None


@pytest.mark.parametrize(("share", "size"), [(50, 2), (33, 3), (25, 4), (10, 10), (5, 20)])
def test_one_block_of_each_group_has_the_new_value(share: int, size: int) -> None:
    trial = replace(TRIAL, share_percent=share)
    new = [number for number in range(trial.blocks) if trial.has_new_value(number)]

    assert trial.group_size == size
    assert [(number - BASELINE_BLOCKS) // size for number in new] == list(range(trial.groups))
    assert trial.blocks * 30 <= trial.duration_s


def test_schedule_depends_on_the_seed() -> None:
    drawn = {seed: tuple(replace(TRIAL, seed=seed).new_block(group) for group in range(10)) for seed in range(5)}

    assert len(set(drawn.values())) == 5


def test_trial_that_cannot_decide_is_rejected() -> None:
    with pytest.raises(InvalidTrial, match=r"120 s is too short for a decision.*need at least 540 s; set a longer"):
        check_schedule(replace(TRIAL, duration_s=120), 1)
    with pytest.raises(InvalidTrial, match="has 599 blocks with the new value, and at most 200 are allowed"):
        check_schedule(replace(TRIAL, block_s=1), 1)
    check_schedule(TRIAL, 3)
    harmless = replace(TRIAL, keep_if=KeepIf.HARMLESS)
    with pytest.raises(InvalidTrial, match=r"1 points worse, at least 500 blocks need.*set a larger tolerance"):
        check_schedule(harmless, 1)
    with pytest.raises(InvalidTrial, match="need at least 3240 s; set a longer duration"):
        check_schedule(replace(harmless, tolerance_percent=10), 1)
