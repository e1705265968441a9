"""Does the list of protections show the state, the reason and the setting of each?"""

import pytest

from headgate.config.protections import Protection, State, protections
from headgate.model.units import PoolName
from tests.config.builders import SMALL, settings_of, small_with, small_with_classes

TARGETS = small_with_classes("interactive: {ttft: 2s, tpot: 100ms}", "batch: {band: 1}")


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
        (SMALL, "in-flight limit", "pool small", State.ON, "pools.small.in_flight_max"),
        (SMALL, "KV memory", "pool small", State.OFF, "pools.small.kv_tokens"),
        (with_pool(SMALL, "kv_tokens: 4096"), "KV memory", "pool small", State.ON, "pools.small.kv_tokens"),
        (TARGETS, "time per token", "pool small", State.ON, "classes.interactive.tpot"),
        (small_with_classes("quick: {band: 0}"), "time per token", "pool small", State.OFF, "classes.NAME.tpot"),
        (SMALL, "speed estimate", "pool small", State.LEARNING, "pools.small.speed"),
        (with_pool(SMALL, "speed: tiny"), "speed estimate", "pool small", State.ON, "pools.small.speed"),
        (SMALL, "autoscaling signal", "pool small", State.OFF, "pools.small.scaling"),
        (
            with_pool(SMALL, "scaling: {endpoints_max: 3}"),
            "autoscaling signal",
            "pool small",
            State.ON,
            "pools.small.scaling",
        ),
        (TARGETS, "deadline admission", "class interactive", State.LEARNING, "classes.interactive.ttft"),
        (
            with_pool(TARGETS, "speed: tiny"),
            "deadline admission",
            "class interactive",
            State.ON,
            "classes.interactive.ttft",
        ),
        (
            small_with_classes("quick: {band: 0}"),
            "deadline admission",
            "class quick",
            State.OFF,
            "classes.quick.ttft",
        ),
        (
            small_with("admission: {certainty_percent: unlimited}"),
            "deadline admission",
            "class interactive",
            State.OFF,
            "admission.certainty_percent",
        ),
        (
            small_with_classes("quick: {band: 0, hedges: true}"),
            "hedging",
            "class quick",
            State.ON,
            "classes.quick.hedges",
        ),
        (TARGETS, "degradation", "", State.ON, "ladder"),
        (small_with_classes("quick: {band: 0}"), "degradation", "", State.OFF, "classes.NAME.ttft"),
        (small_with("ladder: {enabled: false}"), "degradation", "", State.OFF, "ladder.enabled"),
        (SMALL, "proportional shedding", "", State.OFF, "shedding.enabled"),
        (small_with("shedding: {enabled: true}"), "proportional shedding", "", State.ON, "shedding.enabled"),
        (SMALL, "retry budget", "", State.ON, "retry"),
        (SMALL, "outlier ejection", "", State.ON, "health"),
        (SMALL, "tenant limits", "", State.OFF, "tenants.NAME.limits"),
        (
            SMALL.replace("demo: {}", "demo: {limits: {concurrency: 2}}"),
            "tenant limits",
            "",
            State.ON,
            "tenants.NAME.limits",
        ),
        (SMALL, "budgets", "", State.OFF, "tenants.NAME.budgets"),
    ],
)
def test_state_follows_the_settings(text: str, name: str, scope: str, state: State, setting: str) -> None:
    protection = found(text, name, scope)

    assert (protection.state, protection.setting) == (state, setting)
    assert protection.reason


@pytest.mark.parametrize(
    ("reported", "state", "reason"),
    [({}, State.LEARNING, "is read from each engine"), ({"small": 4_096}, State.ON, "4,096 KV tokens, as the engine")],
)
def test_memory_is_on_once_the_engine_has_reported_its_capacity(
    reported: dict[PoolName, int], state: State, reason: str
) -> None:
    listed = protections(settings_of(SMALL), readable={"llamacpp"}, reported=reported)
    memory = next(each for each in listed if each.name == "KV memory")

    assert memory.state is state
    assert reason in memory.reason


def test_budget_of_a_class_is_listed() -> None:
    priced = with_pool(SMALL, "prices: {input: 1, output: 1}")
    text = priced + "classes:\n  quick: {band: 0, budgets: {day: {usd: 5}}}\n"

    assert found(text, "budgets").state is State.ON


def test_in_flight_limits_that_differ_are_a_range() -> None:
    text = SMALL.replace('"http://127.0.0.1:8081"', "http://a:1, {url: http://b:1, in_flight_max: 9}")

    assert found(text, "in-flight limit", "pool small").reason.startswith("an endpoint gets 4 to 9 requests at once")


def test_line_names_the_next_step_only_if_one_is_left() -> None:
    assert found(SMALL, "KV memory", "pool small").line.endswith("; set pools.small.kv_tokens")
    assert found(SMALL, "retry budget").line.endswith("(retry)")


@pytest.mark.parametrize(
    ("text", "kept"), [(SMALL, "lost with a restart"), (small_with("state_folder: /a"), "kept across restarts")]
)
def test_speed_estimate_shows_whether_it_outlives_a_restart(text: str, kept: str) -> None:
    assert kept in found(text, "speed estimate", "pool small").reason
