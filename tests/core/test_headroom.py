"""Tests for endpoint headroom: when an endpoint accepts another request."""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptProgress, AttemptsProgressed, Event, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy, Pool
from headgate.model.speed import EngineSpeed
from headgate.model.units import MILLISECOND, Duration, EndpointId, PoolName, RequestId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    endpoint_summary,
    failed,
    first_token,
)

CHUNK = 2_048
SPEED = EngineSpeed(
    step_ps=10_000_000_000,
    prefill_token_ps=40_000_000,
    decode_sequence_ps=1_000_000_000,
    kv_token_ps=1_000_000,
    attention_ps=0,
    chunk_tokens=CHUNK,
)
"""10 ms per step, 40 µs per prompt token, 1 ms per sequence and 1 µs per token in the KV cache."""


def policy(*, tpot_ms: int | None = None, kv_tokens: int | None = None) -> Policy:
    tpot = None if tpot_ms is None else Duration(tpot_ms * MILLISECOND)
    pool = Pool(PoolName("p"), speed=SPEED, kv_tokens=kv_tokens)
    return a_policy(classes=(replace(a_class("interactive"), tpot_ns=tpot),), pools=(pool,))


def sent(scheduler: Scheduler, moment: float, *events: Event) -> list[str]:
    return [each.request_id for each in commands_for(scheduler, at(moment), *events) if isinstance(each, Dispatch)]


def progress(*requests: str, tokens: int) -> AttemptsProgressed:
    return AttemptsProgressed(tuple(AttemptProgress(RequestId(each), 1, tokens) for each in requests))


def test_endpoint_accepts_no_request_while_prefill_is_pending() -> None:
    scheduler = a_scheduler(policy=policy(), places=99)
    assert sent(scheduler, 0, arrived("long", prompt_bytes=4 * CHUNK)) == ["long"]
    assert sent(scheduler, 0, arrived("next")) == []

    assert sent(scheduler, 1, first_token("long")) == ["next"]


def test_non_streaming_request_blocks_the_endpoint_for_its_expected_prefill_time() -> None:
    """The first byte arrives together with the last. Waiting for it would block the endpoint for that long."""
    scheduler = a_scheduler(policy=policy(), places=99)
    sent(scheduler, 0, arrived("whole", stream=False, prompt_bytes=4 * CHUNK))
    assert sent(scheduler, 0, arrived("next")) == []
    opens = scheduler.next_wakeup()
    assert opens is not None
    # 2,048 tokens at 40 µs each, plus one step.
    assert at(0.08) < opens < at(0.12)

    commands = scheduler.handle(TimerFired(), opens)
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["next"]


def test_non_streaming_request_that_ends_early_leaves_no_timer() -> None:
    scheduler = a_scheduler(policy=policy(), places=99)
    sent(scheduler, 0, arrived("whole", stream=False, prompt_bytes=4 * CHUNK))

    assert sent(scheduler, 0.01, completed("whole"), arrived("next")) == ["next"]
    commands_for(scheduler, at(0.02), completed("next"))
    assert scheduler.next_wakeup() is None


def test_requeued_non_streaming_request_is_not_counted_as_prefilled() -> None:
    scheduler = a_scheduler(policy=policy(), places=2)
    commands_for(
        scheduler, at(0), arrived("whole", stream=False, prompt_bytes=4 * CHUNK), arrived("after"), failed("whole")
    )

    # The request is first in the queue and is sent again, so its prefill is pending again.
    assert scheduler.summary().endpoints[0].in_flight == 1
    assert sent(scheduler, 0.01, TimerFired()) == []
    assert sent(scheduler, 1, TimerFired()) == ["after"]


def test_kv_cache_is_reserved_for_the_expected_response() -> None:
    # Each request reserves 25 prompt tokens and 400 output tokens. At most 95 % may be reserved.
    scheduler = a_scheduler(policy=policy(kv_tokens=4 * 425), places=99)

    assert sent(scheduler, 0, *(arrived(f"r{number}") for number in range(9))) == ["r0", "r1", "r2"]
    assert sent(scheduler, 1, first_token("r0"), completed("r0")) == ["r3"]


def test_summary_reports_a_full_kv_cache_if_another_request_does_not_fit() -> None:
    scheduler = a_scheduler(policy=policy(kv_tokens=4 * 425), places=99)
    unbounded = a_scheduler(policy=policy(), places=99)
    full = list[bool]()
    for number in range(3):
        sent(scheduler, 0, arrived(f"r{number}"))
        sent(unbounded, 0, arrived(f"r{number}"))
        full.append(scheduler.summary().endpoints[0].kv_full)

    assert full == [False, False, True]
    assert not unbounded.summary().endpoints[0].kv_full


def test_kv_cache_reservation_grows_with_a_longer_response() -> None:
    scheduler = a_scheduler(policy=policy(kv_tokens=4 * 425), places=99)
    sent(scheduler, 0, arrived("r0"), arrived("r1"))
    commands_for(scheduler, at(1), first_token("r0"), progress("r0", tokens=700))

    assert sent(scheduler, 1, arrived("r2")) == []
    assert sent(scheduler, 2, completed("r0")) == ["r2"]


def test_single_request_is_sent_regardless_of_its_size() -> None:
    scheduler = a_scheduler(policy=policy(kv_tokens=100), places=99)

    assert sent(scheduler, 0, arrived("huge", prompt_bytes=4_000), arrived("next")) == ["huge"]
    assert sent(scheduler, 1, completed("huge")) == ["next"]


def test_endpoint_rejects_a_request_that_would_make_steps_too_slow() -> None:
    # 80 % of 25 ms, minus the 10 ms of a step, leaves enough time for nine sequences and the tokens they read.
    scheduler = a_scheduler(policy=policy(tpot_ms=25), places=99)

    assert len(sent(scheduler, 0, *(arrived(f"r{number}", prompt_bytes=4) for number in range(20)))) == 9


def test_endpoint_accepts_no_request_while_tokens_are_too_slow() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    commands_for(scheduler, at(1), progress("r0", tokens=5))
    assert sent(scheduler, 1, arrived("r1")) == []

    assert sent(scheduler, 2, progress("r0", tokens=50)) == ["r1"]


def test_stalled_reader_does_not_make_its_engine_look_slow() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("stalled"), arrived("r0"), first_token("stalled"), first_token("r0"))
    for number in range(1, 60):
        commands_for(
            scheduler,
            at(number),
            AttemptsProgressed((*progress("stalled", tokens=0).attempts, *progress("r0", tokens=80).attempts)),
        )
        commands_for(scheduler, at(number + 0.5), progress("stalled", tokens=0))

    summary = endpoint_summary(scheduler, "e1")
    assert summary.decode_percent < 115
    assert sent(scheduler, 60, arrived("r1")) == ["r1"]


def test_endpoint_is_not_slow_after_its_last_stream_has_ended() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    commands_for(scheduler, at(1), progress("r0", tokens=1), arrived("r1"))

    assert sent(scheduler, 2, completed("r0")) == ["r1"]


def test_only_slots_and_memory_are_checked_without_a_time_per_token_target() -> None:
    scheduler = a_scheduler(policy=policy(), places=50)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    commands_for(scheduler, at(9), progress("r0", tokens=1))

    assert len(sent(scheduler, 9, *(arrived(f"n{number}", prompt_bytes=4) for number in range(60)))) == 49


def test_slow_engine_is_avoided() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=99), an_endpoint("e2", places=99), policy=policy())
    commands_for(scheduler, at(0), arrived("slow"), arrived("quick"), first_token("slow"), first_token("quick"))
    for number in range(1, 60):
        commands_for(scheduler, at(number), progress("slow", tokens=25), progress("quick", tokens=90))
    commands_for(scheduler, at(60), completed("slow"), completed("quick"))
    commands = commands_for(scheduler, at(60), *(arrived(f"r{number}") for number in range(10)))

    assert {each.endpoint_id for each in commands if isinstance(each, Dispatch)} == {"e2"}


def test_longer_response_delays_the_next_turn_of_its_tenant() -> None:
    """The charge is updated as tokens arrive, long before the response ends."""
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("a0", "acme"), arrived("b0", "bolt"), first_token("a0"), first_token("b0"))
    commands_for(scheduler, at(1), arrived("a1", "acme"), arrived("b1", "bolt"))
    commands_for(scheduler, at(2), progress("a0", tokens=5_000), progress("b0", tokens=10))

    assert sent(scheduler, 3, completed("b0")) == ["b1"]


def test_prompt_that_takes_no_time_does_not_wait_for_its_prefill() -> None:
    speed = EngineSpeed(step_ps=0, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)
    scheduler = a_scheduler(policy=a_policy(pools=(Pool(PoolName("p"), speed=speed),)), places=2)

    assert sent(scheduler, 0, arrived("long", prompt_bytes=4 * CHUNK, stream=False)) == ["long"]
    assert len(scheduler._state.attempts.prefill_timers) == 0
    assert scheduler._state.fleet.endpoints[EndpointId("e1")].pending_tokens == 0
