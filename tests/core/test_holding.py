"""What becomes of requests for a pool that has no endpoint, and is given one when it is asked for?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End, Hold, Readmit
from headgate.core.events import EndpointReadied
from headgate.core.scheduler import Scheduler
from headgate.core.summary import held_by_pool
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, LadderRules, Model, Policy, Pool, ServiceClass
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
    client_left,
    completed,
    dispatch,
    end,
    failed,
    grace_over,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    readmit,
    the_end,
    told,
    unreadied,
)
from testing.inside import inside, moments

PATIENT = replace(a_class("interactive", queue_wait=10), start_wait_ns=lasting(100))
HASTY = a_class("hasty", queue_wait=10)
BATCH = replace(a_class("batch", band=1, queue_wait=10), start_wait_ns=lasting(300))
EMPTY = replace(a_pool("p"), hold_max=3, cold_start_ns=lasting(40))
WARM = a_pool("w")


def from_nothing(*classes: ServiceClass, pools: tuple[Pool, ...] = (EMPTY,), **options: object) -> Scheduler:
    """The pool "p" has no endpoint and may be asked for one."""
    return a_scheduler_without_endpoints(a_policy(classes=classes or (PATIENT, HASTY), pools=pools, **options))  # type: ignore[arg-type]


def hold(request: str, *, pool: str = "p", pools: str = "p", service_class: str = "interactive") -> Hold:
    reason = f"no endpoint of pool {pools} takes work; held for the first endpoint of pool {pool} to start"
    return Hold(RequestId(request), PoolName(pool), ClassName(service_class), reason)


def of_two_models(*classes: ServiceClass, **changes: object) -> Policy:
    """The model "m" has the empty pool, the model "warm" another one."""
    models = (a_model("m", "p"), a_model("warm", "w"))
    policy = a_policy(classes=classes or (PATIENT, HASTY), pools=(EMPTY, WARM), models=models)
    return replace(policy, **changes)  # type: ignore[arg-type]


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


# Held and served


def test_a_request_is_held_until_an_endpoint_has_started_and_its_answer_says_so() -> None:
    scheduler = from_nothing()

    assert scheduler.handle(arrived("a"), at(0)) == [hold("a")]
    assert scheduler.handle(joined("e1", places=2), at(1)) == []
    assert scheduler.handle(readied("e1"), at(45)) == [
        readmit("e1", "the engine says it is ready"),
        replace(dispatch("a", waited=45, place="1 of 2"), held_ns=lasting(45)),
    ]
    assert scheduler.handle(completed("a"), at(46)) == [
        replace(end("a", Outcome.COMPLETED, attempts=1, waited=45), held_ns=lasting(45))
    ]


def test_those_who_come_while_it_starts_are_held_as_well_and_go_in_the_usual_order() -> None:
    scheduler = from_nothing(PATIENT, BATCH)
    told(scheduler, at(0), arrived("b", service_class="batch"), joined("e1", places=3))
    told(scheduler, at(1), arrived("c", "bolt"), arrived("d"))

    commands = scheduler.handle(readied("e1"), at(50))

    assert sent(commands) == ["c", "d", "b"]
    assert [each.held_ns for each in commands if isinstance(each, Dispatch)] == [lasting(s) for s in (49, 49, 50)]


def test_who_comes_once_an_endpoint_serves_is_not_held() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1", places=1), readied("e1"))

    assert scheduler.handle(arrived("b"), at(1)) == []
    assert scheduler.summary().queued == {"interactive": 1, "hasty": 0}
    assert scheduler.summary().held == {}


def test_a_pool_that_is_meant_to_have_an_endpoint_holds_nobody() -> None:
    scheduler = from_nothing(pools=(replace(EMPTY, hold_max=0),))

    assert the_end(scheduler.handle(arrived("a"), at(0))).outcome is Outcome.NO_ENDPOINTS


def test_as_long_as_a_pool_of_its_own_serves_nobody_is_held_for_another() -> None:
    scheduler = a_scheduler(an_endpoint("w1", pool="w"), policy=a_policy(classes=(PATIENT,), pools=(EMPTY, WARM)))

    assert sent(scheduler.handle(arrived("a"), at(0))) == ["a"]


def test_a_model_that_it_falls_back_to_comes_before_a_start() -> None:
    models = (Model(ModelName("m"), (PoolName("p"),), fallbacks=(ModelName("warm"),)), a_model("warm", "w"))
    scheduler = a_scheduler(
        an_endpoint("w1", pool="w"), policy=a_policy(classes=(PATIENT,), pools=(EMPTY, WARM), models=models)
    )

    assert sent(scheduler.handle(arrived("a"), at(0))) == ["a"]


def test_who_may_use_several_pools_is_held_for_the_one_that_is_starting() -> None:
    scheduler = from_nothing(PATIENT, pools=(WARM, EMPTY, replace(EMPTY, name=PoolName("q"))))
    assert scheduler.handle(arrived("a"), at(0)) == [hold("a", pools="w, p, q")]
    scheduler.handle(joined("q1", pool="q"), at(1))
    assert scheduler.handle(arrived("b"), at(2)) == [hold("b", pool="q", pools="w, p, q")]

    told(scheduler, at(3), joined("w1", pool="w", places=2))

    assert sent(scheduler.handle(readied("w1"), at(4))) == ["a", "b"], "whichever of them serves first"


# Bounds


def test_the_hold_has_a_bound_of_its_own_and_tells_when_to_come_back() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), *(arrived(f"r{number}") for number in range(3)))

    refusal = the_end(scheduler.handle(arrived("d"), at(10)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.NO_ENDPOINTS, lasting(30))
    assert refusal.reason == (
        "3 of 3 requests are held until an endpoint of pool p has started, in about 30 s; "
        "come back then, or raise its scaling.hold_max"
    )
    assert held_by_pool(scheduler.summary()) == {"p": 3}


def test_a_class_that_does_not_wait_for_a_start_is_told_when_to_come_back() -> None:
    scheduler = from_nothing()

    refusal = the_end(scheduler.handle(arrived("a", service_class="hasty"), at(0)))

    assert (refusal.outcome, refusal.retry_after_ns) == (Outcome.NO_ENDPOINTS, lasting(40))
    assert refusal.reason == (
        "no endpoint of pool p can serve at the moment; one starts in about 40 s, "
        'and class "hasty" has no start_wait for that'
    )


def test_a_class_that_does_not_wait_for_a_start_waits_in_its_queue_for_one_that_is_under_way() -> None:
    scheduler = from_nothing()
    scheduler.handle(joined("e1"), at(0))

    assert scheduler.handle(arrived("a", service_class="hasty"), at(0)) == []
    assert sent(scheduler.handle(readied("e1"), at(9))) == ["a"]


def test_those_who_are_held_take_no_place_from_those_who_ask_for_what_is_there() -> None:
    narrow = replace(PATIENT, queue_length_max=1, queue_length_per_tenant_max=1)
    scheduler = a_scheduler(an_endpoint("w1", pool="w"), policy=of_two_models(narrow))
    told(scheduler, at(0), arrived("a"), arrived("b"), arrived("run", model="warm"))

    assert scheduler.handle(arrived("c", model="warm"), at(1)) == [], "it waits"
    assert the_end(scheduler.handle(arrived("d", model="warm"), at(1))).outcome is Outcome.QUEUE_FULL
    assert scheduler.handle(arrived("e"), at(1)) == [hold("e")], "nor do these take any from them"
    assert scheduler.summary().queued == {"interactive": 1}
    assert scheduler.summary().held == {("p", "interactive"): 3}


def test_those_who_were_held_still_take_no_place_when_the_first_endpoint_is_full() -> None:
    narrow = replace(PATIENT, queue_length_max=1)
    scheduler = from_nothing(narrow)
    told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"), joined("e1", places=1))

    assert sent(scheduler.handle(readied("e1"), at(5))) == ["a"]
    assert scheduler.summary().held == {("p", "interactive"): 2}
    assert scheduler.handle(arrived("d"), at(5)) == [], "the queue of its class is empty"
    assert sent(scheduler.handle(completed("a"), at(6))) == ["b"]
    assert scheduler.summary().held == {("p", "interactive"): 1}


def test_what_a_start_takes_is_no_reason_to_refuse_anybody_as_unreachable() -> None:
    strict = replace(PATIENT, ttft_ns=lasting(1))
    scheduler = from_nothing(strict)

    commands = told(scheduler, at(0), *(arrived(f"r{n}", prompt_bytes=200_000) for n in range(3)))

    assert [type(each) for each in commands] == [Hold] * 3


def test_places_that_are_kept_for_a_class_are_there_for_those_who_were_held() -> None:
    kept = replace(PATIENT, reserve_percent=50)
    scheduler = from_nothing(kept)
    told(scheduler, at(0), arrived("a"), joined("e1", places=2))

    assert sent(scheduler.handle(readied("e1"), at(5))) == ["a"]


# Time


def test_who_is_held_waits_as_long_as_its_class_waits_for_a_start_and_no_longer() -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a"), at(0))
    assert scheduler.next_wakeup() == at(100)

    ending = the_end(told(scheduler, at(100), joined("e1")))

    assert ending == replace(
        end(
            "a",
            Outcome.NO_ENDPOINTS,
            "no endpoint of pool p became ready in 100 s",
            waited=100,
            retry_after=5,
        ),
        held_ns=lasting(100),
    )


def test_its_callers_own_deadline_holds_all_the_same() -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a", complete_within=20), at(0))

    ending = the_end(told(scheduler, at(20), joined("e1")))

    assert (ending.outcome, ending.held_ns, ending.waited_ns) == (Outcome.TOO_LATE, lasting(20), lasting(20))


def test_once_an_endpoint_serves_it_waits_as_all_others_do_from_there_on() -> None:
    scheduler = from_nothing(replace(PATIENT, ttft_ns=lasting(8)))
    told(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    assert sent(scheduler.handle(readied("e1"), at(60))) == ["a"]

    expires = moments(scheduler._state.queue.expiries)[RequestId("b")]
    assert at(67) < expires < at(68), "what its class promises counts from when it could be served"
    [ending] = [each for each in scheduler.handle(readied("e1"), expires) if isinstance(each, End)]

    assert ending.outcome is Outcome.EXPIRED
    assert ending.held_ns == lasting(60)
    assert ending.reason.startswith("waited 67.")
    assert "s, 60 s of them until an endpoint had started, and its answer could no longer begin" in ending.reason


def test_a_deadline_that_comes_first_stays_the_one_that_counts_when_it_is_held_no_longer() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a", complete_within=104))
    told(scheduler, at(0), arrived("b", complete_within=105), joined("e1", places=1))
    assert RequestId("b") in moments(scheduler._state.queue.expiries)

    told(scheduler, at(99), readied("e1"))

    assert RequestId("b") not in moments(scheduler._state.queue.expiries)
    assert sent(scheduler.handle(completed("a"), at(103))) == ["b"]


def test_in_a_class_without_a_target_it_may_wait_for_as_long_as_any() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    scheduler.handle(readied("e1"), at(60))

    ending = scheduler.handle(readied("e1"), at(70))[-1]

    assert isinstance(ending, End)
    assert ending.reason == (
        'waited 70 s, 60 s of them until an endpoint had started, as long as class "interactive" may wait'
    )


# How long a start takes


def starts_within(scheduler: Scheduler, second: float) -> float:
    """What somebody is told at this moment who does not wait for a start."""
    refusal = scheduler.handle(arrived(f"asks at {second}", service_class="hasty"), at(second))[-1]
    assert isinstance(refusal, End)
    assert refusal.retry_after_ns is not None
    return refusal.retry_after_ns / lasting(1)


def test_what_the_last_start_took_is_what_the_next_ones_are_told() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"))
    told(scheduler, at(20), readied("e1"), completed("a"), leaving("e1"))
    assert starts_within(scheduler, 30) == 20

    scheduler.handle(arrived("b"), at(100))
    assert [starts_within(scheduler, second) for second in (100, 104, 119, 190)] == [20, 16, 2.5, 2.5]


def test_a_start_of_which_nobody_knows_when_it_began_teaches_nothing() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), joined("e1"))
    told(scheduler, at(10), arrived("a"))
    told(scheduler, at(20), readied("e1"), completed("a"), leaving("e1"))

    assert starts_within(scheduler, 30) == 40


def test_a_start_is_measured_even_when_all_who_were_held_for_it_have_left() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"))
    told(scheduler, at(5), client_left("a"))
    told(scheduler, at(25), readied("e1"), leaving("e1"))

    assert starts_within(scheduler, 30) == 25


def test_a_start_that_never_began_is_forgotten_with_the_last_who_was_held_for_it() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"))
    told(scheduler, at(5), client_left("a"))
    assert inside(scheduler).starts == 0
    told(scheduler, at(50), arrived("b"), joined("e1"))
    told(scheduler, at(60), readied("e1"), completed("b"), leaving("e1"))

    assert starts_within(scheduler, 70) == 10


def test_of_a_pool_that_has_gone_no_start_is_remembered() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"), readied("e1"), completed("a"), leaving("e1"))
    other = replace(EMPTY, name=PoolName("q"))
    told(scheduler, at(1), policy_changed(a_policy(classes=(PATIENT, HASTY), pools=(other,))))
    told(scheduler, at(2), policy_changed(a_policy(classes=(PATIENT, HASTY), pools=(EMPTY,))))

    assert starts_within(scheduler, 3) == 40


def test_who_was_ejected_is_expected_back_before_another_has_started() -> None:
    scheduler = from_nothing(health=HealthRules(failures_max=1, eject_ns=lasting(10)))
    told(scheduler, at(1), joined("e1"), readied("e1"), arrived("a"))
    [_, held] = scheduler.handle(failed("a"), at(1))
    assert held == hold("a")
    told(scheduler, at(2), arrived("b"), arrived("c"))

    assert the_end(scheduler.handle(arrived("d"), at(3))).retry_after_ns == lasting(8)


# Ends and further attempts


@pytest.mark.parametrize(
    ("event", "outcome"), [(client_left("a"), Outcome.CANCELLED), (grace_over("a"), Outcome.DRAINING)]
)
def test_who_leaves_while_it_is_held_is_counted_no_longer(event: object, outcome: Outcome) -> None:
    scheduler = from_nothing()
    scheduler.handle(arrived("a"), at(0))

    ending = the_end(scheduler.handle(event, at(7)))  # type: ignore[arg-type]

    assert (ending.outcome, ending.held_ns, ending.waited_ns) == (outcome, lasting(7), lasting(7))
    assert scheduler.summary().held == {}
    assert scheduler.next_wakeup() is None


def test_after_a_failed_attempt_it_is_held_again_for_what_is_left_of_its_patience() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"))
    told(scheduler, at(60), readied("e1"))
    scheduler.handle(unreadied("e1"), at(61))

    assert scheduler.handle(failed("a"), at(61)) == [hold("a")]
    assert scheduler.next_wakeup() == at(61 + 40)
    [_, again] = scheduler.handle(readied("e1"), at(71))
    assert isinstance(again, Dispatch)
    assert (again.attempt, again.waited_ns, again.held_ns) == (2, lasting(70), lasting(70))


def test_after_a_failed_attempt_it_waits_as_all_others_do_where_no_more_are_held() -> None:
    scheduler = from_nothing(pools=(replace(EMPTY, hold_max=1),))
    told(scheduler, at(0), arrived("a"), joined("e1"), readied("e1"), unreadied("e1"))
    assert told(scheduler, at(1), arrived("b")) == [hold("b")]

    assert scheduler.handle(failed("a"), at(2)) == []
    assert scheduler.summary().queued == {"interactive": 1, "hasty": 0}


def test_what_it_was_held_is_not_taken_from_its_patience_after_a_failed_attempt() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"), joined("e2"))
    told(scheduler, at(60), readied("e1"), readied("e2"), arrived("b"))
    told(scheduler, at(62), arrived("c"))

    scheduler.handle(failed("a"), at(63))

    assert moments(scheduler._state.queue.expiries)[RequestId("a")] == at(73)


def test_a_cold_start_is_not_taken_for_a_queue_that_stands() -> None:
    quick = LadderRules(climb_after_ns=lasting(0.2))
    scheduler = from_nothing(replace(PATIENT, ttft_ns=lasting(2)))
    policy = a_policy(classes=(replace(PATIENT, ttft_ns=lasting(2)), HASTY), pools=(EMPTY,))
    scheduler.handle(policy_changed(replace(policy, ladder=quick)), at(0))
    told(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    told(scheduler, at(60), readied("e1"))
    for tenth in range(1, 12):
        scheduler.handle(readied("e1"), at(60 + tenth / 10))

    assert [each.level for each in scheduler.summary().given_up] == [0]


# Another policy


def test_under_another_policy_it_is_held_on_and_keeps_its_time() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"))

    longer = replace(PATIENT, start_wait_ns=lasting(500))
    assert told(scheduler, at(10), policy_changed(a_policy(classes=(longer,), pools=(EMPTY,)))) == []

    assert scheduler.summary().held == {("p", "interactive"): 1}
    assert scheduler.next_wakeup() == at(100)
    told(scheduler, at(20), joined("e1"))
    [_, sent_at_last] = scheduler.handle(readied("e1"), at(30))
    assert isinstance(sent_at_last, Dispatch)
    assert sent_at_last.held_ns == lasting(30)


def test_where_nobody_is_held_any_more_it_waits_in_the_queue_of_its_class() -> None:
    scheduler = from_nothing(replace(PATIENT, ttft_ns=lasting(5)))
    told(scheduler, at(0), arrived("a"), joined("e1"))

    told(scheduler, at(10), policy_changed(a_policy(classes=(a_class("interactive"),), pools=(EMPTY,))))

    assert scheduler.summary().queued == {"interactive": 1}
    assert (scheduler.summary().held, inside(scheduler).starts) == ({}, 1)
    [_, sent_at_last] = scheduler.handle(readied("e1"), at(30))
    assert isinstance(sent_at_last, Dispatch)
    assert (sent_at_last.held_ns, sent_at_last.waited_ns) == (lasting(10), lasting(30))
    assert inside(scheduler).starts == 0


def test_who_was_held_and_still_waits_is_counted_anew_too() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), arrived("b"), joined("e1", places=1))
    scheduler.handle(readied("e1"), at(5))
    assert scheduler.summary().held == {("p", "interactive"): 1}

    scheduler.handle(policy_changed(a_policy(classes=(a_class("interactive"),), pools=(EMPTY,))), at(6))

    assert scheduler.summary().queued == {"interactive": 1}
    assert scheduler.summary().held == {}


def test_a_policy_that_knows_its_model_no_more_ends_it_with_what_it_was_held() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"))

    ending = the_end(scheduler.handle(policy_changed(a_policy(pools=(EMPTY,), models=())), at(10)))

    assert (ending.outcome, ending.held_ns) == (Outcome.MODEL_NOT_FOUND, lasting(10))
    assert inside(scheduler).starts == 0


def test_nobody_is_told_twice_that_an_endpoint_is_ready() -> None:
    scheduler = from_nothing()
    told(scheduler, at(0), arrived("a"), joined("e1"))

    assert [type(each) for each in scheduler.handle(EndpointReadied("e1"), at(1))] == [Readmit, Dispatch]  # type: ignore[arg-type]
    assert scheduler.handle(EndpointReadied("e1"), at(2)) == []  # type: ignore[arg-type]
