"""Tunable settings of scenarios, and variants of a scenario file."""

from pathlib import Path

import pytest

from headgate.compose.simulation import SCHEDULERS
from headgate.compose.tuning.tunable_settings import FIXED, TUNABLE, fixed_reason, rule_of
from headgate.compose.tuning.tunables import ScenarioTunables, schema_settings
from headgate.compose.tuning.variants import ScenarioVariants
from headgate.config.problems import ConfigErrors
from headgate.model.engine_profile import PROFILES
from headgate.model.units import SECOND, ClassName
from headgate.planning.tuning.change import SettingChange
from headgate.planning.tuning.search import VALUES_MAX
from headgate.planning.tuning.tunable import Tunable

SCENARIO = """
pools:
  llama-3.1: {engines: tiny, in_flight_max: 8}
  big: {engines: [{profile: tiny, count: 2, sequences_max: 4}, tiny], in_flight_max: 8, prompt_tokens_min: 500}
classes:
  interactive: &usual {queue_wait_max: 20s, hedging: true}
  batch: {<<: *usual, pools: [big]}
tenants: {acme: {weight: 200}}
traffic: [{rate: 1, classes: interactive, tenants: acme, prompt: 1:9, output: 1:9, duration: 1s}]
"""


def variants_of(text: str = SCENARIO) -> ScenarioVariants:
    return ScenarioVariants(text, Path("a.yaml"), {}, profiles=PROFILES, schedulers=SCHEDULERS)


def tunables_of(text: str = SCENARIO, *changes: SettingChange, pattern: str = "*") -> dict[str, Tunable]:
    find = ScenarioTunables(variants_of(text), [ClassName("interactive"), ClassName("batch")], pattern)
    return {each.path: each for each in find(changes)}


def test_every_setting_of_a_scenario_is_tunable_or_fixed_for_a_reason() -> None:
    unknown = [path for path, _ in schema_settings() if (rule_of(path) is None) == (fixed_reason(path) is None)]

    assert unknown == []


def test_tables_name_only_settings_that_exist() -> None:
    known = [path for path, _ in schema_settings()]
    used = {fixed_reason(path) for path in known}

    assert [path for path in TUNABLE if not path.endswith(".*") and path not in known] == []
    assert set(FIXED.values()) <= used


@pytest.mark.parametrize(
    ("path", "before", "values"),
    [
        ("pools.llama-3.1.in_flight_max", "8", ("6", "4", "2", "1", "12", "16", "32", "80")),
        ("pools.big.engines[0].count", "2", ("1", "3", "4", "6", "10")),
        ("pools.big.prompt_tokens_min", "500", ("375", "250", "125", "50", "750", "1000", "2000", "5000", "0")),
        ("classes.interactive.queue_wait_max", "20s", ("15s", "10s", "5s", "2s", "30s", "40s", "80s", "200s")),
        ("classes.interactive.hedging", "true", ("false",)),
        ("classes.interactive.optimize_for", "latency", ("quality", "cost")),
        ("classes.batch.pools", "[big]", (None, "[llama-3.1]")),
        ("classes.batch.min_share_percent", "5", ("4", "2", "1", "0", "8", "10", "20", "50")),
        ("tenants.acme.limits.concurrency", None, ("4", "16", "64")),
        ("degradation.enabled", "true", ("false",)),
        ("fairness_depth", "1", ("2", "3", "5", "9")),
    ],
)
def test_values_to_try_follow_from_the_value_in_effect(path: str, before: str, values: tuple[str, ...]) -> None:
    found = tunables_of()[path]

    assert (found.before, found.values) == (before, values)


def test_engine_sizes_of_the_profile_are_the_values_in_effect() -> None:
    found = tunables_of()

    assert found["pools.big.engines[0].sequences_max"].before == "4"
    assert found["pools.big.engines[1].sequences_max"].before == str(PROFILES["tiny"].sequences_max)


def test_default_is_tried_if_the_file_sets_another_value() -> None:
    assert (
        "60"
        in tunables_of(SCENARIO + "headroom: {pending_prefill_percent: 7}\n")["headroom.pending_prefill_percent"].values
    )


def test_directions_fit_into_the_budget_of_the_search() -> None:
    assert max(len(each.values) for tunable in tunables_of().values() for each in tunable.directions) <= VALUES_MAX


def test_values_continue_from_earlier_changes() -> None:
    path = "pools.llama-3.1.in_flight_max"

    assert tunables_of(SCENARIO, SettingChange(path, "8", "100"))[path].values[:2] == ("75", "50")


def test_settings_without_effect_are_left_out() -> None:
    one_pool = SCENARIO.replace("  big:", "  #").replace(", pools: [big]", "")
    found = tunables_of(one_pool)

    assert not {"classes.batch.pools", "pools.llama-3.1.prompt_tokens_max"} & set(found)
    assert not [path for path in tunables_of() if "scaling" in path or "batching" in path or "cold_start" in path]


def test_optional_sections_are_tuned_if_the_file_has_them() -> None:
    text = SCENARIO.replace("{engines: tiny,", "{engines: tiny, scaling: {endpoints_max: 3}, batching: {},")
    found = tunables_of(text)

    assert found["pools.llama-3.1.batching.delay_max"].values[:2] == ("4ms", "2ms")
    assert found["pools.llama-3.1.scaling.endpoints_max"].values == ("2", "1", "4", "5", "7", "11")
    assert not [path for path in found if path.startswith(("pools.big.scaling", "pools.big.batching"))]


def test_pattern_selects_settings() -> None:
    assert set(tunables_of(pattern="classes.*.hedging")) == {"classes.interactive.hedging", "classes.batch.hedging"}


def test_variant_changes_one_class_of_a_shared_section() -> None:
    change = SettingChange("classes.interactive.queue_wait_max", "20s", "5s")
    found = {each.name: each.queue_wait_ns_max for each in variants_of().settings([change]).policy.classes}

    assert found == {"interactive": 5 * SECOND, "batch": 20 * SECOND}


def test_variant_of_an_engine_written_by_its_profile() -> None:
    change = SettingChange("pools.llama-3.1.engines[0].count", "1", "3")

    assert sum(each.pool == "llama-3.1" for each in variants_of().settings([change]).engines) == 3


def test_variant_without_a_setting_has_its_default() -> None:
    variants = variants_of()
    change = SettingChange("classes.batch.pools", "[big]", None)

    assert variants.has(change.path)
    assert not variants.has(change.path, [change])
    assert all(not each.pools for each in variants.settings([change]).policy.classes)


def test_variant_of_default_classes_keeps_the_others() -> None:
    text = SCENARIO[: SCENARIO.index("classes:")] + SCENARIO[SCENARIO.index("tenants:") :]
    change = SettingChange("classes.interactive.hedging", "false", "true")
    found = variants_of(text).settings([change]).policy.classes

    assert [each.name for each in found] == ["interactive", "long", "batch"]
    assert [each.hedging for each in found] == [True, False, False]


def test_invalid_variant_is_rejected() -> None:
    with pytest.raises(ConfigErrors, match="chunk_tokens"):
        variants_of().settings([SettingChange("pools.big.engines[1].chunk_tokens", None, "1")])


def test_fixed_variant_is_a_file_of_its_own() -> None:
    fault = SettingChange("pools.llama-3.1.in_flight_max", "8", "2")
    fixed = variants_of().fixed([fault])

    assert {each.in_flight_max for each in fixed.settings().engines if each.pool == "llama-3.1"} == {2}
    assert fixed.has(fault.path)


def test_setting_can_be_chosen_by_its_exact_path() -> None:
    assert list(tunables_of(pattern="pools.big.engines[0].count")) == ["pools.big.engines[0].count"]


def test_engines_of_a_hosted_provider_are_not_tuned() -> None:
    hosted = tunables_of(SCENARIO.replace("  big: {", "  big: {engine: provider, "))

    assert [path for path in hosted if path.startswith("pools.big.engines")] == []
    assert "pools.big.in_flight_max" in hosted
