"""Are records found again, whoever wrote them, and does no more stay than may?"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headgate.model.units import SECOND, Duration, Instant
from headgate.telemetry.records import folder as records_folder
from headgate.telemetry.records.folder import ABANDONED_S, Writer, segments
from headgate.telemetry.records.row import Key, Row, row_of
from headgate.telemetry.records.search import TimeIsOver, Wanted, find, search
from headgate.telemetry.records.segment import MAGIC, blocks, id_hash, packed, place_of
from testing.records import ARRIVED, a_record, an_attempt

DAY = Duration(86_400 * SECOND)
MIB = 1024 * 1024


def a_row(number: int, *, tenant: str = "acme", took_ms: float = 100, **fields: object) -> Row:
    """The so manieth request, a second after the one before."""
    arrived = ARRIVED + number * SECOND
    record = a_record(
        an_attempt(), request_id=f"req_{number:024d}", arrived=arrived, tenant=tenant, ended_ms=took_ms, **fields
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
) -> Writer:
    return Writer(folder, name, retention_ns=retention_ns, bytes_max=bytes_max, clock=clock, **limits)


def wanted(*, limit: int = 20, **asked: object) -> Wanted:
    return Wanted(**{"since": ARRIVED, "until": ARRIVED + DAY, "limit": limit, **asked})  # type: ignore[arg-type]


def numbers(rows: Sequence[Row]) -> list[int]:
    return [int(row.key.request_id.removeprefix("req_")) for row in rows]


def found(folder: Path, **asked: object) -> list[int]:
    return numbers(search(folder, wanted(**asked), seconds_max=10).rows)  # type: ignore[arg-type]


def test_a_request_is_found_by_its_id_whoever_wrote_it_and_whether_it_was_closed(tmp_path: Path) -> None:
    one, other = a_writer(tmp_path, "one"), a_writer(tmp_path, "other")
    one.add([a_row(1), a_row(2)], Instant(1))
    other.add([a_row(3)], Instant(2))
    other.close()

    for number, name in ((1, "one"), (2, "one"), (3, "other")):
        assert find(tmp_path, f"req_{number:024d}", seconds_max=10) == (a_row(number), tmp_path / name)
    assert find(tmp_path, "req_of_nobody", seconds_max=10) is None
    assert find(tmp_path / "nothing", "req_of_nobody", seconds_max=10) is None
    one.close()


def test_of_two_rows_of_one_request_the_later_counts(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for reason in ("first", "second"):
        writer.add([a_row(1, reason=reason)], Instant(1))
    writer.close()

    row, _ = find(tmp_path, a_row(1).key.request_id, seconds_max=10) or (None, None)
    assert row is not None
    assert row.reason == "second"


def test_a_search_gives_the_newest_that_fit(tmp_path: Path) -> None:
    one, other = a_writer(tmp_path, "one"), a_writer(tmp_path, "other")
    one.add([a_row(number) for number in (1, 3, 5)], Instant(1))
    other.add([a_row(2, tenant="bolt"), a_row(4, took_ms=3_000)], Instant(1))
    for writer in (one, other):
        writer.close()

    assert found(tmp_path) == [5, 4, 3, 2, 1]
    assert found(tmp_path, limit=2) == [5, 4]
    assert found(tmp_path, tenant="bolt") == [2]
    assert found(tmp_path, slower_us=2_999_999) == [4]
    assert found(tmp_path, slower_us=3_000_000) == []
    assert found(tmp_path, since=ARRIVED + 2 * SECOND, until=ARRIVED + 3 * SECOND) == [3, 2]
    assert found(tmp_path, service_class="batch") == []
    assert found(tmp_path, outcome="completed", limit=1) == [5]


def test_a_search_that_takes_too_long_says_that_there_may_be_more(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    # To begin, for the half of it, for the heads of three blocks, and before each of them.
    started = iter((0.0, 0.0, 0.0, 0.0, 0.0, 0.5))
    partly = search(tmp_path, wanted(), seconds_max=1, clock=lambda: next(started, 2.0))
    # Of a file that was not looked at in time, nothing is known but that.
    late = iter((0.0, 0.0))
    nothing = search(tmp_path, wanted(), seconds_max=1, clock=lambda: next(late, 2.0))

    assert (numbers(partly.rows), partly.whole) == ([2], False)
    assert nothing.whole is False
    with pytest.raises(TimeIsOver):
        find(tmp_path, "req_of_nobody", seconds_max=1, clock=iter((0.0, 0.5, 2.0)).__next__)
    writer.close()


def test_what_was_half_written_is_left_out_and_the_rest_read(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    [path] = segments(tmp_path)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) - len(packed([a_row(2)])) + 10):
        path.write_bytes(whole[:length])
        assert found(tmp_path) == [1, 0]
    path.write_bytes(whole + bytes(100))
    assert found(tmp_path) == [2, 1, 0]
    writer.close()


@pytest.mark.parametrize("content", [b"", b"something else", MAGIC, MAGIC + b"\xff" * 1_000])
def test_a_file_that_holds_something_else_has_no_rows(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "1.rows").write_bytes(content)

    looked = search(tmp_path, wanted(), seconds_max=10)
    assert (looked.rows, looked.whole) == ([], MAGIC.startswith(content))
    assert find(tmp_path, "req_x", seconds_max=10) is None


def test_a_damaged_block_is_passed_over(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    for number in range(2):
        writer.add([a_row(number)], Instant(1))
    [path] = segments(tmp_path)
    [first, _] = [block for block, _ in blocks(path)]
    data = bytearray(path.read_bytes())
    data[first.at + first.ids + first.keys + first.details - 1] ^= 255
    path.write_bytes(data)

    assert found(tmp_path) == [1]
    assert find(tmp_path, a_row(0).key.request_id, seconds_max=10) is None
    data[first.at + first.ids] ^= 255
    path.write_bytes(data)
    assert found(tmp_path) == [1]
    writer.close()


def test_a_hash_counts_only_where_one_begins() -> None:
    wanted_hash = id_hash("x")
    shifted = b"abc" + wanted_hash + b"defgh"

    assert place_of(shifted, wanted_hash) is None
    assert place_of(shifted + wanted_hash, wanted_hash) == 2
    assert place_of(wanted_hash + shifted, wanted_hash) == 0
    assert place_of(b"", wanted_hash) is None


def test_a_file_that_is_large_or_old_enough_is_closed(tmp_path: Path) -> None:
    moments = [0.0]
    writer = a_writer(tmp_path, clock=lambda: moments[0], segment_bytes_max=2_000)
    for number in range(20):
        writer.add([a_row(number)], Instant(number))
    assert len(list(segments(tmp_path))) > 2
    assert all(path.stat().st_size <= 2_000 for path in segments(tmp_path))
    assert sum(path.suffix == ".open" for path in segments(tmp_path)) == 1
    writer.tidy()
    assert sum(path.suffix == ".open" for path in segments(tmp_path)) == 1
    moments[0] = 1_000.0
    writer.tidy()
    assert {path.suffix for path in segments(tmp_path)} == {".rows"}
    assert found(tmp_path, limit=50) == list(range(19, -1, -1))


def test_many_that_come_at_one_moment_may_take_several_files(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, segment_bytes_max=2_000, block_rows_max=2)
    writer.add([a_row(number) for number in range(20)], Instant(7))
    writer.close()

    assert len(list(segments(tmp_path))) > 2
    assert found(tmp_path, limit=50) == list(range(19, -1, -1))


def test_what_is_too_old_or_too_much_goes_whoever_wrote_it(tmp_path: Path) -> None:
    dead = a_writer(tmp_path, "dead")
    dead.add([a_row(1)], Instant(1))
    dead.close()
    [old] = segments(tmp_path)
    os.utime(old, (0, 0))
    writer = a_writer(tmp_path)
    writer.add([a_row(2)], Instant(2))

    usage = writer.clean()

    assert found(tmp_path) == [2]
    assert not (tmp_path / "dead").exists()
    assert usage.bytes == sum(path.stat().st_size for path in segments(tmp_path))
    assert 0 <= usage.oldest_s < 5
    writer.close()
    small = a_writer(tmp_path, "small", bytes_max=1)
    small.clean()
    assert found(tmp_path) == []


def test_a_file_that_somebody_may_add_to_stays_until_it_is_given_up(tmp_path: Path) -> None:
    killed = a_writer(tmp_path, "killed")
    killed.add([a_row(1)], Instant(1))
    [path] = segments(tmp_path)
    cleaner = a_writer(tmp_path, "cleaner", bytes_max=1)
    cleaner.clean()
    assert found(tmp_path) == [1]
    told = path.stat()
    os.utime(path, (told.st_atime, told.st_mtime - ABANDONED_S - 1))
    cleaner.clean()
    assert found(tmp_path) == []


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.add([a_row(1)], Instant(1))
    writer.close()
    [path] = segments(tmp_path)

    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_disk_that_takes_nothing_is_told_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("no folder")
    writer = a_writer(tmp_path)
    with pytest.raises(OSError, match="one"):
        writer.add([a_row(1)], Instant(1))
    (tmp_path / "one").unlink()
    writer.add([a_row(1)], Instant(1))
    assert found(tmp_path) == [1]
    writer.close()


def test_keys_are_enough_to_choose_by() -> None:
    key = Key("r", "t", "c", "completed", ARRIVED, 5)

    assert wanted(tenant="t", service_class="c", outcome="completed", slower_us=4).fits(key)
    for other in (
        {"tenant": "u"},
        {"service_class": "d"},
        {"outcome": "shed"},
        {"slower_us": 5},
        {"since": ARRIVED + 1},
    ):
        assert not wanted(**other).fits(key)  # type: ignore[arg-type]


def takes_nothing(file: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("taken", [None, 3], ids=["nothing", "three bytes"])
def test_a_file_that_could_not_be_begun_is_none_and_the_next_is_read(
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


def test_the_many_small_blocks_of_a_quiet_process_are_put_together_when_their_file_is_closed(tmp_path: Path) -> None:
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
    assert find(tmp_path, a_row(7).key.request_id, seconds_max=10) == (a_row(7), tmp_path / "one")


def test_what_cannot_be_put_together_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = a_writer(tmp_path)
    for number in range(3):
        writer.add([a_row(number)], Instant(1))
    with monkeypatch.context() as disk:
        disk.setattr(records_folder.os, "write", takes_nothing)
        writer.close()

    assert [path.suffix for path in (tmp_path / "one").iterdir()] == [".rows"]
    assert found(tmp_path) == [2, 1, 0]


def test_files_of_another_time_are_not_opened(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        writer = a_writer(tmp_path, name)
        writer.add([a_row(number)], Instant(ARRIVED))
        writer.close()
    [old] = [each for each in segments(tmp_path) if each.parent.name == "old"]
    os.utime(old, ns=(ARRIVED - 100 * SECOND, ARRIVED - 100 * SECOND))
    # Read, its row would be found: its time of arrival fits.
    assert found(tmp_path) == [1]
    assert found(tmp_path, since=0, until=ARRIVED - 2 * DAY) == []


def test_one_row_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)

    count = writer.add([a_row(1), a_row(2, model="\ud800"), a_row(3, output_tokens=10**30)], Instant(1))
    none = writer.add([a_row(4, model="\ud800")], Instant(1))

    assert (count, none, found(tmp_path)) == (1, 0, [1])
    writer.close()


def test_a_file_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    for number in range(3):
        writer = a_writer(tmp_path, f"dead{number}")
        writer.add([a_row(number)], Instant(1))
        writer.close()
    # A folder stands for what may not be deleted.
    (tmp_path / "dead0" / "0.rows").mkdir()
    for path in segments(tmp_path):
        os.utime(path, (0, 0))

    a_writer(tmp_path).clean()

    assert [path.name for path in segments(tmp_path)] == ["0.rows"]


def test_a_clock_that_is_put_forward_deletes_no_file_that_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = a_writer(tmp_path)
    writer.add([a_row(1)], Instant(1))
    ahead = time.time() + 3 * 86_400
    with monkeypatch.context() as clock:
        clock.setattr(records_folder.time, "time", lambda: ahead)
        writer.clean()
    writer.add([a_row(2)], Instant(2))
    assert found(tmp_path) == [2, 1]
    # Another process may still take it for given up: that costs what is in it, and nothing else.
    [path] = segments(tmp_path)
    path.unlink()
    writer.close()


def test_what_was_being_put_together_when_its_process_died_goes(tmp_path: Path) -> None:
    (tmp_path / "dead").mkdir()
    part = tmp_path / "dead" / "1.part"
    part.write_bytes(MAGIC)
    writer = a_writer(tmp_path)
    writer.clean()
    assert part.exists()
    os.utime(part, (time.time() - ABANDONED_S - 1,) * 2)
    writer.clean()
    assert not part.parent.exists()
