"""Which requests come in, and what do the others hear?"""

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
    client_left,
    completed,
    dispatch,
    end,
    failed,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    the_end,
    told,
    unreadied,
)

NO_SUCH_MODEL = 'model "gpt" does not exist or this key may not use it; GET /v1/models lists those it may'


def test_a_request_is_sent_at_once_when_an_endpoint_has_room() -> None:
    scheduler = a_scheduler()

    assert scheduler.handle(arrived("r"), at(1)) == [dispatch("r")]


def test_a_scheduler_without_a_policy_knows_nobody() -> None:
    assert Scheduler().handle(arrived("r"), at(0)) == [
        end("r", Outcome.UNAUTHORIZED, 'tenant "acme" is not known; check the API key', service_class=None)
    ]


def test_a_class_that_does_not_exist_is_invalid() -> None:
    scheduler = a_scheduler()

    assert scheduler.handle(arrived("r", service_class="gold"), at(1)) == [
        end(
            "r",
            Outcome.INVALID,
            'class "gold" does not exist; the classes are: interactive, batch',
            service_class=None,
        )
    ]


def test_where_there_are_no_classes_at_all_the_answer_says_so() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=()))

    assert scheduler.handle(arrived("r", service_class="gold"), at(1)) == [
        end("r", Outcome.INVALID, 'class "gold" does not exist; the classes are: none', service_class=None)
    ]


def test_a_caller_who_must_name_a_class_and_does_not_is_told_to() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class("batch", unnamed=False),)))

    assert scheduler.handle(arrived("r"), at(1)) == [
        end(
            "r",
            Outcome.FORBIDDEN,
            "no class takes requests that name neither a class nor a tier; name one",
            service_class=None,
        )
    ]


def test_a_model_that_does_not_exist_and_one_that_the_key_may_not_use_look_alike() -> None:
    policy = a_policy(tenants=("acme", a_tenant("bolt", models=("m",))), models=(a_model("m"), a_model("secret")))
    scheduler = a_scheduler(policy=policy)

    unknown = scheduler.handle(arrived("r", "bolt", model="gpt"), at(1))
    hidden = scheduler.handle(arrived("r", "bolt", model="secret"), at(1))

    assert unknown == [end("r", Outcome.MODEL_NOT_FOUND, NO_SUCH_MODEL)]
    assert hidden == [end("r", Outcome.MODEL_NOT_FOUND, NO_SUCH_MODEL.replace("gpt", "secret"))]
    assert scheduler.handle(arrived("r", "bolt", model="m"), at(1)) == [dispatch("r")]


def test_a_key_is_told_which_classes_it_may_use() -> None:
    scheduler = a_scheduler(policy=a_policy(tenants=(a_tenant("acme", classes=("batch",)),)))

    assert scheduler.handle(arrived("r", service_class="interactive"), at(1)) == [
        end("r", Outcome.FORBIDDEN, 'this key may not use class "interactive"; it may use: batch')
    ]
    assert scheduler.handle(arrived("s", service_class="batch"), at(1)) == [dispatch("s", service_class="batch")]


def test_a_class_that_may_use_no_pool_of_the_model_is_refused() -> None:
    policy = a_policy(classes=(a_class("interactive", pools=("q",)),))
    scheduler = a_scheduler(policy=policy)

    assert scheduler.handle(arrived("r"), at(1)) == [
        end(
            "r",
            Outcome.FORBIDDEN,
            'no pool serves model "m" in class "interactive"; choose another class',
        )
    ]


# The bounds of the queue


def test_a_full_class_refuses_only_those_who_would_have_to_wait() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),)))

    assert scheduler.handle(arrived("runs"), at(0)) == [dispatch("runs")]
    assert scheduler.handle(arrived("waits", "bolt"), at(0)) == []
    assert scheduler.handle(arrived("refused", "coil"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            'there are 1 of 1 queued requests in class "interactive"; wait 20 s or raise queue_length_max',
            retry_after=20,
        )
    ]


def test_a_class_that_may_not_queue_at_all_still_takes_what_can_run() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=0),)), places=2)

    assert told(scheduler, at(0), arrived("a"), arrived("b")) == [
        dispatch("a", place="1 of 2"),
        dispatch("b", place="2 of 2"),
    ]


def test_a_tenant_that_fills_its_share_is_told_so_and_its_neighbour_still_comes_in() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_per_tenant_max=1),)))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(arrived("refused"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            'tenant "acme" holds 1 of 1 queued requests in class "interactive"; '
            "wait 20 s or raise queue_length_per_tenant_max",
            retry_after=20,
        )
    ]
    assert scheduler.handle(arrived("neighbour", "bolt"), at(0)) == []


def test_retry_after_is_the_time_to_drain_at_the_pace_of_the_last_seconds() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=4),)))
    for number in range(8):
        told(scheduler, at(number), arrived(f"r{number}"), completed(f"r{number}"))
    told(scheduler, at(8), arrived("runs"), *[arrived(f"waits{number}") for number in range(4)])

    refusal = the_end(scheduler.handle(arrived("refused"), at(8)))

    # Nine were taken within the window of ten seconds; four wait, and the fifth would be the caller.
    assert refusal.retry_after_ns == 5 * 10_000_000_000 // 9


@pytest.mark.parametrize(
    ("rules", "retry_after"),
    [(RetryRules(pool_window_ns=lasting(100)), 60), (RetryRules(pool_window_ns=lasting(0.1)), 1)],
)
def test_retry_after_is_neither_shorter_than_a_second_nor_longer_than_a_minute(
    rules: RetryRules, retry_after: float
) -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),), retry=rules))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(arrived("refused"), at(0)) == [
        end(
            "refused",
            Outcome.QUEUE_FULL,
            f'there are 1 of 1 queued requests in class "interactive"; wait {retry_after} s or raise queue_length_max',
            retry_after=retry_after,
        )
    ]


# Retries that callers make


def test_a_callers_retry_is_refused_when_its_tenants_budget_is_empty() -> None:
    rules = RetryRules(credit_burst=250)
    scheduler = a_scheduler(policy=a_policy(retry=rules), places=10)

    for number in range(2):
        assert scheduler.handle(arrived(f"r{number}", client_retries=1), at(1)) == [
            dispatch(f"r{number}", place=f"{number + 1} of 10")
        ]
    assert scheduler.handle(arrived("refused", client_retries=2), at(1)) == [
        end(
            "refused",
            Outcome.RETRY_REFUSED,
            'tenant "acme" has used up its retry budget; it grows with requests that are not retries',
            retry_after=5,
        )
    ]
    assert scheduler.handle(arrived("other", "bolt", client_retries=1), at(1)) == [dispatch("other", place="3 of 10")]


def test_ten_requests_that_are_not_retries_pay_for_one_that_is() -> None:
    scheduler = a_scheduler(policy=a_policy(retry=RetryRules(credit_burst=100)), places=100)
    told(scheduler, at(0), arrived("first", client_retries=1))

    told(scheduler, at(0), *[arrived(f"r{number}") for number in range(9)])
    assert the_end(scheduler.handle(arrived("early", client_retries=1), at(0))).outcome is Outcome.RETRY_REFUSED
    told(scheduler, at(0), arrived("tenth"))
    assert scheduler.handle(arrived("paid", client_retries=1), at(0)) == [dispatch("paid", place="12 of 100")]


def test_a_callers_retry_earns_no_credit_for_the_next() -> None:
    scheduler = a_scheduler(policy=a_policy(retry=RetryRules(credit_burst=100, cost=10)), places=100)

    taken = [scheduler.handle(arrived(f"r{number}", client_retries=1), at(0))[0] for number in range(11)]

    assert [type(command).__name__ for command in taken] == ["Dispatch"] * 10 + ["End"]


def test_a_retry_that_finds_no_place_costs_nothing() -> None:
    policy = a_policy(classes=(a_class(queue_length_max=0),), retry=RetryRules(credit_burst=100))
    scheduler = a_scheduler(policy=policy)
    told(scheduler, at(0), arrived("runs", "bolt"))

    refusal = the_end(scheduler.handle(arrived("early", client_retries=1), at(0)))
    told(scheduler, at(0), completed("runs"))

    assert refusal.outcome is Outcome.QUEUE_FULL
    assert scheduler.handle(arrived("again", client_retries=1), at(0)) == [dispatch("again")]


# Where nothing can serve


def test_without_any_endpoint_the_answer_comes_at_once_and_names_the_usual_warm_up() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=45),)))

    assert scheduler.handle(arrived("r"), at(0)) == [
        end(
            "r",
            Outcome.NO_ENDPOINTS,
            "no endpoint of pool p can serve at the moment; see their state in the admin listener's /status",
            retry_after=45,
        )
    ]


def test_a_pool_that_the_policy_does_not_describe_has_an_ordinary_warm_up() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(), models=(a_model("m", "p"),)))

    refusal = the_end(scheduler.handle(arrived("r"), at(0)))

    assert refusal.retry_after_ns == at(30) - at(0)


@pytest.mark.parametrize("warm_up", [1, 3_600])
def test_a_request_waits_for_an_endpoint_that_is_starting_however_long_that_usually_takes(warm_up: float) -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=warm_up),)))
    told(scheduler, at(0), joined("e1"))

    assert scheduler.handle(arrived("r"), at(0)) == []
    assert scheduler.handle(readied("e1"), at(20))[-1] == dispatch("r", waited=20)


def test_a_request_waits_for_an_endpoint_that_is_not_ready_any_more() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), unreadied("e1"))

    assert scheduler.handle(arrived("r"), at(0)) == []
    assert scheduler.handle(readied("e1"), at(20))[-1] == dispatch("r", waited=20)


def test_nobody_waits_for_an_endpoint_that_is_starting_and_leaving_at_once() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), unreadied("e1"), leaving("e1"))

    assert the_end(scheduler.handle(arrived("r"), at(0))).outcome is Outcome.NO_ENDPOINTS


def test_a_request_does_not_wait_for_an_ejected_endpoint_that_returns_too_late() -> None:
    health = HealthRules(failures_max=1, eject_ns=lasting(31))
    scheduler = a_scheduler(policy=a_policy(health=health))
    told(scheduler, at(0), arrived("runs"), client_left("runs"), failed("runs"))

    refusal = the_end(scheduler.handle(arrived("r"), at(0)))

    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.retry_after_ns == lasting(31)


def test_of_two_pools_the_one_that_returns_sooner_counts() -> None:
    health = HealthRules(failures_max=1, eject_ns=lasting(50))
    policy = a_policy(pools=("p", "q", "empty"), health=health)
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    told(scheduler, at(0), arrived("x"), arrived("y"), client_left("x"), client_left("y"), failed("x"))
    told(scheduler, at(5), failed("y"))

    assert the_end(scheduler.handle(arrived("r"), at(10))).retry_after_ns == lasting(40)


def test_a_request_waits_for_an_ejected_endpoint_that_returns_within_its_patience() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=3))
    told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))
    told(scheduler, at(0), *[failed(name) for name in "ab"], failed("c"))

    assert scheduler.handle(arrived("r", "bolt"), at(0)) == []


# Our own mistakes stop the process


def test_a_request_that_arrives_twice_is_our_own_mistake() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))

    with pytest.raises(AssertionError, match="request r arrived twice"):
        scheduler.handle(arrived("r"), at(0))


def test_time_that_goes_backwards_is_our_own_mistake() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(5), policy_changed(Policy()))

    with pytest.raises(AssertionError, match="time went backwards"):
        scheduler.handle(arrived("r"), at(4))


def test_checks_spend_nothing_and_commit_spends_once() -> None:
    limited = replace(a_tenant("acme"), limits=Limits(requests_per_minute=10, tokens_per_minute=10_000))
    scheduler = a_scheduler(policy=a_policy(tenants=(limited,)))
    admission, ticket = scheduler._admission, arrived("a", client_retries=1).ticket
    before = scheduler.counters(at(1))

    for _ in range(20):
        assessed = admission.assess(ticket, at(1))
        assert assessed.refusal is None
    assert scheduler.counters(at(1)) == before

    admission.commit(assessed, at(1), [])
    left = scheduler.limits_left(TenantId("acme"), at(1))
    assert left is not None
    assert left.requests is not None
    assert left.requests.remaining == 9
    assert dict(scheduler.counters(at(1)).credits)["acme"] == RetryRules().credit_burst - RetryRules().cost
