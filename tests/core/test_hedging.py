"""Tests for hedging: when a second attempt is made, and how both attempts end."""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Command, Dispatch, Eject, End
from headgate.core.events import TimerFired
from headgate.core.hedging import SAMPLES_MIN, WAIT_NS_MAX, WAIT_NS_MIN, TtftHistogram
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import DegradationRules, HealthRules, Model, Policy, Pool, RetryRules, ServiceClass
from headgate.model.tenant import DataResidency
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, ModelName, PoolName, TenantId
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
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    end,
    endpoint_summary,
    engine_rejected,
    failed,
    first_token,
    grace_over,
    joined,
    leaving,
    policy_changed,
    progressed,
    readied,
    timed_out,
)
from testing.scheduler_sizes import scheduler_sizes

HEDGED = replace(a_class("interactive", service_tiers=("fast",)), hedging=True)
NOT_HEDGED = replace(BATCH, hedging=False)
RICH = RetryRules(credit_burst=100_000, pool_retries_min=1_000)
QUICK = 0.1
"""Usual time to first token, in seconds."""
SOON = 0.104
"""95th percentile of the time to first token, in seconds, at the resolution of the histogram."""


def a_hedging_policy(*classes: ServiceClass, retry: RetryRules = RICH, health: HealthRules | None = None) -> Policy:
    return a_policy(classes=classes or (HEDGED, NOT_HEDGED), retry=retry, health=health)


def a_taught_scheduler(policy: Policy | None = None, *, places: int = 4, took: float = QUICK) -> Scheduler:
    """Returns an idle scheduler with two endpoints and a learned time to first token of `took` seconds."""
    endpoints = an_endpoint("e1", places=places), an_endpoint("e2", places=places)
    scheduler = a_scheduler(*endpoints, policy=policy or a_hedging_policy())
    teach(scheduler, took=took)
    return scheduler


def teach(
    scheduler: Scheduler, *, count: int = SAMPLES_MIN, took: float = QUICK, start: float = 0, **ticket: object
) -> None:
    for number in range(count):
        name = f"taught {start} {number}"
        commands_for(scheduler, at(start), arrived(name, **ticket))  # type: ignore[arg-type]
    # Not all requests fit at once. The time to first token is measured from each request's own dispatch.
    while (open_now := list(scheduler._state.attempts.by_number.items())) != []:
        start += took
        for (request_id, number), _ in open_now:
            commands_for(scheduler, at(start), first_token(request_id, number), completed(request_id, number))


@pytest.fixture
def scheduler() -> Scheduler:
    return a_taught_scheduler()


NOW = 1_000
"""Start time of the tests in seconds, long after the learning phase."""


def a_hedge(request: str, endpoint: str, *, attempt: int = 2, place: str = "1 of 4") -> Dispatch:
    return replace(dispatch(request, endpoint, attempt=attempt, place=place), hedge=True)


def wake(scheduler: Scheduler) -> tuple[Instant, list[Command]]:
    """Returns the time of the next wakeup and the commands at that time."""
    moment = scheduler.next_wakeup()
    assert moment is not None
    return moment, scheduler.handle(arrived("x", model="unknown"), moment)[1:]


def sent(scheduler: Scheduler, request: str = "r", when: float = NOW, **ticket: object) -> str:
    """Sends a request and returns its endpoint."""
    [command] = commands_for(scheduler, at(when), arrived(request, **ticket))  # type: ignore[arg-type]
    assert isinstance(command, Dispatch)
    return command.endpoint_id


def hedged(scheduler: Scheduler, request: str = "r", when: float = NOW, **ticket: object) -> tuple[str, str]:
    """Sends a request that is then hedged, and returns the endpoints of both attempts."""
    first = sent(scheduler, request, when, **ticket)
    [command] = commands_for(scheduler, at(when + SOON), arrived("x", model="unknown"))[1:]
    assert isinstance(command, Dispatch)
    assert command.hedge
    return first, command.endpoint_id


def is_idle(scheduler: Scheduler) -> bool:
    return not any(each.in_flight for each in scheduler.summary().endpoints) and not scheduler_sizes(scheduler).attempts


# Conditions


def test_attempt_is_hedged_on_another_endpoint_after_an_unusually_long_silence(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    other = "e2" if first == "e1" else "e1"

    assert commands_for(scheduler, at(NOW + SOON - 0.001), arrived("x", model="unknown"))[1:] == []
    assert wake(scheduler) == (at(NOW + SOON), [a_hedge("r", other)])


def test_no_timer_remains_after_a_hedge(scheduler: Scheduler) -> None:
    hedged(scheduler)

    assert scheduler.next_wakeup() is None


def test_attempts_are_not_hedged_before_enough_samples() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=4), an_endpoint("e2", places=4), policy=a_hedging_policy())
    sent(scheduler, when=0)
    assert scheduler.next_wakeup() is None
    commands_for(scheduler, at(0), completed("r"))

    teach(scheduler, count=SAMPLES_MIN - 1)
    sent(scheduler, when=NOW)
    assert scheduler.next_wakeup() is None

    commands_for(scheduler, at(NOW + QUICK), first_token("r"), completed("r"))
    assert hedged(scheduler, when=NOW + 1)


def test_attempt_in_a_class_without_hedging_is_not_hedged(scheduler: Scheduler) -> None:
    teach(scheduler, service_class="batch", start=100)
    sent(scheduler, service_class="batch")

    assert scheduler.next_wakeup() is None


def test_non_streaming_request_is_not_hedged_and_adds_no_samples(scheduler: Scheduler) -> None:
    teach(scheduler, count=SAMPLES_MIN, took=10, start=100, stream=False)
    sent(scheduler, stream=False)
    commands_for(scheduler, at(NOW + 0.5), TimerFired())
    assert scheduler.next_wakeup() is None
    commands_for(scheduler, at(NOW + 1), completed("r"))

    assert hedged(scheduler, when=NOW + 2)


def test_hedge_is_attempted_again_later_if_the_other_endpoint_is_full(scheduler: Scheduler) -> None:
    commands_for(scheduler, at(NOW), *[arrived(f"full {number}") for number in range(7)])
    commands_for(scheduler, at(NOW), *[first_token(f"full {number}") for number in range(7)])
    first = sent(scheduler)
    assert wake(scheduler) == (at(NOW + SOON), [])

    freed = next(
        request_id
        for (request_id, _), each in scheduler._state.attempts.by_number.items()
        if each.endpoint.id not in (first, "r")
    )
    commands_for(scheduler, at(NOW + SOON + 0.01), completed(freed))
    other = "e2" if first == "e1" else "e1"
    assert wake(scheduler) == (at(NOW + 2 * SOON), [a_hedge("r", other, place="4 of 4")])


def test_queued_requests_go_before_a_hedge(scheduler: Scheduler) -> None:
    commands_for(
        scheduler, at(NOW), *[arrived(f"full {number}") for number in range(7)], arrived("r"), arrived("waits")
    )
    commands_for(scheduler, at(NOW), *[first_token(f"full {number}") for number in range(7)])

    assert commands_for(scheduler, at(NOW + SOON), completed("full 0"))[1:] == [
        dispatch("waits", "e1", place="4 of 4", waited=SOON)
    ]


def test_hedge_does_not_use_the_silent_endpoint() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=200), policy=a_hedging_policy())
    teach(scheduler)
    sent(scheduler)

    assert wake(scheduler) == (at(NOW + SOON), [])


def test_hedge_of_a_request_whose_data_must_stay_local_does_not_use_a_provider() -> None:
    own, cloud = PoolName("p"), PoolName("cloud")
    local = replace(HEDGED, data_residency=DataResidency.LOCAL)
    policy = replace(
        a_hedging_policy(local, NOT_HEDGED),
        pools=(Pool(own), Pool(cloud, hosted=True)),
        models=(Model(ModelName("m"), (own, cloud)),),
    )
    endpoints = an_endpoint("e1", places=4), an_endpoint("e2", places=4), an_endpoint("e3", places=4, pool="cloud")
    scheduler = a_scheduler(*endpoints, policy=policy)
    teach(scheduler)

    assert set(hedged(scheduler)) == {"e1", "e2"}


def test_hedge_does_not_use_a_leaving_endpoint(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    commands_for(scheduler, at(NOW), leaving("e2" if first == "e1" else "e1"))

    assert wake(scheduler) == (at(NOW + SOON), [])


def test_hedge_requires_retry_budget_for_tenant_and_pool() -> None:
    broke = a_taught_scheduler(a_hedging_policy(retry=RetryRules(credit_burst=99, credit_per_first_attempt=0)))
    sent(broke)
    assert wake(broke) == (at(NOW + SOON), [])

    busy = a_taught_scheduler(a_hedging_policy(retry=RetryRules(credit_burst=100_000, pool_retries_min=1)))
    hedged(busy, "a")
    sent(busy, "b", NOW + 1)
    assert wake(busy) == (at(NOW + 1 + SOON), [])


def test_last_attempt_is_not_hedged() -> None:
    once = a_taught_scheduler(a_hedging_policy(retry=replace(RICH, attempts_max=1)))
    sent(once)
    assert once.next_wakeup() is None

    thrice = a_taught_scheduler()
    sent(thrice)
    commands_for(thrice, at(NOW), failed("r", 1), failed("r", 2))
    assert thrice.next_wakeup() is None


def test_retry_is_hedged_while_it_has_an_attempt_left(scheduler: Scheduler) -> None:
    first = sent(scheduler)
    assert commands_for(scheduler, at(NOW), failed("r")) == [
        dispatch("r", "e2" if first == "e1" else "e1", attempt=2, place="1 of 4")
    ]

    assert wake(scheduler) == (at(NOW + SOON), [a_hedge("r", first, attempt=3)])


def test_attempts_are_not_hedged_during_degradation() -> None:
    ladder = DegradationRules(
        escalate_above=-1, escalate_after_ns=Duration(0), level_max=1, recover_after_ns=duration(100_000)
    )
    pressed = replace(BATCH, ttft_ns=duration(20))
    scheduler = a_taught_scheduler(replace(a_hedging_policy(HEDGED, pressed), degradation=ladder), places=1)
    first = sent(scheduler)
    commands_for(scheduler, at(NOW), arrived("busy"), arrived("waits", service_class="batch"))
    commands_for(scheduler, at(NOW + 0.25), arrived("x", model="unknown"))
    assert {each.level for each in scheduler.summary().degradation} == {1}

    commands_for(scheduler, at(NOW + 0.3), completed("busy"))
    commands_for(scheduler, at(NOW + 0.4), first_token("waits"), completed("waits"))
    assert endpoint_summary(scheduler, "e2" if first == "e1" else "e1").in_flight == 0
    assert commands_for(scheduler, at(NOW + 0.6), arrived("x", model="unknown"))[1:] == []


# Hedge delay


def knows(*took_ms: int, times: int = 1) -> Duration | None:
    first_tokens = TtftHistogram()
    for _ in range(times):
        for each in took_ms:
            first_tokens.learn(Duration(each * MILLISECOND))
    return first_tokens.wait_ns


def test_hedge_delay_is_the_95th_percentile() -> None:
    assert knows(*[100] * 95, *[900] * 5) == 104 * MILLISECOND
    assert knows(*[100] * 94, *[900] * 6) == 960 * MILLISECOND


def test_hedge_delay_is_bounded() -> None:
    assert knows(1, times=SAMPLES_MIN) == WAIT_NS_MIN
    assert knows(50_000, times=SAMPLES_MIN) == WAIT_NS_MAX
    assert knows(10_000_000, times=SAMPLES_MIN) == WAIT_NS_MAX


def test_hedge_delay_is_unknown_with_too_few_samples() -> None:
    assert knows(100, times=SAMPLES_MIN - 1) is None


def test_hedge_delay_adapts_to_recent_samples() -> None:
    first_tokens = TtftHistogram()
    for took in (100, 1_000):
        for _ in range(10_000):
            first_tokens.learn(Duration(took * MILLISECOND))

    assert first_tokens.wait_ns == 1_024 * MILLISECOND
    assert first_tokens._count < 2_000


def test_superseded_attempts_are_counted_as_slow() -> None:
    scheduler = a_taught_scheduler()
    when = float(NOW)
    for number in range(400):
        # One in ten attempts loses to its hedge. That is more than one in twenty, so the delay must rise.
        silent = number % 10 == 0
        name = f"r{number}"
        commands_for(scheduler, at(when), arrived(name))
        if silent:
            moment = scheduler.next_wakeup()
            assert moment is not None
            when = (moment - at(0)) / SECOND
            commands_for(scheduler, moment, arrived("x", model="unknown"))
            commands_for(scheduler, at(when + QUICK), first_token(name, 2), aborted(name, 1), completed(name, 2))
        else:
            commands_for(scheduler, at(when + QUICK), first_token(name), completed(name))
        when += 1
    sent(scheduler, "last", when)

    moment = scheduler.next_wakeup()
    assert moment is not None
    assert moment - at(when) > 1.5 * duration(SOON)


# First response


def test_first_attempt_is_aborted_if_the_hedge_responds_first(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 0.2), first_token("r", 2)) == [
        abort("r", first, attempt=1, reason="attempt 2 responded first")
    ]
    assert commands_for(scheduler, at(NOW + 0.2), aborted("r", 1)) == []
    assert endpoint_summary(scheduler, first).in_flight == 0
    assert endpoint_summary(scheduler, other).in_flight == 1
    assert commands_for(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_hedge_is_aborted_if_the_first_attempt_responds_first(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 0.2), first_token("r", 1)) == [
        abort("r", other, attempt=2, reason="attempt 1 responded first")
    ]
    assert commands_for(scheduler, at(NOW + 1), completed("r", 1)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert commands_for(scheduler, at(NOW + 1), aborted("r", 2)) == []
    assert is_idle(scheduler)


def test_later_response_is_ignored(scheduler: Scheduler) -> None:
    hedged(scheduler)
    commands_for(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert commands_for(scheduler, at(NOW + 0.2), first_token("r", 1)) == []
    assert commands_for(scheduler, at(NOW + 0.3), progressed("r", attempt=1), completed("r", 1)) == []
    assert commands_for(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_superseded_attempt_is_not_aborted_again(scheduler: Scheduler) -> None:
    hedged(scheduler)
    commands_for(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert [type(each) for each in commands_for(scheduler, at(NOW + 0.2), client_disconnected("r"))] == [Abort, End]


def test_completion_of_one_attempt_aborts_the_other(scheduler: Scheduler) -> None:
    first, _ = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 1), completed("r", 2)) == [
        abort("r", first, attempt=1, reason="attempt 2 responded first"),
        end("r", Outcome.COMPLETED, attempts=2),
    ]
    assert commands_for(scheduler, at(NOW + 1), aborted("r", 1)) == []
    assert is_idle(scheduler)


def test_engine_rejection_of_one_attempt_ends_both(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 1), engine_rejected("r", 1)) == [
        abort("r", other, attempt=2, reason="attempt 1 responded first"),
        end("r", Outcome.ENGINE_REJECTED, "context too long", attempts=2),
    ]


@pytest.mark.parametrize("ending", [failed, timed_out, aborted])
def test_ending_a_superseded_attempt_does_not_affect_endpoint_health(ending: object) -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(consecutive_failures_max=1)))
    hedged(scheduler)
    commands_for(scheduler, at(NOW + 0.2), first_token("r", 2))

    assert commands_for(scheduler, at(NOW + 0.2), ending("r", 1)) == []  # type: ignore[operator]


def charged(scheduler: Scheduler) -> int:
    """Returns the test tenant's charge so far."""
    return scheduler._state.queue.backlog._bands[0].fair_queues[PoolName("p")]._charged.get(TenantId("acme"), 0)


def test_tenant_is_not_charged_for_a_superseded_attempt() -> None:
    alone, beside = a_taught_scheduler(), a_taught_scheduler()
    sent(alone)
    hedged(beside)
    assert charged(beside) > charged(alone)

    commands_for(alone, at(NOW + 1), first_token("r"), completed("r"))
    commands_for(beside, at(NOW + 1), first_token("r", 2), aborted("r", 1), completed("r", 2))
    assert charged(beside) == charged(alone)


# Failures


def test_failure_of_one_attempt_is_not_retried_while_the_other_is_running(scheduler: Scheduler) -> None:
    first, _ = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 0.2), failed("r", 1)) == []
    assert endpoint_summary(scheduler, first).in_flight == 0
    assert commands_for(scheduler, at(NOW + 0.3), first_token("r", 2)) == []
    assert commands_for(scheduler, at(NOW + 1), completed("r", 2)) == [end("r", Outcome.COMPLETED, attempts=2)]
    assert is_idle(scheduler)


def test_third_attempt_is_made_if_both_attempts_fail(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 0.2), failed("r", 2)) == []
    assert commands_for(scheduler, at(NOW + 0.3), failed("r", 1)) == [dispatch("r", other, attempt=3, place="1 of 4")]
    ended = commands_for(scheduler, at(NOW + 0.4), failed("r", 3))
    assert [(each.outcome, each.attempts) for each in ended if isinstance(each, End)] == [(Outcome.ENGINE_ERROR, 3)]
    assert first != other
    assert is_idle(scheduler)


def test_failure_of_either_attempt_counts_against_the_endpoint_it_used() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(consecutive_failures_max=1)))
    first, _ = hedged(scheduler)

    [ejected] = commands_for(scheduler, at(NOW + 0.2), failed("r", 1))
    assert isinstance(ejected, Eject)
    assert ejected.endpoint_id == first


# Aborts, deadlines and policy changes


def test_client_disconnect_aborts_both_attempts(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler)

    assert commands_for(scheduler, at(NOW + 0.2), client_disconnected("r")) == [
        abort("r", first, attempt=1, reason="client_disconnected"),
        abort("r", other, attempt=2, reason="client_disconnected"),
        end("r", Outcome.CANCELLED, "the client disconnected", attempts=2),
    ]
    assert commands_for(scheduler, at(NOW + 0.2), aborted("r", 2), aborted("r", 1)) == []
    assert is_idle(scheduler)


def test_shutdown_aborts_both_attempts(scheduler: Scheduler) -> None:
    hedged(scheduler)

    commands = commands_for(scheduler, at(NOW + 0.2), grace_over("r"))
    assert [type(each) for each in commands] == [Abort, Abort, End]


def test_passed_deadline_aborts_both_attempts(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler, first_token_within=2)

    commands = commands_for(scheduler, at(NOW + 2), arrived("x", model="unknown"))
    late = "the caller's deadline has passed"
    assert commands[:2] == [
        abort("r", first, attempt=1, reason=late),
        abort("r", other, attempt=2, reason=late),
    ]
    assert isinstance(commands[2], End)
    assert commands[2].outcome is Outcome.DEADLINE_EXCEEDED


def test_failure_at_the_deadline_aborts_the_other_attempt(scheduler: Scheduler) -> None:
    _, other = hedged(scheduler, first_token_within=2)

    [stop, over] = commands_for(scheduler, at(NOW + 2), failed("r", 1))
    assert stop == abort("r", other, attempt=2, reason="the caller's deadline has passed")
    assert isinstance(over, End)
    assert over.outcome is Outcome.DEADLINE_EXCEEDED


def test_completion_at_the_deadline_is_counted_as_completed(scheduler: Scheduler) -> None:
    hedged(scheduler, complete_within=2)

    [_, over] = commands_for(scheduler, at(NOW + 2), completed("r", 2))
    assert over == end("r", Outcome.COMPLETED, attempts=2)


def test_ended_request_is_no_longer_watched_for_silence(scheduler: Scheduler) -> None:
    sent(scheduler, "a")
    commands_for(scheduler, at(NOW), client_disconnected("a"))
    sent(scheduler, "b")
    commands_for(scheduler, at(NOW), first_token("b"))
    sent(scheduler, "c")
    commands_for(scheduler, at(NOW), completed("c"))

    assert len(scheduler._state.hedging.silence_timers) == 0


def test_attempt_on_a_stalled_endpoint_is_aborted_and_the_other_continues() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(stall_ns_max=duration(1))))
    stuck = sent(scheduler, "stuck")
    commands_for(scheduler, at(NOW), first_token("stuck"))
    commands_for(scheduler, at(NOW), arrived("elsewhere"), arrived("r"))
    [command] = [each for each in wake(scheduler)[1] if isinstance(each, Dispatch) and each.request_id == "r"]
    at_stuck = 2 if command.endpoint_id == stuck else 1

    commands = commands_for(scheduler, at(NOW + 1), arrived("x", model="unknown"))
    stops = [(each.request_id, each.attempt) for each in commands if isinstance(each, Abort)]
    assert ("r", at_stuck) in stops
    assert commands_for(scheduler, at(NOW + 1), aborted("r", at_stuck)) == []
    commands_for(scheduler, at(NOW + 1.1), first_token("r", 3 - at_stuck))
    assert commands_for(scheduler, at(NOW + 1.2), completed("r", 3 - at_stuck))[-1] == end(
        "r", Outcome.COMPLETED, attempts=2
    )


def test_superseded_attempt_on_a_stalled_endpoint_is_not_aborted_again() -> None:
    scheduler = a_taught_scheduler(a_hedging_policy(health=HealthRules(stall_ns_max=duration(1))))
    first, _ = hedged(scheduler)
    commands_for(scheduler, at(NOW + 0.2), first_token("r", 2), first_token("r", 1))

    commands = commands_for(scheduler, at(NOW + 1.2), progressed("r", attempt=2))
    assert [each.endpoint_id for each in commands if isinstance(each, Eject)] == [first]
    assert [each for each in commands if isinstance(each, Abort)] == []


def test_policy_change_keeps_running_hedges(scheduler: Scheduler) -> None:
    first, other = hedged(scheduler, "two")
    sent(scheduler, "one", NOW + SOON)
    commands_for(scheduler, at(NOW + 0.2), policy_changed(replace(a_hedging_policy(), fairness_depth=2)))
    assert scheduler.next_wakeup() is None

    assert commands_for(scheduler, at(NOW + 0.3), first_token("two", 2)) == [
        abort("two", first, attempt=1, reason="attempt 2 responded first")
    ]
    commands_for(scheduler, at(NOW + 0.3), aborted("two", 1), completed("two", 2), first_token("one"), completed("one"))
    assert is_idle(scheduler)
    assert other != first
    assert hedged(scheduler, "after", NOW + 1)


def test_policy_change_drops_samples_for_removed_classes_and_pools() -> None:
    scheduler = a_taught_scheduler()
    commands_for(scheduler, at(NOW), policy_changed(a_hedging_policy(replace(HEDGED, hedging=False))))
    commands_for(scheduler, at(NOW), policy_changed(a_hedging_policy()))
    sent(scheduler)
    assert scheduler.next_wakeup() is None

    elsewhere = a_taught_scheduler()
    commands_for(elsewhere, at(NOW), policy_changed(a_policy(classes=(HEDGED,), pools=("q",))))
    commands_for(elsewhere, at(NOW), joined("e3", pool="q"), readied("e3"))
    commands_for(elsewhere, at(NOW), policy_changed(a_hedging_policy()))
    sent(elsewhere)
    assert elsewhere.next_wakeup() is None


def test_end_that_reports_the_first_token_aborts_the_other_attempt(scheduler: Scheduler) -> None:
    hedged(scheduler)

    commands = commands_for(scheduler, at(NOW + 1), completed("r", 2, first_token=True))
    assert [(type(each), each.attempt) for each in commands if isinstance(each, Abort)] == [(Abort, 1)]
    assert [each.outcome for each in commands if isinstance(each, End)] == [Outcome.COMPLETED]
