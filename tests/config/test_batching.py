"""A pool's batching rules."""

import pytest

from headgate.config.summary import summary_data, summary_lines
from headgate.model.policy import BatchRules
from headgate.model.units import MILLISECOND
from tests.config.builders import problems_of, settings_of, warnings_of

POOL = """
pools:
  small: {engine: llamacpp, in_flight_max: 64, endpoints: "http://127.0.0.1:8081"%s}
models: {smollm2: small}
tenants: {demo: {}}
anonymous_tenant: demo
"""


def rules_of(text: str) -> BatchRules | None:
    [pool] = settings_of(POOL % text).pools
    return pool.batching


def test_batching_is_off_by_default() -> None:
    assert rules_of("") is None


def test_empty_batching_section_uses_default_rules() -> None:
    assert rules_of(", batching: {}") == BatchRules()


def test_every_batching_rule_can_be_set() -> None:
    written = (
        "batch_size_max: 64, preferred_batch_sizes: [8, 16], delay_max: 2ms, delay_ttft_percent_max: 5, "
        "tokens_max: 4096"
    )

    assert rules_of(f", batching: {{{written}, calls_per_request_max: 4, calls_max: 1}}") == BatchRules(
        batch_size_max=64,
        preferred_batch_sizes=(8, 16),
        delay_ns_max=2 * MILLISECOND,
        delay_ttft_percent_max=5,
        tokens_max=4096,
        calls_per_request_max=4,
        calls_max=1,
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("batch_size_max: 1", "batch_size_max: must be at least 2"),
        ("delay_max: 5", "delay_max: "),
        (
            "preferred_batch_sizes: [8, 32]",
            "preferred_batch_sizes[1]: must be from 2 to 31, below batch_size_max, not 32",
        ),
        ("preferred_batch_sizes: 1", "preferred_batch_sizes[0]: must be from 2 to 31, below batch_size_max, not 1"),
        ("max_dealy: 5ms", "max_dealy: "),
        ("calls_per_request_max: 0", "calls_per_request_max: must be at least 1"),
    ],
)
def test_invalid_batching_setting_is_reported_with_next_step(written: str, said: str) -> None:
    [problem] = problems_of(POOL % f", batching: {{{written}}}")

    assert problem.startswith(f"2: pools.small.batching.{said}"), problem


def test_batch_size_above_in_flight_max_causes_a_warning() -> None:
    [warning] = warnings_of(POOL % ", batching: {batch_size_max: 65}")

    assert warning == (
        "2: pools.small.batching.batch_size_max: is 65, but in_flight_max is 64, so single inputs never fill "
        "a batch; raise in_flight_max to at least 65"
    )


def test_summary_shows_batching() -> None:
    settings = settings_of(POOL % ", batching: {}")
    pools = summary_data(settings)["pools"]

    assert "batches of up to 32 inputs after at most 5ms" in "\n".join(summary_lines(settings))
    assert isinstance(pools, dict)
    assert pools["small"]["batching"]["delay_ns_max"] == 5 * MILLISECOND


def test_batching_settings_change_the_hash() -> None:
    assert settings_of(POOL % "").hash != settings_of(POOL % ", batching: {}").hash
