"""Record files: lookup, search, retention and damaged files."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headgate.model.units import SECOND, Duration, Instant
from headgate.telemetry.records import segment_writer as records_folder
from headgate.telemetry.records.row import RecordKey, RecordRow, row_of
from headgate.telemetry.records.search import RecordFilter, SearchTimeout, find_by_id, search
from headgate.telemetry.records.segment import MAGIC, blocks, id_hash, pack_block, row_index
from headgate.telemetry.records.segment_writer import ABANDONED_AFTER_S, SegmentWriter, segments
from testing.records import ARRIVED, a_record, an_attempt

DAY = Duration(86_400 * SECOND)
MIB = 1024 * 1024


def a_row(number: int, *, tenant: str = "acme", took_ms: float = 100, **fields: object) -> RecordRow:
    """Row for request `number`, which arrives one second after the previous number."""
    arrived = ARRIVED + number * SECOND
    record = a_record(
        an_attempt(), request_id=f"req_{number:024d}", arrived_at=arrived, tenant=tenant, ended_ms=took_ms, **fields
    )
    return row_of(record, None)


def a_writer(
    folder: Path,
    name: str = "one",
    *,
    retention_ns: Duration = DAY,
    bytes_max: int = 64 * MIB,
    clock: Callable[[], float] = time.monotonic,
    **limits: int,
) -> SegmentWriter:
    return SegmentWriter(folder, name, retention_ns=retention_ns, bytes_max=bytes_max, clock=clock, **limits)


def wanted(*, limit: int = 20, **asked: object) -> RecordFilter:
    return RecordFilter(**{"since": ARRIVED, "until": ARRIVED + DAY, "limit": limit, **asked})  # type: ignore[arg-type]


def numbers(rows: Sequence[RecordRow]) -> list[int]:
    return [int(row.key.request_id.removeprefix("req_")) for row in rows]


def found(folder: Path, **asked: object) -> list[int]:
    return numbers(search(folder, wanted(**asked), seconds_max=10).rows)  # type: ignore[arg-type]


def test_request_is_found_by_id_in_all_writers_open_and_closed_files(tmp_path: Path) -> None:
    one, other = a_writer(tmp_path, "one"), a_writer(tmp_path, "other")
    one.add([a_row(1), a_row(2)], Instant(1))
    other.add([a_row(3)], Instant(2))
    other.close()

    for number, name in ((1, "one"), (2, "one"), (3, "other")):
        assert find_by_id(tmp_path, f"req_{number:024d}", seconds_max=10) == (a_row(number), tmp_path / name)
    assert find_by_id(tmp_path, "req_of_nobody", seconds_max=10) is None
    assert find_by_id(tmp_path / "nothing", "req_of_nobody", seconds_max=10) is None
    one.close()


def test_latest_row_for_a_request_wins(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for reason in ("first", "second"):
        writer.add([a_row(1, reason=reason)], Instant(1))
    writer.close()

    row, _ = find_by_id(tmp_path, a_row(1).key.request_id, seconds_max=10) or (None, None)
    assert row is not None
    assert row.reason == "second"


def test_search_returns_the_newest_matches(tmp_path: Path) -> None:
    one, other = a_writer(tmp_path, "one"), a_writer(tmp_path, "other")
    one.add([a_row(number) for number in (1, 3, 5)], Instant(1))
    other.add([a_row(2, tenant="bolt"), a_row(4, took_ms=3_000)], Instant(1))
    for writer in (one, other):
        writer.close()

    assert found(tmp_path) == [5, 4, 3, 2, 1]
    assert found(tmp_path, limit=2) == [5, 4]
    assert found(tmp_path, tenant="bolt") == [2]
    assert found(tmp_path, total_us_min=2_999_999) == [4]
    assert found(tmp_path, total_us_min=3_000_000) == []
    assert found(tmp_path, since=ARRIVED + 2 * SECOND, until=ARRIVED + 3 * SECOND) == [3, 2]
    assert found(tmp_path, service_class="batch") == []
    assert found(tmp_path, outcome="completed", limit=1) == [5]


def test_timed_out_search_is_marked_as_incomplete(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    # Clock readings: at the start, to compute half the time limit, for three block headers, and before each block.
    started = iter((0.0, 0.0, 0.0, 0.0, 0.0, 0.5))
    partly = search(tmp_path, wanted(), seconds_max=1, clock=lambda: next(started, 2.0))
    # The file was not read in time, so the result can only be marked as incomplete.
    late = iter((0.0, 0.0))
    nothing = search(tmp_path, wanted(), seconds_max=1, clock=lambda: next(late, 2.0))

    assert (numbers(partly.rows), partly.complete) == ([2], False)
    assert nothing.complete is False
    with pytest.raises(SearchTimeout):
        find_by_id(tmp_path, "req_of_nobody", seconds_max=1, clock=iter((0.0, 0.5, 2.0)).__next__)
    writer.close()


def test_partially_written_block_is_skipped(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - len(pack_block([a_row(2)])) + 10):
        path.write_bytes(whole[:length])
        assert found(tmp_path) == [1, 0]
    path.write_bytes(whole + bytes(100))
    assert found(tmp_path) == [2, 1, 0]
    writer.close()


@pytest.mark.parametrize("content", [b"", b"something else", MAGIC, MAGIC + b"\xff" * 1_000])
def test_file_with_other_content_has_no_rows(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1.rows").write_bytes(content)

    looked = search(tmp_path, wanted(), seconds_max=10)
    assert (looked.rows, looked.complete) == ([], MAGIC.startswith(content))
    assert find_by_id(tmp_path, "req_x", seconds_max=10) is None


def test_damaged_block_is_skipped(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(2):
        writer.add([a_row(number)], Instant(1))
    [path] = segments(tmp_path)
    [first, _] = [block for block, _ in blocks(path)]
    data = bytearray(path.read_bytes())
    data[first.offset + first.ids_bytes + first.keys_bytes + first.details_bytes - 1] ^= 255
    path.write_bytes(data)

    assert found(tmp_path) == [1]
    assert find_by_id(tmp_path, a_row(0).key.request_id, seconds_max=10) is None
    data[first.offset + first.ids_bytes] ^= 255
    path.write_bytes(data)
    assert found(tmp_path) == [1]
    writer.close()


def test_hash_is_matched_only_at_hash_boundaries() -> None:
    wanted_hash = id_hash("x")
    shifted = b"abc" + wanted_hash + b"defgh"

    assert row_index(shifted, wanted_hash) is None
    assert row_index(shifted + wanted_hash, wanted_hash) == 2
    assert row_index(wanted_hash + shifted, wanted_hash) == 0
    assert row_index(b"", wanted_hash) is None


def test_large_or_old_file_is_closed(tmp_path: Path) -> None:
    moments = [0.0]
    writer = a_writer(tmp_path, clock=lambda: moments[0], segment_bytes_max=2_000)
    for number in range(20):
        writer.add([a_row(number)], Instant(number))
    assert len(list(segments(tmp_path))) > 2
    assert all(path.stat().st_size <= 2_000 for path in segments(tmp_path))
    assert sum(path.suffix == ".open" for path in segments(tmp_path)) == 1
    writer.close_if_old()
    assert sum(path.suffix == ".open" for path in segments(tmp_path)) == 1
    moments[0] = 1_000.0
    writer.close_if_old()
    assert {path.suffix for path in segments(tmp_path)} == {".rows"}
    assert found(tmp_path, limit=50) == list(range(19, -1, -1))


def test_one_large_batch_can_span_several_files(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, segment_bytes_max=2_000, block_rows_max=2)
    writer.add([a_row(number) for number in range(20)], Instant(7))
    writer.close()

    assert len(list(segments(tmp_path))) > 2
    assert found(tmp_path, limit=50) == list(range(19, -1, -1))


def test_closed_files_beyond_retention_or_size_limit_are_deleted_for_all_writers(tmp_path: Path) -> None:
    dead = a_writer(tmp_path, "dead")
    dead.add([a_row(1)], Instant(1))
    dead.close()
    [old] = segments(tmp_path)
    os.utime(old, (0, 0))
    writer = a_writer(tmp_path)
    writer.add([a_row(2)], Instant(2))

    usage = writer.delete_expired()

    assert found(tmp_path) == [2]
    assert not (tmp_path / "dead").exists()
    assert usage.bytes == sum(path.stat().st_size for path in segments(tmp_path))
    assert 0 <= usage.oldest_age_s < 5
    writer.close()
    small = a_writer(tmp_path, "small", bytes_max=1)
    small.delete_expired()
    assert found(tmp_path) == []


def test_open_file_is_kept_until_it_is_considered_abandoned(tmp_path: Path) -> None:
    killed = a_writer(tmp_path, "killed")
    killed.add([a_row(1)], Instant(1))
    [path] = segments(tmp_path)
    cleaner = a_writer(tmp_path, "cleaner", bytes_max=1)
    cleaner.delete_expired()
    assert found(tmp_path) == [1]
    told = path.stat()
    os.utime(path, (told.st_atime, told.st_mtime - ABANDONED_AFTER_S - 1))
    cleaner.delete_expired()
    assert found(tmp_path) == []


def test_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.add([a_row(1)], Instant(1))
    writer.close()
    [path] = segments(tmp_path)

    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_failed_write_raises_and_can_be_retried(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("not a directory")
    writer = a_writer(tmp_path)
    with pytest.raises(OSError, match="one"):
        writer.add([a_row(1)], Instant(1))
    (tmp_path / "one").unlink()
    writer.add([a_row(1)], Instant(1))
    assert found(tmp_path) == [1]
    writer.close()


def test_search_filters_use_only_the_key() -> None:
    key = RecordKey("r", "t", "c", "completed", ARRIVED, 5)

    assert wanted(tenant="t", service_class="c", outcome="completed", total_us_min=4).matches(key)
    for other in (
        {"tenant": "u"},
        {"service_class": "d"},
        {"outcome": "shed"},
        {"total_us_min": 5},
        {"since": ARRIVED + 1},
    ):
        assert not wanted(**other).matches(key)  # type: ignore[arg-type]


def takes_nothing(file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("taken", [None, 3], ids=["no bytes written", "three bytes written"])
def test_file_is_removed_if_its_header_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int | None
) -> None:
    writer = a_writer(tmp_path)
    real = os.write
    full = takes_nothing if taken is None else lambda file, data: real(file, data[:taken])
    with monkeypatch.context() as disk:
        disk.setattr(records_folder.os, "write", full)
        with pytest.raises(OSError, match=r"[Nn]o (space|room)"):
            writer.add([a_row(1)], Instant(1))
    assert list(segments(tmp_path)) == []
    writer.add([a_row(2)], Instant(2))
    writer.close()

    assert found(tmp_path) == [2]


def test_small_blocks_are_merged_when_their_file_is_closed(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(600):
        writer.add([a_row(number)], Instant(1))
    [path] = segments(tmp_path)
    assert len(list(blocks(path))) == 600
    before = path.stat().st_size
    writer.close()

    [path] = segments(tmp_path)
    assert [block.rows for block, _ in blocks(path)] == [512, 88]
    assert path.stat().st_size < before / 2
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert found(tmp_path, limit=1_000) == list(range(599, -1, -1))
    assert find_by_id(tmp_path, a_row(7).key.request_id, seconds_max=10) == (a_row(7), tmp_path / "one")


def test_blocks_stay_unchanged_if_merging_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    with monkeypatch.context() as disk:
        disk.setattr(records_folder.os, "write", takes_nothing)
        writer.close()

    assert [path.suffix for path in (tmp_path / "one").iterdir()] == [".rows"]
    assert found(tmp_path) == [2, 1, 0]


def test_search_skips_files_outside_the_time_range(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        writer = a_writer(tmp_path, name)
        writer.add([a_row(number)], Instant(ARRIVED))
        writer.close()
    [old] = [each for each in segments(tmp_path) if each.parent.name == "old"]
    os.utime(old, ns=(ARRIVED - 100 * SECOND, ARRIVED - 100 * SECOND))
    # The old file's row matches by arrival time, so it would be found if the file were read.
    assert found(tmp_path) == [1]
    assert found(tmp_path, since=0, until=ARRIVED - 2 * DAY) == []


def test_unencodable_row_does_not_affect_others(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)

    count = writer.add([a_row(1), a_row(2, model="\ud800"), a_row(3, output_tokens=10**30)], Instant(1))
    none = writer.add([a_row(4, model="\ud800")], Instant(1))

    assert (count, none, found(tmp_path)) == (1, 0, [1])
    writer.close()


def test_failed_deletion_does_not_stop_other_deletions(tmp_path: Path) -> None:
    for number in range(3):
        writer = a_writer(tmp_path, f"dead{number}")
        writer.add([a_row(number)], Instant(1))
        writer.close()
    # A directory in place of a file cannot be unlinked.
    (tmp_path / "dead0" / "0.rows").mkdir()
    for path in segments(tmp_path):
        os.utime(path, (0, 0))

    a_writer(tmp_path).delete_expired()

    assert [path.name for path in segments(tmp_path)] == ["0.rows"]


def test_clock_jump_does_not_delete_the_file_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = a_writer(tmp_path)
    writer.add([a_row(1)], Instant(1))
    ahead = time.time() + 3 * 86_400
    with monkeypatch.context() as clock:
        clock.setattr(records_folder.time, "time", lambda: ahead)
        writer.delete_expired()
    writer.add([a_row(2)], Instant(2))
    assert found(tmp_path) == [2, 1]
    # Another process may consider the file abandoned and delete it. Only its rows are lost in that case.
    [path] = segments(tmp_path)
    path.unlink()
    writer.close()


def test_unfinished_merge_from_a_dead_process_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "dead").mkdir()
    part = tmp_path / "dead" / "1.part"
    part.write_bytes(MAGIC)
    writer = a_writer(tmp_path)
    writer.delete_expired()
    assert part.exists()
    os.utime(part, (time.time() - ABANDONED_AFTER_S - 1,) * 2)
    writer.delete_expired()
    assert not part.parent.exists()
