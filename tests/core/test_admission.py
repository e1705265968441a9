"""Tests for admission: which requests are admitted, and how others are rejected."""

from dataclasses import replace

import pytest

from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, Policy, RetryRules
from headgate.model.units import TenantId
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    end,
    failed,
    joined,
    leaving,
    only_end,
    policy_changed,
    readied,
    unreadied,
)

NO_SUCH_MODEL = 'model "gpt" does not exist or this API key may not use it; GET /v1/models lists the available models'


def test_request_is_sent_immediately_if_an_endpoint_has_capacity() -> None:
    scheduler = a_scheduler()

    assert scheduler.handle(arrived("r"), at(1)) == [dispatch("r")]


def test_scheduler_without_a_policy_rejects_every_tenant() -> None:
    assert Scheduler().handle(arrived("r"), at(0)) == [
        end("r", Outcome.UNAUTHORIZED, 'unknown tenant "acme"; check the API key', service_class=None)
    ]


def test_unknown_class_is_rejected_as_invalid() -> None:
    scheduler = a_scheduler()

    assert scheduler.handle(arrived("r", service_class="gold"), at(1)) == [
        end(
            "r",
            Outcome.INVALID_REQUEST,
            'class "gold" does not exist; available classes: interactive, batch',
            service_class=None,
        )
    ]


def test_rejection_for_unknown_class_shows_that_no_classes_exist() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=()))

    assert scheduler.handle(arrived("r", service_class="gold"), at(1)) == [
        end("r", Outcome.INVALID_REQUEST, 'class "gold" does not exist; available classes: none', service_class=None)
    ]


def test_request_without_class_is_rejected_if_every_class_must_be_named() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class("batch", unnamed=False),)))

    assert scheduler.handle(arrived("r"), at(1)) == [
        end(
            "r",
            Outcome.FORBIDDEN,
            "no class accepts requests without a class or service_tier; specify one",
            service_class=None,
        )
    ]


def test_unknown_and_forbidden_models_get_the_same_rejection() -> None:
    policy = a_policy(tenants=("acme", a_tenant("bolt", models=("m",))), models=(a_model("m"), a_model("secret")))
    scheduler = a_scheduler(policy=policy)

    unknown = scheduler.handle(arrived("r", "bolt", model="gpt"), at(1))
    hidden = scheduler.handle(arrived("r", "bolt", model="secret"), at(1))

    assert unknown == [end("r", Outcome.MODEL_NOT_FOUND, NO_SUCH_MODEL)]
    assert hidden == [end("r", Outcome.MODEL_NOT_FOUND, NO_SUCH_MODEL.replace("gpt", "secret"))]
    assert scheduler.handle(arrived("r", "bolt", model="m"), at(1)) == [dispatch("r")]


def test_rejection_for_forbidden_class_lists_allowed_classes() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=(a_tenant("acme", classes=("batch",)),)))

    assert scheduler.handle(arrived("r", service_class="interactive"), at(1)) == [
        end("r", Outcome.FORBIDDEN, 'this API key may not use class "interactive"; allowed classes: batch')
    ]
    assert scheduler.handle(arrived("s", service_class="batch"), at(1)) == [dispatch("s", service_class="batch")]


def test_request_is_rejected_if_its_class_has_no_pool_for_the_model() -> None:
    policy = a_policy(classes=(a_class("interactive", pools=("q",)),))
    scheduler = a_scheduler(policy=policy)

    assert scheduler.handle(arrived("r"), at(1)) == [
        end(
            "r",
            Outcome.FORBIDDEN,
            'no pool serves model "m" for class "interactive"; use another class',
        )
    ]


# Queue limits


def test_full_class_rejects_only_requests_that_would_be_queued() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),)))

    assert scheduler.handle(arrived("runs"), at(0)) == [dispatch("runs")]
    assert scheduler.handle(arrived("waits", "bolt"), at(0)) == []
    assert scheduler.handle(arrived("refused", "coil"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            'class "interactive" has 1 of 1 requests queued; retry in 20 s or raise queue_length_max',
            retry_after=20,
        )
    ]


def test_class_without_a_queue_admits_requests_that_can_run() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=0),)), places=2)

    assert commands_for(scheduler, at(0), arrived("a"), arrived("b")) == [
        dispatch("a", place="1 of 2"),
        dispatch("b", place="2 of 2"),
    ]


def test_full_tenant_queue_does_not_affect_other_tenants() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_per_tenant_max=1),)))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(arrived("refused"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            'tenant "acme" has 1 of 1 requests queued in class "interactive"; '
            "retry in 20 s or raise queue_length_per_tenant_max",
            retry_after=20,
        )
    ]
    assert scheduler.handle(arrived("neighbour", "bolt"), at(0)) == []


def test_retry_after_is_the_drain_time_at_the_recent_dispatch_rate() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=4),)))
    for number in range(8):
        commands_for(scheduler, at(number), arrived(f"r{number}"), completed(f"r{number}"))
    commands_for(scheduler, at(8), arrived("runs"), *[arrived(f"waits{number}") for number in range(4)])

    refusal = only_end(scheduler.handle(arrived("refused"), at(8)))

    # Nine requests were sent within the ten-second window. Four are queued, and this one would be the fifth.
    assert refusal.retry_after_ns == 5 * 10_000_000_000 // 9


@pytest.mark.parametrize(
    ("rules", "retry_after"),
    [(RetryRules(pool_budget_window_ns=duration(100)), 60), (RetryRules(pool_budget_window_ns=duration(0.1)), 1)],
)
def test_retry_after_is_between_one_second_and_one_minute(rules: RetryRules, retry_after: float) -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),), retry=rules))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(arrived("refused"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            f'class "interactive" has 1 of 1 requests queued; retry in {retry_after} s or raise queue_length_max',
            retry_after=retry_after,
        )
    ]


# Client retries


def test_client_retry_is_rejected_if_the_tenants_retry_budget_is_exhausted() -> None:
    rules = RetryRules(credit_burst=250)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=10)

    for number in range(2):
        assert scheduler.handle(arrived(f"r{number}", client_retries=1), at(1)) == [
            dispatch(f"r{number}", place=f"{number + 1} of 10")
        ]
    assert scheduler.handle(arrived("refused", client_retries=2), at(1)) == [
        end(
            "refused",
            Outcome.RETRY_BUDGET_EXHAUSTED,
            'tenant "acme" has used up its retry budget; requests that are not retries refill it',
            retry_after=5,
        )
    ]
    assert scheduler.handle(arrived("other", "bolt", client_retries=1), at(1)) == [dispatch("other", place="3 of 10")]


def test_ten_first_attempts_earn_one_client_retry() -> None:
    scheduler = a_scheduler(policy=a_policy(retry=RetryRules(credit_burst=100)), places=100)
    commands_for(scheduler, at(0), arrived("first", client_retries=1))

    commands_for(scheduler, at(0), *[arrived(f"r{number}") for number in range(9)])
    assert (
        only_end(scheduler.handle(arrived("early", client_retries=1), at(0))).outcome is Outcome.RETRY_BUDGET_EXHAUSTED
    )
    commands_for(scheduler, at(0), arrived("tenth"))
    assert scheduler.handle(arrived("paid", client_retries=1), at(0)) == [dispatch("paid", place="12 of 100")]


def test_client_retry_earns_no_retry_credit() -> None:
    scheduler = a_scheduler(policy=a_policy(retry=RetryRules(credit_burst=100, cost=10)), places=100)

    taken = [scheduler.handle(arrived(f"r{number}", client_retries=1), at(0))[0] for number in range(11)]

    assert [type(command).__name__ for command in taken] == ["Dispatch"] * 10 + ["End"]


def test_client_retry_rejected_for_a_full_queue_costs_no_credit() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=0),), retry=RetryRules(credit_burst=100))
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("runs", "bolt"))

    refusal = only_end(scheduler.handle(arrived("early", client_retries=1), at(0)))
    commands_for(scheduler, at(0), completed("runs"))

    assert refusal.outcome is Outcome.QUEUE_FULL
    assert scheduler.handle(arrived("again", client_retries=1), at(0)) == [dispatch("again")]


# No available endpoint


def test_request_without_any_endpoint_is_rejected_with_the_warm_up_time_as_retry_after() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=45),)))

    assert scheduler.handle(arrived("r"), at(0)) == [
        end(
            "r",
            Outcome.NO_ENDPOINTS,
            "no endpoint in pool p is available; see /status on the admin listener",
            retry_after=45,
        )
    ]


def test_pool_missing_from_the_policy_uses_the_default_warm_up_time() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(), models=(a_model("m", "p"),)))

    refusal = only_end(scheduler.handle(arrived("r"), at(0)))

    assert refusal.retry_after_ns == at(30) - at(0)


@pytest.mark.parametrize("warm_up", [1, 3_600])
def test_request_waits_for_a_starting_endpoint_regardless_of_its_warm_up_time(warm_up: float) -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=warm_up),)))
    commands_for(scheduler, at(0), joined("e1"))

    assert scheduler.handle(arrived("r"), at(0)) == []
    assert scheduler.handle(readied("e1"), at(20))[-1] == dispatch("r", waited=20)


def test_request_waits_for_an_endpoint_that_became_unready() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), unreadied("e1"))

    assert scheduler.handle(arrived("r"), at(0)) == []
    assert scheduler.handle(readied("e1"), at(20))[-1] == dispatch("r", waited=20)


def test_request_does_not_wait_for_a_starting_endpoint_that_is_leaving() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), unreadied("e1"), leaving("e1"))

    assert only_end(scheduler.handle(arrived("r"), at(0))).outcome is Outcome.NO_ENDPOINTS


def test_request_does_not_wait_for_an_ejected_endpoint_that_returns_too_late() -> None:
    health = HealthRules(consecutive_failures_max=1, ejection_ns=duration(31))
    scheduler = a_scheduler(policy=a_policy(health=health))
    commands_for(scheduler, at(0), arrived("runs"), client_disconnected("runs"), failed("runs"))

    refusal = only_end(scheduler.handle(arrived("r"), at(0)))

    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.retry_after_ns == duration(31)


def test_retry_after_uses_the_pool_that_returns_first() -> None:
    health = HealthRules(consecutive_failures_max=1, ejection_ns=duration(50))
    policy = a_policy(pools=("p", "q", "empty"), health=health)
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    commands_for(
        scheduler, at(0), arrived("x"), arrived("y"), client_disconnected("x"), client_disconnected("y"), failed("x")
    )
    commands_for(scheduler, at(5), failed("y"))

    assert only_end(scheduler.handle(arrived("r"), at(10))).retry_after_ns == duration(40)


def test_request_waits_for_an_ejected_endpoint_that_returns_in_time() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=3))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))
    commands_for(scheduler, at(0), *[failed(name) for name in "ab"], failed("c"))

    assert scheduler.handle(arrived("r", "bolt"), at(0)) == []


# Internal errors


def test_request_arriving_twice_raises_an_internal_error() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))

    with pytest.raises(AssertionError, match="request r arrived twice"):
        scheduler.handle(arrived("r"), at(0))


def test_time_going_backwards_raises_an_internal_error() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(5), policy_changed(Policy()))

    with pytest.raises(AssertionError, match="time went backwards"):
        scheduler.handle(arrived("r"), at(4))


def test_assess_changes_nothing_and_commit_spends_once() -> None:
    limited = replace(a_tenant("acme"), limits=Limits(requests_per_minute=10, tokens_per_minute=10_000))
    scheduler = a_scheduler(policy=a_policy(tenants=(limited,)))
    admission, ticket = scheduler._admission, arrived("a", client_retries=1).ticket
    before = scheduler.counters(at(1))

    for _ in range(20):
        assessed = admission.assess(ticket, at(1))
        assert assessed.rejection is None
    assert scheduler.counters(at(1)) == before

    admission.commit(assessed, at(1), [])
    left = scheduler.limits_left(TenantId("acme"), at(1))
    assert left is not None
    assert left.requests is not None
    assert left.requests.remaining == 9
    assert dict(scheduler.counters(at(1)).retry_credits)["acme"] == RetryRules().credit_burst - RetryRules().cost
