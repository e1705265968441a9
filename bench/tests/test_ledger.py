"""Do the benchmarks of the ledger make and judge what they say?"""

from collections import Counter
from dataclasses import replace
from datetime import date

from bench.ledger_faults import ANSWERS_MIN, Figures, body_is_whole, problems_of
from bench.ledger_fill import endpoint_times, requests
from headgate.ledger.rows import day_of, packed_usage, unpacked

DAY = date(2026, 11, 15)


def test_a_filled_day_has_so_many_rows_all_of_that_day_and_each_request_counts_once() -> None:
    rows = [row for request in requests(5_000, DAY) for row in request]

    assert len(rows) == 5_000
    assert {day_of(row.at) for row in rows} == {DAY}
    assert max(Counter((row.request, row.attempt) for row in rows).values()) == 1
    assert Counter(row.request for row in rows if row.attempt <= 1).keys() == {row.request for row in rows}
    assert {row.outcome for row in rows} == {"completed", "rate_limited", "cancelled"}


def test_the_same_day_is_filled_alike_and_another_is_not() -> None:
    one, again, other = (list(requests(50, day)) for day in (DAY, DAY, date(2026, 11, 14)))

    assert one == again
    assert one[0][0].request != other[0][0].request


def test_its_rows_are_as_those_of_a_gateway() -> None:
    rows = [row for request in requests(200, DAY) for row in request]

    assert unpacked(packed_usage(rows)).usage == tuple(rows)


def test_endpoints_are_there_for_the_whole_day() -> None:
    times = endpoint_times(DAY)

    assert {day_of(row.at) for row in times} == {DAY}
    assert {sum(row.whole_us for row in times if row.endpoint == name) for name in {row.endpoint for row in times}} == {
        86_400_000_000
    }


def test_an_answer_is_whole_by_its_end() -> None:
    assert body_is_whole(b'data: {"a": 1}\n\ndata: [DONE]\n\n')
    assert body_is_whole(b'{"a": 1}')
    assert not body_is_whole(b'data: {"a": 1}\n\n')
    assert not body_is_whole(b'{"a": 1')


def test_a_run_in_which_nobody_was_answered_proves_nothing() -> None:
    good = Figures(rows=ANSWERS_MIN + 5, requests=ANSWERS_MIN, engine_tokens=10)

    assert problems_of(good) == []
    assert len(problems_of(Figures())) == 2
    assert len(problems_of(replace(good, lost=1, doubled=2, sums_differ=3, difference_ppm=2e3))) == 4
    assert len(problems_of(replace(good, rows=1))) == 1
