"""When is a second attempt made while the first is silent, and what becomes of the two?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Command, Dispatch, Eject, End
from headgate.core.events import TimerFired
from headgate.core.hedging import SEEN_MIN, WAIT_NS_MAX, WAIT_NS_MIN, FirstTokens
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, LadderRules, Policy, RetryRules, ServiceClass
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, PoolName, TenantId
from testing.builders import (
    BATCH,
    a_class,
    a_policy,
    a_scheduler,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    grace_over,
    joined,
    lasting,
    leaving,
    policy_changed,
    progressed,
    readied,
    refused,
    told,
)
from testing.inside import inside

HEDGED = replace(a_class("interactive", service_tiers=("fast",)), hedges=True)
NOT_HEDGED = replace(BATCH, hedges=False)
RICH = RetryRules(credit_burst=100_000, pool_extra_min=1_000)
QUICK = 0.1
"""What answers usually take to begin, in seconds."""
SOON = 0.104
"""What nineteen in twenty of them do not exceed, as far as is told apart."""


def a_hedging_policy(*classes: ServiceClass, retry: RetryRules = RICH, health: HealthRules | None = None) -> Policy:
    return a_policy(classes=classes or (HEDGED, NOT_HEDGED), retry=retry, health=health)


def a_taught_scheduler(policy: Policy | None = None, *, places: int = 4, took: float = QUICK) -> Scheduler:
    """Two endpoints of so many places, where answers have begun after so long; all is idle at 0."""
    endpoints = an_endpoint("e1", places=places), an_endpoint("e2", places=places)
    scheduler = a_scheduler(*endpoints, policy=policy or a_hedging_policy())
    teach(scheduler, took=took)
    return scheduler


def teach(
    scheduler: Scheduler, *, count: int = SEEN_MIN, took: float = QUICK, start: float = 0, **ticket: object
) -> None:
    for number in range(count):
        name = f"taught {start} {number}"
        told(scheduler, at(start), arrived(name, **ticket))  # type: ignore[arg-type]
    # A hundred do not fit at once: each that begins has waited for its own dispatch, and no longer.
    while (open_now := list(scheduler._state.attempts.by_number.items())) != []:
        start += took
        for (request_id, number), _ in open_now:
            told(scheduler, at(start), first_token(request_id, number), completed(request_id, number))


@pytest.fixture
def scheduler() -> Scheduler:
    return a_taught_scheduler()


NOW = 1_000
"""When the tests begin, in seconds: long after all was taught."""


def a_hedge(request: str, endpoint: str, *, attempt: int = 2, place: str = "1 of 4") -> Dispatch:
    return replace(dispatch(request, endpoint, attempt=attempt, place=place), hedge=True)


def wake(scheduler: Scheduler) -> tuple[Instant, list[Command]]:
    """What it says at the moment at which it wants to be woken."""
    moment = scheduler.next_wakeup()
    assert moment is not None
    return moment, scheduler.handle(arrived("x", model="unknown"), moment)[1:]


def sent(scheduler: Scheduler, request: str = "r", when: float = NOW, **ticket: object) -> str:
    """The endpoint to which a request goes."""
    [command] = told(scheduler, at(when), arrived(request, **ticket))  # type: ignore[arg-type]
    assert isinstance(command, Dispatch)
    return command.endpoint_id


def hedged(scheduler: Scheduler, request: str = "r", when: float = NOW, **ticket: object) -> tuple[str, str]:
    """The endpoints of a request's first attempt and of its hedge."""
    first = sent(scheduler, request, when, **ticket)
    [command] = told(scheduler, at(when + SOON), arrived("x", model="unknown"))[1:]
    assert isinstance(command, Dispatch)
    assert command.hedge
    return first, command.endpoint_id


def is_idle(scheduler: Scheduler) -> bool:
    return not any(each.in_flight for each in scheduler.summary().endpoints) and not inside(scheduler).attempts


# When


def test_an_attempt_that_is_silent_for_unusually_long_gets_a_second_one_elsewhere(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    other = "e2" if first == "e1" else "e1"

    assert told(scheduler, at(NOW + SOON - 0.001), arrived("x", model="unknown"))[1:] == []
    assert wake(scheduler) == (at(NOW + SOON), [a_hedge("r", other)])


def test_after_a_second_attempt_there_is_nothing_more_to_wait_for(scheduler: Scheduler) -> None:
    hedged(scheduler)

    assert scheduler.next_wakeup() is None


def test_nothing_is_hedged_before_enough_has_been_seen() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=4), an_endpoint("e2", places=4), policy=a_hedging_policy())
    sent(scheduler, when=0)
    assert scheduler.next_wakeup() is None
    told(scheduler, at(0), completed("r"))

    teach(scheduler, count=SEEN_MIN - 1)
    sent(scheduler, when=NOW)
    assert scheduler.next_wakeup() is None

    told(scheduler, at(NOW + QUICK), first_token("r"), completed("r"))
    assert hedged(scheduler, when=NOW + 1)


def test_a_class_that_does_not_want_it_is_not_hedged(scheduler: Scheduler) -> None:
    teach(scheduler, service_class="batch", start=100)
    sent(scheduler, service_class="batch")

    assert scheduler.next_wakeup() is None


def test_an_answer_that_comes_whole_is_not_hedged_and_says_nothing_about_first_tokens(scheduler: Scheduler) -> None:
    teach(scheduler, count=SEEN_MIN, took=10, start=100, stream=False)
    sent(scheduler, stream=False)
    told(scheduler, at(NOW + 0.5), TimerFired())
    assert scheduler.next_wakeup() is None
    told(scheduler, at(NOW + 1), completed("r"))

    assert hedged(scheduler, when=NOW + 2)


def test_where_the_other_endpoint_is_full_it_is_looked_at_again_after_as_long(scheduler: Scheduler) -> None:
    told(scheduler, at(NOW), *[arrived(f"full {number}") for number in range(7)])
    told(scheduler, at(NOW), *[first_token(f"full {number}") for number in range(7)])
    first = sent(scheduler)
    assert wake(scheduler) == (at(NOW + SOON), [])

    freed = next(
        request_id
        for (request_id, _), each in scheduler._state.attempts.by_number.items()
        if each.endpoint.id not in (first, "r")
    )
    told(scheduler, at(NOW + SOON + 0.01), completed(freed))
    other = "e2" if first == "e1" else "e1"
    assert wake(scheduler) == (at(NOW + 2 * SOON), [a_hedge("r", other, place="4 of 4")])


def test_those_who_wait_go_before_a_second_attempt(scheduler: Scheduler) -> None:
    told(scheduler, at(NOW), *[arrived(f"full {number}") for number in range(7)], arrived("r"), arrived("waits"))
    told(scheduler, at(NOW), *[first_token(f"full {number}") for number in range(7)])

    assert told(scheduler, at(NOW + SOON), completed("full 0"))[1:] == [
        dispatch("waits", "e1", place="4 of 4", waited=SOON)
    ]


def test_the_endpoint_that_is_silent_is_never_asked_twice() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=200), policy=a_hedging_policy())
    teach(scheduler)
    sent(scheduler)

    assert wake(scheduler) == (at(NOW + SOON), [])


def test_an_endpoint_that_is_leaving_is_not_asked(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    told(scheduler, at(NOW), leaving("e2" if first == "e1" else "e1"))

    assert wake(scheduler) == (at(NOW + SOON), [])


def test_the_budgets_must_agree() -> None:
    broke = a_taught_scheduler(a_hedging_policy(retry=RetryRules(credit_burst=99, credit_per_first_attempt=0)))
    sent(broke)
    assert wake(broke) == (at(NOW + SOON), [])

    busy = a_taught_scheduler(a_hedging_policy(retry=RetryRules(credit_burst=100_000, pool_extra_min=1)))
    hedged(busy, "a")
    sent(busy, "b", NOW + 1)
    assert wake(busy) == (at(NOW + 1 + SOON), [])


def test_the_last_attempt_is_not_hedged() -> None:
    once = a_taught_scheduler(a_hedging_policy(retry=replace(RICH, attempts_max=1)))
    sent(once)
    assert once.next_wakeup() is None

    thrice = a_taught_scheduler()
    sent(thrice)
    told(thrice, at(NOW), failed("r", 1), failed("r", 2))
    assert thrice.next_wakeup() is None


def test_a_retry_is_hedged_too_as_long_as_an_attempt_is_left(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    assert told(scheduler, at(NOW), failed("r")) == [
        dispatch("r", "e2" if first == "e1" else "e1", attempt=2, place="1 of 4")
    ]

    assert wake(scheduler) == (at(NOW + SOON), [a_hedge("r", first, attempt=3)])


def test_nothing_is_hedged_while_anything_is_given_up() -> None:
    ladder = LadderRules(climb_above=-1, climb_after_ns=Duration(0), level_max=1, descend_after_ns=lasting(100_000))
    pressed = replace(BATCH, ttft_ns=lasting(20))
    scheduler = a_taught_scheduler(replace(a_hedging_policy(HEDGED, pressed), ladder=ladder), places=1)
    first = sent(scheduler)
    told(scheduler, at(NOW), arrived("busy"), arrived("waits", service_class="batch"))
    told(scheduler, at(NOW + 0.25), arrived("x", model="unknown"))
    assert {each.level for each in scheduler.summary().given_up} == {1}

    told(scheduler, at(NOW + 0.3), completed("busy"))
    told(scheduler, at(NOW + 0.4), first_token("waits"), completed("waits"))
    assert endpoint_summary(scheduler, "e2" if first == "e1" else "e1").in_flight == 0
    assert told(scheduler, at(NOW + 0.6), arrived("x", model="unknown"))[1:] == []


# How long


def knows(*took_ms: int, times: int = 1) -> Duration | None:
    first_tokens = FirstTokens()
    for _ in range(times):
        for each in took_ms:
            first_tokens.learn(Duration(each * MILLISECOND))
    return first_tokens.wait_ns


def test_the_wait_is_what_nineteen_in_twenty_do_not_exceed() -> None:
    assert knows(*[100] * 95, *[900] * 5) == 104 * MILLISECOND
    assert knows(*[100] * 94, *[900] * 6) == 960 * MILLISECOND


def test_the_wait_has_bounds() -> None:
    assert knows(1, times=SEEN_MIN) == WAIT_NS_MIN
    assert knows(50_000, times=SEEN_MIN) == WAIT_NS_MAX
    assert knows(10_000_000, times=SEEN_MIN) == WAIT_NS_MAX


def test_too_little_is_no_wait() -> None:
    assert knows(100, times=SEEN_MIN - 1) is None


def test_what_was_is_forgotten_for_what_is() -> None:
    first_tokens = FirstTokens()
    for took in (100, 1_000):
        for _ in range(10_000):
            first_tokens.learn(Duration(took * MILLISECOND))

    assert first_tokens.wait_ns == 1_024 * MILLISECOND
    assert first_tokens._seen < 2_000


def test_those_let_go_are_remembered_as_slow() -> None:
    scheduler = a_taught_scheduler()
    when = float(NOW)
    for number in range(400):
        # One in ten is silent until its hedge has answered: more than one in twenty, so what is usual must rise.
        silent = number % 10 == 0
        name = f"r{number}"
        told(scheduler, at(when), arrived(name))
        if silent:
            moment = scheduler.next_wakeup()
            assert moment is not None
            when = (moment - at(0)) / SECOND
            told(scheduler, moment, arrived("x", model="unknown"))
            told(scheduler, at(when + QUICK), first_token(name, 2), aborted(name, 1), completed(name, 2))
        else:
            told(scheduler, at(when + QUICK), first_token(name), completed(name))
        when += 1
    sent(scheduler, "last", when)

    moment = scheduler.next_wakeup()
    assert moment is not None
    assert moment - at(when) > 1.5 * lasting(SOON)


# Who speaks first


def test_the_second_attempt_speaks_first_and_the_first_is_aborted(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert told(scheduler, at(NOW + 0.2), first_token("r", 2)) == [
        abort("r", first, attempt=1, reason="attempt 2 was the first to answer")
    ]
    assert told(scheduler, at(NOW + 0.2), aborted("r", 1)) == []
    assert endpoint_summary(scheduler, first).in_flight == 0
    assert endpoint_summary(scheduler, other).in_flight == 1
    assert told(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_the_first_attempt_speaks_first_and_the_second_is_aborted(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler)

    assert told(scheduler, at(NOW + 0.2), first_token("r", 1)) == [
        abort("r", other, attempt=2, reason="attempt 1 was the first to answer")
    ]
    assert told(scheduler, at(NOW + 1), completed("r", 1)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert told(scheduler, at(NOW + 1), aborted("r", 2)) == []
    assert is_idle(scheduler)


def test_who_speaks_second_is_not_heard(scheduler: Scheduler) -> None:
    hedged(scheduler)
    told(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert told(scheduler, at(NOW + 0.2), first_token("r", 1)) == []
    assert told(scheduler, at(NOW + 0.3), progressed("r", attempt=1), completed("r", 1)) == []
    assert told(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_who_has_been_let_go_is_not_aborted_again(scheduler: Scheduler) -> None:
    hedged(scheduler)
    told(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert [type(each) for each in told(scheduler, at(NOW + 0.2), client_left("r"))] == [Abort, End]


def test_one_that_completes_ends_the_other_with_the_request(scheduler: Scheduler) -> None:
    first, _ = hedged(scheduler)

    assert told(scheduler, at(NOW + 1), completed("r", 2)) == [
        abort("r", first, attempt=1, reason="attempt 2 was the first to answer"),
        end("r", Outcome.COMPLETED, attempts=2),
    ]
    assert told(scheduler, at(NOW + 1), aborted("r", 1)) == []
    assert is_idle(scheduler)


def test_one_engine_that_refuses_the_request_speaks_for_both(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler)

    assert told(scheduler, at(NOW + 1), refused("r", 1)) == [
        abort("r", other, attempt=2, reason="attempt 1 was the first to answer"),
        end("r", Outcome.ENGINE_REFUSED, "context too long", attempts=2),
    ]


@pytest.mark.parametrize("ending", [failed, fell_silent, aborted])
def test_how_one_ends_that_was_let_go_says_nothing_about_its_endpoint(ending: object) -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(failures_max=1)))
    hedged(scheduler)
    told(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert told(scheduler, at(NOW + 0.2), ending("r", 1)) == []  # type: ignore[operator]


def charged(scheduler: Scheduler) -> int:
    """What the tenant of the tests has been charged so far."""
    return scheduler._state.queue.backlog._bands[0]._turns[PoolName("p")]._charged.get(TenantId("acme"), 0)


def test_its_tenant_is_not_charged_for_the_one_that_was_let_go() -> None:
    alone, beside = a_taught_scheduler(), a_taught_scheduler()
    sent(alone)
    hedged(beside)
    assert charged(beside) > charged(alone)

    told(alone, at(NOW + 1), first_token("r"), completed("r"))
    told(beside, at(NOW + 1), first_token("r", 2), aborted("r", 1), completed("r", 2))
    assert charged(beside) == charged(alone)


# When one of them fails


def test_a_failure_of_one_is_not_retried_while_the_other_runs(scheduler: Scheduler) -> None:
    first, _ = hedged(scheduler)

    assert told(scheduler, at(NOW + 0.2), failed("r", 1)) == []
    assert endpoint_summary(scheduler, first).in_flight == 0
    assert told(scheduler, at(NOW + 0.3), first_token("r", 2)) == []
    assert told(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_where_both_fail_what_is_left_of_three_attempts_is_made(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert told(scheduler, at(NOW + 0.2), failed("r", 2)) == []
    assert told(scheduler, at(NOW + 0.3), failed("r", 1)) == [dispatch("r", other, attempt=3, place="1 of 4")]
    ended = told(scheduler, at(NOW + 0.4), failed("r", 3))
    assert [(each.outcome, each.attempts) for each in ended if isinstance(each, End)] == [(Outcome.ENGINE_FAILED, 3)]
    assert first != other
    assert is_idle(scheduler)


def test_a_failure_of_either_counts_against_its_endpoint() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(failures_max=1)))
    first, _ = hedged(scheduler)

    [ejected] = told(scheduler, at(NOW + 0.2), failed("r", 1))
    assert isinstance(ejected, Eject)
    assert ejected.endpoint_id == first


# What else happens to the two


def test_a_caller_who_leaves_has_both_aborted(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert told(scheduler, at(NOW + 0.2), client_left("r")) == [
        abort("r", first, attempt=1, reason="client_left"),
        abort("r", other, attempt=2, reason="client_left"),
        end("r", Outcome.CANCELLED, "the client left", attempts=2),
    ]
    assert told(scheduler, at(NOW + 0.2), aborted("r", 2), aborted("r", 1)) == []
    assert is_idle(scheduler)


def test_a_process_that_leaves_aborts_both(scheduler: Scheduler) -> None:
    hedged(scheduler)

    commands = told(scheduler, at(NOW + 0.2), grace_over("r"))
    assert [type(each) for each in commands] == [Abort, Abort, End]


def test_a_deadline_that_passes_aborts_both(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler, first_token_within=2)

    commands = told(scheduler, at(NOW + 2), arrived("x", model="unknown"))
    late = "the caller's deadline has passed"
    assert commands[:2] == [
        abort("r", first, attempt=1, reason=late),
        abort("r", other, attempt=2, reason=late),
    ]
    assert isinstance(commands[2], End)
    assert commands[2].outcome is Outcome.TOO_LATE


def test_one_that_fails_as_the_deadline_passes_takes_the_other_with_it(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler, first_token_within=2)

    [stop, over] = told(scheduler, at(NOW + 2), failed("r", 1))
    assert stop == abort("r", other, attempt=2, reason="the caller's deadline has passed")
    assert isinstance(over, End)
    assert over.outcome is Outcome.TOO_LATE


def test_one_that_completes_as_the_deadline_passes_has_completed(scheduler: Scheduler) -> None:
    hedged(scheduler, complete_within=2)

    [_, over] = told(scheduler, at(NOW + 2), completed("r", 2))
    assert over == end("r", Outcome.COMPLETED, attempts=2)


def test_a_request_that_ends_is_not_watched_any_more(scheduler: Scheduler) -> None:
    sent(scheduler, "a")
    told(scheduler, at(NOW), client_left("a"))
    sent(scheduler, "b")
    told(scheduler, at(NOW), first_token("b"))
    sent(scheduler, "c")
    told(scheduler, at(NOW), completed("c"))

    assert len(scheduler._state.hedging.silent) == 0


def test_an_endpoint_that_stalls_has_its_attempt_aborted_and_the_other_goes_on() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(stall_ns_max=lasting(1))))
    stuck = sent(scheduler, "stuck")
    told(scheduler, at(NOW), first_token("stuck"))
    told(scheduler, at(NOW), arrived("elsewhere"), arrived("r"))
    [command] = [each for each in wake(scheduler)[1] if isinstance(each, Dispatch) and each.request_id == "r"]
    at_stuck = 2 if command.endpoint_id == stuck else 1

    commands = told(scheduler, at(NOW + 1), arrived("x", model="unknown"))
    stops = [(each.request_id, each.attempt) for each in commands if isinstance(each, Abort)]
    assert ("r", at_stuck) in stops
    assert told(scheduler, at(NOW + 1), aborted("r", at_stuck)) == []
    told(scheduler, at(NOW + 1.1), first_token("r", 3 - at_stuck))
    assert told(scheduler, at(NOW + 1.2), completed("r", 3 - at_stuck))[-1] == end("r", Outcome.COMPLETED, attempts=2)


def test_what_was_let_go_at_an_endpoint_that_stalls_is_not_aborted_again() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(stall_ns_max=lasting(1))))
    first, _ = hedged(scheduler)
    told(scheduler, at(NOW + 0.2), first_token("r", 2), first_token("r", 1))

    commands = told(scheduler, at(NOW + 1.2), progressed("r", attempt=2))
    assert [each.endpoint_id for each in commands if isinstance(each, Eject)] == [first]
    assert [each for each in commands if isinstance(each, Abort)] == []


def test_a_new_policy_leaves_those_under_way_as_they_are(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler, "two")
    sent(scheduler, "one", NOW + SOON)
    told(scheduler, at(NOW + 0.2), policy_changed(a_hedging_policy()))
    assert scheduler.next_wakeup() is None

    assert told(scheduler, at(NOW + 0.3), first_token("two", 2)) == [
        abort("two", first, attempt=1, reason="attempt 2 was the first to answer")
    ]
    told(scheduler, at(NOW + 0.3), aborted("two", 1), completed("two", 2), first_token("one"), completed("one"))
    assert is_idle(scheduler)
    assert other != first
    assert hedged(scheduler, "after", NOW + 1)


def test_a_policy_takes_what_is_known_of_classes_and_pools_with_it() -> None:
    scheduler = a_taught_scheduler()
    told(scheduler, at(NOW), policy_changed(a_hedging_policy(replace(HEDGED, hedges=False))))
    told(scheduler, at(NOW), policy_changed(a_hedging_policy()))
    sent(scheduler)
    assert scheduler.next_wakeup() is None

    elsewhere = a_taught_scheduler()
    told(elsewhere, at(NOW), policy_changed(a_policy(classes=(HEDGED,), pools=("q",))))
    told(elsewhere, at(NOW), joined("e3", pool="q"), readied("e3"))
    told(elsewhere, at(NOW), policy_changed(a_hedging_policy()))
    sent(elsewhere)
    assert elsewhere.next_wakeup() is None
