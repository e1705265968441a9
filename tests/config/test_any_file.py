"""Does any file at all end in settings or in a list of problems, and in nothing else?"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.problems import ConfigErrors
from headgate.config.schema import (
    CellSection,
    File,
    FleetSection,
    KnownEventSection,
    RungSection,
    ScalingSection,
    SpeedSection,
    TenantLimitsSection,
    VariantSection,
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
    *File.__struct_fields__,
    "engine",
    "endpoints",
    "url",
    "name",
    "fleet",
    "scaling",
    *FleetSection.__struct_fields__,
    *ScalingSection.__struct_fields__,
    *KnownEventSection.__struct_fields__,
    "in_flight_max",
    "keys",
    "band",
    "service_tiers",
    "caps",
    "n",
    "reasoning_effort",
    *SpeedSection.__struct_fields__,
    *RungSection.__struct_fields__,
    *VariantSection.__struct_fields__,
    *TenantLimitsSection.__struct_fields__,
    *CellSection.__struct_fields__,
    "variants",
    "rungs",
    "fallbacks",
    "plan",
    "promise",
    "floor_percent",
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


@given(st.dictionaries(st.sampled_from(File.__struct_fields__), trees, max_size=12))
@settings(max_examples=2 * settings.default.max_examples)
def test_any_tree_is_judged(tree: dict) -> None:
    ends_well(json.dumps(tree))


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    ends_well(text)
