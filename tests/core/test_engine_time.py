"""Tests for attributing endpoint time to attempts."""

from headgate.core.engine_time import (
    DEPARTED_MAX,
    AttemptTime,
    DepartedTimes,
    EngineTime,
    decode_step_ps,
    prefill_step_ps,
)
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.money import EndpointTime
from headgate.model.policy import HealthRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName
from testing.builders import (
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    aborted,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    failed,
    first_token,
    joined,
    leaving,
    policy_changed,
    readied,
    unreadied,
)

SPEED = EngineSpeed(step_ps=100)


def an_engine(*, of: int = 1) -> EngineTime:
    return EngineTime(EndpointId("e1"), PoolName("p"), SPEED, at(0), scheduler_count=of)


def times(whole: float, **parts: float) -> EndpointTime:
    spent = {
        f"{name}_ns": duration(parts.get(name, 0)) for name in ("starting", "unready", "idle", "billed", "abort_lag")
    }
    return EndpointTime("e1", "p", duration(whole), **spent)


def parts(stay: AttemptTime) -> tuple[float, float, float]:
    """Returns input, output and overhead time in seconds."""
    return stay.input_ns / SECOND, stay.output_ns / SECOND, stay.shared_ns / SECOND


# Step cost of an attempt


def test_prompt_longer_than_a_chunk_adds_one_chunk_to_a_step() -> None:
    speed = EngineSpeed(prefill_token_ps=10, attention_ps=0, chunk_tokens=100)

    assert [prefill_step_ps(speed, tokens, 0) for tokens in (50, 100, 200)] == [500, 1_000, 1_000]
    assert prefill_step_ps(speed, 200, 150) == 500


def test_response_adds_its_sequences_and_the_tokens_they_read() -> None:
    speed = EngineSpeed(decode_sequence_ps=10, kv_token_ps=2)

    assert decode_step_ps(speed, 100, 50, answers=3) == 30 + 2 * 125


# Division of time


def test_single_attempt_gets_all_the_time() -> None:
    engine = an_engine()
    stay = engine.begin(300, at(0))
    engine.begin_decode(stay, 100, at(4))
    engine.end(stay, at(6))

    # The fixed cost of 100 is a quarter of a step during prefill (300) and half of it during decoding (100).
    assert parts(stay) == (3, 1, 2)


def test_two_attempts_share_the_fixed_step_cost_equally() -> None:
    engine = an_engine()
    one, other = engine.begin(600, at(0)), engine.begin(100, at(0))
    engine.end(one, at(8))
    engine.end(other, at(8))

    # A step costs 800: 600 from one attempt, 100 from the other, and a fixed cost of 100 that they share equally.
    assert (parts(one), parts(other)) == ((6, 0, 0.5), (1, 0, 0.5))


def test_time_is_divided_equally_if_a_step_has_no_cost() -> None:
    engine = EngineTime(EndpointId("e1"), PoolName("p"), EngineSpeed(step_ps=0), at(0), scheduler_count=1)
    one, other = engine.begin(0, at(0)), engine.begin(0, at(0))
    engine.end(one, at(2))
    engine.end(other, at(2))

    assert (parts(one), parts(other)) == ((0, 0, 1), (0, 0, 1))


def test_rounding_remainder_goes_to_the_last_attempt() -> None:
    engine = an_engine()
    stays = [engine.begin(0, at(0)) for _ in range(3)]
    for stay in stays:
        engine.end(stay, Instant(at(0) + 10))

    assert [stay.shared_ns for stay in stays] == [3, 3, 4]


def test_changed_speed_applies_from_the_time_of_the_change() -> None:
    engine = an_engine()
    stay = engine.begin(100, at(0))
    engine.change_speed(EngineSpeed(step_ps=300), at(4))
    engine.end(stay, at(8))

    assert parts(stay) == (3, 0, 5)


# Late attempts


def test_attempt_is_late_after_its_request_has_ended() -> None:
    engine = an_engine()
    stay = engine.begin(100, at(0))
    engine.mark_request_ended(stay, at(2))
    engine.end(stay, at(5))

    assert parts(stay) == (1, 0, 1)
    assert engine.pop() == times(5, billed=2, abort_lag=3)


def test_late_attempt_gets_its_share_of_the_time() -> None:
    engine = an_engine()
    late, other = engine.begin(200, at(0)), engine.begin(100, at(0))
    engine.mark_request_ended(late, at(0))
    engine.begin_decode(late, 100, at(0))
    engine.end(other, at(6))
    engine.end(late, at(6))

    assert parts(other) == (2, 0, 1)
    assert engine.pop() == times(6, billed=3, abort_lag=3)


def test_rounding_remainder_from_a_late_attempt_goes_to_the_next_attempt() -> None:
    engine = an_engine()
    live, late = engine.begin(0, at(0)), engine.begin(0, at(0))
    engine.mark_request_ended(late, at(0))
    engine.end(live, Instant(at(0) + 3))
    engine.end(late, Instant(at(0) + 3))
    after = engine.begin(0, Instant(at(0) + 3))
    engine.end(after, Instant(at(0) + 4))

    # Each attempt accounted for 1.5 of the 3 ns.
    assert (live.shared_ns, after.shared_ns) == (1, 2)
    told_of = engine.pop()
    assert (told_of.total_ns, told_of.billed_ns, told_of.abort_lag_ns) == (4, 3, 1)


# Adopted attempts


def test_adopted_time_follows_age_and_share_at_the_takeover() -> None:
    engine = an_engine()
    one, other = engine.begin(300, at(0)), engine.begin(400, at(0))
    engine.adopt(one, duration(80), input_ps=1, output_ps=3)
    engine.adopt(other, duration(8), input_ps=1, output_ps=0)
    engine.end(one, at(8))
    engine.end(other, at(8))

    # A step costs 800: 300 from one attempt, 400 from the other, and a fixed cost of 50 for each.
    assert parts(one) == (3 + 30 / 4, 30 * 3 / 4, 0.5 + 5)
    assert parts(other) == (4 + 4, 0, 0.5 + 0.5)
    # The previous scheduler has already reported the time before the takeover.
    assert engine.pop() == times(8, billed=8)


def test_adopted_attempt_that_ends_immediately_keeps_its_earlier_time() -> None:
    engine = an_engine()
    stay = engine.begin(300, at(0))
    engine.adopt(stay, duration(4), input_ps=0, output_ps=0)
    engine.end(stay, at(0))

    assert parts(stay) == (0, 3, 1)


# Islands


def test_island_counts_its_share_of_the_time() -> None:
    engine = an_engine(of=3)
    stay = engine.begin(100, at(0))
    engine.adopt(stay, duration(6), input_ps=1, output_ps=0)
    engine.end(stay, at(6))
    engine.mark_ready(at(6))
    engine.advance(Instant(at(6) + 10))
    assert parts(stay) == (2, 0, 2)
    assert engine.pop() == EndpointTime(
        "e1", "p", *[Duration(each) for each in (2_000_000_003, 0, 0, 3, 2 * SECOND, 0)]
    )

    engine.advance(Instant(at(6) + 12))
    assert engine.pop().total_ns == 1


# A scheduler's endpoint times


def taken(scheduler: Scheduler, seconds: float) -> tuple[EndpointTime, ...]:
    return scheduler.pop_endpoint_times(at(seconds))


def test_time_without_attempts_is_counted_as_starting_idle_or_unready() -> None:
    scheduler = a_scheduler_without_endpoints()
    commands_for(scheduler, at(0), joined("e1"))
    commands_for(scheduler, at(3), readied("e1"))
    commands_for(scheduler, at(5), unreadied("e1"))

    assert taken(scheduler, 6) == (times(6, starting=3, idle=2, unready=1),)
    assert taken(scheduler, 8) == (times(2, unready=2),)
    assert taken(scheduler, 8) == (times(0),)


def test_ejected_endpoint_is_unready_until_its_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1, ejection_ns=duration(8))))
    commands_for(scheduler, at(0), arrived("r"), failed("r"), client_disconnected("r"))
    commands_for(scheduler, at(5), unreadied("e2"))
    commands_for(scheduler, at(8), TimerFired())

    assert taken(scheduler, 9) == (times(9, unready=8, idle=1),)


def test_running_attempt_is_billed_and_an_aborted_one_is_late() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(1), arrived("r"))
    commands_for(scheduler, at(2), first_token("r"))
    assert taken(scheduler, 2) == (times(2, idle=1, billed=1),)

    commands_for(scheduler, at(3), client_disconnected("r"))
    commands_for(scheduler, at(5), aborted("r"))
    assert taken(scheduler, 6) == (times(4, billed=1, abort_lag=2, idle=1),)


def test_removed_endpoint_is_reported_once_more() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))
    commands_for(scheduler, at(1), leaving("e1"))
    commands_for(scheduler, at(2), completed("r"))

    assert taken(scheduler, 9) == (times(2, billed=2),)
    assert taken(scheduler, 9) == ()


def test_rejoining_endpoint_is_reported_once() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(2), leaving("e1"))
    commands_for(scheduler, at(3), joined("e1"), readied("e1"))
    assert taken(scheduler, 7) == (times(6, idle=6),)

    commands_for(scheduler, at(8), leaving("e1"), joined("e1"))
    commands_for(scheduler, at(9), leaving("e1"))
    assert taken(scheduler, 10) == (times(2, idle=1, starting=1),)


def test_policy_change_does_not_interrupt_time_accounting() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))
    commands_for(scheduler, at(1), policy_changed(a_policy(pools=(a_pool(),))))
    commands_for(scheduler, at(2), completed("r"))

    assert taken(scheduler, 2) == (times(2, billed=2),)


def test_number_of_removed_endpoints_is_bounded_and_the_oldest_are_forgotten() -> None:
    left = DepartedTimes()
    for number in range(DEPARTED_MAX + 3):
        left.add(EngineTime(EndpointId(f"e{number}"), PoolName("p"), SPEED, at(0), scheduler_count=1))

    assert [each.endpoint_id for each in left.pop_all((), at(0))] == [
        f"e{number}" for number in range(3, DEPARTED_MAX + 3)
    ]
