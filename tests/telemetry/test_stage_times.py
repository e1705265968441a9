"""Do the stages of a request add up to its whole length, whatever became of it?"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.events import AttemptEnding
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.times import attempt_times, stage_times
from testing.records import BEGAN, a_record, an_attempt, at

MOMENTS = st.one_of(st.just(0), st.integers(BEGAN - 5, BEGAN + 1_000))


def told(record: RequestRecord) -> list[tuple[str, int | None, float]]:
    return [
        (piece.stage.value, piece.attempt, (piece.end - piece.begin) / MILLISECOND) for piece in stage_times(record)
    ]


def test_a_stream_goes_through_all_stages() -> None:
    assert told(a_record(an_attempt(), received_ms=1.5)) == [
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


def test_every_stage_there_is_can_be_told() -> None:
    assert {piece.stage for piece in stage_times(a_record(an_attempt()))} == set(Stage)


def test_what_is_tried_again_goes_through_its_last_stages_again() -> None:
    failed = an_attempt(1, first_byte_ms=None, last_byte_ms=None, ended_ms=30, ending=AttemptEnding.FAILED)
    again = an_attempt(2, ordered_ms=40, waited_ms=7, connected_ms=41, first_byte_ms=50)

    assert told(a_record(failed, again))[3:10] == [
        ("queue", 1, 2),
        ("route", 1, 1),
        ("connect", 1, 1),
        ("prefill", 1, 24),
        ("queue", 2, 5),
        ("route", 2, 5),
        ("connect", 2, 1),
    ]


def test_stages_of_a_retry_follow_those_of_a_buffered_response_that_broke_off() -> None:
    broken = an_attempt(1, held_back=True, last_byte_ms=None, ended_ms=30, ending=AttemptEnding.FAILED)
    again = an_attempt(2, ordered_ms=40, waited_ms=7, connected_ms=41, first_byte_ms=50)

    assert told(a_record(broken, again))[5:12] == [
        ("connect", 1, 1),
        ("prefill", 1, 14),
        ("decode", 1, 10),
        ("queue", 2, 5),
        ("route", 2, 5),
        ("connect", 2, 1),
        ("prefill", 2, 9),
    ]


def test_what_could_not_connect_spent_it_on_that() -> None:
    failed = an_attempt(connected_ms=None, first_byte_ms=None, last_byte_ms=None, ending=AttemptEnding.FAILED)

    assert ("connect", 1, 86) in told(a_record(failed))


def test_what_broke_off_was_answered_up_to_there() -> None:
    broken = an_attempt(last_byte_ms=None, ended_ms=60, ending=AttemptEnding.FAILED)

    assert ("decode", 1, 40) in told(a_record(broken))


def test_the_hedge_that_spoke_counts_from_when_it_was_ordered() -> None:
    silent = an_attempt(1, first_byte_ms=None, last_byte_ms=None, ended_ms=61, ending=AttemptEnding.ABORTED)
    hedge = an_attempt(2, ordered_ms=40, hedge=True, connected_ms=42, first_byte_ms=60)

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


def test_a_hedge_that_came_to_nothing_takes_no_time() -> None:
    hedge = an_attempt(
        2, ordered_ms=15, hedge=True, first_byte_ms=None, last_byte_ms=None, ended_ms=21, ending=AttemptEnding.ABORTED
    )

    assert told(a_record(an_attempt(), hedge)) == told(a_record(an_attempt()))
    assert [piece.stage for piece in attempt_times(hedge, at(100))] == [Stage.PREFILL]


def test_what_is_turned_away_ends_in_the_stage_it_was_in() -> None:
    nothing: dict[str, Any] = {"queued_ms": None, "replied_ms": 9, "ended_ms": 10}

    assert told(a_record(**nothing, authorised_ms=None))[-2:] == [("auth", None, 8.5), ("settle", None, 1)]
    assert told(a_record(**nothing, received_ms=None))[-2:] == [("ingress", None, 8), ("settle", None, 1)]
    assert told(a_record(**nothing, received_ms=2))[-2:] == [("classify", None, 7), ("settle", None, 1)]


def test_who_leaves_the_queue_has_waited_in_it() -> None:
    left = a_record(replied_ms=None, waited_ns=97 * MILLISECOND)

    assert told(left)[-2:] == [("queue", None, 97), ("route", None, 1)]


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    attempts = [
        an_attempt(number + 1, waited_ns=draw(st.integers(0, 500)), ending=draw(st.sampled_from(AttemptEnding)))
        for number in range(draw(st.integers(0, 4)))
    ]
    for attempt in attempts:
        attempt.ordered_at = draw(st.integers(BEGAN, BEGAN + 1_000))
        attempt.connected_at, attempt.first_byte_at = draw(MOMENTS), draw(MOMENTS)
        attempt.last_byte_at, attempt.ended_at = draw(MOMENTS), draw(MOMENTS)
        attempt.held_back = draw(st.booleans())
    record = a_record(*attempts, waited_ns=draw(st.integers(0, 2_000)))
    record.ended_at = draw(st.integers(BEGAN, BEGAN + 1_000))
    record.headed_at, record.authorised_at, record.received_at = draw(MOMENTS), draw(MOMENTS), draw(MOMENTS)
    record.queued_at, record.replied_at = draw(MOMENTS), draw(MOMENTS)
    return record


@given(records())
def test_the_lengths_add_up_to_the_whole(record: RequestRecord) -> None:
    pieces = stage_times(record)

    assert sum(piece.end - piece.begin for piece in pieces) == record.ended_at - record.started_at
    ends = [record.started_at, *(piece.end for piece in pieces)]
    assert [piece.begin for piece in pieces] == ends[:-1], "each begins where the one before ended"
    assert all(piece.begin < piece.end for piece in pieces)
