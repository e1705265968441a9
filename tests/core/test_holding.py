"""Tests for holds: requests that wait for the first endpoint in a pool that is scaled to zero."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End, Hold, Readmit
from headgate.core.events import EndpointReady
from headgate.core.scheduler import Scheduler
from headgate.core.summary import held_by_pool
from headgate.model.outcome import Outcome
from headgate.model.policy import DegradationRules, HealthRules, Model, Policy, Pool, ServiceClass
from headgate.model.units import ClassName, ModelName, PoolName, RequestId
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
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
    grace_over,
    joined,
    leaving,
    only_end,
    policy_changed,
    readied,
    readmit,
    unreadied,
)
from testing.scheduler_sizes import scheduler_sizes, timer_instants

PATIENT = replace(a_class("interactive", queue_wait=10), cold_start_wait_ns_max=duration(100))
HASTY = a_class("hasty", queue_wait=10)
BATCH = replace(a_class("batch", band=1, queue_wait=10), cold_start_wait_ns_max=duration(300))
EMPTY = replace(a_pool("p"), hold_max=3, cold_start_ns=duration(40))
WARM = a_pool("w")


def from_nothing(*classes: ServiceClass, pools: tuple[Pool, ...] = (EMPTY,), **options: object) -> Scheduler:
    """Returns a scheduler whose pool "p" has no endpoints but can start one."""
    return a_scheduler_without_endpoints(a_policy(classes=classes or (PATIENT, HASTY), pools=pools, **options))  # type: ignore[arg-type]


def hold(request: str, *, pool: str = "p", pools: str = "p", service_class: str = "interactive") -> Hold:
    reason = f"no endpoint in pool {pools} is available; held until the first endpoint in pool {pool} starts"
    return Hold(RequestId(request), PoolName(pool), ClassName(service_class), reason)


def of_two_models(*classes: ServiceClass, **changes: object) -> Policy:
    """Returns a policy where model "m" uses the empty pool "p" and model "warm" uses pool "w"."""
    models = (a_model("m", "p"), a_model("warm", "w"))
    policy = a_policy(classes=classes or (PATIENT, HASTY), pools=(EMPTY, WARM), models=models)
    return replace(policy, **changes)  # type: ignore[arg-type]


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


# Held requests


def test_request_is_held_until_an_endpoint_has_started() -> None:
    scheduler = from_nothing()

    assert scheduler.handle(arrived("a"), at(0)) == [hold("a")]
    assert scheduler.handle(joined("e1", places=2), at(1)) == []
    assert scheduler.handle(readied("e1"), at(45)) == [
        readmit("e1", "the engine reports that it is ready"),
        replace(dispatch("a", waited=45, place="1 of 2"), held_ns=duration(45)),
    ]
    assert scheduler.handle(completed("a"), at(46)) == [
        replace(end("a", Outcome.COMPLETED, attempts=1, waited=45), held_ns=duration(45))
    ]


def test_requests_arriving_during_a_start_are_held_and_sent_in_the_usual_order() -> None:
    scheduler = from_nothing(PATIENT, BATCH)
    commands_for(scheduler, at(0), arrived("b", service_class="batch"), joined("e1", places=3))
    commands_for(scheduler, at(1), arrived("c", "bolt"), arrived("d"))

    commands = scheduler.handle(readied("e1"), at(50))

    assert sent(commands) == ["c", "d", "b"]
    assert [each.held_ns for each in commands if isinstance(each, Dispatch)] == [duration(s) for s in (49, 49, 50)]


def test_request_is_not_held_once_an_endpoint_is_serving() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1", places=1), readied("e1"))

    assert scheduler.handle(arrived("b"), at(1)) == []
    assert scheduler.summary().queued == {"interactive": 1, "hasty": 0}
    assert scheduler.summary().held == {}


def test_pool_without_hold_max_holds_no_requests() -> None:
    scheduler = from_nothing(pools=(replace(EMPTY, hold_max=0),))

    assert only_end(scheduler.handle(arrived("a"), at(0))).outcome is Outcome.NO_ENDPOINTS


def test_request_is_not_held_while_another_of_its_pools_is_serving() -> None:
    scheduler = a_scheduler(an_endpoint("w1", pool="w"), policy=a_policy(classes=(PATIENT,), pools=(EMPTY, WARM)))

    assert sent(scheduler.handle(arrived("a"), at(0))) == ["a"]


def test_fallback_takes_precedence_over_a_start() -> None:
    models = (Model(ModelName("m"), (PoolName("p"),), fallbacks=(ModelName("warm"),)), a_model("warm", "w"))
    scheduler = a_scheduler(
        an_endpoint("w1", pool="w"), policy=a_policy(classes=(PATIENT,), pools=(EMPTY, WARM), models=models)
    )

    assert sent(scheduler.handle(arrived("a"), at(0))) == ["a"]


def test_request_for_several_pools_is_held_for_the_starting_one() -> None:
    scheduler = from_nothing(PATIENT, pools=(WARM, EMPTY, replace(EMPTY, name=PoolName("q"))))
    assert scheduler.handle(arrived("a"), at(0)) == [hold("a", pools="w, p, q")]
    scheduler.handle(joined("q1", pool="q"), at(1))
    assert scheduler.handle(arrived("b"), at(2)) == [hold("b", pool="q", pools="w, p, q")]

    commands_for(scheduler, at(3), joined("w1", pool="w", places=2))

    assert sent(scheduler.handle(readied("w1"), at(4))) == ["a", "b"], "the pool that is ready first serves both"


# Limits


def test_request_above_the_hold_limit_is_rejected_with_retry_after() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), *(arrived(f"r{number}") for number in range(3)))

    refusal = only_end(scheduler.handle(arrived("d"), at(10)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.NO_ENDPOINTS, duration(30))
    assert refusal.reason == (
        "pool p has no available endpoint and already holds 3 of 3 requests; "
        "retry in about 30 s or raise scaling.held_requests_max"
    )
    assert held_by_pool(scheduler.summary()) == {"p": 3}


def test_request_in_a_class_without_start_wait_is_rejected_with_retry_after() -> None:
    scheduler = from_nothing()

    refusal = only_end(scheduler.handle(arrived("a", service_class="hasty"), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.NO_ENDPOINTS, duration(40))
    assert refusal.reason == (
        'no endpoint in pool p is available; one starts in about 40 s, but class "hasty" does not set '
        "cold_start_wait_max"
    )


def test_request_in_a_class_without_start_wait_is_queued_for_a_start_in_progress() -> None:
    scheduler = from_nothing()
    scheduler.handle(joined("e1"), at(0))

    assert scheduler.handle(arrived("a", service_class="hasty"), at(0)) == []
    assert sent(scheduler.handle(readied("e1"), at(9))) == ["a"]


def test_held_requests_do_not_count_towards_the_queue_limit() -> None:
    narrow = replace(PATIENT, queue_length_max=1, queue_length_per_tenant_max=1)
    scheduler = a_scheduler(an_endpoint("w1", pool="w"), policy=of_two_models(narrow))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("run", model="warm"))

    assert scheduler.handle(arrived("c", model="warm"), at(1)) == [], "the request is queued"
    assert only_end(scheduler.handle(arrived("d", model="warm"), at(1))).outcome is Outcome.QUEUE_FULL
    assert scheduler.handle(arrived("e"), at(1)) == [hold("e")], "queued requests do not use the hold limit"
    assert scheduler.summary().queued == {"interactive": 1}
    assert scheduler.summary().held == {("p", "interactive"): 3}


def test_held_requests_do_not_count_towards_the_queue_limit_when_the_first_endpoint_is_full() -> None:
    narrow = replace(PATIENT, queue_length_max=1)
    scheduler = from_nothing(narrow)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"), joined("e1", places=1))

    assert sent(scheduler.handle(readied("e1"), at(5))) == ["a"]
    assert scheduler.summary().held == {("p", "interactive"): 2}
    assert scheduler.handle(arrived("d"), at(5)) == [], "the queue of the class is empty"
    assert sent(scheduler.handle(completed("a"), at(6))) == ["b"]
    assert scheduler.summary().held == {("p", "interactive"): 1}


def test_start_time_is_excluded_from_the_estimated_wait() -> None:
    strict = replace(PATIENT, ttft_ns=duration(1))
    scheduler = from_nothing(strict)

    commands = commands_for(scheduler, at(0), *(arrived(f"r{n}", prompt_bytes=200_000) for n in range(3)))

    assert [type(each) for each in commands] == [Hold] * 3


def test_reserved_slots_are_available_to_held_requests() -> None:
    kept = replace(PATIENT, reserve_percent=50)
    scheduler = from_nothing(kept)
    commands_for(scheduler, at(0), arrived("a"), joined("e1", places=2))

    assert sent(scheduler.handle(readied("e1"), at(5))) == ["a"]


# Timeouts


def test_held_request_waits_at_most_the_start_wait_of_its_class() -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a"), at(0))
    assert scheduler.next_wakeup() == at(100)

    ending = only_end(commands_for(scheduler, at(100), joined("e1")))

    assert ending == replace(
        end(
            "a",
            Outcome.NO_ENDPOINTS,
            "no endpoint in pool p became ready in 100 s",
            waited=100,
            retry_after=5,
        ),
        held_ns=duration(100),
    )


def test_caller_deadline_applies_to_held_requests() -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a", complete_within=20), at(0))

    ending = only_end(commands_for(scheduler, at(20), joined("e1")))

    assert (ending.outcome, ending.held_ns, ending.waited_ns) == (Outcome.DEADLINE_EXCEEDED, duration(20), duration(20))


def test_class_target_is_measured_from_when_an_endpoint_serves() -> None:
    scheduler = from_nothing(replace(PATIENT, ttft_ns=duration(8)))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    assert sent(scheduler.handle(readied("e1"), at(60))) == ["a"]

    expires = timer_instants(scheduler._state.queue.expiry_timers)[RequestId("b")]
    assert at(67) < expires < at(68), "the class target counts from when an endpoint serves"
    [ending] = [each for each in scheduler.handle(readied("e1"), expires) if isinstance(each, End)]

    assert ending.outcome is Outcome.QUEUE_TIMEOUT
    assert ending.held_ns == duration(60)
    assert ending.reason.startswith("waited 67.")
    assert "s (60 s of it for an endpoint to start) and can no longer meet the TTFT target" in ending.reason


def test_earlier_deadline_still_applies_when_the_hold_ends() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a", complete_within=104))
    commands_for(scheduler, at(0), arrived("b", complete_within=105), joined("e1", places=1))
    assert RequestId("b") in timer_instants(scheduler._state.queue.expiry_timers)

    commands_for(scheduler, at(99), readied("e1"))

    assert RequestId("b") not in timer_instants(scheduler._state.queue.expiry_timers)
    assert sent(scheduler.handle(completed("a"), at(103))) == ["b"]


def test_held_request_without_a_target_gets_the_full_queue_wait() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    scheduler.handle(readied("e1"), at(60))

    ending = scheduler.handle(readied("e1"), at(70))[-1]

    assert isinstance(ending, End)
    assert ending.reason == ('waited 70 s (60 s of it for an endpoint to start), the maximum in class "interactive"')


# How long a start takes


def starts_within(scheduler: Scheduler, second: float) -> float:
    """Returns Retry-After, in seconds, for a request that does not wait for a start."""
    refusal = scheduler.handle(arrived(f"asks at {second}", service_class="hasty"), at(second))[-1]
    assert isinstance(refusal, End)
    assert refusal.retry_after_ns is not None
    return refusal.retry_after_ns / duration(1)


def test_retry_after_uses_the_duration_of_the_last_start() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"))
    commands_for(scheduler, at(20), readied("e1"), completed("a"), leaving("e1"))
    assert starts_within(scheduler, 30) == 20

    scheduler.handle(arrived("b"), at(100))
    assert [starts_within(scheduler, second) for second in (100, 104, 119, 190)] == [20, 16, 2.5, 2.5]


def test_start_with_an_unknown_beginning_is_not_measured() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), joined("e1"))
    commands_for(scheduler, at(10), arrived("a"))
    commands_for(scheduler, at(20), readied("e1"), completed("a"), leaving("e1"))

    assert starts_within(scheduler, 30) == 40


def test_start_is_measured_even_if_all_held_requests_were_cancelled() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"))
    commands_for(scheduler, at(5), client_disconnected("a"))
    commands_for(scheduler, at(25), readied("e1"), leaving("e1"))

    assert starts_within(scheduler, 30) == 25


def test_start_without_an_endpoint_is_forgotten_with_its_last_held_request() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"))
    commands_for(scheduler, at(5), client_disconnected("a"))
    assert scheduler_sizes(scheduler).starts == 0
    commands_for(scheduler, at(50), arrived("b"), joined("e1"))
    commands_for(scheduler, at(60), readied("e1"), completed("b"), leaving("e1"))

    assert starts_within(scheduler, 70) == 10


def test_start_duration_is_forgotten_when_its_pool_is_removed() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"), readied("e1"), completed("a"), leaving("e1"))
    other = replace(EMPTY, name=PoolName("q"))
    commands_for(scheduler, at(1), policy_changed(a_policy(classes=(PATIENT, HASTY), pools=(other,))))
    commands_for(scheduler, at(2), policy_changed(a_policy(classes=(PATIENT, HASTY), pools=(EMPTY,))))

    assert starts_within(scheduler, 3) == 40


def test_retry_after_uses_an_ejected_endpoint_if_it_returns_before_a_start() -> None:
    scheduler = from_nothing(health=HealthRules(consecutive_failures_max=1, ejection_ns=duration(10)))
    commands_for(scheduler, at(1), joined("e1"), readied("e1"), arrived("a"))
    [_, held] = scheduler.handle(failed("a"), at(1))
    assert held == hold("a")
    commands_for(scheduler, at(2), arrived("b"), arrived("c"))

    assert only_end(scheduler.handle(arrived("d"), at(3))).retry_after_ns == duration(8)


# Cancellation, shutdown and retries


@pytest.mark.parametrize(
    ("event", "outcome"), [(client_disconnected("a"), Outcome.CANCELLED), (grace_over("a"), Outcome.DRAINING)]
)
def test_held_request_is_no_longer_counted_after_it_ends(event: object, outcome: Outcome) -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a"), at(0))

    ending = only_end(scheduler.handle(event, at(7)))  # type: ignore[arg-type]

    assert (ending.outcome, ending.held_ns, ending.waited_ns) == (outcome, duration(7), duration(7))
    assert scheduler.summary().held == {}
    assert scheduler.next_wakeup() is None


def test_failed_request_is_held_again_for_its_remaining_start_wait() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"))
    commands_for(scheduler, at(60), readied("e1"))
    scheduler.handle(unreadied("e1"), at(61))

    assert scheduler.handle(failed("a"), at(61)) == [hold("a")]
    assert scheduler.next_wakeup() == at(61 + 40)
    [_, again] = scheduler.handle(readied("e1"), at(71))
    assert isinstance(again, Dispatch)
    assert (again.attempt, again.waited_ns, again.held_ns) == (2, duration(70), duration(70))


def test_failed_request_is_queued_if_the_hold_limit_is_reached() -> None:
    scheduler = from_nothing(pools=(replace(EMPTY, hold_max=1),))
    commands_for(scheduler, at(0), arrived("a"), joined("e1"), readied("e1"), unreadied("e1"))
    assert commands_for(scheduler, at(1), arrived("b")) == [hold("b")]

    assert scheduler.handle(failed("a"), at(2)) == []
    assert scheduler.summary().queued == {"interactive": 1, "hasty": 0}


def test_hold_time_does_not_reduce_the_queue_wait_of_a_retry() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"), joined("e2"))
    commands_for(scheduler, at(60), readied("e1"), readied("e2"), arrived("b"))
    commands_for(scheduler, at(62), arrived("c"))

    scheduler.handle(failed("a"), at(63))

    assert timer_instants(scheduler._state.queue.expiry_timers)[RequestId("a")] == at(73)


def test_cold_start_is_not_counted_as_queue_pressure() -> None:
    quick = DegradationRules(escalate_after_ns=duration(0.2))
    scheduler = from_nothing(replace(PATIENT, ttft_ns=duration(2)))
    policy = a_policy(classes=(replace(PATIENT, ttft_ns=duration(2)), HASTY), pools=(EMPTY,))
    scheduler.handle(policy_changed(replace(policy, degradation=quick)), at(0))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    commands_for(scheduler, at(60), readied("e1"))
    for tenth in range(1, 12):
        scheduler.handle(readied("e1"), at(60 + tenth / 10))

    assert [each.level for each in scheduler.summary().degradation] == [0]


# Policy changes


def test_held_request_keeps_its_expiry_time_after_a_policy_change() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"))

    longer = replace(PATIENT, cold_start_wait_ns_max=duration(500))
    assert commands_for(scheduler, at(10), policy_changed(a_policy(classes=(longer,), pools=(EMPTY,)))) == []

    assert scheduler.summary().held == {("p", "interactive"): 1}
    assert scheduler.next_wakeup() == at(100)
    commands_for(scheduler, at(20), joined("e1"))
    [_, sent_at_last] = scheduler.handle(readied("e1"), at(30))
    assert isinstance(sent_at_last, Dispatch)
    assert sent_at_last.held_ns == duration(30)


def test_held_request_is_queued_if_the_new_policy_has_no_start_wait() -> None:
    scheduler = from_nothing(replace(PATIENT, ttft_ns=duration(5)))
    commands_for(scheduler, at(0), arrived("a"), joined("e1"))

    commands_for(scheduler, at(10), policy_changed(a_policy(classes=(a_class("interactive"),), pools=(EMPTY,))))

    assert scheduler.summary().queued == {"interactive": 1}
    assert (scheduler.summary().held, scheduler_sizes(scheduler).starts) == ({}, 1)
    [_, sent_at_last] = scheduler.handle(readied("e1"), at(30))
    assert isinstance(sent_at_last, Dispatch)
    assert (sent_at_last.held_ns, sent_at_last.waited_ns) == (duration(10), duration(30))
    assert scheduler_sizes(scheduler).starts == 0


def test_formerly_held_request_is_counted_as_queued_after_a_policy_change() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    scheduler.handle(readied("e1"), at(5))
    assert scheduler.summary().held == {("p", "interactive"): 1}

    scheduler.handle(policy_changed(a_policy(classes=(a_class("interactive"),), pools=(EMPTY,))), at(6))

    assert scheduler.summary().queued == {"interactive": 1}
    assert scheduler.summary().held == {}


def test_held_request_ends_with_its_hold_time_if_the_policy_removes_its_model() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"))

    ending = only_end(scheduler.handle(policy_changed(a_policy(pools=(EMPTY,), models=())), at(10)))

    assert (ending.outcome, ending.held_ns) == (Outcome.MODEL_NOT_FOUND, duration(10))
    assert scheduler_sizes(scheduler).starts == 0


def test_repeated_ready_event_has_no_effect() -> None:
    scheduler = from_nothing()
    commands_for(scheduler, at(0), arrived("a"), joined("e1"))

    assert [type(each) for each in scheduler.handle(EndpointReady("e1"), at(1))] == [Readmit, Dispatch]  # type: ignore[arg-type]
    assert scheduler.handle(EndpointReady("e1"), at(2)) == []  # type: ignore[arg-type]
