"""What becomes of a second request with the same Idempotency-Key?"""

import pytest

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import RetryRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    end,
    failed,
    first_token,
    grace_over,
    policy_changed,
    refused,
    the_end,
    told,
)
from testing.inside import inside

SAME_KEY = "request first came with the same Idempotency-Key and has not ended; wait for it or use another key"


def test_a_second_request_with_the_same_key_is_a_duplicate_while_the_first_runs() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("first", key="k"))

    assert scheduler.handle(arrived("second", key="k"), at(1)) == [
        end("second", Outcome.DUPLICATE, SAME_KEY, retry_after=1)
    ]
    assert scheduler.summary().requests == 1


def test_a_second_request_with_the_same_key_is_a_duplicate_while_the_first_waits() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("first", key="k"))

    assert the_end(scheduler.handle(arrived("second", key="k"), at(1))).outcome is Outcome.DUPLICATE


def test_a_key_stays_taken_from_one_attempt_to_the_next() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("first", key="k"))

    assert told(scheduler, at(1), failed("first")) == [dispatch("first", "e2", attempt=2)]
    assert the_end(scheduler.handle(arrived("second", key="k"), at(1))).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("last", [completed, refused, client_left, grace_over])
def test_a_key_is_free_as_soon_as_the_first_has_ended(last: type) -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("first", key="k"), last("first"))

    assert scheduler.handle(arrived("second", key="k"), at(0))[0].request_id == "second"
    assert scheduler.summary().requests == 1
    told(scheduler, at(1), client_left("second"))
    assert inside(scheduler).keys == 0


def test_a_key_is_free_where_the_first_failed_for_good() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("first", key="k"), first_token("first"), failed("first"))

    assert inside(scheduler).keys == 0


def test_a_key_is_free_for_whoever_comes_as_the_first_expires() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_wait=5),)))
    told(scheduler, at(0), arrived("runs", stream=False), arrived("first", key="k"))
    told(scheduler, at(0), arrived("late", key="other", complete_within=5))

    expiry, late = scheduler.handle(arrived("second", key="k"), at(5))

    assert (the_end([expiry]).request_id, the_end([late]).request_id) == ("first", "late")
    assert the_end(scheduler.handle(arrived("third", key="k"), at(5))).outcome is Outcome.DUPLICATE


def test_the_same_request_with_another_key_or_none_is_another_request() -> None:
    scheduler = a_scheduler(places=4)
    told(scheduler, at(0), arrived("first", key="k"))

    commands = told(scheduler, at(0), arrived("a", key="other"), arrived("b"), arrived("c"))

    assert [type(each).__name__ for each in commands] == ["Dispatch"] * 3


def test_tenants_do_not_see_each_others_keys() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("first", "acme", key="k"))

    assert scheduler.handle(arrived("r", "bolt", key="k"), at(0)) == [dispatch("r", place="2 of 2")]
    told(scheduler, at(1), completed("r"))
    assert the_end(scheduler.handle(arrived("second", "acme", key="k"), at(1))).outcome is Outcome.DUPLICATE


def test_a_request_that_was_refused_takes_no_key() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("refused", model="gpt", key="k"), arrived("late", complete_within=0, key="k"))

    assert scheduler.handle(arrived("r", key="k"), at(0)) == [dispatch("r")]


def test_a_duplicate_costs_no_retry_budget_and_is_told_before_the_queue_is_looked_at() -> None:
    classes = (a_class(queue_length_max=1),)
    policy = a_policy(classes=classes, retry=RetryRules(credit_burst=100, credit_per_first_attempt=0))
    scheduler = a_scheduler(policy=policy)
    told(scheduler, at(0), arrived("first", key="k"), arrived("waits"))

    assert the_end(scheduler.handle(arrived("second", key="k", client_retries=1), at(0))).outcome is Outcome.DUPLICATE
    told(scheduler, at(1), client_left("waits"))
    assert scheduler.handle(arrived("retry", client_retries=1), at(1)) == []


def test_a_key_outlasts_a_change_of_policy() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", key="a"), arrived("waits", key="b"), policy_changed(a_policy()))

    for key in ("a", "b"):
        assert the_end(scheduler.handle(arrived(f"again {key}", key=key), at(1))).outcome is Outcome.DUPLICATE


def test_a_key_goes_with_a_request_whose_tenant_has_gone() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits", "bolt", key="k"))
    told(scheduler, at(1), policy_changed(a_policy(tenants=("acme",))))

    assert inside(scheduler).keys == 0


def test_keys_are_as_many_as_open_requests_at_most() -> None:
    scheduler = a_scheduler(places=3)
    told(scheduler, at(0), *[arrived(f"r{number}", key=f"k{number}") for number in range(20)])
    assert inside(scheduler).keys == scheduler.summary().requests == 20

    told(scheduler, at(30), TimerFired(), *[completed(f"r{number}") for number in range(3)])
    assert inside(scheduler).keys == scheduler.summary().requests == 0
