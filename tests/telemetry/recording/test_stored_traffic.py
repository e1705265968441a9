"""Traffic in record files."""

from pathlib import Path

from headgate.model.outcome import Outcome
from headgate.model.routes import MIRROR_TENANT
from headgate.model.units import MINUTE, Duration, Instant
from headgate.telemetry.recording.stored_traffic import StoredTraffic
from headgate.telemetry.records.row import row_of
from headgate.telemetry.records.segment_writer import SegmentWriter, segments
from testing.records import ARRIVED, a_record, an_attempt


def stored(folder: Path, *minutes: float, **fields: object) -> StoredTraffic:
    """Writes one record for each of the arrival times."""
    writer = SegmentWriter(folder, "gateway.1", retention_ns=Duration(60 * MINUTE), bytes_max=2**30)
    rows = []
    for number, each in enumerate(minutes):
        record = a_record(an_attempt(), request_id=f"r{number}", **fields)
        record.arrived_at = Instant(ARRIVED + round(each * MINUTE))
        rows.append(row_of(record, None))
    writer.add(rows, Instant(ARRIVED))
    writer.close()
    return StoredTraffic(folder)


def test_rows_have_the_sizes_of_the_records(tmp_path: Path) -> None:
    [row] = stored(tmp_path, 0, prompt_tokens=100, output_tokens=7, client_retries=1).rows()

    assert (row.api, row.model, row.service_class, row.tenant) == ("chat", "m", "interactive", "acme")
    assert (row.prompt_tokens, row.output_tokens, row.retries, row.stream) == (100, 7, 1, True)
    assert (row.at_us, row.prefix) == (ARRIVED // 1_000, b"")


def test_last_part_is_relative_to_the_newest_record(tmp_path: Path) -> None:
    traffic = stored(tmp_path, 0, 5, 9, 10)
    traffic.last_s = 90

    assert [(row.at_us * 1_000 - ARRIVED) // MINUTE for row in traffic.rows()] == [9, 10]


def test_records_that_are_not_requests_of_callers_are_left_out(tmp_path: Path) -> None:
    assert list(stored(tmp_path, 0, tenant=None).rows()) == []
    assert list(stored(tmp_path, 0, tenant=MIRROR_TENANT).rows()) == []
    assert list(StoredTraffic(tmp_path / "empty").rows()) == []


def test_damaged_file_is_counted(tmp_path: Path) -> None:
    traffic = stored(tmp_path, 0, 1)
    [path] = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-5] + b"wrong")

    assert (list(traffic.rows()), traffic.unreadable) == ([], 1)
    path.write_bytes(b"not a record file, and longer than the mark of one")
    assert (list(traffic.rows()), traffic.unreadable) == ([], 1)


def test_model_name_that_was_not_checked_is_left_out(tmp_path: Path) -> None:
    [row] = stored(tmp_path, 0, outcome=Outcome.MODEL_NOT_FOUND, attempts=[]).rows()

    assert row.model == ""
