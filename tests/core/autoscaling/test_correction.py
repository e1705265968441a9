"""By how much does the measured attainment correct predicted work?"""

from headgate.core.autoscaling.correction import JUDGED_MIN, PPM, Correction
from headgate.model.scaling import ScalingRules
from testing.builders import at, lasting

RULES = ScalingRules(endpoints_max=20)
LEAD = lasting(130)


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
    """The factor after so many windows with so many misses."""
    for number in range(windows + 1):
        if number:
            correction.add(judged=judged, missed=missed)
        moment = at(since + 130 * number)
        correction.step(rules, moment, lead_ns=LEAD, may_rise=may_rise, may_fall=may_fall)
    return correction.factor_ppm / PPM


def test_factor_rises_while_more_requests_miss_their_target_than_aimed_at() -> None:
    assert stepped(Correction(), missed=17) == 1.0005
    assert stepped(Correction(), missed=27) == 1.001


def test_factor_falls_slowly_while_no_request_misses_its_target() -> None:
    assert stepped(Correction(), missed=0) == 0.99965
    assert stepped(Correction(), missed=7) == 1.0, "at the aim it stays"


def test_one_window_raises_the_factor_by_one_percent_at_most() -> None:
    assert stepped(Correction(), missed=1_000) == 1.01


def test_factor_stays_within_its_bounds() -> None:
    assert stepped(Correction(), missed=1_000, windows=200) == 2.0
    assert stepped(Correction(), missed=0, windows=3_000) == 0.6


def test_changed_bounds_apply_at_once() -> None:
    correction = Correction()
    stepped(correction, missed=1_000, windows=50)
    fixed = ScalingRules(endpoints_max=20, correction_percent_min=100, correction_percent_max=100)

    assert stepped(correction, missed=1_000, rules=fixed) == 1.0


def test_stricter_objective_corrects_by_fewer_misses() -> None:
    strict = ScalingRules(endpoints_max=20, objective_ppm=999_000)

    assert stepped(Correction(), missed=2, rules=strict) > 1
    assert stepped(Correction(), missed=2) < 1
    assert stepped(Correction(), missed=1, rules=ScalingRules(endpoints_max=20, objective_ppm=PPM)) == 1.01


def test_window_lasts_for_the_lead_and_has_enough_requests() -> None:
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


def test_factor_neither_rises_nor_falls_if_that_would_not_change_the_attainment() -> None:
    assert stepped(Correction(), missed=100, may_rise=False) == 1.0
    assert stepped(Correction(), missed=0, may_fall=False) == 1.0
