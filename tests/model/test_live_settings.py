"""Settings that the scheduler can change while it runs."""

from dataclasses import replace

import pytest

from headgate.model.live_settings import (
    LIVE_SETTINGS,
    UNLIMITED,
    LiveSetting,
    SettingPlace,
    SettingUnit,
    setting_place,
    settings_conflict,
    value_in,
    with_settings,
    with_value,
)
from headgate.model.overrides import HoldClass, SetSetting
from headgate.model.policy import AdmissionRules, DegradationRules, Policy, ServiceClass
from testing.builders import a_class, a_policy, at

CHAT = a_class("chat")
POLICY = a_policy(classes=(CHAT, a_class("batch")))


def place_of(path: str) -> SettingPlace:
    found = setting_place(path)
    assert found is not None
    return found


def with_classes(*classes: ServiceClass) -> Policy:
    return replace(POLICY, classes=classes)


def path_of(setting: LiveSetting) -> str:
    return setting.pattern.replace("NAME", "p" if setting.section == "pools" else "chat")


@pytest.mark.parametrize("setting", LIVE_SETTINGS, ids=lambda each: each.pattern)
def test_each_setting_of_the_table_can_be_changed_within_its_bounds(setting: LiveSetting) -> None:
    place = place_of(path_of(setting))
    if setting.name == "in_flight_max":
        assert value_in(POLICY, place) is None
        assert with_value(POLICY, place, 8, before=4).pools[0].in_flight_replacement == (4, 8)
        return
    before = value_in(POLICY, place)
    assert before is not None
    assert setting.low <= before <= setting.high
    other = setting.high if before == setting.low else setting.low
    changed = with_value(POLICY, place, other, before=before)

    assert value_in(changed, place) == other
    assert with_value(changed, place, before, before=other) == POLICY


@pytest.mark.parametrize(
    "path", ["pools.in_flight_max", "headroom.chat.kv_percent", "headroom", "retry.attempts_max", "classes.chat.ttft"]
)
def test_other_paths_are_not_live_settings(path: str) -> None:
    assert setting_place(path) is None


def test_names_may_contain_dots() -> None:
    assert place_of("pools.llama-3.1.in_flight_max").item == "llama-3.1"


def test_unknown_class_has_no_value() -> None:
    place = place_of("classes.gone.queue_length_max")

    assert value_in(POLICY, place) is None
    assert with_value(POLICY, place, 1, before=2) is POLICY


def test_value_applies_only_while_the_configuration_has_the_value_before() -> None:
    place = place_of("headroom.kv_percent")

    assert with_value(POLICY, place, 50, before=94) is POLICY
    assert with_value(POLICY, place, 50, before=95).headroom.kv_percent == 50


def test_missing_cap_is_unlimited() -> None:
    place = place_of("admission.predicted_wait_percent_max")
    unlimited = replace(POLICY, admission=AdmissionRules(None))

    assert value_in(unlimited, place) == UNLIMITED
    assert with_value(unlimited, place, 80, before=UNLIMITED).admission == AdmissionRules(80)
    assert with_value(POLICY, place, UNLIMITED, before=100) == unlimited


def test_latest_override_of_a_setting_applies() -> None:
    orders = (
        SetSetting("headroom.kv_percent", 95, 80, at(9)),
        HoldClass("chat", at(9)),
        SetSetting("headroom.kv_percent", 95, 70, at(9)),
        SetSetting("headroom.long_lane_percent", 50, 20, at(9)),
        SetSetting("of another version", 1, 2, at(9)),
    )
    found = with_settings(POLICY, orders)

    assert (found.headroom.kv_percent, found.headroom.long_lane_percent) == (70, 20)
    assert with_settings(POLICY, (*orders, SetSetting("headroom.kv_percent", 95, 95, at(9)))).headroom.kv_percent == 95


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (POLICY, None),
        (
            with_classes(replace(CHAT, min_share_percent=60), replace(CHAT, band=1, min_share_percent=41)),
            "the minimum shares of all priority bands would add up to 101 percent",
        ),
        (
            with_classes(replace(a_class("a"), reserve_percent=60), replace(a_class("b"), reserve_percent=50)),
            "the reserved shares of all classes would add up to 110 percent",
        ),
        (
            replace(POLICY, degradation=DegradationRules(recover_below=1_000)),
            "recover_below_percent would not be below escalate_above_percent",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together_are_found(policy: Policy, problem: str | None) -> None:
    assert settings_conflict(policy) == problem


def test_override_that_no_longer_fits_together_with_the_configuration_is_left_out() -> None:
    kept = SetSetting("classes.chat.min_share_percent", 0, 60, at(9))
    other = SetSetting("classes.chat.reserve_percent", 0, 20, at(9))
    reloaded = with_classes(CHAT, replace(a_class("batch"), band=1, min_share_percent=50))
    found = with_settings(reloaded, [kept, other]).classes[0]

    assert (found.min_share_percent, found.reserve_percent) == (0, 20)


def test_units_have_bounds() -> None:
    for each in LIVE_SETTINGS:
        assert each.low < each.high
        assert (each.low, each.high) == (0, 1) or each.unit is not SettingUnit.SWITCH
