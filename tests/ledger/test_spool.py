"""Ledger rows outlive their process, and the spool is bounded."""

# ruff: noqa: ASYNC240  These tests read files in memory.

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from headgate.ledger import inflight_journal as notes_module
from headgate.ledger.inflight_journal import EMPTY_SLOT, JournalFile, frame_entry, read_entries
from headgate.ledger.rows import (
    COUNT_MAX,
    JournalEntry,
    clamp_count,
    clamp_text,
    count_rows,
    pack_endpoint_times,
    pack_usage,
    row_of_entry,
    unpack_record,
    usage_keys,
)
from headgate.ledger.spool import segment as segment_module
from headgate.ledger.spool.disk_thread import DiskThread
from headgate.ledger.spool.journal import Journal
from headgate.ledger.spool.spool import SEGMENT_ROWS_MAX, Spool
from headgate.ledger.spool.spool_files import MAGIC, frame_record
from headgate.ledger.spool.spool_health import SpoolHealth
from headgate.ports.ledger import UsageRow
from tests.ledger.rows import a_row, a_spool, a_time

VICTIM = """
import asyncio, sys
from tests.ledger.test_spool import filled

async def main():
    spool = await filled(sys.argv[1])
    print("added", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def a_note(request: str = "r", metadata: tuple[tuple[str, str], ...] = ()) -> JournalEntry:
    return (a_row().at, request, 1, "acme", "batch", "m", "m", "small", "e1", "chat", True, 25, 7, 0, metadata)


async def filled(folder: str) -> Spool:
    """A spool with 21 usage rows, one endpoint time row and two attempts in flight."""
    spool = Spool(folder, bytes_max=1 << 30, name="victim")
    for number in range(10):
        spool.add([a_row(f"req_{number}"), a_row(f"req_{number}", 2)])
    spool.add_endpoint_times([a_time()])
    for name, metadata in (("req_0", ()), ("under_way", ()), ("long", tuple((f"k{n}", "x" * 128) for n in range(8)))):
        assert spool.journal.add_entry(a_note(name, metadata)) is not None
    spool.add([a_row("noted")])
    noted = spool.journal.add_entry(a_note("noted"))
    assert noted is not None
    spool.journal.erase(noted.slot)
    await spool.flush()
    return spool


FOUND = 24
"""Number of rows that the next process finds: 21 usage rows, one endpoint time row and two attempts in flight."""


async def emptied(spool: Spool) -> list[UsageRow]:
    rows: list[UsageRow] = []
    while (taken := await spool.next_batch()) is not None:
        rows += taken[1].usage
        spool.commit(taken[0])
    await spool.flush()
    return rows


async def killed(folder: Path) -> None:
    """Simulate a killed process: its files are in the directory and its lock is not held."""
    with tempfile.TemporaryDirectory() as alive:
        spool = await filled(alive)
        shutil.copytree(alive, folder, dirs_exist_ok=True)
        spool.close()


async def really_killed(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"added\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()


@pytest.mark.process
async def test_killed_process_leaves_the_same_files_as_the_simulation(tmp_path: Path) -> None:
    await really_killed(tmp_path / "killed")
    await killed(tmp_path / "pretended")
    killed_files, pretended_files = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("killed", "pretended")
    )

    assert killed_files == pretended_files
    async with a_spool(tmp_path / "killed") as spool:
        assert await spool.take_over() == FOUND


async def test_next_process_takes_over_all_files_from_a_killed_process(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        assert await spool.take_over() == FOUND
        assert spool.rows_waiting == FOUND
        rows = await emptied(spool)
        again = await spool.take_over()

    written = [(f"req_{n}", a) for n in range(10) for a in (1, 2)]
    assert [(row.request, row.attempt) for row in rows[:21]] == [*written, ("noted", 1)]
    assert rows[0] == a_row("req_0")
    assert again == 0
    assert list(tmp_path.iterdir()) == []


async def test_attempt_in_a_killed_process_gets_a_row_with_unknown_outcome(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        await spool.take_over()
        rows = {row.request: row for row in (await emptied(spool))[21:]}

    assert sorted(rows) == ["long", "under_way"]
    row = rows["under_way"]
    assert (row.outcome, row.ending, row.cause, row.payer) == ("", "", "shutdown", "platform")
    assert (row.tokens_in, row.tokens_out, row.usage_source, row.queue_us) == (25, 0, "estimated", 7)
    assert (row.tenant, row.service_class, row.pool, row.endpoint, row.stream) == ("acme", "batch", "small", "e1", True)
    # A note that does not fit in its slot is written without metadata.
    assert rows["long"].metadata == ()


def a_note_file(path: Path, *, slots: int = 64) -> JournalFile:
    file = JournalFile(path, slots=slots)
    file.open()
    return file


async def test_attempts_beyond_the_slots_proceed_without_notes(tmp_path: Path) -> None:
    thread = DiskThread(list, on_stalled=lambda: None, on_resumed=lambda _: None)
    journal = Journal(tmp_path / "x.notes", SpoolHealth(), thread, slots=2)
    journal.open_now()
    first, second, third = (journal.add_entry(a_note(name)) for name in "abc")
    assert first is not None
    journal.erase(first.slot)
    work = journal.collect()
    assert work is not None
    work.run()
    [left] = read_entries(tmp_path / "x.notes")
    journal.close().run()
    thread.close()

    assert third is None
    assert second is not None
    assert row_of_entry(left).request == "b"


async def test_truncated_journal_still_writes_and_erases_notes(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({0: frame_entry(b"before"), 9: frame_entry(b"kept")})
    os.truncate(tmp_path / "x.notes", 0)
    file.write({2: frame_entry(b"after")})
    file.write({0: EMPTY_SLOT})
    left = read_entries(tmp_path / "x.notes")
    file.close(keep=False)

    assert left == [b"after"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slots", [[3], [0, 1, 2], [0, 63], [5, 7, 20]])
async def test_notes_in_adjacent_and_distant_slots_are_all_written(tmp_path: Path, slots: list[int]) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({slot: frame_entry(b"old %d" % slot) for slot in range(0, 64, 4)})
    file.write({slot: frame_entry(b"new %d" % slot) for slot in slots})
    left = read_entries(tmp_path / "x.notes")
    file.close(keep=True)

    names = {slot: b"old %d" % slot for slot in range(0, 64, 4)} | {slot: b"new %d" % slot for slot in slots}
    assert left == [names[slot] for slot in sorted(names)]


async def test_failed_note_write_is_reported_and_does_not_block_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    async with a_spool(tmp_path) as spool:
        kept = spool.journal.add_entry(a_note("kept"))
        assert kept is not None
        written = await kept.acknowledgement.wait()
        monkeypatch.setattr(notes_module.os, "pwrite", fail)
        refused = spool.journal.add_entry(a_note("refused"))
        assert refused is not None
        refused_written, problem = await refused.acknowledgement.wait(), spool.problem
        spool.journal.erase(refused.slot)
        await spool.flush()
        monkeypatch.undo()
        again = spool.journal.add_entry(a_note("again"))
        assert again is not None
        again_written, mended = await again.acknowledgement.wait(), spool.problem

    assert (written, refused_written, again_written) == (True, False, True)
    assert again.slot == refused.slot
    assert problem is not None
    assert "check the disk under ledger.spool_directory" in problem
    assert mended is None


async def test_partial_note_write_on_a_full_disk_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(file: int, data: bytes, at: int) -> int:
        return true_pwrite(file, data[:20], at)

    true_pwrite = os.pwrite
    file = a_note_file(tmp_path / "x.notes")
    monkeypatch.setattr(notes_module.os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        file.write({0: frame_entry(b"a note that is long enough to be cut")})
    monkeypatch.undo()
    left = read_entries(tmp_path / "x.notes")
    file.close(keep=False)

    assert left == []


async def test_disk_space_for_all_notes_is_allocated_when_the_file_is_opened(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes", slots=notes_module.SLOTS)
    taken = (tmp_path / "x.notes").stat().st_blocks * 512
    file.close(keep=False)

    assert taken >= notes_module.SLOTS * notes_module.SLOT_BYTES


async def test_requests_proceed_without_notes_until_the_disk_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notes_module.os, "posix_fallocate", full)
    async with a_spool(tmp_path) as spool:
        without, problem, left = spool.journal.add_entry(a_note()), spool.problem, list(tmp_path.glob("*.notes"))
        monkeypatch.undo()
        await spool.maintain(take_over=False)
        await spool.flush()
        with_room, mended = spool.journal.add_entry(a_note()), spool.problem

    assert (without, left) == (None, [])
    assert with_room is not None
    assert problem is not None
    assert "free disk space" in problem
    assert mended is None


async def test_damaged_note_is_ignored(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({0: frame_entry(b"first"), 1: frame_entry(b"second")})
    data = bytearray((tmp_path / "x.notes").read_bytes())
    data[8] ^= 1
    (tmp_path / "y.notes").write_bytes(data)
    file.close(keep=False)

    assert read_entries(tmp_path / "y.notes") == [b"second"]
    assert read_entries(tmp_path / "absent.notes") == []


async def test_inherited_rows_may_already_be_written_and_new_rows_are_not(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row("new")])
        await spool.take_over()
        first = await spool.next_batch()
        assert first is not None
        spool.commit(first[0])
        second = await spool.next_batch()

    assert second is not None
    assert (first[0].untried, second[0].untried) == (False, True)


async def test_files_in_use_by_a_running_process_are_not_taken_over(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "p1") as one, a_spool(tmp_path, "p2") as other:
        one.add([a_row()])
        await one.flush()

        assert await other.take_over() == 0
        assert len(await emptied(one)) == 1


async def test_only_one_process_takes_over_the_files_of_a_dead_process(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path, "p1") as one, a_spool(tmp_path, "p2") as other:
        found = await asyncio.gather(one.take_over(), other.take_over())

        assert sorted(found) == [0, FOUND]


async def test_unwritten_rows_wait_for_the_next_start(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "p1") as spool:
        spool.add([a_row("left")])
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert [row.request for row in await emptied(spool)] == ["left"]


async def test_inherited_rows_survive_another_restart(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path, "p1") as spool:
        await spool.take_over()
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert len(await emptied(spool)) == FOUND - 1


@pytest.mark.parametrize(
    ("cut", "more"),
    [(-3, b""), (None, bytes(4096)), (None, b"\0\0\1")],
    ids=["truncated record", "zeros after a power failure", "truncated record length"],
)
async def test_partially_written_record_is_logged_and_skipped(
    tmp_path: Path, cut: int | None, more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await killed(tmp_path)
    [file] = tmp_path.glob("*.rows")
    file.write_bytes(file.read_bytes()[:cut] + more)
    async with a_spool(tmp_path) as spool:
        await spool.take_over()
        rows = await emptied(spool)

    whole_ones = {"noted"} if cut is None else set[str]()
    assert {row.request for row in rows} - whole_ones == {*(f"req_{n}" for n in range(10)), "under_way", "long"}
    assert "incomplete record" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "rubbish"])
async def test_intact_records_in_a_damaged_file_are_read_and_the_file_is_set_aside(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await killed(tmp_path)
    [file] = tmp_path.glob("*.rows")
    data = bytearray(file.read_bytes())
    data[200] ^= damage == "changed"
    file.write_bytes(bytes(data) + (b"" if damage == "changed" else b"\xff" * 50))
    async with a_spool(tmp_path) as spool:
        found = await spool.take_over()
        rows = await emptied(spool)
        lost, unread = spool.rows_lost, spool.unreadable_files

    # The changed record contained both rows of the first request. Its note becomes one row instead.
    assert found == FOUND - (1 if damage == "changed" else 0)
    assert "noted" in {row.request for row in rows}
    assert (lost, unread) == (1, 1)
    assert "damaged" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [f"{file.name}.unread"]


@pytest.mark.parametrize(
    "what", [b"headgate rows 2\nof another version altogether", b"what is this? It is no such file"]
)
async def test_file_from_another_version_is_set_aside_and_counted(
    tmp_path: Path, what: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dead.lock").touch()
    (tmp_path / "dead.00000001.rows").write_bytes(what)
    (tmp_path / "dead.00000002.rows").write_bytes(b"headgate")
    async with a_spool(tmp_path) as spool:
        assert await spool.take_over() == 0
        assert (spool.rows_lost, spool.unreadable_files) == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["dead.00000001.rows.unread"]
    assert "docs/concepts/ledger.md" in caplog.text


async def test_file_with_an_unknown_field_is_set_aside_and_counted(tmp_path: Path) -> None:
    record = msgspec.msgpack.encode((0, [["a"] * 40]))
    (tmp_path / "dead.lock").touch()
    (tmp_path / "dead.00000001.rows").write_bytes(MAGIC + frame_record(record))
    async with a_spool(tmp_path) as spool:
        await spool.take_over()
        assert await emptied(spool) == []
        assert (spool.rows_lost, spool.unreadable_files, spool.rows_waiting) == (1, 1, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["dead.00000001.rows.unread"]


async def test_restored_file_is_read_again(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "dead") as dead:
        dead.add([a_row("kept")])
    [file] = tmp_path.glob("*.rows")
    good = file.read_bytes()
    file.write_bytes(b"another version" + good)
    async with a_spool(tmp_path, "p1") as spool:
        await spool.take_over()
    [aside] = tmp_path.iterdir()
    # Follows the procedure in docs/concepts/ledger.md.
    aside.write_bytes(good)
    aside.rename(file)
    (tmp_path / "dead.lock").touch()
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert [row.request for row in await emptied(spool)] == ["kept"]
    assert list(tmp_path.iterdir()) == []


async def test_rows_in_a_missing_file_are_counted_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_spool(tmp_path, memory_rows_max=0) as spool:
        for number in range(SEGMENT_ROWS_MAX + 3):
            spool.add([a_row(f"req_{number}")])
        await spool.flush()
        (tmp_path / "p1.00000001.rows").unlink()
        rows = await emptied(spool)

        assert (len(rows), spool.rows_lost, spool.unreadable_files) == (3, SEGMENT_ROWS_MAX, 0)
    assert "missing" in caplog.text


async def test_inherited_rows_are_not_dropped_at_the_size_limit(tmp_path: Path) -> None:
    for name in ("dead1", "dead2"):
        async with a_spool(tmp_path, name) as dead:
            for number in range(2 * SEGMENT_ROWS_MAX):
                dead.add([a_row(f"{name}_{number}")])
    async with a_spool(tmp_path, "heir", bytes_max=1_500_000) as heir:
        found = await heir.take_over()
        for number in range(2 * SEGMENT_ROWS_MAX):
            heir.add([a_row(f"new_{number}")])
        lost, rows = heir.rows_lost, [row.request for row in await emptied(heir)]

    assert found == 4 * SEGMENT_ROWS_MAX
    assert len([name for name in rows if name.startswith("dead")]) == found
    # The number of new rows is still bounded.
    assert 0 < lost == 2 * SEGMENT_ROWS_MAX - len([name for name in rows if name.startswith("new")])


async def test_all_rows_are_counted_as_lost_if_the_spool_is_too_small_for_any(tmp_path: Path) -> None:
    async with a_spool(tmp_path, bytes_max=1_000) as spool:
        for number in range(10):
            spool.add([a_row(f"req_{number}")])

        assert await spool.next_batch() is None
        assert (spool.rows_lost, spool.rows_waiting) == (10, 0)


async def test_rows_beyond_the_memory_limit_are_read_from_disk_in_order(tmp_path: Path) -> None:
    async with a_spool(tmp_path, memory_rows_max=SEGMENT_ROWS_MAX) as spool:
        for number in range(3 * SEGMENT_ROWS_MAX + 7):
            spool.add([a_row(f"req_{number}")])
        await spool.flush()
        in_memory = sum(len(each.usage or ()) for each in spool._closed)
        rows = await emptied(spool)

    assert in_memory == SEGMENT_ROWS_MAX
    assert [row.request for row in rows] == [f"req_{number}" for number in range(3 * SEGMENT_ROWS_MAX + 7)]


async def test_full_spool_drops_the_oldest_rows_and_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_spool(tmp_path, bytes_max=3_000_000) as spool:
        for number in range(4 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.flush()
        size = sum(file.stat().st_size for file in tmp_path.glob("*.rows"))
        lost, rows = spool.rows_lost, await emptied(spool)

    assert size <= 3_000_000
    assert lost == 4 * SEGMENT_ROWS_MAX - len(rows) > 0
    assert rows[-1].request == f"req_{4 * SEGMENT_ROWS_MAX - 1}"
    assert "ledger rows are lost" in caplog.text
    assert "raise ledger.spool_bytes_max" in caplog.text


async def test_rows_stay_in_memory_up_to_the_limit_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async with a_spool(tmp_path, memory_rows_max=SEGMENT_ROWS_MAX) as spool:
        spool.add([a_row("before")])
        await spool.flush()
        monkeypatch.setattr(segment_module.os, "write", full)
        for number in range(3 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.flush()
        lost, problem = spool.rows_lost, spool.problem
        rows = await emptied(spool)
        await spool.flush()
        monkeypatch.undo()
        spool.add([a_row("after")])
        rows += await emptied(spool)
        spool.add([a_row("later")])
        await spool.flush()
        mended = spool.problem

    assert lost + len(rows) == 3 * SEGMENT_ROWS_MAX + 2
    assert lost > 0
    assert rows[0].request == "before"
    assert problem is not None
    assert "free disk space" in problem
    assert mended is None


async def test_rows_are_synced_to_disk_after_a_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    true_sync = os.fsync

    def sync(file: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        true_sync(file)

    monkeypatch.setattr(segment_module.os, "fsync", sync)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row()])
        await spool.flush()
        await spool.sync()
        too_early = list(forced)
        spool._current.began_at -= 2.0
        await spool.sync()
        await spool.sync()
        spool.add([a_row("left behind")])

    assert too_early == []
    assert next(name for name in forced if name.endswith(".rows")) == str(tmp_path / "p1.00000001.rows")
    # One sync after the delay, and one when the spool was closed.
    assert len([name for name in forced if name.endswith(".rows")]) == 2


@pytest.mark.parametrize("call", ["fsync", "open"])
async def test_failed_disk_operation_is_reported_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row()])
        await spool.flush()
        spool._current.began_at -= 2.0
        monkeypatch.setattr(segment_module.os, call, fail)
        await spool.maintain(take_over=call == "open")
        problem = spool.problem
        monkeypatch.undo()
        await spool.maintain(take_over=True)

        assert problem is not None
        assert "raise the open-file limit" in problem
        assert spool.problem is None
        assert len(await emptied(spool)) == FOUND


async def test_failed_takeover_releases_the_locks_of_the_dead_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(24, "Too many open files")

    await killed(tmp_path)
    async with a_spool(tmp_path, "p1") as one, a_spool(tmp_path, "p2") as other:
        monkeypatch.setattr(Path, "read_bytes", fail)
        with pytest.raises(OSError, match="Too many open files"):
            await one.take_over()
        monkeypatch.undo()

        assert await other.take_over() == FOUND


async def test_failed_file_removal_does_not_block_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    async with a_spool(tmp_path, bytes_max=1_000_000) as spool:
        monkeypatch.setattr(Path, "unlink", fail)
        for number in range(2 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.flush()
        lost, problem = spool.rows_lost, spool.problem
        monkeypatch.undo()

    assert lost > 0
    assert problem is not None


async def test_taking_over_many_rows_uses_little_memory(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "dead", memory_rows_max=0) as dead:
        for number in range(4 * SEGMENT_ROWS_MAX):
            dead.add([a_row(f"req_{number}")])
    async with a_spool(tmp_path) as spool:
        tracemalloc.start()
        found = await spool.take_over()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        taken = await spool.next_batch()

    # Files are read one at a time, and their rows are not kept in memory.
    assert found == 4 * SEGMENT_ROWS_MAX
    assert most < 10_000_000
    assert taken is not None
    assert len(taken[1]) == SEGMENT_ROWS_MAX


async def test_spool_files_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    async with a_spool(tmp_path / "a" / "b") as spool:
        spool.add([a_row()])
        await spool.flush()
        modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "a" / "b").iterdir()}

    assert modes == {0o600}


def test_record_is_read_back_unchanged() -> None:
    row = a_row(ttft_us=None, metadata=())
    assert unpack_record(pack_usage([row, a_row("b")])).usage == (row, a_row("b"))


@pytest.mark.parametrize("count", [1, 15, 16, 1_000])
def test_row_count_is_read_from_the_start_of_a_record(count: int) -> None:
    rows = [a_row(f"req_{number}", number) for number in range(count)]
    record = pack_usage(rows)

    assert count_rows(record) == count_rows(pack_endpoint_times([a_time()] * count)) == count
    assert usage_keys(record) == [(row.request, row.attempt) for row in rows]
    assert usage_keys(pack_endpoint_times([a_time()])) == []
    assert [count_rows(each) for each in (b"", b"\x92\x07\x91", b"\x93\x00\x91", b"\x92\x00\xa1")] == [0, 0, 0, 0]


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x92\x07\x90", b"\x92\x00\x91\x91\x01", b"\x92\x01\x91\x91\x01"])
def test_invalid_record_raises_value_error(record: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpack_record(record)


def test_texts_and_numbers_are_sanitized_for_the_database() -> None:
    assert clamp_text("a\0b\ud800") == "a�b?"
    assert len(clamp_text("x" * 500)) == 200
    assert (clamp_count(-3), clamp_count(10**12)) == (0, COUNT_MAX)
    assert a_time().endpoint == "e1"
