"""When does an endpoint take one more?"""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptProgress, Event, Progressed, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy, Pool
from headgate.model.speed import EngineSpeed
from headgate.model.units import MILLISECOND, Duration, PoolName, RequestId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    completed,
    endpoint_summary,
    failed,
    first_token,
    told,
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
"""10 ms a step, 40 µs a prompt token, 1 ms a sequence, 1 µs a token in the cache."""


def policy(*, tpot_ms: int | None = None, kv_tokens: int | None = None) -> Policy:
    tpot = None if tpot_ms is None else Duration(tpot_ms * MILLISECOND)
    pool = Pool(PoolName("p"), speed=SPEED, kv_tokens=kv_tokens)
    return a_policy(classes=(replace(a_class("interactive"), tpot_ns=tpot),), pools=(pool,))


def sent(scheduler: Scheduler, moment: float, *events: Event) -> list[str]:
    return [each.request_id for each in told(scheduler, at(moment), *events) if isinstance(each, Dispatch)]


def progress(*requests: str, tokens: int) -> Progressed:
    return Progressed(tuple(AttemptProgress(RequestId(each), 1, tokens) for each in requests))


def test_prompts_that_have_yet_to_be_computed_close_an_endpoint() -> None:
    scheduler = a_scheduler(policy=policy(), places=99)
    assert sent(scheduler, 0, arrived("long", prompt_bytes=4 * CHUNK)) == ["long"]
    assert sent(scheduler, 0, arrived("next")) == []

    assert sent(scheduler, 1, first_token("long")) == ["next"]


def test_a_whole_answer_holds_the_door_for_as_long_as_its_prompt_should_take() -> None:
    """Its first byte comes with its last: waiting for that would close the endpoint for the whole answer."""
    scheduler = a_scheduler(policy=policy(), places=99)
    sent(scheduler, 0, arrived("whole", stream=False, prompt_bytes=4 * CHUNK))
    assert sent(scheduler, 0, arrived("next")) == []
    opens = scheduler.next_wakeup()
    assert opens is not None
    # Two thousand tokens at 40 µs, and the step around them.
    assert at(0.08) < opens < at(0.12)

    commands = scheduler.handle(TimerFired(), opens)
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["next"]


def test_a_whole_answer_that_ends_before_that_leaves_nothing_behind() -> None:
    scheduler = a_scheduler(policy=policy(), places=99)
    sent(scheduler, 0, arrived("whole", stream=False, prompt_bytes=4 * CHUNK))

    assert sent(scheduler, 0.01, completed("whole"), arrived("next")) == ["next"]
    told(scheduler, at(0.02), completed("next"))
    assert scheduler.next_wakeup() is None


def test_a_whole_answer_that_came_back_to_the_queue_is_not_taken_for_computed() -> None:
    scheduler = a_scheduler(policy=policy(), places=2)
    told(scheduler, at(0), arrived("whole", stream=False, prompt_bytes=4 * CHUNK), arrived("after"), failed("whole"))

    # It is the first in line and is sent again; its prompt is still to be computed, from that moment on.
    assert scheduler.summary().endpoints[0].in_flight == 1
    assert sent(scheduler, 0.01, TimerFired()) == []
    assert sent(scheduler, 1, TimerFired()) == ["after"]


def test_memory_that_answers_may_grow_into_is_promised_with_the_request() -> None:
    # Each is promised 25 tokens of prompt and 400 of answer, and 95 % may be promised.
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


def test_an_answer_longer_than_was_promised_is_promised_more() -> None:
    scheduler = a_scheduler(policy=policy(kv_tokens=4 * 425), places=99)
    sent(scheduler, 0, arrived("r0"), arrived("r1"))
    told(scheduler, at(1), first_token("r0"), progress("r0", tokens=700))

    assert sent(scheduler, 1, arrived("r2")) == []
    assert sent(scheduler, 2, completed("r0")) == ["r2"]


def test_who_is_alone_is_sent_however_much_it_takes() -> None:
    scheduler = a_scheduler(policy=policy(kv_tokens=100), places=99)

    assert sent(scheduler, 0, arrived("huge", prompt_bytes=4_000), arrived("next")) == ["huge"]
    assert sent(scheduler, 1, completed("huge")) == ["next"]


def test_a_step_that_would_become_too_long_for_those_who_are_there_takes_nobody() -> None:
    # 80 % of 25 ms leave 10 ms beside the step itself: nine sequences and what they read.
    scheduler = a_scheduler(policy=policy(tpot_ms=25), places=99)

    assert len(sent(scheduler, 0, *(arrived(f"r{number}", prompt_bytes=4) for number in range(20)))) == 9


def test_tokens_that_come_too_slowly_close_an_endpoint_until_they_come_faster() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    told(scheduler, at(1), progress("r0", tokens=5))
    assert sent(scheduler, 1, arrived("r1")) == []

    assert sent(scheduler, 2, progress("r0", tokens=50)) == ["r1"]


def test_stalled_reader_does_not_make_its_engine_look_slow() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("stalled"), arrived("r0"), first_token("stalled"), first_token("r0"))
    for number in range(1, 60):
        told(
            scheduler,
            at(number),
            Progressed((*progress("stalled", tokens=0).attempts, *progress("r0", tokens=80).attempts)),
        )
        told(scheduler, at(number + 0.5), progress("stalled", tokens=0))

    summary = endpoint_summary(scheduler, "e1")
    assert summary.decode_percent < 115
    assert sent(scheduler, 60, arrived("r1")) == ["r1"]


def test_when_the_last_stream_has_ended_nothing_is_slow() -> None:
    scheduler = a_scheduler(policy=policy(tpot_ms=100), places=99)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    told(scheduler, at(1), progress("r0", tokens=1), arrived("r1"))

    assert sent(scheduler, 2, completed("r0")) == ["r1"]


def test_without_a_promise_of_time_per_token_only_places_and_memory_count() -> None:
    scheduler = a_scheduler(policy=policy(), places=50)
    sent(scheduler, 0, arrived("r0"), first_token("r0"))
    told(scheduler, at(9), progress("r0", tokens=1))

    assert len(sent(scheduler, 9, *(arrived(f"n{number}", prompt_bytes=4) for number in range(60)))) == 49


def test_an_engine_that_proves_slow_is_left_for_the_others() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=99), an_endpoint("e2", places=99), policy=policy())
    told(scheduler, at(0), arrived("slow"), arrived("quick"), first_token("slow"), first_token("quick"))
    for number in range(1, 60):
        told(scheduler, at(number), progress("slow", tokens=25), progress("quick", tokens=90))
    told(scheduler, at(60), completed("slow"), completed("quick"))
    commands = told(scheduler, at(60), *(arrived(f"r{number}") for number in range(10)))

    assert {each.endpoint_id for each in commands if isinstance(each, Dispatch)} == {"e2"}


def test_the_longer_of_two_answers_costs_its_tenant_its_next_turn() -> None:
    """The charge follows what comes, long before the end."""
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("a0", "acme"), arrived("b0", "bolt"), first_token("a0"), first_token("b0"))
    told(scheduler, at(1), arrived("a1", "acme"), arrived("b1", "bolt"))
    told(scheduler, at(2), progress("a0", tokens=5_000), progress("b0", tokens=10))

    assert sent(scheduler, 3, completed("b0")) == ["b1"]
