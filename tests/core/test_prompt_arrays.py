"""Each prompt in an array counts as one request wherever requests are counted."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.cost import cost_ns
from headgate.core.engine_time import EngineTime
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.prefix import PREFIX_LENGTHS
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN, EndpointId, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    only_end,
    policy_changed,
)


def asked(
    request: str, prompts: int = 1, *, api: Api = Api.COMPLETIONS, n: int = 1, **changes: object
) -> RequestArrived:
    ticket = arrived(request, prompt_bytes=400 * prompts).ticket
    return RequestArrived(replace(ticket, api=api, prompts=prompts, n=n, **changes))


def ended_in(commands: list[Command]) -> list[End]:
    return [each for each in commands if isinstance(each, End)]


# Cap


def test_array_over_cap_is_rejected_with_limit_and_fix() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(caps=Caps()),)))

    refusal = only_end(scheduler.handle(asked("r", 65), at(0)))

    assert refusal.outcome is Outcome.REQUEST_TOO_LARGE
    assert refusal.reason == (
        'the request has 65 prompts, but class "interactive" allows at most 64 per request; '
        "split the request or raise caps.prompts"
    )


def test_choices_for_each_prompt_count_towards_prompt_cap() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(caps=Caps(prompts=8, n=3)),)))

    refusal = only_end(scheduler.handle(asked("r", 4, n=16), at(0)))

    assert refusal.reason.startswith("the request has 4 prompts with 3 choices each, but class")
    assert not ended_in(scheduler.handle(asked("fits", 4, n=2), at(0)))


def test_embedding_inputs_have_their_own_cap() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(caps=Caps(prompts=2, inputs=9)),)))

    refusal = only_end(scheduler.handle(asked("r", 10, api=Api.EMBEDDINGS), at(0)))

    assert refusal.outcome is Outcome.REQUEST_TOO_LARGE
    assert 'has 10 inputs, but class "interactive" allows at most 9' in refusal.reason
    assert "raise caps.inputs" in refusal.reason
    assert not ended_in(scheduler.handle(asked("fits", 9, api=Api.EMBEDDINGS), at(0)))


def test_class_without_cap_accepts_any_number_of_prompts() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(caps=Caps(prompts=None)),)))

    assert not ended_in(scheduler.handle(asked("r", 5_000), at(0)))


# Concurrency


def with_concurrency(limits: Limits) -> Scheduler:
    tenant = Tenant(TenantId("acme"), limits=limits)
    return a_scheduler(an_endpoint(places=100), policy=a_policy(tenants=(tenant, "bolt")))


def test_each_prompt_is_counted_as_one_of_the_tenants_open_requests() -> None:
    scheduler = with_concurrency(Limits(concurrency=10))
    commands_for(scheduler, at(0), asked("r", 8))

    refusal = only_end(scheduler.handle(asked("over", 3), at(0)))

    assert refusal.outcome is Outcome.RATE_LIMITED
    assert refusal.reason == (
        'tenant "acme" has 8 of 10 requests open, and this request counts as 3 (one per prompt); '
        "wait for a request to finish or raise concurrency"
    )
    assert not ended_in(scheduler.handle(asked("fits", 2), at(0)))
    commands_for(scheduler, at(0), completed("r"))
    assert not ended_in(scheduler.handle(asked("later", 8), at(0)))


def test_array_larger_than_tenant_concurrency_is_too_large() -> None:
    scheduler = with_concurrency(Limits(concurrency=2))

    refusal = only_end(scheduler.handle(asked("r", 3), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.REQUEST_TOO_LARGE, None)
    assert refusal.reason == (
        'the request has 3 prompts, but the concurrency limit of tenant "acme" is 2; '
        "send at most 2 prompts per request or raise concurrency"
    )


def test_array_fitting_concurrency_but_not_island_share_may_be_retried() -> None:
    scheduler = with_concurrency(Limits(concurrency=2, total_concurrency=4))

    refusal = only_end(scheduler.handle(asked("r", 3), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.RATE_LIMITED, duration(10))
    assert only_end(scheduler.handle(asked("more", 5), at(0))).outcome is Outcome.REQUEST_TOO_LARGE


def test_embedding_inputs_are_counted_as_one_open_request() -> None:
    scheduler = with_concurrency(Limits(concurrency=1))

    assert not ended_in(scheduler.handle(asked("r", 300, api=Api.EMBEDDINGS), at(0)))


def test_prompts_in_open_requests_are_recounted_when_limits_change() -> None:
    scheduler = with_concurrency(Limits(concurrency=10))
    commands_for(scheduler, at(0), asked("r", 8))
    policy = a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(concurrency=9)), "bolt"))
    commands_for(scheduler, at(1), policy_changed(policy, "h2"))

    assert only_end(scheduler.handle(asked("over", 2), at(1))).outcome is Outcome.RATE_LIMITED
    assert not ended_in(scheduler.handle(asked("fits"), at(1)))


# Slots


def test_each_prompt_occupies_one_slot() -> None:
    scheduler = a_scheduler(an_endpoint(places=8))
    commands_for(scheduler, at(0), asked("r", 8))

    assert endpoint_summary(scheduler, "e1").in_flight == 8
    assert scheduler.handle(asked("waits", 3), at(0)) == []
    [_, sent] = scheduler.handle(completed("r"), at(1))
    assert isinstance(sent, Dispatch)
    assert (sent.request_id, sent.reason) == ("waits", "least loaded, 3 of 8 requests in flight")
    commands_for(scheduler, at(2), completed("waits"))
    assert endpoint_summary(scheduler, "e1").in_flight == 0


def sent_by(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def test_array_requires_one_free_slot_and_occupies_one_per_prompt() -> None:
    scheduler = a_scheduler(an_endpoint(places=4))
    commands_for(scheduler, at(0), asked("r1"), asked("r2"), asked("r3"))

    assert sent_by(scheduler.handle(asked("large", 9), at(0))) == ["large"]
    assert endpoint_summary(scheduler, "e1").in_flight == 12
    assert sent_by(commands_for(scheduler, at(0), asked("next"), *map(completed, ("r1", "r2", "r3")))) == []
    assert sent_by(scheduler.handle(completed("large"), at(1))) == ["next"]


def test_array_is_sent_even_if_slots_become_free_one_by_one() -> None:
    scheduler = a_scheduler(an_endpoint(places=8))
    commands_for(scheduler, at(0), *(arrived(f"b{number}", "bolt") for number in range(8)))
    commands_for(
        scheduler, at(0), asked("large", 16), asked("next"), *(arrived(f"w{number}", "bolt") for number in range(8))
    )

    sent = [name for number in range(4) for name in sent_by(scheduler.handle(completed(f"b{number}"), at(1)))]

    assert sent == ["large"]
    # No request is sent until the array has ended. Its tenant continues once the other tenant has used as much.
    assert sent_by(commands_for(scheduler, at(2), *(completed(f"b{number}") for number in range(4, 8)))) == []
    assert sent_by(scheduler.handle(completed("large"), at(3))) == [f"w{number}" for number in range(8)]
    assert sent_by(scheduler.handle(completed("w0"), at(4))) == ["next"]


def test_all_prompts_in_an_array_must_fit_in_endpoint_memory() -> None:
    pool = replace(a_pool(), kv_tokens=10_000)
    scheduler = a_scheduler(an_endpoint(places=8), policy=replace(a_policy(), pools=(pool,)))
    commands_for(scheduler, at(0), asked("r"))

    assert sent_by(scheduler.handle(asked("large", 64), at(0))) == []
    assert sent_by(scheduler.handle(completed("r"), at(1))) == ["large"]


@pytest.mark.parametrize(("busy", "sent"), [(6, ["more"]), (7, [])])
def test_array_requires_a_slot_not_reserved_for_another_class(busy: int, sent: list[str]) -> None:
    classes = (a_class(), replace(a_class("kept"), reserve_percent=30))
    scheduler = a_scheduler(an_endpoint(places=10), policy=a_policy(classes=classes))
    commands_for(scheduler, at(0), *(asked(f"r{number}") for number in range(busy)))

    assert sent_by(scheduler.handle(asked("more", 5), at(0))) == sent


# Cost


def test_attention_cost_is_counted_per_prompt() -> None:
    speed = EngineSpeed()
    alone = cost_ns(speed, 1_000, 200)

    together = cost_ns(speed, 16 * 1_000, 16 * 200, prompts=16)

    assert abs(together - 16 * alone) <= 16
    assert speed.prefill_ps(16_000, prompts=16) == 16 * speed.prefill_ps(1_000)


def test_array_is_charged_for_decode_steps_like_separate_prompts() -> None:
    def shared_ns(*sequences: int) -> list[int]:
        time = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), at(0), scheduler_count=1)
        stays = [time.begin(1_000 * count, at(0), sequences=count) for count in sequences]
        for stay in stays:
            time.end(stay, at(1))
        return [stay.shared_ns for stay in stays]

    together, other = shared_ns(3, 1)

    assert abs(together - 3 * other) <= 10


def test_engine_time_for_a_late_array_is_fully_accounted_for() -> None:
    time = EngineTime(EndpointId("e"), PoolName("p"), EngineSpeed(), at(0), scheduler_count=1)
    late, other = time.begin(3_000, at(0), sequences=3), time.begin(1_000, at(0))
    time.mark_request_ended(late, at(1))
    time.end(other, at(2))
    time.end(late, at(3))
    time.advance(at(3))

    taken = time.pop()

    assert taken.billed_ns + taken.abort_lag_ns == 3 * duration(1)


def test_response_lengths_in_an_array_are_learned_per_prompt() -> None:
    scheduler = a_scheduler(an_endpoint(places=100), policy=a_policy(pools=(replace(a_pool(), kv_tokens=100_000),)))
    usage = Usage(100, 16 * 10, 0, UsageSource.ENGINE)
    for number in range(20):
        commands_for(scheduler, at(number), asked(f"r{number}", 16))
        commands_for(
            scheduler, at(number), AttemptEnded(RequestId(f"r{number}"), 1, AttemptEnding.COMPLETED, usage=usage)
        )

    assert {tokens // count for each in scheduler.counters(at(30)).lengths for _, count, tokens in each.buckets} == {10}


def test_tools_before_cached_prefix_are_counted_as_cached() -> None:
    scheduler = a_scheduler(an_endpoint(places=100))
    text_bytes, tools_bytes = PREFIX_LENGTHS[0] * BYTES_PER_TOKEN, 40_000
    changes = {
        "prompt_bytes": text_bytes + tools_bytes,
        "prompt_bytes_before_prefix": tools_bytes,
        "prefix_hashes": b"12345678",
    }
    commands_for(scheduler, at(0), asked("first", **changes), completed("first"))

    [command] = scheduler.handle(asked("second", **changes), at(1))

    assert isinstance(command, Dispatch)
    tokens = (text_bytes + tools_bytes) // BYTES_PER_TOKEN
    assert command.reason.endswith(f"about {tokens - 1} of {tokens} prompt tokens cached")
