"""State, reason and setting of each overload protection."""

import pytest

from headgate.config.protections import Protection, ProtectionState, protections
from headgate.model.units import PoolName
from tests.config.builders import SMALL, settings_of, small_with, small_with_classes

TARGETS = small_with_classes("interactive: {ttft: 2s, tpot: 100ms}", "batch: {priority_band: 1}")


def found(text: str, name: str, scope: str = "") -> Protection:
    return next(each for each in protections(settings_of(text)) if (each.name, each.scope) == (name, scope))


def with_pool(text: str, *settings: str) -> str:
    return text.replace("in_flight_max: 4,", f"in_flight_max: 4, {', '.join(settings)},")


def test_each_protection_is_listed_once_per_scope() -> None:
    listed = [(each.name, each.scope) for each in protections(settings_of(SMALL))]

    assert len(listed) == len(set(listed))
    assert {"in-flight limit", "KV memory", "degradation", "retry budget", "outlier ejection"} <= {
        name for name, _ in listed
    }


@pytest.mark.parametrize(
    ("text", "name", "scope", "state", "setting"),
    [
        (SMALL, "in-flight limit", "pool small", ProtectionState.ON, "pools.small.in_flight_max"),
        (SMALL, "KV memory", "pool small", ProtectionState.OFF, "pools.small.kv_tokens"),
        (with_pool(SMALL, "kv_tokens: 4096"), "KV memory", "pool small", ProtectionState.ON, "pools.small.kv_tokens"),
        (TARGETS, "time per token", "pool small", ProtectionState.ON, "classes.interactive.tpot"),
        (
            small_with_classes("quick: {priority_band: 0}"),
            "time per token",
            "pool small",
            ProtectionState.OFF,
            "classes.NAME.tpot",
        ),
        (SMALL, "speed estimate", "pool small", ProtectionState.LEARNING, "pools.small.speed"),
        (with_pool(SMALL, "speed: tiny"), "speed estimate", "pool small", ProtectionState.ON, "pools.small.speed"),
        (SMALL, "autoscaling signal", "pool small", ProtectionState.OFF, "pools.small.scaling"),
        (
            with_pool(SMALL, "scaling: {endpoints_max: 3}"),
            "autoscaling signal",
            "pool small",
            ProtectionState.ON,
            "pools.small.scaling",
        ),
        (TARGETS, "deadline admission", "class interactive", ProtectionState.LEARNING, "classes.interactive.ttft"),
        (
            with_pool(TARGETS, "speed: tiny"),
            "deadline admission",
            "class interactive",
            ProtectionState.ON,
            "classes.interactive.ttft",
        ),
        (
            with_pool(small_with_classes("quick: {priority_band: 0, e2e: 300ms}"), "speed: tiny"),
            "deadline admission",
            "class quick",
            ProtectionState.ON,
            "classes.quick.e2e",
        ),
        (
            small_with_classes("quick: {priority_band: 0, ttft: 100ms, e2e: 300ms}"),
            "deadline admission",
            "class quick",
            ProtectionState.LEARNING,
            "classes.quick.ttft, classes.quick.e2e",
        ),
        (
            small_with_classes("quick: {priority_band: 0, e2e: 300ms}"),
            "degradation",
            "",
            ProtectionState.ON,
            "degradation",
        ),
        (
            small_with_classes("quick: {priority_band: 0}"),
            "deadline admission",
            "class quick",
            ProtectionState.OFF,
            "classes.quick.ttft",
        ),
        (
            small_with("admission: {predicted_wait_percent_max: unlimited}"),
            "deadline admission",
            "class interactive",
            ProtectionState.OFF,
            "admission.predicted_wait_percent_max",
        ),
        (
            small_with_classes("quick: {priority_band: 0, hedging: true}"),
            "hedging",
            "class quick",
            ProtectionState.ON,
            "classes.quick.hedging",
        ),
        (TARGETS, "degradation", "", ProtectionState.ON, "degradation"),
        (small_with_classes("quick: {priority_band: 0}"), "degradation", "", ProtectionState.OFF, "classes.NAME.ttft"),
        (small_with("degradation: {enabled: false}"), "degradation", "", ProtectionState.OFF, "degradation.enabled"),
        (SMALL, "proportional shedding", "", ProtectionState.OFF, "shedding.enabled"),
        (small_with("shedding: {enabled: true}"), "proportional shedding", "", ProtectionState.ON, "shedding.enabled"),
        (SMALL, "retry budget", "", ProtectionState.ON, "retry"),
        (SMALL, "outlier ejection", "", ProtectionState.ON, "health"),
        (SMALL, "tenant limits", "", ProtectionState.OFF, "tenants.NAME.limits"),
        (
            SMALL.replace("demo: {}", "demo: {limits: {concurrency: 2}}"),
            "tenant limits",
            "",
            ProtectionState.ON,
            "tenants.NAME.limits",
        ),
        (SMALL, "budgets", "", ProtectionState.OFF, "tenants.NAME.budgets"),
    ],
)
def test_protection_state_follows_the_settings(
    text: str, name: str, scope: str, state: ProtectionState, setting: str
) -> None:
    protection = found(text, name, scope)

    assert (protection.state, protection.setting) == (state, setting)
    assert protection.reason


@pytest.mark.parametrize(
    ("reported", "state", "reason"),
    [
        ({}, ProtectionState.LEARNING, "is read from each engine"),
        ({"small": 4_096}, ProtectionState.ON, "4,096 KV tokens (reported by the engine"),
    ],
)
def test_memory_protection_is_on_once_the_engine_has_reported_its_capacity(
    reported: dict[PoolName, int], state: ProtectionState, reason: str
) -> None:
    listed = protections(settings_of(SMALL), kv_readable_engines={"llamacpp"}, reported_kv_tokens=reported)
    memory = next(each for each in listed if each.name == "KV memory")

    assert memory.state is state
    assert reason in memory.reason


def test_class_budget_is_listed() -> None:
    priced = with_pool(SMALL, "prices: {input_per_1m_tokens: 1, output_per_1m_tokens: 1}")
    text = priced + "classes:\n  quick: {priority_band: 0, budgets: {day: {usd: 5}}}\n"

    assert found(text, "budgets").state is ProtectionState.ON


def test_different_in_flight_limits_are_shown_as_range() -> None:
    text = SMALL.replace('"http://127.0.0.1:8081"', "http://a:1, {url: http://b:1, in_flight_max: 9}")

    assert found(text, "in-flight limit", "pool small").reason.startswith(
        "an endpoint gets at most 4 to 9 concurrent requests"
    )


def test_line_has_a_next_step_only_if_the_protection_is_off() -> None:
    assert found(SMALL, "KV memory", "pool small").line.endswith("; set pools.small.kv_tokens")
    assert found(SMALL, "retry budget").line.endswith("(retry)")


@pytest.mark.parametrize(
    ("text", "kept"), [(SMALL, "lost on restart"), (small_with("state_directory: /a"), "kept across restarts")]
)
def test_speed_estimate_shows_whether_it_survives_a_restart(text: str, kept: str) -> None:
    assert kept in found(text, "speed estimate", "pool small").reason
