"""How many requests and tokens may a tenant send, and how many requests may it have open?"""

from dataclasses import replace

import pytest

from headgate.core.admission.limits import Rate, TenantLimits, least_left
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived, RequestRejected
from headgate.core.hedging import SEEN_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits, LimitsLeft, RateLeft
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
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
    client_left,
    completed,
    failed,
    first_token,
    lasting,
    policy_changed,
    progressed,
    the_end,
    told,
)

GUESS = 150
"""What an answer is taken to have as long as nothing is known of any."""


def a_limited(
    name: str = "acme", *, requests: int | None = None, tokens: int | None = None, open_: int | None = None
) -> Tenant:
    return Tenant(TenantId(name), limits=Limits(requests, tokens, open_))


def limited(*tenants: Tenant, places: int = 100, policy: Policy | None = None) -> Scheduler:
    return a_scheduler(an_endpoint(places=places), policy=policy or a_policy(tenants=(*tenants, "bolt")))


def asked(request: str, tenant: str = "acme", *, prompt: int = 100, **changes: object) -> RequestArrived:
    """With a prompt of so many tokens, by the first guess of how long a token is."""
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
    """As told to a request that is refused because its model does not exist, and so takes nothing."""
    return tokens_left(scheduler.handle(arrived(f"looks at {seconds}", tenant, model="none"), at(seconds)))


# Requests


def test_a_minute_of_requests_may_come_at_once_and_the_next_is_refused_until_it_fits() -> None:
    scheduler = limited(a_limited(requests=3))
    told(scheduler, at(0), *[asked(f"r{number}") for number in range(3)])

    assert the_end(scheduler.handle(asked("over"), at(5))) == End(
        RequestId("over"),
        Outcome.RATE_LIMITED,
        a_class().name,
        0,
        lasting(0),
        lasting(15),
        'tenant "acme" has used up its 3 requests per minute; wait 15 s or raise its requests_per_minute',
        LimitsLeft(RateLeft(3, 0, lasting(55)), None),
    )


def test_a_request_that_comes_back_when_it_was_told_to_is_let_in() -> None:
    scheduler = limited(a_limited(requests=3))
    told(scheduler, at(0), *[asked(f"r{number}") for number in range(3)])

    assert isinstance(scheduler.handle(asked("early"), at(19.999))[0], End)
    assert isinstance(scheduler.handle(asked("again"), at(20))[0], Dispatch)


def test_who_is_refused_has_used_nothing() -> None:
    scheduler = limited(a_limited(requests=1))
    told(scheduler, at(0), asked("first"), *[asked(f"refused {number}") for number in range(50)])

    assert isinstance(scheduler.handle(asked("again"), at(60))[0], Dispatch)


def test_another_tenant_is_not_touched() -> None:
    scheduler = limited(a_limited(requests=1))
    told(scheduler, at(0), asked("r"), asked("over"))

    [dispatch] = scheduler.handle(asked("others", "bolt"), at(0))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits is None


def test_a_request_counts_as_one_whatever_becomes_of_it() -> None:
    scheduler = limited(a_limited(requests=2), places=1)
    told(scheduler, at(0), asked("runs"), asked("waits"), client_left("waits"))

    assert the_end(scheduler.handle(asked("over"), at(0))).outcome is Outcome.RATE_LIMITED


def test_a_request_that_finds_no_place_has_used_nothing() -> None:
    tenant = a_limited(requests=2, tokens=10_000, open_=2)
    policy = a_policy(classes=(a_class(queue_length_max=0),), tenants=(tenant,))
    scheduler = limited(places=1, policy=policy)
    told(scheduler, at(0), asked("runs"))

    refusal = the_end(scheduler.handle(asked("no place"), at(0)))

    assert refusal.outcome is Outcome.QUEUE_FULL
    assert refusal.limits == LimitsLeft(
        RateLeft(2, 1, lasting(30)), RateLeft(10_000, 10_000 - 100 - GUESS, lasting(1.5))
    )


# Tokens


def test_tokens_are_reserved_as_predicted_when_a_request_comes_in() -> None:
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
def test_as_many_answers_are_reserved_as_it_asks_for_and_none_longer_than_it_allows(
    changes: dict[str, object], reserved: int
) -> None:
    scheduler = limited(a_limited(tokens=1_000))

    assert tokens_left(scheduler.handle(asked("r", **changes), at(0))) == 1_000 - reserved


def test_who_does_not_fit_is_told_what_is_left_what_it_may_take_and_when_to_come_back() -> None:
    scheduler = limited(a_limited(tokens=300))
    told(scheduler, at(0), asked("r"))

    refusal = the_end(scheduler.handle(asked("over"), at(0)))

    assert refusal.outcome is Outcome.RATE_LIMITED
    assert refusal.reason == (
        'tenant "acme" has 50 of 300 tokens per minute left and this request may take 250; '
        "wait 40 s or raise its tokens_per_minute"
    )
    assert refusal.retry_after_ns == lasting(40)
    assert refusal.limits == LimitsLeft(None, RateLeft(300, 50, lasting(50)))


def test_at_its_end_a_request_has_used_what_the_engine_says() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    told(scheduler, at(0), asked("short"), used("short", 90, 10))

    assert tokens_left_to(scheduler, 0) == 900


def test_an_answer_longer_than_predicted_is_a_debt_for_which_the_next_waits() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    told(scheduler, at(0), asked("long"), used("long", 100, 3_900))

    refusal = the_end(scheduler.handle(asked("next"), at(0)))

    assert tokens_left_to(scheduler, 0) == 0
    # 4,000 are used; 250 fit when 3,250 have drained. No answer could say so if it had to be within a minute.
    assert refusal.retry_after_ns == lasting(195)
    assert isinstance(scheduler.handle(asked("again"), at(195))[0], Dispatch)


def test_what_was_never_sent_has_used_no_tokens() -> None:
    scheduler = limited(a_limited(tokens=1_000), places=1)
    told(scheduler, at(0), asked("others", "bolt"), asked("waits"))
    assert tokens_left_to(scheduler, 0) == 750

    told(scheduler, at(0), client_left("waits"))

    assert tokens_left_to(scheduler, 0) == 1_000


def test_an_attempt_that_failed_before_its_first_token_has_used_none() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    told(scheduler, at(0), asked("r"), failed("r"), failed("r", attempt=2))

    [_, refusal] = scheduler.handle(failed("r", attempt=3), at(0))

    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.ENGINE_FAILED
    assert tokens_left([refusal]) == 1_000


def test_of_several_attempts_the_last_one_counts() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    told(scheduler, at(0), asked("r"), failed("r"), used("r", 100, 60, attempt=2))

    assert tokens_left_to(scheduler, 0) == 1_000 - 160


def test_tokens_of_a_caller_who_left_stay_reserved_until_its_attempt_has_ended() -> None:
    scheduler = limited(a_limited(tokens=1_000))
    told(scheduler, at(0), asked("r"), first_token("r"), progressed("r"), client_left("r"))
    assert tokens_left_to(scheduler, 0) == 750

    told(scheduler, at(0), aborted("r"))

    # The prompt, and the tokens that were reported.
    assert tokens_left_to(scheduler, 0) == 1_000 - 100 - 8


def test_of_two_attempts_side_by_side_the_one_that_was_let_go_counts_for_nothing() -> None:
    hedged = replace(a_class(), hedges=True)
    policy = a_policy(classes=(hedged,), tenants=(a_limited(tokens=1_000), "bolt"))
    scheduler = a_scheduler(an_endpoint("e1", places=200), an_endpoint("e2", places=200), policy=policy)
    told(scheduler, at(0), *[asked(f"b{number}", "bolt", prompt=1) for number in range(SEEN_MIN)])
    while begun := list(scheduler._state.attempts.by_number):
        told(scheduler, at(1), *[first_token(*each) for each in begun], *[completed(*each) for each in begun])
    told(scheduler, at(10), asked("r"))
    [_, hedge] = scheduler.handle(arrived("looks", model="none"), at(12))
    told(scheduler, at(12), first_token("r", 2), progressed("r", attempt=2), client_left("r"))
    assert isinstance(hedge, Dispatch)

    told(scheduler, at(12), aborted("r", 1))
    assert tokens_left_to(scheduler, 12) == tokens_left([hedge])

    told(scheduler, at(12), aborted("r", 2))
    assert tokens_left_to(scheduler, 12) == 1_000 - 100 - 8 + 1_000 // 30


def test_what_has_drained_meanwhile_is_not_given_back() -> None:
    rate = Rate(250)
    drained = rate.take(250, at(0))
    partly = rate.take(250, at(60))

    rate.settle(drained, at(60), reserved=250, actual=0)
    assert least_left([rate], at(60)) == RateLeft(250, 0, lasting(60))

    rate.settle(partly, at(84), reserved=250, actual=0)
    assert least_left([rate], at(84)) == RateLeft(250, 250, lasting(0))


def test_a_request_that_may_take_more_than_a_minute_allows_waits_for_the_whole_minute() -> None:
    scheduler = limited(a_limited(tokens=200))

    assert tokens_left(scheduler.handle(asked("r"), at(0))) == 0
    told(scheduler, at(0), used("r", 100, 400))

    # 500 are used, and of 200 a minute nothing may be left in use.
    assert the_end(scheduler.handle(asked("next"), at(0))).retry_after_ns == lasting(150)


def test_a_prompt_longer_than_a_whole_minute_allows_never_fits() -> None:
    scheduler = limited(a_limited(tokens=99, requests=1))
    told(scheduler, at(0), asked("short", prompt=1, output_tokens_max=1))

    refusal = the_end(scheduler.handle(asked("r"), at(0)))

    assert refusal.outcome is Outcome.TOO_LARGE
    assert refusal.reason == (
        'the prompt has about 100 tokens and tenant "acme" may use 99 per minute; '
        "shorten it or raise its tokens_per_minute"
    )
    assert refusal.retry_after_ns is None


def test_a_prompt_that_fits_the_limit_and_not_this_part_of_it_may_come_again() -> None:
    part = Limits(tokens_per_minute=99, tokens_whole=400)
    scheduler = limited(replace(a_limited(tokens=99), limits=part))

    refusal = the_end(scheduler.handle(asked("r"), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.RATE_LIMITED, lasting(10))
    assert refusal.reason == (
        'the prompt has about 100 tokens and of the 400 that tenant "acme" may use per minute 99 are to be had here, '
        "as long as not all gateways answer; wait 10 s"
    )
    assert the_end(scheduler.handle(asked("longer", prompt=401), at(0))).outcome is Outcome.TOO_LARGE


# Concurrency


def test_no_more_requests_are_open_than_a_tenant_may_have() -> None:
    scheduler = limited(a_limited(open_=2), places=1)
    told(scheduler, at(0), asked("runs"), asked("waits"))

    refusal = the_end(scheduler.handle(asked("over"), at(0)))

    assert refusal.outcome is Outcome.RATE_LIMITED
    assert refusal.reason == ('tenant "acme" has 2 of 2 requests open; wait for one to end or raise its concurrency')
    assert refusal.limits is None


@pytest.mark.parametrize("how", [completed("runs"), client_left("runs"), client_left("waits")])
def test_the_end_of_a_request_makes_room_for_another(how: AttemptEnded) -> None:
    scheduler = limited(a_limited(open_=2), places=1)
    told(scheduler, at(0), asked("runs"), asked("waits"), how)

    assert not [each for each in scheduler.handle(asked("next"), at(0)) if isinstance(each, End)]


def test_who_has_too_many_open_is_told_to_wait_as_long_as_one_in_so_many_usually_takes() -> None:
    scheduler = limited(a_limited(open_=4))
    for number in range(60):
        told(scheduler, at(20 * number), asked(f"r{number}"))
        told(scheduler, at(20 * number + 20), completed(f"r{number}"))
    told(scheduler, at(2_000), *[asked(f"open {number}") for number in range(4)])

    wait = the_end(scheduler.handle(asked("over"), at(2_000))).retry_after_ns

    assert wait is not None
    assert lasting(4.9) < wait <= lasting(5)


# The levels of a path


def a_family() -> tuple[Tenant, ...]:
    return (a_limited("acme", requests=3), a_limited("acme/search", requests=2), a_limited("acme/search/nightly"))


def test_a_tenant_is_bound_by_the_limits_of_every_level_above_it() -> None:
    scheduler = limited(*a_family(), a_limited("acme/chat"))
    told(scheduler, at(0), asked("a", "acme/search/nightly"), asked("b", "acme/search"))

    below = the_end(scheduler.handle(asked("over", "acme/search/nightly"), at(0)))
    told(scheduler, at(0), asked("c", "acme/chat"))
    beside = the_end(scheduler.handle(asked("over too", "acme/chat"), at(0)))

    assert below.reason.startswith('tenant "acme/search" has used up its 2 requests per minute')
    assert beside.reason.startswith('tenant "acme" has used up its 3 requests per minute')


def test_who_is_told_of_its_limits_is_told_of_the_level_at_which_least_is_left() -> None:
    scheduler = limited(*a_family())

    [dispatch] = scheduler.handle(asked("r", "acme/search/nightly"), at(0))

    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits == LimitsLeft(RateLeft(2, 1, lasting(30)), None)


def test_what_does_not_fit_at_one_level_is_taken_at_none() -> None:
    scheduler = limited(*a_family())
    told(scheduler, at(0), *[asked(f"r{number}", "acme/search") for number in range(10)])

    assert isinstance(scheduler.handle(asked("r", "acme"), at(0))[0], Dispatch)


def test_where_several_limits_do_not_fit_the_one_that_will_fit_last_is_told() -> None:
    scheduler = limited(a_limited("acme", requests=60, tokens=100), a_limited("acme/search", requests=1, open_=1))
    told(scheduler, at(0), asked("r", "acme/search", prompt=1, output_tokens_max=39))

    refusal = the_end(scheduler.handle(asked("over", "acme/search", prompt=50, output_tokens_max=40), at(0)))

    # An open request for a second, 30 tokens for 18 s, the other request for a minute.
    assert refusal.reason.startswith('tenant "acme/search" has used up its 1 requests per minute')
    assert refusal.retry_after_ns == lasting(60)


def test_a_path_without_limits_has_none_to_tell() -> None:
    limits = TenantLimits()
    limits.change_rules([Tenant(TenantId("acme")), Tenant(TenantId("acme/search"))], (), at(0))

    assert limits.left(TenantId("acme/search"), at(0)) is None
    assert limits.shortage(asked("r", "acme/search").ticket, 1, 1, at(0)) is None


# A new policy


def changed(scheduler: Scheduler, seconds: float, *tenants: Tenant) -> None:
    told(scheduler, at(seconds), policy_changed(a_policy(tenants=(*tenants, "bolt"))))


def test_what_is_used_stays_used_under_a_new_policy_and_drains_at_its_pace() -> None:
    scheduler = limited(a_limited(requests=4))
    told(scheduler, at(0), *[asked(f"r{number}") for number in range(4)])

    changed(scheduler, 15, a_limited(requests=2))

    # One of four has drained; of the other three the third second one is over when two have.
    assert the_end(scheduler.handle(asked("over"), at(15))).retry_after_ns == lasting(60)


def test_a_limit_that_is_new_counts_what_is_open_already() -> None:
    scheduler = limited(Tenant(TenantId("acme")))
    told(scheduler, at(0), asked("runs"))

    changed(scheduler, 0, a_limited(open_=1, tokens=1_000))

    assert the_end(scheduler.handle(asked("over"), at(0))).outcome is Outcome.RATE_LIMITED
    told(scheduler, at(0), used("runs", 100, 100))
    # It had reserved nothing under this limit.
    assert tokens_left(scheduler.handle(asked("next"), at(0))) == 750


def test_a_limit_that_is_gone_holds_nobody() -> None:
    scheduler = limited(a_limited(requests=1, tokens=1_000, open_=1))
    told(scheduler, at(0), asked("runs"))

    changed(scheduler, 0, a_limited())
    told(scheduler, at(0), used("runs", 100, 100))

    [dispatch] = scheduler.handle(asked("next"), at(0))
    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits is None


def test_a_tenant_that_is_gone_leaves_nothing_behind_when_its_requests_have_ended() -> None:
    scheduler = limited(a_limited(tokens=1_000, open_=2), places=1)
    told(scheduler, at(0), asked("runs"), asked("waits"))
    changed(scheduler, 0)
    told(scheduler, at(0), used("runs", 100, 100))

    assert scheduler._state.limits._claims == {}


def test_an_attempt_that_outlives_its_request_is_not_counted_as_open_by_a_new_policy() -> None:
    scheduler = limited(a_limited(open_=1))
    told(scheduler, at(0), asked("left"), client_left("left"))

    changed(scheduler, 0, a_limited(open_=1))

    assert isinstance(scheduler.handle(asked("next"), at(0))[0], Dispatch)


# Checked before the request is read


def test_limit_is_reached_when_not_even_the_shortest_request_fits() -> None:
    scheduler = limited(a_limited(requests=1, tokens=1_000))
    tenant = TenantId("acme")
    assert scheduler.limit_reached(tenant, at(0)) is None
    scheduler.handle(asked("a"), at(0))

    short = scheduler.limit_reached(tenant, at(0))
    assert short is not None
    assert (short.outcome, short.wait_ns) == (Outcome.RATE_LIMITED, lasting(60))
    assert scheduler.limit_reached(tenant, at(60)) is None
    assert scheduler.limit_reached(TenantId("bolt"), at(0)) is None, "without limits none is reached"


def test_limit_check_consumes_nothing() -> None:
    scheduler = limited(a_limited(requests=2, open_=1))
    for _ in range(10):
        assert scheduler.limit_reached(TenantId("acme"), at(0)) is None
    scheduler.handle(asked("a"), at(0))

    short = scheduler.limit_reached(TenantId("acme"), at(0))
    assert short is not None
    assert "1 of 1 requests open" in short.reason


# Rejected by a gateway


def test_rejected_requests_count_in_the_request_rate_of_every_level_and_cause_no_debt() -> None:
    scheduler = limited(a_limited(requests=2, tokens=1_000))
    tenant = TenantId("acme")
    for _ in range(5):
        assert scheduler.handle(RequestRejected(tenant), at(0)) == []

    short = scheduler.limit_reached(tenant, at(0))
    assert short is not None
    assert (short.outcome, short.wait_ns) == (Outcome.RATE_LIMITED, lasting(30))
    assert scheduler.limit_reached(tenant, at(30)) is None


def test_rejected_requests_of_a_tenant_without_limits_are_not_counted() -> None:
    scheduler = limited(a_limited(requests=1))
    scheduler.handle(RequestRejected(TenantId("bolt")), at(0))

    assert scheduler.limit_reached(TenantId("acme"), at(0)) is None
    assert scheduler.limit_reached(TenantId("bolt"), at(0)) is None
