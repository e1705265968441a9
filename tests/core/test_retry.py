"""When is a request tried again, and where?"""

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
    client_left,
    completed,
    dispatch,
    eject,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    refused,
    the_end,
    told,
    unreadied,
)

HARDY = HealthRules(failures_max=1_000)


def test_an_attempt_that_fails_before_the_first_token_goes_to_another_endpoint() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))
    told(scheduler, at(0), arrived("x"), arrived("r"), completed("x"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e1", attempt=2, place="1 of 2")]


def test_a_retry_goes_to_a_busier_endpoint_rather_than_back() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9))
    told(scheduler, at(0), *[arrived(name) for name in ("at1", "at2", "also at1", "also at2")])
    told(scheduler, at(0), completed("at2"), completed("also at2"))
    assert scheduler.handle(arrived("r"), at(0)) == [dispatch("r", "e2", place="1 of 9")]

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e1", attempt=2, place="3 of 9")]


def test_a_retry_goes_back_where_there_is_no_other_endpoint() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2)]


def test_a_retry_stands_at_the_head_of_its_tenant() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), arrived("a1"), arrived("a2"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2)]


def test_retries_of_a_tenant_go_in_the_order_of_their_arrival() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"))
    told(scheduler, at(0), arrived("x"), arrived("full"), arrived("y"))
    told(scheduler, at(1), failed("y"))
    told(scheduler, at(2), failed("x"))

    assert scheduler.handle(completed("full"), at(3))[-1] == dispatch("x", "e2", attempt=2, waited=1)
    assert scheduler.handle(completed("x", 2), at(4))[-1] == dispatch("y", "e2", attempt=2, waited=3)


def test_a_retry_waits_for_another_endpoint_while_that_one_is_full() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("long", "bolt"))

    assert scheduler.handle(failed("r"), at(1)) == []
    assert scheduler.handle(completed("long"), at(5))[-1] == dispatch("r", "e2", attempt=2, waited=4)


def test_a_retry_that_waits_for_another_endpoint_does_not_hold_up_its_tenant() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("long"), arrived("next"))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("next", "e1", waited=1)]
    assert scheduler.handle(completed("long"), at(5))[-1] == dispatch("r", "e2", attempt=2, waited=4)


@pytest.mark.parametrize("going", [leaving("e2"), unreadied("e2")])
def test_a_retry_stops_waiting_for_another_endpoint_when_that_one_goes(going: Event) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(going, at(2)) == [dispatch("r", "e1", attempt=2, waited=2)]


def test_a_retry_stops_waiting_for_an_endpoint_of_another_pool_when_that_one_goes() -> None:
    policy = a_policy(pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    told(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(unreadied("e2"), at(2)) == [dispatch("r", "e1", attempt=2, waited=2)]


def test_the_first_endpoint_is_as_good_as_any_for_the_third_attempt() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"))
    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e2", attempt=2)]

    assert scheduler.handle(failed("r", 2), at(2)) == [dispatch("r", "e1", attempt=3)]


def test_an_endpoint_that_left_and_came_again_is_another_one() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("long", "bolt"), leaving("e1"))
    told(scheduler, at(1), failed("r"))

    assert told(scheduler, at(2), joined("e1"), readied("e1"))[-1] == dispatch("r", "e1", attempt=2, waited=1)


# The end of trying


def test_the_last_attempt_ends_the_request_truthfully() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HARDY))
    told(scheduler, at(0), arrived("r"), failed("r"))
    told(scheduler, at(1), failed("r", 2))

    assert scheduler.handle(failed("r", 3, "500 from the engine"), at(2)) == [
        end("r", Outcome.ENGINE_FAILED, "attempt 3 of 3: 500 from the engine", attempts=3, retry_after=1)
    ]


def test_after_the_first_token_nothing_is_retried() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(failed("r", detail="stream broke"), at(1)) == [
        end("r", Outcome.ENGINE_FAILED, "after the first token: stream broke", attempts=1, retry_after=1)
    ]


def test_silence_after_the_first_token_is_called_silence() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), first_token("r"))

    assert scheduler.handle(fell_silent("r"), at(1)) == [
        end("r", Outcome.ENGINE_SILENT, "after the first token: no token in time", attempts=1, retry_after=1)
    ]


def test_what_the_engine_refuses_is_not_tried_elsewhere() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"))

    assert scheduler.handle(refused("r"), at(1)) == [end("r", Outcome.ENGINE_REFUSED, "context too long", attempts=1)]


def test_a_client_that_leaves_while_its_retry_waits_is_cancelled() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"), arrived("long", "bolt"), failed("r"))

    assert scheduler.handle(client_left("r"), at(1)) == [
        end("r", Outcome.CANCELLED, "the client left", attempts=1, waited=1)
    ]


# The budgets


def test_a_tenant_without_credit_is_not_retried_and_its_neighbour_is() -> None:
    rules = RetryRules(credit_burst=150, credit_per_first_attempt=0, pool_percent=10_000)
    scheduler = a_scheduler(policy=a_policy(retry=rules, health=HARDY), places=9)
    told(scheduler, at(0), arrived("a"), arrived("b", "bolt"), failed("a"))

    assert scheduler.handle(failed("a", 2), at(0)) == [
        end(
            "a",
            Outcome.ENGINE_FAILED,
            "not tried again, the retry budget is used up: connection refused",
            attempts=2,
            retry_after=1,
        )
    ]
    assert scheduler.handle(failed("b"), at(0)) == [dispatch("b", attempt=2, place="1 of 9")]


def test_a_retry_after_silence_costs_twice_as_much() -> None:
    rules = RetryRules(credit_burst=250, credit_per_first_attempt=0, pool_percent=10_000)
    scheduler = a_scheduler(policy=a_policy(retry=rules, health=HARDY), places=9)
    told(scheduler, at(0), arrived("a"))

    assert scheduler.handle(fell_silent("a"), at(0)) == [dispatch("a", attempt=2, place="1 of 9")]
    assert the_end(scheduler.handle(failed("a", 2), at(0))).outcome is Outcome.ENGINE_FAILED


def test_a_pool_allows_extra_attempts_up_to_a_fifth_of_its_first_attempts() -> None:
    tenants = tuple(f"t{number}" for number in range(14))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(policy=policy, places=99)
    told(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(0.5)) for tenant in tenants[:4]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, True, False, False]


def test_a_few_extra_attempts_are_always_allowed_within_the_window() -> None:
    tenants = tuple(f"t{number}" for number in range(5))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_extra_min=2))
    scheduler = a_scheduler(policy=policy, places=99)
    told(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(0)) for tenant in tenants[:3]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, True, False]
    # Extra attempts of a tenth of the window that has only partly passed still count.
    assert the_end(scheduler.handle(failed(tenants[3]), at(10.999))).outcome is Outcome.ENGINE_FAILED
    assert isinstance(scheduler.handle(failed(tenants[4]), at(11))[0], Dispatch)


def test_first_attempts_count_for_ten_seconds_only() -> None:
    tenants = tuple(f"t{number}" for number in range(40))
    policy = a_policy(tenants=tenants, health=HARDY, retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(policy=policy, places=99)
    told(scheduler, at(0), *[arrived(tenant, tenant) for tenant in tenants])

    answers = [scheduler.handle(failed(tenant), at(11)) for tenant in tenants[:2]]

    assert [isinstance(answer[0], Dispatch) for answer in answers] == [True, False]


def test_pools_have_each_their_own_budget() -> None:
    classes = (a_class("one", pools=("p",)), a_class("two", pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HARDY, retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="p", places=2), an_endpoint("e2", pool="q", places=8), policy=policy)
    told(scheduler, at(0), arrived("a", service_class="one"), arrived("b", service_class="one"))
    told(scheduler, at(0), *(arrived(name, service_class="two") for name in "cdefghij"))

    assert isinstance(scheduler.handle(failed("a"), at(0))[0], Dispatch)
    assert the_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_FAILED
    assert isinstance(scheduler.handle(failed("c"), at(0))[0], Dispatch)


def test_the_few_that_each_pool_is_allowed_do_not_add_up() -> None:
    classes = (a_class("one", pools=("p",)), a_class("two", pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HARDY, retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    told(scheduler, at(0), arrived("a", service_class="one"), arrived("b", service_class="two"))

    assert isinstance(scheduler.handle(failed("a"), at(0))[0], Dispatch)
    assert the_end(scheduler.handle(failed("b"), at(0))).outcome is Outcome.ENGINE_FAILED


def test_everything_down_costs_little_more_than_it_would_without_retries() -> None:
    tenants = tuple(f"t{number}" for number in range(50))
    scheduler = a_scheduler(policy=a_policy(tenants=tenants, health=HARDY), places=9)
    attempts = 0
    for number in range(5_000):
        commands = scheduler.handle(arrived(f"r{number}", tenants[number % 50]), at(number / 50))
        while commands and isinstance(commands[0], Dispatch):
            attempts += 1
            commands = scheduler.handle(failed(commands[0].request_id, commands[0].attempt), at(number / 50))

    assert attempts <= 1.2 * 5_000


# What the policy and the fleet have become meanwhile


def test_a_retry_for_which_no_endpoint_returns_in_time_ends_with_when_one_will() -> None:
    health = HealthRules(failures_max=1, eject_ns=lasting(50))
    scheduler = a_scheduler(policy=a_policy(health=health))
    told(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(0)) == [
        eject("e1", until=at(50), reason="connection refused"),
        end(
            "r",
            Outcome.NO_ENDPOINTS,
            "no endpoint of pool p can serve at the moment; see their state in the admin listener's /status "
            "(after: connection refused)",
            attempts=1,
            retry_after=50,
        ),
    ]


def test_a_retry_of_a_tenant_that_has_gone_ends_and_leaves_no_trace() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", "bolt"), policy_changed(a_policy(tenants=("acme",))))

    assert scheduler.handle(failed("r"), at(1)) == [
        end(
            "r",
            Outcome.UNAUTHORIZED,
            'tenant "bolt" is not known; check the API key (after: connection refused)',
            attempts=1,
        )
    ]


def test_a_retry_follows_its_model_to_another_pool() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"))
    told(scheduler, at(0), arrived("r"), policy_changed(a_policy(pools=("q",))))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", "e2", pool="q", attempt=2)]


def test_a_retry_whose_class_has_gone_is_classified_again() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", service_class="batch"))
    told(scheduler, at(0), policy_changed(a_policy(classes=(a_class("chat"),))))

    assert scheduler.handle(failed("r"), at(1)) == [dispatch("r", attempt=2, service_class="chat")]


def test_a_retry_waits_for_the_only_endpoint_to_come_back_from_ejection() -> None:
    policy = a_policy(pools=(a_pool("p"),), health=HealthRules(failures_max=1))
    scheduler = a_scheduler(policy=policy)
    told(scheduler, at(0), arrived("r"))

    assert scheduler.handle(failed("r"), at(1)) == [eject("e1", until=at(11), reason="connection refused")]
    assert endpoint_summary(scheduler, "e1").state == "ejected"
    assert scheduler.next_wakeup() == at(11)
