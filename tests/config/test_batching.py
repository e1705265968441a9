"""Which requests of a pool are asked together, by the file?"""

import pytest

from headgate.config.explain import as_data, explain
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


def test_left_out_each_request_is_asked_by_itself() -> None:
    assert rules_of("") is None


def test_an_empty_section_takes_the_usual_rules() -> None:
    assert rules_of(", batching: {}") == BatchRules()


def test_every_rule_can_be_set() -> None:
    written = "max_batch: 64, preferred: [8, 16], max_delay: 2ms, budget_percent: 5, max_tokens: 4096"

    assert rules_of(f", batching: {{{written}, parallel: 4, max_calls: 1}}") == BatchRules(
        inputs_max=64,
        preferred=(8, 16),
        delay_ns_max=2 * MILLISECOND,
        budget_percent=5,
        tokens_max=4096,
        parallel=4,
        calls_max=1,
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("max_batch: 1", "max_batch: must be at least 2"),
        ("max_delay: 5", "max_delay: "),
        (
            "preferred: [8, 32]",
            "preferred[1]: a batch of 32 is sent anyway; prefer sizes from 2 to 31, below max_batch",
        ),
        ("preferred: 1", "preferred[0]: a batch of 1 is sent anyway; prefer sizes from 2 to 31, below max_batch"),
        ("max_dealy: 5ms", "max_dealy: "),
        ("parallel: 0", "parallel: must be at least 1"),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(written: str, said: str) -> None:
    [problem] = problems_of(POOL % f", batching: {{{written}}}")

    assert problem.startswith(f"2: pools.small.batching.{said}"), problem


def test_a_batch_that_can_never_be_full_is_worth_a_warning() -> None:
    [warning] = warnings_of(POOL % ", batching: {max_batch: 65}")

    assert warning == (
        "2: pools.small.batching.max_batch: is 65, but an endpoint holds 64 requests; "
        "raise in_flight_max to 65 or more, or single inputs never fill it"
    )


def test_it_is_explained_in_words_and_as_data() -> None:
    settings = settings_of(POOL % ", batching: {}")
    pools = as_data(settings)["pools"]

    assert "inputs asked 32 at a time after 5ms at most" in "\n".join(explain(settings))
    assert isinstance(pools, dict)
    assert pools["small"]["batching"]["delay_ns_max"] == 5 * MILLISECOND


def test_it_is_part_of_what_two_processes_must_have_alike() -> None:
    assert settings_of(POOL % "").hash != settings_of(POOL % ", batching: {}").hash
