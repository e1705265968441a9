"""Tests for the factor by which measured attainment corrects predicted work."""

from headgate.core.autoscaling.correction import JUDGED_MIN, PPM, Correction
from headgate.model.scaling import ScalingRules
from testing.builders import at, duration

RULES = ScalingRules(endpoints_max=20)
LEAD = duration(130)


def stepped(
    correction: Correction,
    *,
    missed: int,
    judged: int = 1_000,
    windows: int = 1,
    rules: ScalingRules = RULES,
    may_rise: bool = True,
    may_fall: bool = True,
    since: float = 0,
) -> float:
    """Returns the factor after this many windows with this many misses each."""
    for number in range(windows + 1):
        if number:
            correction.add(judged=judged, missed=missed)
        moment = at(since + 130 * number)
        correction.step(rules, moment, lead_ns=LEAD, may_rise=may_rise, may_fall=may_fall)
    return correction.factor_ppm / PPM


def test_factor_rises_while_more_requests_miss_their_target_than_allowed() -> None:
    assert stepped(Correction(), missed=17) == 1.0005
    assert stepped(Correction(), missed=27) == 1.001


def test_factor_falls_slowly_while_no_request_misses_its_target() -> None:
    assert stepped(Correction(), missed=0) == 0.99965
    assert stepped(Correction(), missed=7) == 1.0, "at the objective the factor does not change"


def test_one_window_raises_the_factor_by_at_most_one_percent() -> None:
    assert stepped(Correction(), missed=1_000) == 1.01


def test_factor_stays_within_its_limits() -> None:
    assert stepped(Correction(), missed=1_000, windows=200) == 2.0
    assert stepped(Correction(), missed=0, windows=3_000) == 0.6


def test_changed_limits_apply_immediately() -> None:
    correction = Correction()
    stepped(correction, missed=1_000, windows=50)
    fixed = ScalingRules(endpoints_max=20, correction_percent_min=100, correction_percent_max=100)

    assert stepped(correction, missed=1_000, rules=fixed) == 1.0


def test_stricter_objective_raises_the_factor_at_fewer_misses() -> None:
    strict = ScalingRules(endpoints_max=20, objective_ppm=999_000)

    assert stepped(Correction(), missed=2, rules=strict) > 1
    assert stepped(Correction(), missed=2) < 1
    assert stepped(Correction(), missed=1, rules=ScalingRules(endpoints_max=20, objective_ppm=PPM)) == 1.01


def test_window_requires_one_lead_and_enough_requests() -> None:
    correction = Correction()
    correction.step(RULES, at(0), lead_ns=LEAD, may_rise=True, may_fall=True)
    correction.add(judged=JUDGED_MIN - 1, missed=JUDGED_MIN - 1)
    correction.step(RULES, at(500), lead_ns=LEAD, may_rise=True, may_fall=True)
    assert correction.factor_ppm == PPM, "too few requests"

    correction.add(judged=1, missed=1)
    correction.step(RULES, at(510), lead_ns=LEAD, may_rise=True, may_fall=True)
    assert correction.factor_ppm == 1_010_000

    correction.add(judged=1_000, missed=1_000)
    correction.step(RULES, at(630), lead_ns=LEAD, may_rise=True, may_fall=True)
    assert correction.factor_ppm == 1_010_000, "the lead has not passed"


def test_factor_changes_only_if_the_change_would_affect_attainment() -> None:
    assert stepped(Correction(), missed=100, may_rise=False) == 1.0
    assert stepped(Correction(), missed=0, may_fall=False) == 1.0
