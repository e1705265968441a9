"""Any file yields either settings or a list of problems."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.class_schema import DegradationStepSection
from headgate.config.pool_schema import CalendarEventSection, FleetSection, ScalingSection, SpeedSection
from headgate.config.problems import ConfigErrors
from headgate.config.schema import (
    CellSection,
    ConfigFile,
    RouteMatchSection,
    RouteSection,
    TenantLimitsSection,
    TierSection,
)
from tests.config.builders import settings_of

WORDS = (
    "small",
    "x",
    "",
    "10s",
    "4",
    "-1",
    "true",
    "http://a:1",
    "5us",
    "tiny",
    "a/b",
    "127.0.0.1:1",
    "vllm",
    "flex",
    "dns",
    "processes",
    "engine --port {port} {x",
    "2026-11-27T08:00:00Z",
    "unlimited",
    "${E}",
    "${",
    "1MiB",
    "redis://a",
    "rediss+sentinel://:p@a,b:1/m/1?ca=f",
    "<<",
)
NAMES = (
    *ConfigFile.__struct_fields__,
    "engine",
    "endpoints",
    "url",
    "name",
    "fleet",
    "scaling",
    *FleetSection.__struct_fields__,
    *ScalingSection.__struct_fields__,
    *CalendarEventSection.__struct_fields__,
    "in_flight_max",
    "keys",
    "band",
    "service_tiers",
    "caps",
    "n",
    "reasoning_effort",
    *SpeedSection.__struct_fields__,
    *TierSection.__struct_fields__,
    *RouteSection.__struct_fields__,
    *RouteMatchSection.__struct_fields__,
    "routes",
    "sticky",
    *DegradationStepSection.__struct_fields__,
    *TenantLimitsSection.__struct_fields__,
    *CellSection.__struct_fields__,
    "variants",
    "rungs",
    "fallbacks",
    "plan",
    "promise",
    "min_share_percent",
)

words = st.sampled_from(WORDS) | st.none() | st.text(max_size=5)
names = st.sampled_from(NAMES + WORDS) | st.text(max_size=3)
trees = st.recursive(
    words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=30,
)


def ends_well(text: str) -> None:
    problems: list[str] = []
    try:
        settings_of(text, {"E": "value"})
    except ConfigErrors as errors:
        problems = [str(problem) for problem in errors.problems]
        problems = problems or ["an error without a problem"]

    assert [problem for problem in problems if not problem.startswith("headgate.yaml:")] == []


@given(st.dictionaries(st.sampled_from(ConfigFile.__struct_fields__), trees, max_size=12))
@settings(max_examples=2 * settings.default.max_examples)
def test_any_tree_results_in_settings_or_problems(tree: dict) -> None:
    ends_well(json.dumps(tree))


@given(st.text())
def test_any_text_results_in_settings_or_problems(text: str) -> None:
    ends_well(text)
