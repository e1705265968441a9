"""A request's stages add up to its total duration, whatever its outcome."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.events import AttemptEnding
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.stage_times import attempt_times, stage_times
from testing.records import BEGAN, a_record, an_attempt, at

MOMENTS = st.one_of(st.just(0), st.integers(BEGAN - 5, BEGAN + 1_000))


def told(record: RequestRecord) -> list[tuple[str, int | None, float]]:
    return [
        (piece.stage.value, piece.attempt, (piece.end - piece.begin) / MILLISECOND) for piece in stage_times(record)
    ]


def test_stream_has_all_stages_in_order() -> None:
    assert told(a_record(an_attempt(), body_received_ms=1.5)) == [
        ("ingress", None, 0.5),
        ("auth", None, 0.5),
        ("ingress", None, 0.5),
        ("classify", None, 0.5),
        ("queue", 1, 2),
        ("route", 1, 1),
        ("connect", 1, 1),
        ("prefill", 1, 14),
        ("decode", 1, 70),
        ("post_processing", None, 9),
        ("settle", None, 1),
    ]


def test_every_stage_can_occur() -> None:
    assert {piece.stage for piece in stage_times(a_record(an_attempt()))} == set(Stage)


def test_retry_repeats_the_stages_starting_with_the_queue() -> None:
    failed = an_attempt(1, first_byte_ms=None, last_byte_ms=None, ended_ms=30, ending=AttemptEnding.FAILED)
    again = an_attempt(2, dispatched_ms=40, waited_ms=7, sent_ms=41, first_byte_ms=50)

    assert told(a_record(failed, again))[3:10] == [
        ("queue", 1, 2),
        ("route", 1, 1),
        ("connect", 1, 1),
        ("prefill", 1, 24),
        ("queue", 2, 5),
        ("route", 2, 5),
        ("connect", 2, 1),
    ]


def test_retry_stages_follow_the_stages_of_a_truncated_buffered_response() -> None:
    broken = an_attempt(1, buffered=True, last_byte_ms=None, ended_ms=30, ending=AttemptEnding.FAILED)
    again = an_attempt(2, dispatched_ms=40, waited_ms=7, sent_ms=41, first_byte_ms=50)

    assert told(a_record(broken, again))[5:12] == [
        ("connect", 1, 1),
        ("prefill", 1, 14),
        ("decode", 1, 10),
        ("queue", 2, 5),
        ("route", 2, 5),
        ("connect", 2, 1),
        ("prefill", 2, 9),
    ]


def test_failed_connection_is_counted_as_connect_time() -> None:
    failed = an_attempt(sent_ms=None, first_byte_ms=None, last_byte_ms=None, ending=AttemptEnding.FAILED)

    assert ("connect", 1, 86) in told(a_record(failed))


def test_truncated_response_is_counted_as_decode_until_it_ends() -> None:
    broken = an_attempt(last_byte_ms=None, ended_ms=60, ending=AttemptEnding.FAILED)

    assert ("decode", 1, 40) in told(a_record(broken))


def test_winning_hedge_is_measured_from_its_dispatch() -> None:
    silent = an_attempt(1, first_byte_ms=None, last_byte_ms=None, ended_ms=61, ending=AttemptEnding.ABORTED)
    hedge = an_attempt(2, dispatched_ms=40, hedge=True, sent_ms=42, first_byte_ms=60)

    assert told(a_record(silent, hedge))[3:] == [
        ("queue", 1, 2),
        ("route", 1, 1),
        ("connect", 1, 1),
        ("prefill", 1, 34),
        ("connect", 2, 2),
        ("prefill", 2, 18),
        ("decode", 2, 30),
        ("post_processing", None, 9),
        ("settle", None, 1),
    ]


def test_losing_hedge_adds_no_time_to_the_request() -> None:
    hedge = an_attempt(
        2,
        dispatched_ms=15,
        hedge=True,
        first_byte_ms=None,
        last_byte_ms=None,
        ended_ms=21,
        ending=AttemptEnding.ABORTED,
    )

    assert told(a_record(an_attempt(), hedge)) == told(a_record(an_attempt()))
    assert [piece.stage for piece in attempt_times(hedge, at(100))] == [Stage.PREFILL]


def test_rejected_request_ends_in_its_current_stage() -> None:
    nothing: dict[str, Any] = {"queued_ms": None, "replied_ms": 9, "ended_ms": 10}

    assert told(a_record(**nothing, authenticated_ms=None))[-2:] == [("auth", None, 8.5), ("settle", None, 1)]
    assert told(a_record(**nothing, body_received_ms=None))[-2:] == [("ingress", None, 8), ("settle", None, 1)]
    assert told(a_record(**nothing, body_received_ms=2))[-2:] == [("classify", None, 7), ("settle", None, 1)]


def test_request_cancelled_in_the_queue_has_a_queue_stage() -> None:
    left = a_record(replied_ms=None, waited_ns=97 * MILLISECOND)

    assert told(left)[-2:] == [("queue", None, 97), ("route", None, 1)]


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    attempts = [
        an_attempt(number + 1, waited_ns=draw(st.integers(0, 500)), ending=draw(st.sampled_from(AttemptEnding)))
        for number in range(draw(st.integers(0, 4)))
    ]
    for attempt in attempts:
        attempt.dispatched_at = draw(st.integers(BEGAN, BEGAN + 1_000))
        attempt.sent_at, attempt.first_byte_at = draw(MOMENTS), draw(MOMENTS)
        attempt.last_byte_at, attempt.ended_at = draw(MOMENTS), draw(MOMENTS)
        attempt.buffered = draw(st.booleans())
    record = a_record(*attempts, waited_ns=draw(st.integers(0, 2_000)))
    record.ended_at = draw(st.integers(BEGAN, BEGAN + 1_000))
    record.head_received_at, record.authenticated_at, record.body_received_at = (
        draw(MOMENTS),
        draw(MOMENTS),
        draw(MOMENTS),
    )
    record.queued_at, record.replied_at = draw(MOMENTS), draw(MOMENTS)
    return record


@given(records())
def test_stages_are_contiguous_and_add_up_to_the_request_duration(record: RequestRecord) -> None:
    pieces = stage_times(record)

    assert sum(piece.end - piece.begin for piece in pieces) == record.ended_at - record.started_at
    ends = [record.started_at, *(piece.end for piece in pieces)]
    assert [piece.begin for piece in pieces] == ends[:-1], "the stages are not contiguous"
    assert all(piece.begin < piece.end for piece in pieces)
