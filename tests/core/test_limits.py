"""Tenants' request rate, token rate and concurrency limits."""

from dataclasses import replace

import pytest

from headgate.core.admission.leaky_bucket import LeakyBucket
from headgate.core.admission.limits import TenantLimits, least_left
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived, RequestRejected
from headgate.core.hedging import SAMPLES_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits, LimitsLeft, RateLeft
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.ticket import Api
from headgate.model.units import RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    failed,
    first_token,
    only_end,
    policy_changed,
    progressed,
)

GUESS = 150
"""Predicted response length in tokens when no response has been observed yet."""


def a_limited(
    name: str = "acme", *, requests: int | None = None, tokens: int | None = None, open_: int | None = None
) -> Tenant:
    return Tenant(TenantId(name), limits=Limits(requests, tokens, open_))


def limited(*tenants: Tenant, places: int = 100, policy: Policy | None = None) -> Scheduler:
    return a_scheduler(an_endpoint(places=places), policy=policy or a_policy(tenants=(*tenants, "bolt")))


def asked(request: str, tenant: str = "acme", *, prompt: int = 100, **changes: object) -> RequestArrived:
    """Returns a request with a prompt of `prompt` tokens at the default of four bytes per token."""
    event = arrived(request, tenant, prompt_bytes=4 * prompt)
    return RequestArrived(replace(event.ticket, **changes)) if changes else event


def used(request: str, prompt: int, output: int, *, attempt: int = 1) -> AttemptEnded:
    usage = Usage(prompt, output, 0, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


def tokens_left(commands: list[Command]) -> int:
    [command] = commands
    assert isinstance(command, Dispatch | End)
    assert command.limits is not None
    assert command.limits.tokens is not None
    return command.limits.tokens.remaining


def tokens_left_to(scheduler: Scheduler, seconds: float, tenant: str = "acme") -> int:
    """Returns the remaining tokens reported for a request to an unknown model, which uses none itself."""
    return tokens_left(scheduler.handle(arrived(f"looks at {seconds}", tenant, model="none"), at(seconds)))


# Requests


def test_one_minute_burst_is_admitted_and_next_request_is_rejected() -> None:
    scheduler = limited(a_limited(requests=3))
    commands_for(scheduler, at(0), *[asked(f"r{number}") for number in range(3)])

    assert only_end(scheduler.handle(asked("over"), at(5))) == End(
        RequestId("over"),
        Outcome.RATE_LIMITED,
        a_class().name,
        0,
        duration(0),
        duration(15),
        'tenant "acme" has reached its limit of 3 requests per minute; retry in 15 s or raise requests_per_minute',
        LimitsLeft(RateLeft(3, 0, duration(55)), None),
    )


def test_request_is_admitted_once_retry_after_has_elapsed() -> None:
    scheduler = limited(a_limited(requests=3))
    commands_for(scheduler, at(0), *[asked(f"r{number}") for number in range(3)])

    assert isinstance(scheduler.handle(asked("early"), at(19.999))[0], End)
    assert isinstance(scheduler.handle(asked("again"), at(20))[0], Dispatch)


def test_request_over_limit_is_not_counted() -> None:
    scheduler = limited(a_limited(requests=1))
    commands_for(scheduler, at(0), asked("first"), *[asked(f"refused {number}") for number in range(50)])

    assert isinstance(scheduler.handle(asked("again"), at(60))[0], Dispatch)


def test_limits_do_not_affect_other_tenants() -> None:
    scheduler = limited(a_limited(requests=1))
    commands_for(scheduler, at(0), asked("r"), asked("over"))

    [dispatch] = scheduler.handle(asked("others", "bolt"), at(0))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits is None


def test_withdrawn_request_is_counted_in_request_rate() -> None:
    scheduler = limited(a_limited(requests=2), places=1)
    commands_for(scheduler, at(0), asked("runs"), asked("waits"), client_disconnected("waits"))

    assert only_end(scheduler.handle(asked("over"), at(0))).outcome is Outcome.RATE_LIMITED


def test_request_rejected_by_full_queue_is_not_counted() -> None:
    tenant = a_limited(requests=2, tokens=10_000, open_=2)
    policy = a_policy(classes=(a_class(queue_length_max=0),), tenants=(tenant,))
    scheduler = limited(places=1, policy=policy)
    commands_for(scheduler, at(0), asked("runs"))

    refusal = only_end(scheduler.handle(asked("no place"), at(0)))

    assert refusal.outcome is Outcome.QUEUE_FULL
    assert refusal.limits == LimitsLeft(
        RateLeft(2, 1, duration(30)), RateLeft(10_000, 10_000 - 100 - GUESS, duration(1.5))
    )


# Tokens


def test_predicted_tokens_are_reserved_at_admission() -> None:
    scheduler = limited(a_limited(tokens=1_000))

    assert tokens_left(scheduler.handle(asked("r"), at(0))) == 1_000 - 100 - GUESS


@pytest.mark.parametrize(
    ("changes", "reserved"),
    [
        ({"n": 3}, 100 + 3 * GUESS),
        ({"output_tokens_max": 20}, 100 + 20),
        ({"output_tokens_max": 20, "n": 2}, 100 + 2 * 20),
        ({"output_tokens_max": 5_000}, 100 + GUESS),
        ({"api": Api.EMBEDDINGS}, 100),
        ({"api": Api.INFER}, 100),
    ],
)
def test_reservation_depends_on_number_and_maximum_length_of_choices(changes: dict[str, object], reserved: int) -> None:
    scheduler = limited(a_limited(tokens=1_000))

    assert tokens_left(scheduler.handle(asked("r", **changes), at(0))) == 1_000 - reserved


def test_rejection_reports_remaining_tokens_needed_tokens_and_retry_after() -> None:
    scheduler = limited(a_limited(tokens=300))
    commands_for(scheduler, at(0), asked("r"))

    refusal = only_end(scheduler.handle(asked("over"), at(0)))

    assert refusal.outcome is Outcome.RATE_LIMITED
    assert refusal.reason == (
        'tenant "acme" has 50 of 300 tokens per minute left, but this request may use 250; '
        "retry in 40 s or raise tokens_per_minute"
    )
    assert refusal.retry_after_ns == duration(40)
    assert refusal.limits == LimitsLeft(None, RateLeft(300, 50, duration(50)))


def test_reported_usage_replaces_reservation_when_request_ends() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    commands_for(scheduler, at(0), asked("short"), used("short", 90, 10))

    assert tokens_left_to(scheduler, 0) == 900


def test_response_longer_than_predicted_delays_next_request() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    commands_for(scheduler, at(0), asked("long"), used("long", 100, 3_900))

    refusal = only_end(scheduler.handle(asked("next"), at(0)))

    assert tokens_left_to(scheduler, 0) == 0
    # 4,000 tokens are in use. The next 250 fit once 3,250 have drained, which takes more than a minute.
    assert refusal.retry_after_ns == duration(195)
    assert isinstance(scheduler.handle(asked("again"), at(195))[0], Dispatch)


def test_unsent_request_uses_no_tokens() -> None:
    scheduler = limited(a_limited(tokens=1_000), places=1)
    commands_for(scheduler, at(0), asked("others", "bolt"), asked("waits"))
    assert tokens_left_to(scheduler, 0) == 750

    commands_for(scheduler, at(0), client_disconnected("waits"))

    assert tokens_left_to(scheduler, 0) == 1_000


def test_attempt_failing_before_first_token_uses_no_tokens() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    commands_for(scheduler, at(0), asked("r"), failed("r"), failed("r", attempt=2))

    [_, refusal] = scheduler.handle(failed("r", attempt=3), at(0))

    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.ENGINE_ERROR
    assert tokens_left([refusal]) == 1_000


def test_only_last_attempt_is_counted() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    commands_for(scheduler, at(0), asked("r"), failed("r"), used("r", 100, 60, attempt=2))

    assert tokens_left_to(scheduler, 0) == 1_000 - 160


def test_tokens_stay_reserved_after_disconnect_until_attempt_ends() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    commands_for(scheduler, at(0), asked("r"), first_token("r"), progressed("r"), client_disconnected("r"))
    assert tokens_left_to(scheduler, 0) == 750

    commands_for(scheduler, at(0), aborted("r"))

    # The prompt and the reported tokens stay charged.
    assert tokens_left_to(scheduler, 0) == 1_000 - 100 - 8


def test_attempt_superseded_by_hedge_is_not_counted() -> None:
    hedged = replace(a_class(), hedging=True)
    policy = a_policy(classes=(hedged,), tenants=(a_limited(tokens=1_000), "bolt"))
    scheduler = a_scheduler(an_endpoint("e1", places=200), an_endpoint("e2", places=200), policy=policy)
    commands_for(scheduler, at(0), *[asked(f"b{number}", "bolt", prompt=1) for number in range(SAMPLES_MIN)])
    while begun := list(scheduler._state.attempts.by_number):
        commands_for(scheduler, at(1), *[first_token(*each) for each in begun], *[completed(*each) for each in begun])
    commands_for(scheduler, at(10), asked("r"))
    [_, hedge] = scheduler.handle(arrived("looks", model="none"), at(12))
    commands_for(scheduler, at(12), first_token("r", 2), progressed("r", attempt=2), client_disconnected("r"))
    assert isinstance(hedge, Dispatch)

    commands_for(scheduler, at(12), aborted("r", 1))
    assert tokens_left_to(scheduler, 12) == tokens_left([hedge])

    commands_for(scheduler, at(12), aborted("r", 2))
    assert tokens_left_to(scheduler, 12) == 1_000 - 100 - 8 + 1_000 // 30


def test_drained_tokens_are_not_refunded() -> None:
    rate = LeakyBucket(250)
    drained = rate.use(250, at(0))
    partly = rate.use(250, at(60))

    rate.settle(drained, at(60), reserved=250, actual=0)
    assert least_left([rate], at(60)) == RateLeft(250, 0, duration(60))

    rate.settle(partly, at(84), reserved=250, actual=0)
    assert least_left([rate], at(84)) == RateLeft(250, 250, duration(0))


def test_request_larger_than_limit_waits_until_all_tokens_have_drained() -> None:
    scheduler = limited(a_limited(tokens=200))

    assert tokens_left(scheduler.handle(asked("r"), at(0))) == 0
    commands_for(scheduler, at(0), used("r", 100, 400))

    # All 500 used tokens must drain first, at 200 per minute.
    assert only_end(scheduler.handle(asked("next"), at(0))).retry_after_ns == duration(150)


def test_prompt_larger_than_limit_is_rejected_as_too_large() -> None:
    scheduler = limited(a_limited(tokens=99, requests=1))
    commands_for(scheduler, at(0), asked("short", prompt=1, output_tokens_max=1))

    refusal = only_end(scheduler.handle(asked("r"), at(0)))

    assert refusal.outcome is Outcome.REQUEST_TOO_LARGE
    assert refusal.reason == (
        'the prompt has about 100 tokens, but tenant "acme" may use only 99 tokens per minute; '
        "shorten the prompt or raise tokens_per_minute"
    )
    assert refusal.retry_after_ns is None


def test_prompt_fitting_limit_but_not_island_share_may_be_retried() -> None:
    part = Limits(tokens_per_minute=99, total_tokens_per_minute=400)
    scheduler = limited(replace(a_limited(tokens=99), limits=part))

    refusal = only_end(scheduler.handle(asked("r"), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.RATE_LIMITED, duration(10))
    assert refusal.reason == (
        "the prompt has about 100 tokens, but this gateway may use only 99 of the 400 tokens per minute of tenant "
        '"acme" while other gateways are unreachable; retry in 10 s'
    )
    assert only_end(scheduler.handle(asked("longer", prompt=401), at(0))).outcome is Outcome.REQUEST_TOO_LARGE


# Concurrency


def test_concurrency_limit_bounds_open_requests() -> None:
    scheduler = limited(a_limited(open_=2), places=1)
    commands_for(scheduler, at(0), asked("runs"), asked("waits"))

    refusal = only_end(scheduler.handle(asked("over"), at(0)))

    assert refusal.outcome is Outcome.RATE_LIMITED
    assert refusal.reason == (
        'tenant "acme" has 2 of 2 requests open; wait for a request to finish or raise concurrency'
    )
    assert refusal.limits is None


@pytest.mark.parametrize("how", [completed("runs"), client_disconnected("runs"), client_disconnected("waits")])
def test_ending_a_request_frees_concurrency(how: AttemptEnded) -> None:
    scheduler = limited(a_limited(open_=2), places=1)
    commands_for(scheduler, at(0), asked("runs"), asked("waits"), how)

    assert not [each for each in scheduler.handle(asked("next"), at(0)) if isinstance(each, End)]


def test_retry_after_at_concurrency_limit_is_typical_duration_divided_by_limit() -> None:
    scheduler = limited(a_limited(open_=4))
    for number in range(60):
        commands_for(scheduler, at(20 * number), asked(f"r{number}"))
        commands_for(scheduler, at(20 * number + 20), completed(f"r{number}"))
    commands_for(scheduler, at(2_000), *[asked(f"open {number}") for number in range(4)])

    wait = only_end(scheduler.handle(asked("over"), at(2_000))).retry_after_ns

    assert wait is not None
    assert duration(4.9) < wait <= duration(5)


# Nested tenants


def a_family() -> tuple[Tenant, ...]:
    return (a_limited("acme", requests=3), a_limited("acme/search", requests=2), a_limited("acme/search/nightly"))


def test_limits_on_all_parent_tenants_apply() -> None:
    scheduler = limited(*a_family(), a_limited("acme/chat"))
    commands_for(scheduler, at(0), asked("a", "acme/search/nightly"), asked("b", "acme/search"))

    below = only_end(scheduler.handle(asked("over", "acme/search/nightly"), at(0)))
    commands_for(scheduler, at(0), asked("c", "acme/chat"))
    beside = only_end(scheduler.handle(asked("over too", "acme/chat"), at(0)))

    assert below.reason.startswith('tenant "acme/search" has reached its limit of 2 requests per minute')
    assert beside.reason.startswith('tenant "acme" has reached its limit of 3 requests per minute')


def test_limits_with_least_remaining_are_reported() -> None:
    scheduler = limited(*a_family())

    [dispatch] = scheduler.handle(asked("r", "acme/search/nightly"), at(0))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits == LimitsLeft(RateLeft(2, 1, duration(30)), None)


def test_request_rejected_at_one_level_is_not_counted_at_others() -> None:
    scheduler = limited(*a_family())
    commands_for(scheduler, at(0), *[asked(f"r{number}", "acme/search") for number in range(10)])

    assert isinstance(scheduler.handle(asked("r", "acme"), at(0))[0], Dispatch)


def test_rejection_identifies_limit_with_longest_wait() -> None:
    scheduler = limited(a_limited("acme", requests=60, tokens=100), a_limited("acme/search", requests=1, open_=1))
    commands_for(scheduler, at(0), asked("r", "acme/search", prompt=1, output_tokens_max=39))

    refusal = only_end(scheduler.handle(asked("over", "acme/search", prompt=50, output_tokens_max=40), at(0)))

    # The waits are 1 s for concurrency, 18 s for 30 tokens and 60 s for the request rate.
    assert refusal.reason.startswith('tenant "acme/search" has reached its limit of 1 requests per minute')
    assert refusal.retry_after_ns == duration(60)


def test_nested_tenants_without_limits_report_none() -> None:
    limits = TenantLimits()
    limits.change_rules(tenant_table([Tenant(TenantId("acme")), Tenant(TenantId("acme/search"))]).by_id, {}, (), at(0))

    assert limits.left(TenantId("acme/search"), at(0)) is None
    assert limits.shortage(asked("r", "acme/search").ticket, 1, 1, at(0)) is None


# Policy changes


def changed(scheduler: Scheduler, seconds: float, *tenants: Tenant) -> None:
    commands_for(scheduler, at(seconds), policy_changed(a_policy(tenants=(*tenants, "bolt"))))


def test_usage_survives_policy_change_and_drains_at_new_rate() -> None:
    scheduler = limited(a_limited(requests=4))
    commands_for(scheduler, at(0), *[asked(f"r{number}") for number in range(4)])

    changed(scheduler, 15, a_limited(requests=2))

    # One of four requests has drained. The next one fits once two of the other three have drained, at two per minute.
    assert only_end(scheduler.handle(asked("over"), at(15))).retry_after_ns == duration(60)


def test_new_limit_includes_open_requests() -> None:
    scheduler = limited(Tenant(TenantId("acme")))
    commands_for(scheduler, at(0), asked("runs"))

    changed(scheduler, 0, a_limited(open_=1, tokens=1_000))

    assert only_end(scheduler.handle(asked("over"), at(0))).outcome is Outcome.RATE_LIMITED
    commands_for(scheduler, at(0), used("runs", 100, 100))
    # The running request holds no token reservation under the new limit.
    assert tokens_left(scheduler.handle(asked("next"), at(0))) == 750


def test_removed_limit_no_longer_applies() -> None:
    scheduler = limited(a_limited(requests=1, tokens=1_000, open_=1))
    commands_for(scheduler, at(0), asked("runs"))

    changed(scheduler, 0, a_limited())
    commands_for(scheduler, at(0), used("runs", 100, 100))

    [dispatch] = scheduler.handle(asked("next"), at(0))
    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits is None


def test_removed_tenant_leaves_no_state_after_its_requests_end() -> None:
    scheduler = limited(a_limited(tokens=1_000, open_=2), places=1)
    commands_for(scheduler, at(0), asked("runs"), asked("waits"))
    changed(scheduler, 0)
    commands_for(scheduler, at(0), used("runs", 100, 100))

    assert scheduler._state.limits._claims == {}


def test_attempt_outliving_its_request_is_not_open_after_policy_change() -> None:
    scheduler = limited(a_limited(open_=1))
    commands_for(scheduler, at(0), asked("left"), client_disconnected("left"))

    changed(scheduler, 0, a_limited(open_=1))

    assert isinstance(scheduler.handle(asked("next"), at(0))[0], Dispatch)


# Check before the request body is read


def test_limit_is_reached_when_smallest_request_does_not_fit() -> None:
    scheduler = limited(a_limited(requests=1, tokens=1_000))
    tenant = TenantId("acme")
    assert scheduler.limit_reached(tenant, at(0)) is None
    scheduler.handle(asked("a"), at(0))

    short = scheduler.limit_reached(tenant, at(0))
    assert short is not None
    assert (short.outcome, short.wait_ns) == (Outcome.RATE_LIMITED, duration(60))
    assert scheduler.limit_reached(tenant, at(60)) is None
    assert scheduler.limit_reached(TenantId("bolt"), at(0)) is None, "a tenant without limits never reaches a limit"


def test_limit_check_consumes_nothing() -> None:
    scheduler = limited(a_limited(requests=2, open_=1))
    for _ in range(10):
        assert scheduler.limit_reached(TenantId("acme"), at(0)) is None
    scheduler.handle(asked("a"), at(0))

    short = scheduler.limit_reached(TenantId("acme"), at(0))
    assert short is not None
    assert "1 of 1 requests open" in short.reason


# Requests rejected by a gateway


def test_gateway_rejections_are_counted_in_request_rate_up_to_limit() -> None:
    scheduler = limited(a_limited(requests=2, tokens=1_000))
    tenant = TenantId("acme")
    for _ in range(5):
        assert scheduler.handle(RequestRejected(tenant), at(0)) == []

    short = scheduler.limit_reached(tenant, at(0))
    assert short is not None
    assert (short.outcome, short.wait_ns) == (Outcome.RATE_LIMITED, duration(30))
    assert scheduler.limit_reached(tenant, at(30)) is None


def test_gateway_rejections_are_not_counted_for_tenant_without_limits() -> None:
    scheduler = limited(a_limited(requests=1))
    scheduler.handle(RequestRejected(TenantId("bolt")), at(0))

    assert scheduler.limit_reached(TenantId("acme"), at(0)) is None
    assert scheduler.limit_reached(TenantId("bolt"), at(0)) is None
