"""Records are counted, retained and written without delaying requests."""

import logging
from pathlib import Path

import pytest
from msgspec import structs

from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.telemetry.decision_history import DecisionHistory
from headgate.telemetry.records.archive import RecordArchive
from headgate.telemetry.records.record_explanation import explain_row
from headgate.telemetry.records.record_keeper import RECENT_MAX, RecordKeeper
from headgate.telemetry.records.row import history_of, row_of
from headgate.telemetry.records.search import RecordFilter
from headgate.telemetry.records.segment_writer import SegmentWriter
from headgate.telemetry.records.stats import records_metrics
from headgate.telemetry.stages.stage_budget import ClassStageBudget
from headgate.telemetry.stages.stage_meters import StageMeters
from testing.records import ARRIVED, a_record, an_attempt
from tests.telemetry.histories import HISTORIES, ID, START, at, observed

DAY = Duration(86_400 * SECOND)


def now() -> Instant:
    return Instant(ARRIVED)


def a_keeper(folder: Path | None = None, decisions: DecisionHistory | None = None, **limits: int) -> RecordKeeper:
    writer = None if folder is None else SegmentWriter(folder, "own", retention_ns=DAY, bytes_max=1 << 30)
    return RecordKeeper(decisions or DecisionHistory(), StageMeters(), now, writer, **limits)


def test_thread_counts_and_writes_records(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path)
    keeper.start()
    for number in range(20):
        keeper.add(a_record(an_attempt(), request_id=f"req_{number}"))
    keeper.stop()

    figures = keeper.stats()
    assert (figures.written, figures.dropped, figures.waiting, figures.problem) == (20, 0, 0, None)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".rows"]


def test_recent_records_are_kept_without_a_directory() -> None:
    keeper = a_keeper()
    for number in range(RECENT_MAX + 1):
        keeper.add(a_record(request_id=f"req_{number}"))

    assert not keeper.stats().in_files
    assert keeper.recent("req_0") is None
    assert keeper.recent("req_1") is not None
    assert [each.request_id for each in keeper.recent_records(2)] == [f"req_{RECENT_MAX}", f"req_{RECENT_MAX - 1}"]


def test_records_beyond_the_queue_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path, waiting_max=3)
    for number in range(5):
        keeper.add(a_record(request_id=f"req_{number}"))
    assert (keeper.waiting, keeper.dropped) == (3, 2)
    keeper.process_waiting()
    assert (keeper.waiting, keeper.written) == (0, 3)


def test_unwritable_directory_is_logged_once_and_records_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own").write_text("not a directory")
    keeper = a_keeper(tmp_path)
    with caplog.at_level(logging.WARNING, logger="headgate"):
        for number in range(2):
            keeper.add(a_record(request_id=f"req_{number}"))
            keeper.process_waiting()

    figures = keeper.stats()
    assert (figures.written, figures.dropped) == (0, 2)
    [message] = [each.message for each in caplog.records]
    assert message == figures.problem
    assert message.startswith("records cannot be written: ")
    (tmp_path / "own").unlink()
    keeper.add(a_record())
    keeper.process_waiting()
    assert keeper.stats().problem is None


def test_dropped_records_are_counted_without_a_directory() -> None:
    keeper = a_keeper(waiting_max=1)
    for number in range(3):
        keeper.add(a_record(request_id=f"req_{number}"))

    told = [family.definition.name for family in records_metrics(keeper.stats())]
    assert keeper.stats().dropped == 2
    assert told == ["headgate_records_dropped_total", "headgate_records_waiting"]


def test_record_with_an_internal_error_is_dropped_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = a_keeper(tmp_path)
    keeper.start()
    with caplog.at_level(logging.ERROR, logger="headgate"):
        for number in range(6):
            record = a_record(an_attempt(), request_id=f"req_{number}")
            if number in (1, 2):
                record.attempts.append(None)  # type: ignore[arg-type]
            if number == 3:
                record.output_tokens = 10**30
            keeper.add(record)
        keeper.stop()

    assert (keeper.written, keeper.dropped) == (3, 3)
    assert [each.message for each in caplog.records] == ["internal error; affected records are dropped and counted"]


def archive_of(folder: Path | None, decisions: DecisionHistory, keeper: RecordKeeper) -> RecordArchive:
    archive = RecordArchive(decisions, keeper, folder=folder, retention_ns=DAY)
    archive.budgets = {"interactive": ClassStageBudget(ttft_ns=Duration(MILLISECOND))}
    return archive


@pytest.mark.parametrize("name", HISTORIES)
def test_next_process_returns_the_same_explanation(tmp_path: Path, name: str) -> None:
    decisions = observed(HISTORIES[name])
    keeper = a_keeper(tmp_path, decisions)
    for history in decisions.snapshot(ID).requests:  # type: ignore[union-attr]
        waited_ns = sum(step.waited_ns for _, step in history.steps if hasattr(step, "waited_ns"))
        record = a_record(request_id=history.request_id, arrived_at=history.arrived_at, ended_ms=40_000)
        record.tenant, record.prompt_bytes, record.waited_ns = history.tenant, history.prompt_bytes, waited_ns
        record.client_retries, record.stream = history.client_retries, history.stream
        keeper.add(record)
    if keeper.recent(ID) is None:
        record = a_record(request_id=ID, arrived_at=START, ended_ms=40_000)
        record.prompt_bytes, record.client_retries = 1_234, 1
        keeper.add(record)
    before = archive_of(tmp_path, decisions, keeper).explain(ID, at(40))()
    keeper.process_waiting()

    after = archive_of(tmp_path, DecisionHistory(), a_keeper()).explain(ID, at(99))()

    assert after == before
    assert before[0]


def test_search_covers_memory_and_files_without_duplicates(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path)
    keeper.add(a_record(an_attempt(), request_id="req_written"))
    keeper.process_waiting()
    keeper.add(a_record(an_attempt(), request_id="req_waiting", arrived_at=ARRIVED + 1))
    keeper.add(a_record(an_attempt(), request_id="req_another", tenant="bolt"))
    archive = archive_of(tmp_path, DecisionHistory(), keeper)

    found = archive.search(RecordFilter(ARRIVED, ARRIVED + 10, tenant="acme"))()

    listed = found["requests"]
    assert isinstance(listed, list)
    assert [each["request_id"] for each in listed] == ["req_waiting", "req_written"]
    assert found["complete"] is True


def test_unknown_request_error_mentions_the_file_retention(tmp_path: Path) -> None:
    known, told = archive_of(tmp_path, DecisionHistory(), a_keeper()).explain("req_x", at(0))()

    assert not known
    assert "Requests are kept in files for 24 hours" in str(told["error"])


def test_search_is_incomplete_if_records_were_evicted() -> None:
    keeper = a_keeper(recent_max=2)
    for number in range(3):
        keeper.add(a_record(request_id=f"req_{number}", arrived_at=ARRIVED + number))
    archive = archive_of(None, DecisionHistory(), keeper)

    assert archive.search(RecordFilter(ARRIVED, ARRIVED + 10))()["complete"] is False
    assert archive.search(RecordFilter(ARRIVED + 1, ARRIVED + 10))()["complete"] is True


def test_request_with_an_evicted_history_is_explained_from_its_attempts() -> None:
    record = a_record(an_attempt(), request_id="req_long")
    record.waited_ns = 2 * SECOND

    told = explain_row(row_of(record, None), (), incomplete=False)

    assert "before scheduling" not in str(told["summary"])
    assert f"waited 2 s; was sent to {record.attempts[0].endpoint_id}" in str(told["summary"])
    steps = told["steps"]
    assert isinstance(steps, list)
    assert [step["kind"] for step in steps] == ["arrived", "queued", "dispatched", "ended"]
    assert steps[-1]["attempts"] == 1


def test_row_with_an_unknown_api_is_explained_from_its_record() -> None:
    decisions = observed(HISTORIES[next(iter(HISTORIES))])
    row = structs.replace(row_of(a_record(), decisions.history(ID)), api="telepathy")

    assert history_of(row) is None
    assert explain_row(row, (), incomplete=False)["request_id"] == row.key.request_id
