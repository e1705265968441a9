"""Detection of duplicate requests by Idempotency-Key."""

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
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    end,
    engine_rejected,
    failed,
    first_token,
    grace_over,
    only_end,
    policy_changed,
)
from testing.scheduler_sizes import scheduler_sizes

SAME_KEY = "request first has the same Idempotency-Key and is still in progress; wait for it or use another key"


def test_second_request_with_same_key_is_rejected_while_first_runs() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("first", key="k"))

    assert scheduler.handle(arrived("second", key="k"), at(1)) == [
        end("second", Outcome.DUPLICATE_REQUEST, SAME_KEY, retry_after=1)
    ]
    assert scheduler.summary().requests == 1


def test_second_request_with_same_key_is_rejected_while_first_is_queued() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("first", key="k"))

    assert only_end(scheduler.handle(arrived("second", key="k"), at(1))).outcome is Outcome.DUPLICATE_REQUEST


def test_key_stays_reserved_during_retry() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("first", key="k"))

    assert commands_for(scheduler, at(1), failed("first")) == [dispatch("first", "e2", attempt=2)]
    assert only_end(scheduler.handle(arrived("second", key="k"), at(1))).outcome is Outcome.DUPLICATE_REQUEST


@pytest.mark.parametrize("last", [completed, engine_rejected, client_disconnected, grace_over])
def test_key_is_released_when_request_ends(last: type) -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("first", key="k"), last("first"))

    assert scheduler.handle(arrived("second", key="k"), at(0))[0].request_id == "second"
    assert scheduler.summary().requests == 1
    commands_for(scheduler, at(1), client_disconnected("second"))
    assert scheduler_sizes(scheduler).keys == 0


def test_key_is_released_when_request_fails_after_first_token() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("first", key="k"), first_token("first"), failed("first"))

    assert scheduler_sizes(scheduler).keys == 0


def test_arrival_can_reuse_key_of_request_that_expires_at_same_time() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_wait=5),)))
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("first", key="k"))
    commands_for(scheduler, at(0), arrived("late", key="other", complete_within=5))

    expiry, late = scheduler.handle(arrived("second", key="k"), at(5))

    assert (only_end([expiry]).request_id, only_end([late]).request_id) == ("first", "late")
    assert only_end(scheduler.handle(arrived("third", key="k"), at(5))).outcome is Outcome.DUPLICATE_REQUEST


def test_requests_with_different_or_no_key_are_not_duplicates() -> None:
    scheduler = a_scheduler(places=4)
    commands_for(scheduler, at(0), arrived("first", key="k"))

    commands = commands_for(scheduler, at(0), arrived("a", key="other"), arrived("b"), arrived("c"))

    assert [type(each).__name__ for each in commands] == ["Dispatch"] * 3


def test_keys_are_scoped_to_tenant() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("first", "acme", key="k"))

    assert scheduler.handle(arrived("r", "bolt", key="k"), at(0)) == [dispatch("r", place="2 of 2")]
    commands_for(scheduler, at(1), completed("r"))
    assert only_end(scheduler.handle(arrived("second", "acme", key="k"), at(1))).outcome is Outcome.DUPLICATE_REQUEST


def test_rejected_request_does_not_reserve_key() -> None:
    scheduler = a_scheduler()
    commands_for(
        scheduler, at(0), arrived("refused", model="gpt", key="k"), arrived("late", complete_within=0, key="k")
    )

    assert scheduler.handle(arrived("r", key="k"), at(0)) == [dispatch("r")]


def test_duplicate_is_rejected_before_queue_check_and_uses_no_retry_budget() -> None:
    classes = (a_class(queue_length_max=1),)
    policy = a_policy(classes=classes, retry=RetryRules(credit_burst=100, credit_per_first_attempt=0))
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("first", key="k"), arrived("waits"))

    assert (
        only_end(scheduler.handle(arrived("second", key="k", client_retries=1), at(0))).outcome
        is Outcome.DUPLICATE_REQUEST
    )
    commands_for(scheduler, at(1), client_disconnected("waits"))
    assert scheduler.handle(arrived("retry", client_retries=1), at(1)) == []


def test_key_stays_reserved_after_policy_change() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", key="a"), arrived("waits", key="b"), policy_changed(a_policy()))

    for key in ("a", "b"):
        assert only_end(scheduler.handle(arrived(f"again {key}", key=key), at(1))).outcome is Outcome.DUPLICATE_REQUEST


def test_key_is_released_when_tenant_is_removed() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits", "bolt", key="k"))
    commands_for(scheduler, at(1), policy_changed(a_policy(tenants=("acme",))))

    assert scheduler_sizes(scheduler).keys == 0


def test_number_of_keys_is_bounded_by_open_requests() -> None:
    scheduler = a_scheduler(places=3)
    commands_for(scheduler, at(0), *[arrived(f"r{number}", key=f"k{number}") for number in range(20)])
    assert scheduler_sizes(scheduler).keys == scheduler.summary().requests == 20

    commands_for(scheduler, at(30), TimerFired(), *[completed(f"r{number}") for number in range(3)])
    assert scheduler_sizes(scheduler).keys == scheduler.summary().requests == 0
