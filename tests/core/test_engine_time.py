"""Whose is each moment of an endpoint?"""

from headgate.core.engine_time import LEFT_MAX, EngineTime, LeftTimes, Stay, answer_ps, prompt_ps
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
    client_left,
    completed,
    failed,
    first_token,
    joined,
    lasting,
    leaving,
    policy_changed,
    readied,
    told,
    unreadied,
)

SPEED = EngineSpeed(step_ps=100)


def an_engine(*, of: int = 1) -> EngineTime:
    return EngineTime(EndpointId("e1"), PoolName("p"), SPEED, at(0), of=of)


def times(whole: float, **parts: float) -> EndpointTime:
    spent = {f"{name}_ns": lasting(parts.get(name, 0)) for name in ("starting", "unready", "idle", "billed", "late")}
    return EndpointTime("e1", "p", lasting(whole), **spent)


def parts(stay: Stay) -> tuple[float, float, float]:
    """Input, output and overhead in seconds."""
    return stay.input_ns / SECOND, stay.output_ns / SECOND, stay.shared_ns / SECOND


# What an attempt adds to a step


def test_a_prompt_longer_than_a_chunk_adds_no_more_to_a_step_than_the_chunk_takes() -> None:
    speed = EngineSpeed(prefill_token_ps=10, attention_ps=0, chunk_tokens=100)

    assert [prompt_ps(speed, tokens, 0) for tokens in (50, 100, 200)] == [500, 1_000, 1_000]
    assert prompt_ps(speed, 200, 150) == 500


def test_an_answer_adds_its_sequences_and_what_they_read() -> None:
    speed = EngineSpeed(decode_sequence_ps=10, kv_token_ps=2)

    assert answer_ps(speed, 100, 50, answers=3) == 30 + 2 * 125


# How a moment is divided


def test_who_is_alone_has_all_of_it() -> None:
    engine = an_engine()
    stay = engine.begin(300, at(0))
    engine.compute(stay, 100, at(4))
    engine.end(stay, at(6))

    # A step takes 100 by itself: a quarter while the prompt adds 300, half while the answer adds 100.
    assert parts(stay) == (3, 1, 2)


def test_two_share_the_step_evenly_and_have_each_their_own_work() -> None:
    engine = an_engine()
    one, other = engine.begin(600, at(0)), engine.begin(100, at(0))
    engine.end(one, at(8))
    engine.end(other, at(8))

    # Of 800 the one adds 600 and the other 100; the 100 of the step are theirs by halves.
    assert (parts(one), parts(other)) == ((6, 0, 0.5), (1, 0, 0.5))


def test_a_step_that_takes_nothing_is_divided_all_the_same() -> None:
    engine = EngineTime(EndpointId("e1"), PoolName("p"), EngineSpeed(step_ps=0), at(0), of=1)
    one, other = engine.begin(0, at(0)), engine.begin(0, at(0))
    engine.end(one, at(2))
    engine.end(other, at(2))

    assert (parts(one), parts(other)) == ((0, 0, 1), (0, 0, 1))


def test_what_is_lost_in_rounding_is_owed_to_the_last() -> None:
    engine = an_engine()
    stays = [engine.begin(0, at(0)) for _ in range(3)]
    for stay in stays:
        engine.end(stay, Instant(at(0) + 10))

    assert [stay.shared_ns for stay in stays] == [3, 3, 4]


def test_another_speed_counts_from_when_it_is_told() -> None:
    engine = an_engine()
    stay = engine.begin(100, at(0))
    engine.change_speed(EngineSpeed(step_ps=300), at(4))
    engine.end(stay, at(8))

    assert parts(stay) == (3, 0, 5)


# What nobody is billed for


def test_who_ends_after_its_request_is_late_and_is_measured_before() -> None:
    engine = an_engine()
    stay = engine.begin(100, at(0))
    engine.turn_late(stay, at(2))
    engine.end(stay, at(5))

    assert parts(stay) == (1, 0, 1)
    assert engine.take() == times(5, billed=2, late=3)


def test_who_is_late_has_its_part_beside_the_others() -> None:
    engine = an_engine()
    late, other = engine.begin(200, at(0)), engine.begin(100, at(0))
    engine.turn_late(late, at(0))
    engine.compute(late, 100, at(0))
    engine.end(other, at(6))
    engine.end(late, at(6))

    assert parts(other) == (2, 0, 1)
    assert engine.take() == times(6, billed=3, late=3)


def test_what_is_lost_where_the_last_is_late_is_owed_to_the_next() -> None:
    engine = an_engine()
    live, late = engine.begin(0, at(0)), engine.begin(0, at(0))
    engine.turn_late(late, at(0))
    engine.end(live, Instant(at(0) + 3))
    engine.end(late, Instant(at(0) + 3))
    after = engine.begin(0, Instant(at(0) + 3))
    engine.end(after, Instant(at(0) + 4))

    # Of three nanoseconds each had one and a half.
    assert (live.shared_ns, after.shared_ns) == (1, 2)
    told_of = engine.take()
    assert (told_of.whole_ns, told_of.billed_ns, told_of.late_ns) == (4, 3, 1)


# What began under another scheduler


def test_what_it_took_before_goes_by_its_age_and_by_all_who_were_there() -> None:
    engine = an_engine()
    one, other = engine.begin(300, at(0)), engine.begin(400, at(0))
    engine.adopt(one, lasting(80), input_ps=1, output_ps=3)
    engine.adopt(other, lasting(8), input_ps=1, output_ps=0)
    engine.end(one, at(8))
    engine.end(other, at(8))

    # Of 800 the one adds 300, the other 400, and each has 50 of the step.
    assert parts(one) == (3 + 30 / 4, 30 * 3 / 4, 0.5 + 5)
    assert parts(other) == (4 + 4, 0, 0.5 + 0.5)
    # That time was another scheduler's.
    assert engine.take() == times(8, billed=8)


def test_what_ends_at_once_has_what_it_took_before() -> None:
    engine = an_engine()
    stay = engine.begin(300, at(0))
    engine.adopt(stay, lasting(4), input_ps=0, output_ps=0)
    engine.end(stay, at(0))

    assert parts(stay) == (0, 3, 1)


# Islands


def test_an_island_counts_its_part_of_the_time() -> None:
    engine = an_engine(of=3)
    stay = engine.begin(100, at(0))
    engine.adopt(stay, lasting(6), input_ps=1, output_ps=0)
    engine.end(stay, at(6))
    engine.turn_ready(at(6))
    engine.advance(Instant(at(6) + 10))
    assert parts(stay) == (2, 0, 2)
    assert engine.take() == EndpointTime(
        "e1", "p", *[Duration(each) for each in (2_000_000_003, 0, 0, 3, 2 * SECOND, 0)]
    )

    engine.advance(Instant(at(6) + 12))
    assert engine.take().whole_ns == 1


# By what a scheduler is told


def taken(scheduler: Scheduler, seconds: float) -> tuple[EndpointTime, ...]:
    return scheduler.take_endpoint_times(at(seconds))


def test_an_endpoint_starts_is_idle_and_cannot_serve() -> None:
    scheduler = a_scheduler_without_endpoints()
    told(scheduler, at(0), joined("e1"))
    told(scheduler, at(3), readied("e1"))
    told(scheduler, at(5), unreadied("e1"))

    assert taken(scheduler, 6) == (times(6, starting=3, idle=2, unready=1),)
    assert taken(scheduler, 8) == (times(2, unready=2),)
    assert taken(scheduler, 8) == (times(0),)


def test_one_that_is_ejected_cannot_serve_until_it_is_on_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1, eject_ns=lasting(8))))
    told(scheduler, at(0), arrived("r"), failed("r"), client_left("r"))
    told(scheduler, at(5), unreadied("e2"))
    told(scheduler, at(8), TimerFired())

    assert taken(scheduler, 9) == (times(9, unready=8, idle=1),)


def test_what_runs_is_billed_and_what_is_stopped_is_late() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(1), arrived("r"))
    told(scheduler, at(2), first_token("r"))
    assert taken(scheduler, 2) == (times(2, idle=1, billed=1),)

    told(scheduler, at(3), client_left("r"))
    told(scheduler, at(5), aborted("r"))
    assert taken(scheduler, 6) == (times(4, billed=1, late=2, idle=1),)


def test_an_endpoint_that_has_left_is_told_of_once_more() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))
    told(scheduler, at(1), leaving("e1"))
    told(scheduler, at(2), completed("r"))

    assert taken(scheduler, 9) == (times(2, billed=2),)
    assert taken(scheduler, 9) == ()


def test_an_endpoint_that_has_come_again_is_told_of_once() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(2), leaving("e1"))
    told(scheduler, at(3), joined("e1"), readied("e1"))
    assert taken(scheduler, 7) == (times(6, idle=6),)

    told(scheduler, at(8), leaving("e1"), joined("e1"))
    told(scheduler, at(9), leaving("e1"))
    assert taken(scheduler, 10) == (times(2, idle=1, starting=1),)


def test_a_new_policy_brings_the_speed_of_its_pools() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))
    told(scheduler, at(1), policy_changed(a_policy(pools=(a_pool(),))))
    told(scheduler, at(2), completed("r"))

    assert taken(scheduler, 2) == (times(2, billed=2),)


def test_those_that_have_left_are_bounded_and_the_first_are_forgotten() -> None:
    left = LeftTimes()
    for number in range(LEFT_MAX + 3):
        left.keep(EngineTime(EndpointId(f"e{number}"), PoolName("p"), SPEED, at(0), of=1))

    assert [each.endpoint_id for each in left.take((), at(0))] == [f"e{number}" for number in range(3, LEFT_MAX + 3)]
