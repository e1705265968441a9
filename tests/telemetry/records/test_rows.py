"""Explanations from stored rows equal those from memory."""

import pytest

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.telemetry.explanation import explain
from headgate.telemetry.records.record_explanation import explain_row, search_entry
from headgate.telemetry.records.row import decode_row, encode_row, row_of, stages_of
from headgate.telemetry.stages.stage_budget import ClassStageBudget
from testing.records import a_record, an_attempt
from tests.telemetry.histories import HISTORIES, ID, START, observed


@pytest.mark.parametrize("name", HISTORIES)
def test_row_yields_the_same_explanation_as_its_history(name: str) -> None:
    decisions = observed(HISTORIES[name])
    picture = decisions.snapshot(ID)
    assert picture is not None
    record = a_record(request_id=ID, arrived_at=START, ended_ms=40_000, client_retries=picture.history.client_retries)
    record.prompt_bytes, record.tenant = picture.history.prompt_bytes, picture.history.tenant
    record.stream = picture.history.stream

    row = decode_row(encode_row(row_of(record, picture.history, decisions.context_events(picture.history))))

    over = Instant(START + 40 * SECOND)
    assert explain_row(row, picture.requests[:-1], incomplete=False) == explain(picture, over)


def test_count_of_other_requests_is_a_lower_bound_if_histories_were_evicted() -> None:
    decisions = observed(HISTORIES["waited, then completed"])
    picture = decisions.snapshot(ID)
    assert picture is not None
    row = row_of(a_record(request_id=ID, arrived_at=START, ended_ms=4_000), picture.history)

    assert "at least 17 other requests" in str(explain_row(row, picture.requests, incomplete=True)["summary"])


def test_request_ending_before_scheduling_is_explained_from_its_record() -> None:
    record = a_record(outcome=Outcome.UNAUTHORIZED, tenant=None, class_name=None, reason="no such key", status=401)
    record.waited_ns = 0
    told = explain_row(row_of(record, None), (), incomplete=False)

    assert (
        told["summary"]
        == f"{record.request_id} (unknown tenant) ended before scheduling after 100 ms with unauthorized: no such key."
    )
    assert (told["class"], told["outcome"]) == (None, "unauthorized")


def test_search_result_lists_stages_and_budgets() -> None:
    record = a_record(an_attempt(), caller_stages=(("retrieval", 3 * MILLISECOND),), trace_id=bytes(16))
    budget = ClassStageBudget({Stage.PREFILL: Duration(MILLISECOND)}, ttft_ns=Duration(MILLISECOND))
    told = search_entry(row_of(record, None), budget)

    assert (told["over_budget"], told["missed_targets"]) == (["prefill"], {"ttft": "prefill"})
    assert told["budget"] == {"stages": {"prefill": 1.0}, "ttft_ms": 1.0, "duration_ms": None}
    assert told["caller_stages"] == [{"stage": "retrieval", "duration_ms": 3.0}]
    assert told["trace_id"] == 32 * "0"
    stages = told["stages"]
    assert isinstance(stages, list)
    assert stages[-1] == {"stage": "settle", "attempt": None, "at_ms": 99.0, "duration_ms": 1.0}
    assert sum(each["duration_ms"] for each in stages) == pytest.approx(100.0)


def test_unknown_stage_is_skipped() -> None:
    row = row_of(a_record(an_attempt()), None)
    row.stages.append(type(row.stages[0])("dreaming", None, 0, 1))

    assert len(stages_of(row)) == len(row.stages) - 1


def test_long_texts_are_truncated() -> None:
    attempt = an_attempt(detail="d" * 5_000)
    row = row_of(a_record(attempt, reason="r" * 5_000, model="m" * 5_000), None)

    assert (len(row.reason), len(row.model), len(row.attempts[0].detail)) == (600, 200, 600)
