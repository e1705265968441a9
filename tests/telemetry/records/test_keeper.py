"""Is every record counted and kept, and does nobody wait for it?"""

import logging
from pathlib import Path

import pytest
from msgspec import structs

from headgate.model.units import MILLISECOND, SECOND, Duration, Instant
from headgate.telemetry.decisions import Decisions
from headgate.telemetry.records.archive import Archive
from headgate.telemetry.records.figures import records_metrics
from headgate.telemetry.records.folder import Writer
from headgate.telemetry.records.keeper import RECENT_MAX, Keeper
from headgate.telemetry.records.row import history_of, row_of
from headgate.telemetry.records.search import Wanted
from headgate.telemetry.records.telling import told_by_row
from headgate.telemetry.stages.budget import ClassBudget
from headgate.telemetry.stages.meters import StageMeters
from testing.records import ARRIVED, a_record, an_attempt
from tests.telemetry.histories import HISTORIES, ID, START, at, observed

DAY = Duration(86_400 * SECOND)


def now() -> Instant:
    return Instant(ARRIVED)


def a_keeper(folder: Path | None = None, decisions: Decisions | None = None, **limits: int) -> Keeper:
    writer = None if folder is None else Writer(folder, "own", retention_ns=DAY, bytes_max=1 << 30)
    return Keeper(decisions or Decisions(), StageMeters(), now, writer, **limits)


def test_what_is_taken_is_counted_and_written_by_the_thread(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path)
    keeper.start()
    for number in range(20):
        keeper.take(a_record(an_attempt(), request_id=f"req_{number}"))
    keeper.stop()

    figures = keeper.figures()
    assert (figures.written, figures.dropped, figures.waiting, figures.problem) == (20, 0, 0, None)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".rows"]


def test_without_a_folder_the_last_are_known_all_the_same() -> None:
    keeper = a_keeper()
    for number in range(RECENT_MAX + 1):
        keeper.take(a_record(request_id=f"req_{number}"))

    assert not keeper.figures().in_files
    assert keeper.recent("req_0") is None
    assert keeper.recent("req_1") is not None
    assert [each.request_id for each in keeper.recents(2)] == [f"req_{RECENT_MAX}", f"req_{RECENT_MAX - 1}"]


def test_more_than_can_wait_is_dropped_and_counted(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path, waiting_max=3)
    for number in range(5):
        keeper.take(a_record(request_id=f"req_{number}"))
    assert (keeper.waiting, keeper.dropped) == (3, 2)
    keeper.work()
    assert (keeper.waiting, keeper.written) == (0, 3)


def test_a_folder_that_cannot_be_written_is_told_once_and_nothing_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own").write_text("no folder")
    keeper = a_keeper(tmp_path)
    with caplog.at_level(logging.WARNING, logger="headgate"):
        for number in range(2):
            keeper.take(a_record(request_id=f"req_{number}"))
            keeper.work()

    figures = keeper.figures()
    assert (figures.written, figures.dropped) == (0, 2)
    [message] = [each.message for each in caplog.records]
    assert message == figures.problem
    assert message.startswith("records cannot be written: ")
    (tmp_path / "own").unlink()
    keeper.take(a_record())
    keeper.work()
    assert keeper.figures().problem is None


def test_without_a_folder_what_cannot_wait_is_counted_too() -> None:
    keeper = a_keeper(waiting_max=1)
    for number in range(3):
        keeper.take(a_record(request_id=f"req_{number}"))

    told = [family.described.name for family in records_metrics(keeper.figures())]
    assert keeper.figures().dropped == 2
    assert told == ["headgate_records_dropped_total", "headgate_records_waiting"]


def test_one_record_that_meets_a_mistake_is_dropped_told_once_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = a_keeper(tmp_path)
    keeper.start()
    with caplog.at_level(logging.ERROR, logger="headgate"):
        for number in range(6):
            record = a_record(an_attempt(), request_id=f"req_{number}")
            if number in (1, 2):
                record.attempts = None  # type: ignore[assignment]
            if number == 3:
                record.output_tokens = 10**30
            keeper.take(record)
        keeper.stop()

    assert (keeper.written, keeper.dropped) == (3, 3)
    assert [each.message for each in caplog.records] == [
        "this is a mistake in Headgate; records that meet it are dropped and counted"
    ]


def archive_of(folder: Path | None, decisions: Decisions, keeper: Keeper) -> Archive:
    archive = Archive(decisions, keeper, folder=folder, retention_ns=DAY)
    archive.budgets = {"interactive": ClassBudget(ttft_ns=Duration(MILLISECOND))}
    return archive


@pytest.mark.parametrize("name", HISTORIES)
def test_whoever_comes_after_tells_the_same(tmp_path: Path, name: str) -> None:
    decisions = observed(HISTORIES[name])
    keeper = a_keeper(tmp_path, decisions)
    for history in decisions.picture(ID).requests:  # type: ignore[union-attr]
        waited_ns = sum(step.waited_ns for _, step in history.steps if hasattr(step, "waited_ns"))
        record = a_record(request_id=history.request_id, arrived=history.arrived_at, ended_ms=40_000)
        record.tenant, record.prompt_bytes, record.waited_ns = history.tenant, history.prompt_bytes, waited_ns
        record.client_retries, record.stream = history.client_retries, history.stream
        keeper.take(record)
    if keeper.recent(ID) is None:
        record = a_record(request_id=ID, arrived=START, ended_ms=40_000)
        record.prompt_bytes, record.client_retries = 1_234, 1
        keeper.take(record)
    before = archive_of(tmp_path, decisions, keeper).explain(ID, at(40))()
    keeper.work()

    after = archive_of(tmp_path, Decisions(), a_keeper()).explain(ID, at(99))()

    assert after == before
    assert before[0]


def test_memory_and_files_are_searched_together_each_request_once(tmp_path: Path) -> None:
    keeper = a_keeper(tmp_path)
    keeper.take(a_record(an_attempt(), request_id="req_written"))
    keeper.work()
    keeper.take(a_record(an_attempt(), request_id="req_waiting", arrived=ARRIVED + 1))
    keeper.take(a_record(an_attempt(), request_id="req_another", tenant="bolt"))
    archive = archive_of(tmp_path, Decisions(), keeper)

    found = archive.search(Wanted(ARRIVED, ARRIVED + 10, tenant="acme"))()

    listed = found["requests"]
    assert isinstance(listed, list)
    assert [each["request_id"] for each in listed] == ["req_waiting", "req_written"]
    assert found["whole"] is True


def test_one_that_nobody_knows_is_told_how_long_files_keep(tmp_path: Path) -> None:
    known, told = archive_of(tmp_path, Decisions(), a_keeper()).explain("req_x", at(0))()

    assert not known
    assert "of the last 24 hours?" in str(told["error"])


def test_where_requests_were_forgotten_a_search_says_that_there_may_be_more() -> None:
    keeper = a_keeper(recent_max=2)
    for number in range(3):
        keeper.take(a_record(request_id=f"req_{number}", arrived=ARRIVED + number))
    archive = archive_of(None, Decisions(), keeper)

    assert archive.search(Wanted(ARRIVED, ARRIVED + 10))()["whole"] is False
    assert archive.search(Wanted(ARRIVED + 1, ARRIVED + 10))()["whole"] is True


def test_one_whose_history_was_forgotten_is_told_by_its_tries_and_not_as_turned_away() -> None:
    record = a_record(an_attempt(), request_id="req_long")
    record.waited_ns = 2 * SECOND

    told = told_by_row(row_of(record, None), (), forgotten=False)

    assert "at the door" not in str(told["summary"])
    assert f"waited 2 s; went to {record.attempts[0].endpoint_id}" in str(told["summary"])
    steps = told["steps"]
    assert isinstance(steps, list)
    assert [step["kind"] for step in steps] == ["arrived", "queued", "dispatched", "ended"]
    assert steps[-1]["attempts"] == 1


def test_a_row_of_a_kind_that_only_a_newer_version_knows_is_told_by_its_record() -> None:
    decisions = observed(HISTORIES[next(iter(HISTORIES))])
    row = structs.replace(row_of(a_record(), decisions.history(ID)), api="telepathy")

    assert history_of(row) is None
    assert told_by_row(row, (), forgotten=False)["request_id"] == row.key.request_id
