"""Is a request told from its row as it would have been told at once?"""

import pytest

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.telemetry.explanation import explained
from headgate.telemetry.records.row import decoded, encoded, row_of, stages_of
from headgate.telemetry.records.telling import listed, told_by_row
from headgate.telemetry.stages.budget import ClassBudget
from testing.records import a_record, an_attempt
from tests.telemetry.histories import HISTORIES, ID, START, observed


@pytest.mark.parametrize("name", HISTORIES)
def test_every_history_is_told_as_it_was(name: str) -> None:
    decisions = observed(HISTORIES[name])
    picture = decisions.picture(ID)
    assert picture is not None
    record = a_record(request_id=ID, arrived=START, ended_ms=40_000, client_retries=picture.history.client_retries)
    record.prompt_bytes, record.tenant = picture.history.prompt_bytes, picture.history.tenant
    record.stream = picture.history.stream

    row = decoded(encoded(row_of(record, picture.history, decisions.around(picture.history))))

    over = Instant(START + 40 * SECOND)
    assert told_by_row(row, picture.requests[:-1], forgotten=False) == explained(picture, over)


def test_more_that_were_sent_than_are_known_are_told_as_at_least_so_many() -> None:
    decisions = observed(HISTORIES["waited, then completed"])
    picture = decisions.picture(ID)
    assert picture is not None
    row = row_of(a_record(request_id=ID, arrived=START, ended_ms=4_000), picture.history)

    assert "at least 17 others" in str(told_by_row(row, picture.requests, forgotten=True)["summary"])


def test_what_ended_at_the_door_is_told_by_its_record() -> None:
    record = a_record(outcome=Outcome.UNAUTHORIZED, tenant=None, class_name=None, reason="no such key", status=401)
    record.waited_ns = 0
    told = told_by_row(row_of(record, None), (), forgotten=False)

    assert (
        told["summary"]
        == f"{record.request_id} of an unknown caller ended at the door after 100 ms as unauthorized: no such key."
    )
    assert (told["class"], told["outcome"]) == (None, "unauthorized")


def test_a_row_says_where_the_time_went() -> None:
    record = a_record(an_attempt(), caller_stages=(("retrieval", 3 * MILLISECOND),), trace_id=bytes(16))
    budget = ClassBudget({Stage.PREFILL: Duration(MILLISECOND)}, ttft_ns=Duration(MILLISECOND))
    told = listed(row_of(record, None), budget)

    assert (told["over_budget"], told["late"]) == (["prefill"], {"ttft": "prefill"})
    assert told["budget"] == {"stages": {"prefill": 1.0}, "ttft_ms": 1.0, "duration_ms": None}
    assert told["caller_stages"] == [{"stage": "retrieval", "took_ms": 3.0}]
    assert told["trace_id"] == 32 * "0"
    stages = told["stages"]
    assert isinstance(stages, list)
    assert stages[-1] == {"stage": "settle", "attempt": None, "at_ms": 99.0, "took_ms": 1.0}
    assert sum(each["took_ms"] for each in stages) == pytest.approx(100.0)


def test_a_stage_of_another_version_is_passed_over() -> None:
    row = row_of(a_record(an_attempt()), None)
    row.stages.append(type(row.stages[0])("dreaming", None, 0, 1))

    assert len(stages_of(row)) == len(row.stages) - 1


def test_long_texts_are_cut() -> None:
    attempt = an_attempt(detail="d" * 5_000)
    row = row_of(a_record(attempt, reason="r" * 5_000, model="m" * 5_000), None)

    assert (len(row.reason), len(row.model), len(row.attempts[0].detail)) == (600, 200, 600)
