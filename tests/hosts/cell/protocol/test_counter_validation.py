"""Tests for the validation of counters."""

from dataclasses import replace
from random import Random

import pytest

from headgate.core.counters import (
    Counters,
    DegradationCounter,
    EndpointCounter,
    FairQueueCounter,
    LengthsCounter,
    LimitCounter,
    PoolGroupCounter,
    PromptCounter,
    QuarantineCounter,
    StartCounter,
    TtftCounter,
    WindowCounter,
)
from headgate.core.hedging import FIRST_TOKEN_BUCKETS
from headgate.core.prediction import LENGTH_BOUNDS, LENGTH_BUCKETS, RATE_MAX, Predictions
from headgate.core.routing.speed_estimator import SpeedEstimator
from headgate.hosts.cell.protocol.counter_validation import LEARNED_ANSWERS_MAX, LEARNED_BYTES_MAX, check_counters
from headgate.hosts.cell.protocol.validation import (
    DURATION_MAX,
    InvalidMessage,
)
from headgate.model.units import ClassName, Duration, EndpointId, ModelName, PoolName, TenantId
from headgate.model.usage import Usage, UsageSource
from tests.hosts.cell.builders import a_ticket

TICKET = a_ticket("r1")


def impossible_counters() -> list[Counters]:
    tenant, pool, model = TenantId("acme"), PoolName("p"), ModelName("m")
    far = 1 << 63
    route = PoolGroupCounter((pool,), (), 0, 0, ())
    return [
        Counters(fair_queues=(FairQueueCounter(0, pool, far, (), ()),)),
        Counters(retry_credits=((tenant, far),)),
        Counters(limits=(LimitCounter(tenant, -1, 0, Duration(0)),)),
        Counters(attempt_windows=(WindowCounter(pool, ((Duration(-1), 1),), ()),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, -1, 0),)),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, 1, 1), (1, 1, 1))),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((1, 9, 9),)), LengthsCounter(tenant, model, ((2, 9, 9),)))),
        Counters(lengths=(LengthsCounter(tenant, model, ((LENGTH_BUCKETS, 1, 1),)),)),
        Counters(prompts=(PromptCounter(model, 1, 1, tenant), PromptCounter(model, 2, 2, tenant))),
        Counters(first_tokens=(TtftCounter(ClassName("c"), pool, None, ((FIRST_TOKEN_BUCKETS, 1),)),)),
        Counters(first_tokens=(TtftCounter(ClassName("c"), pool, None, ()),) * 2),
        Counters(prompts=(PromptCounter(model, -1, 0),)),
        Counters(prompts=(PromptCounter(model, 0, 1),)),
        Counters(prompts=(PromptCounter(model, 5_000, 1 << 61, tenant),)),
        Counters(prompts=(PromptCounter(model, 5_000, 5_001 * RATE_MAX + 1, tenant),)),
        Counters(prompts=(PromptCounter(model, LEARNED_BYTES_MAX + 1, 1, tenant),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((3, 20, 20 * LENGTH_BOUNDS[3] + 1),)),)),
        Counters(lengths=(LengthsCounter(tenant, model, ((3, LEARNED_ANSWERS_MAX + 1, 1),)),)),
        Counters(first_tokens=(TtftCounter(ClassName("c"), pool, Duration(DURATION_MAX + 1), ()),)),
        Counters(cold_starts=(StartCounter(pool, Duration(DURATION_MAX + 1)),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (-2_000_000, 0, 0, 0, 0), 0),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (0, 2_000_000, 0, 0, 0), 0),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (1 << 61, 0, 1 << 61, 0, 0), 0),)),
        Counters(first_tokens=(TtftCounter(ClassName("c"), pool, Duration(-1), ()),)),
        Counters(pool_groups=(route._replace(fraction=1_000_000),)),
        Counters(pool_groups=(route._replace(degradations=(DegradationCounter(0, -1, None, None, False),)),)),
        Counters(endpoints=(EndpointCounter(EndpointId("e1"), (1, 1), (0, 0, 0, 0, 0), -1),)),
        Counters(cold_starts=(StartCounter(pool, Duration(-1)),)),
        Counters(quarantine=(QuarantineCounter("f", Duration(-1)),)),
        Counters(quarantine=(QuarantineCounter("", Duration(1)),)),
    ]


@pytest.mark.parametrize("counters", impossible_counters(), ids=repr)
def test_invalid_counters_are_rejected(counters: Counters) -> None:
    with pytest.raises(InvalidMessage):
        check_counters(counters)


def test_learned_counters_are_accepted() -> None:
    predictions, speed, chance = Predictions(), SpeedEstimator(), Random(3)
    for number in range(3_000):
        # Uses the highest counted number of tokens per byte, and byte counts that halve to odd numbers.
        prompt_bytes = chance.randint(1, 70_000)
        usage = Usage(prompt_bytes + 1_000, chance.choice((0, 1, 2, 3, 300_000)), 0, UsageSource.ENGINE)
        ticket = replace(TICKET, tenant=TenantId(f"t{number % 3}"), prompt_bytes=prompt_bytes)
        predictions.learn(ticket, ModelName("m"), usage, answers=1, output_limit=None)
        speed.observe(decode_ns=chance.randint(1, 9), prefill_ns=chance.randint(0, 9), took_ns=chance.randint(0, 99))
        endpoint = EndpointCounter(EndpointId("e1"), *speed.counters(), 0)

        check_counters(Counters(lengths=predictions.lengths(), prompts=predictions.prompts(), endpoints=(endpoint,)))


def test_counters_without_learned_values_and_in_the_last_bucket_are_accepted() -> None:
    check_counters(Counters())
    check_counters(
        Counters(
            lengths=(
                LengthsCounter(TenantId("acme"), ModelName("m"), ((LENGTH_BUCKETS - 1, 1, 1),)),
                LengthsCounter(TenantId("bolt"), ModelName("m"), ((0, 1, 1),)),
            ),
            first_tokens=(TtftCounter(ClassName("c"), PoolName("p"), None, ((FIRST_TOKEN_BUCKETS - 1, 1),)),),
        )
    )
