"""Notation of the settings that can be tried on live traffic."""

import pytest

from headgate.config.live_values import bounds_text, live_value_text, parse_live_value
from headgate.model.live_settings import LIVE_SETTINGS, UNLIMITED, LiveSetting, setting_place


def setting(path: str) -> LiveSetting:
    place = setting_place(path)
    assert place is not None
    return place.setting


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("headroom.kv_percent", "90%", 90),
        ("pools.main.in_flight_max", "48", 48),
        ("classes.chat.queue_wait_max", "2500ms", 2_500_000_000),
        ("degradation.escalate_above_percent", "120", 1_200),
        ("shedding.enabled", "true", 1),
        ("admission.predicted_wait_percent_max", "unlimited", UNLIMITED),
    ],
)
def test_values_have_the_notation_of_the_file(path: str, text: str, value: int) -> None:
    assert parse_live_value(setting(path), text) == value


@pytest.mark.parametrize("each", LIVE_SETTINGS, ids=lambda each: each.pattern)
def test_text_of_a_value_can_be_read_again(each: LiveSetting) -> None:
    for value in (each.low, each.high):
        assert parse_live_value(each, live_value_text(each, value)) == value
    assert bounds_text(each)


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("headroom.kv_percent", "101", "kv_percent: 101 is out of range; it can be 1 to 100"),
        ("pools.main.in_flight_max", "48%", 'in_flight_max: "48%" is not a whole number'),
        ("classes.chat.queue_wait_max", "2", 'queue_wait_max: "2" is not a duration with its unit, such as 250ms, 10s'),
        ("routing.prefix_affinity", "1", 'prefix_affinity: "1" is not true or false'),
        ("headroom.kv_percent", "unlimited", 'kv_percent: "unlimited" is not a whole number'),
    ],
)
def test_invalid_values_are_explained(path: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace(";", ".").replace("(", ".")):
        parse_live_value(setting(path), text)


def test_unlimited_value_is_shown() -> None:
    found = setting("admission.predicted_wait_percent_max")

    assert live_value_text(found, UNLIMITED) == "unlimited"
    assert bounds_text(found) == "a whole number of percent from 1 to 1000, or unlimited"
