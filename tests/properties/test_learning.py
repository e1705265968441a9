"""Property tests for how much one tenant, or one wrong report, can influence predictions for other tenants."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.prediction import Predictions
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ModelName, RequestId, TenantId
from headgate.model.usage import TOKENS_MAX, Usage, UsageSource

M = ModelName("m")
ATTACKER = TenantId("attacker")
OTHERS = tuple(TenantId(f"t{number}") for number in range(6))
NEWCOMER = TenantId("newcomer")

Report = tuple[TenantId, int, int, int, int]
"""Tenant, prompt bytes, prompt tokens, output tokens and number of repetitions."""


def asked_by(tenant: TenantId, prompt_bytes: int) -> Ticket:
    return Ticket(RequestId("r"), Api.CHAT, M, tenant, stream=True, prompt_bytes=prompt_bytes)


def reports(tenants: Sequence[TenantId], *, least: int = 0) -> st.SearchStrategy[list[Report]]:
    tokens = st.one_of(st.integers(0, 3_000), st.integers(-TOKENS_MAX, TOKENS_MAX))
    report = st.tuples(st.sampled_from(tenants), st.integers(0, 500_000), tokens, tokens, st.integers(1, 40))
    return st.lists(report, min_size=least, max_size=30)


def learned_from(told: Sequence[Report]) -> Predictions:
    predictions = Predictions()
    for tenant, prompt_bytes, prompt_tokens, output_tokens, times in told:
        usage = Usage(prompt_tokens, output_tokens, 0, UsageSource.ENGINE)
        for _ in range(times):
            predictions.learn(asked_by(tenant, prompt_bytes), M, usage, answers=1, output_limit=None)
    return predictions


def estimates(predictions: Predictions, tenant: TenantId) -> tuple[int, int, int]:
    asked = asked_by(tenant, 1_000_000)
    return predictions.prompt_tokens(asked, M), *predictions.output_tokens(asked, M)


def nearly(one: int, other: int) -> bool:
    """Returns whether two estimates, which are integers, differ by at most ten percent."""
    return abs(one - other) <= max(one, other) / 10 + 1


@given(honest=reports(OTHERS), hostile=reports([ATTACKER], least=1), first=st.booleans())
def test_tenant_changes_other_tenants_estimates_by_at_most_ten_percent(
    honest: list[Report], hostile: list[Report], first: bool
) -> None:
    without = learned_from(honest)
    beside = learned_from([*hostile, *honest] if first else [*honest, *hostile])

    for tenant in (*OTHERS, NEWCOMER):
        for one, other in zip(estimates(without, tenant), estimates(beside, tenant), strict=True):
            assert nearly(one, other), tenant


@given(told=reports(OTHERS, least=1), wrong=reports(OTHERS, least=1))
def test_single_report_changes_other_tenants_estimates_by_at_most_ten_percent(
    told: list[Report], wrong: list[Report]
) -> None:
    tenant, prompt_bytes, prompt_tokens, output_tokens, _ = wrong[0]
    without, beside = learned_from(told), learned_from([*told, (tenant, prompt_bytes, prompt_tokens, output_tokens, 1)])

    for each in (*OTHERS, NEWCOMER):
        if each != tenant:
            pairs = zip(estimates(without, each), estimates(beside, each), strict=True)
            assert all(nearly(one, other) for one, other in pairs)


@given(told=reports(OTHERS, least=1))
def test_restored_predictions_produce_the_same_estimates(told: list[Report]) -> None:
    predictions, successor = learned_from(told), Predictions()
    successor.restore(predictions.lengths(), predictions.prompts())

    for tenant in (*OTHERS, NEWCOMER):
        assert estimates(successor, tenant) == estimates(predictions, tenant)
    assert (successor.lengths(), successor.prompts()) == (predictions.lengths(), predictions.prompts())
