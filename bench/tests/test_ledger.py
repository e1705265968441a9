"""Tests for the ledger benchmarks' data and checks."""

from collections import Counter
from dataclasses import replace
from datetime import date

from bench.ledger_faults import ANSWERS_MIN, Figures, body_is_whole, problems_of
from bench.ledger_fill import endpoint_times, requests
from headgate.ledger.rows import day_of, pack_usage, unpack_record

DAY = date(2026, 11, 15)


def test_filled_day_has_requested_rows_without_duplicates() -> None:
    rows = [row for request in requests(5_000, DAY) for row in request]

    assert len(rows) == 5_000
    assert {day_of(row.at) for row in rows} == {DAY}
    assert max(Counter((row.request, row.attempt) for row in rows).values()) == 1
    assert Counter(row.request for row in rows if row.attempt <= 1).keys() == {row.request for row in rows}
    assert {row.outcome for row in rows} == {"completed", "rate_limited", "cancelled"}


def test_filled_day_depends_only_on_date() -> None:
    one, again, other = (list(requests(50, day)) for day in (DAY, DAY, date(2026, 11, 14)))

    assert one == again
    assert one[0][0].request != other[0][0].request


def test_filled_rows_can_be_packed_and_unpacked() -> None:
    rows = [row for request in requests(200, DAY) for row in request]

    assert unpack_record(pack_usage(rows)).usage == tuple(rows)


def test_endpoint_times_cover_full_day() -> None:
    times = endpoint_times(DAY)

    assert {day_of(row.at) for row in times} == {DAY}
    assert {sum(row.total_us for row in times if row.endpoint == name) for name in {row.endpoint for row in times}} == {
        86_400_000_000
    }


def test_truncated_response_is_detected_by_its_end() -> None:
    assert body_is_whole(b'data: {"a": 1}\n\ndata: [DONE]\n\n')
    assert body_is_whole(b'{"a": 1}')
    assert not body_is_whole(b'data: {"a": 1}\n\n')
    assert not body_is_whole(b'{"a": 1')


def test_problems_of_rejects_runs_without_responses() -> None:
    good = Figures(rows=ANSWERS_MIN + 5, requests=ANSWERS_MIN, engine_tokens=10)

    assert problems_of(good) == []
    assert len(problems_of(Figures())) == 2
    assert len(problems_of(replace(good, lost=1, doubled=2, sums_differ=3, difference_ppm=2e3))) == 4
    assert len(problems_of(replace(good, rows=1))) == 1
