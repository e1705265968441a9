"""Retries: conditions, endpoint choice and budgets."""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import Event
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, RetryRules
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    eject,
    end,
    endpoint_summary,
    engine_rejected,
    failed,
    first_token,
    joined,
    leaving,
    only_end,
    policy_changed,
    readied,
    timed_out,
    unreadied,
)

HARDY = HealthRules(consecutive_failures_max=1_000)


def test_attempt_failing_before_first_token_is_retried_on_other_endpoint() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    commands_for(scheduler, at(0), arrived("x"), arrived("r"), completed("x"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e1", attempt=2, place="1 of 2")]


def test_retry_prefers_busier_endpoint_to_failed_one() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9))
    commands_for(scheduler, at(0), *[arrived(name) for name in ("at1", "at2", "also at1", "also at2")])
    commands_for(scheduler, at(0), completed("at2"), completed("also at2"))
    assert scheduler.handle(arrived("r"), at(0)) == [dispatch("r", "e2", place="1 of 9")]

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e1", attempt=2, place="3 of 9")]


def test_retry_goes_to_failed_endpoint_if_it_is_the_only_one() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2)]


def test_retry_goes_to_the_front_of_the_tenants_queue() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), arrived("a1"), arrived("a2"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2)]


def test_retries_from_one_tenant_are_sent_in_arrival_order() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("x"), arrived("full"), arrived("y"))
    commands_for(scheduler, at(1), failed("y"))
    commands_for(scheduler, at(2), failed("x"))

    assert scheduler.handle(completed("full"), at(3))[-1] == dispatch("x", "e2", attempt=2, waited=1)
    assert scheduler.handle(completed("x", 2), at(4))[-1] == dispatch("y", "e2", attempt=2, waited=3)


def test_retry_waits_while_other_endpoint_is_full() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("long", "bolt"))

    assert scheduler.handle(failed("r"), at(1)) == []
    assert scheduler.handle(completed("long"), at(5))[-1] == dispatch("r", "e2", attempt=2, waited=4)


def test_retry_waiting_for_other_endpoint_does_not_block_tenant() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("long"), arrived("next"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("next", "e1", waited=1)]
    assert scheduler.handle(completed("long"), at(5))[-1] == dispatch("r", "e2", attempt=2, waited=4)


@pytest.mark.parametrize("going", [leaving("e2"), unreadied("e2")])
def test_retry_stops_waiting_when_other_endpoint_leaves_or_is_not_ready(going: Event) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(going, at(2)) == [dispatch("r", "e1", attempt=2, waited=2)]


def test_retry_stops_waiting_when_endpoint_in_other_pool_is_not_ready() -> None:
    policy = a_policy(pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    commands_for(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(unreadied("e2"), at(2)) == [dispatch("r", "e1", attempt=2, waited=2)]


def test_third_attempt_may_use_first_endpoint_again() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"))
    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e2", attempt=2)]

    assert scheduler.handle(failed("r", 2), at(2)) == [dispatch("r", "e1", attempt=3)]


def test_endpoint_is_not_excluded_after_leaving_and_rejoining() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("long", "bolt"), leaving("e1"))
    commands_for(scheduler, at(1), failed("r"))

    assert commands_for(scheduler, at(2), joined("e1"), readied("e1"))[-1] == dispatch("r", "e1", attempt=2, waited=1)


# No further attempt


def test_failure_of_last_attempt_ends_request_and_reports_the_cause() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HARDY))
    commands_for(scheduler, at(0), arrived("r"), failed("r"))
    commands_for(scheduler, at(1), failed("r", 2))

    assert scheduler.handle(failed("r", 3, "500 from the engine"), at(2)) == [
        end("r", Outcome.ENGINE_ERROR, "attempt 3 of 3: 500 from the engine", attempts=3, retry_after=1)
    ]


def test_request_is_not_retried_after_first_token() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(failed("r", detail="stream broke"), at(1)) == [
        end("r", Outcome.ENGINE_ERROR, "after the first token: stream broke", attempts=1, retry_after=1)
    ]


def test_timeout_after_first_token_is_reported_as_timeout() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(timed_out("r"), at(1)) == [
        end("r", Outcome.ENGINE_TIMEOUT, "after the first token: no token in time", attempts=1, retry_after=1)
    ]


def test_request_rejected_by_engine_is_not_retried() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.handle(engine_rejected("r"), at(1)) == [
        end("r", Outcome.ENGINE_REJECTED, "context too long", attempts=1)
    ]


def test_disconnect_while_retry_is_queued_cancels_request() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(client_disconnected("r"), at(1)) == [
        end("r", Outcome.CANCELLED, "the client disconnected", attempts=1, waited=1)
    ]


# Retry budgets


def test_exhausted_retry_budget_for_one_tenant_does_not_affect_others() -> None:
    rules = RetryRules(credit_burst=150, credit_per_first_attempt=0, pool_budget_percent=10_000)
    scheduler = a_scheduler(policy=a_policy(retry=rules, health=HARDY), places=9)
    commands_for(scheduler, at(0), arrived("a"), arrived("b", "bolt"), failed("a"))

    assert scheduler.handle(failed("a", 2), at(0)) == [
        end(
            "a",
            Outcome.ENGINE_ERROR,
            "not retried because the retry budget is exhausted: connection refused",
            attempts=2,
            retry_after=1,
        )
    ]
    assert scheduler.handle(failed("b"), at(0)) == [dispatch("b", attempt=2, place="1 of 9")]


def test_retry_after_timeout_costs_twice_as_much() -> None:
    rules = RetryRules(credit_burst=250, credit_per_first_attempt=0, pool_budget_percent=10_000)
    scheduler = a_scheduler(policy=a_policy(retry=rules, health=HARDY), places=9)
    commands_for(scheduler, at(0), arrived("a"))

    assert scheduler.handle(timed_out("a"), at(0)) == [dispatch("a", attempt=2, place="1 of 9")]
    assert only_end(scheduler.handle(failed("a", 2), at(0))).outcome is Outcome.ENGINE_ERROR


def test_pool_allows_one_extra_attempt_per_five_first_attempts() -> None:
    tenants = tuple(f"t{number}" for number in range(14))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(policy=policy, places=99)
    commands_for(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(0.5)) for tenant in tenants[:4]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, True, False, False]


def test_minimum_number_of_extra_attempts_is_always_allowed() -> None:
    tenants = tuple(f"t{number}" for number in range(5))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_retries_min=2))
    scheduler = a_scheduler(policy=policy, places=99)
    commands_for(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(0)) for tenant in tenants[:3]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, True, False]
    # The window has ten parts. Extra attempts count until their part has fully passed.
    assert only_end(scheduler.handle(failed(tenants[3]), at(10.999))).outcome is Outcome.ENGINE_ERROR
    assert isinstance(scheduler.handle(failed(tenants[4]), at(11))[0], Dispatch)


def test_first_attempts_are_counted_for_ten_seconds() -> None:
    tenants = tuple(f"t{number}" for number in range(40))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(policy=policy, places=99)
    commands_for(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(11)) for tenant in tenants[:2]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, False]


def test_each_pool_has_its_own_retry_budget() -> None:
    classes = (a_class("one", pools=("p",)), a_class("two", pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HARDY, retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="p", places=2), an_endpoint("e2", pool="q", places=8), policy=policy)
    commands_for(scheduler, at(0), arrived("a", service_class="one"), arrived("b", service_class="one"))
    commands_for(scheduler, at(0), *(arrived(name, service_class="two") for name in "cdefghij"))

    assert isinstance(scheduler.handle(failed("a"), at(0))[0], Dispatch)
    assert only_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_ERROR
    assert isinstance(scheduler.handle(failed("c"), at(0))[0], Dispatch)


def test_minimum_number_of_extra_attempts_is_shared_by_all_pools() -> None:
    classes = (a_class("one", pools=("p",)), a_class("two", pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HARDY, retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    commands_for(scheduler, at(0), arrived("a", service_class="one"), arrived("b", service_class="two"))

    assert isinstance(scheduler.handle(failed("a"), at(0))[0], Dispatch)
    assert only_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_ERROR


def test_total_outage_causes_at_most_one_fifth_extra_attempts() -> None:
    tenants = tuple(f"t{number}" for number in range(50))
    scheduler = a_scheduler(policy=a_policy(tenants=tenants, health=HARDY), places=9)
    attempts = 0
    for number in range(5_000):
        commands = scheduler.handle(arrived(f"r{number}", tenants[number % 50]), at(number / 50))
        while commands and isinstance(commands[0], Dispatch):
            attempts += 1
            commands = scheduler.handle(failed(commands[0].request_id, commands[0].attempt), at(number / 50))

    assert attempts <= 1.2 * 5_000


# Changes to the policy or the fleet


def test_retry_ends_with_retry_after_if_no_endpoint_returns_in_time() -> None:
    health = HealthRules(consecutive_failures_max=1, ejection_ns=duration(50))
    scheduler = a_scheduler(policy=a_policy(health=health))
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(0)) == [
        eject("e1", until=at(50), reason="connection refused"),
        end(
            "r",
            Outcome.NO_ENDPOINTS,
            "no endpoint in pool p is available; see /status on the admin listener (after: connection refused)",
            attempts=1,
            retry_after=50,
        ),
    ]


def test_retry_from_removed_tenant_is_unauthorized() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", "bolt"), policy_changed(a_policy(tenants=("acme",))))

    assert scheduler.handle(failed("r"), at(1)) == [
        end(
            "r",
            Outcome.UNAUTHORIZED,
            'unknown tenant "bolt"; check the API key (after: connection refused)',
            attempts=1,
        )
    ]


def test_retry_follows_model_to_other_pool() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"))
    commands_for(scheduler, at(0), arrived("r"), policy_changed(a_policy(pools=("q",))))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e2", pool="q", attempt=2)]


def test_retry_in_removed_class_is_classified_again() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", service_class="batch"))
    commands_for(scheduler, at(0), policy_changed(a_policy(classes=(a_class("chat"),))))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2, service_class="chat")]


def test_retry_waits_until_only_endpoint_returns_from_ejection() -> None:
    policy = a_policy(pools=(a_pool("p"),), health=HealthRules(consecutive_failures_max=1))
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(1)) == [eject("e1", until=at(11), reason="connection refused")]
    assert endpoint_summary(scheduler, "e1").state == "ejected"
    assert scheduler.next_wakeup() == at(11)
