"""Do rows outlive the process that had them, and is everything about them bounded?"""

# ruff: noqa: ASYNC240  What a test looks at is in memory.

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headgate.ledger import notes as notes_module
from headgate.ledger.notes import EMPTY, NoteFile, framed_note, read_notes
from headgate.ledger.rows import (
    COUNT_MAX,
    SentNote,
    bounded,
    keys_in,
    packed_times,
    packed_usage,
    row_of_note,
    rows_in,
    unpacked,
    whole,
)
from headgate.ledger.spool import segment as segment_module
from headgate.ledger.spool.files import MAGIC, framed
from headgate.ledger.spool.journal import Journal
from headgate.ledger.spool.spool import SEGMENT_ROWS_MAX, Spool
from headgate.ledger.spool.troubles import SpoolTroubles
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


def a_note(request: str = "r", metadata: tuple[tuple[str, str], ...] = ()) -> SentNote:
    return (a_row().at, request, 1, "acme", "batch", "m", "m", "small", "e1", "chat", True, 25, 7, 0, metadata)


async def filled(folder: str) -> Spool:
    """A spool with 21 rows of usage, one of an endpoint's time and two attempts under way."""
    spool = Spool(folder, bytes_max=1 << 30, name="victim")
    for number in range(10):
        spool.add([a_row(f"req_{number}"), a_row(f"req_{number}", 2)])
    spool.add_time([a_time()])
    for name, metadata in (("req_0", ()), ("under_way", ()), ("long", tuple((f"k{n}", "x" * 128) for n in range(8)))):
        assert spool.note(a_note(name, metadata)) is not None
    spool.add([a_row("noted")])
    noted = spool.note(a_note("noted"))
    assert noted is not None
    spool.erase(noted.slot)
    await spool.settled()
    return spool


FOUND = 24
"""Rows: 21 of usage, one of an endpoint's time, and two attempts that were under way."""


async def emptied(spool: Spool) -> list[UsageRow]:
    rows: list[UsageRow] = []
    while (taken := await spool.take()) is not None:
        rows += taken[1].usage
        spool.done(taken[0])
    await spool.settled()
    return rows


async def killed(folder: Path) -> None:
    """Leaves in the folder what a process leaves that is killed: its files as they are, and a lock nobody holds."""
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
async def test_a_process_that_is_really_killed_leaves_what_the_other_tests_pretend(tmp_path: Path) -> None:
    await really_killed(tmp_path / "killed")
    await killed(tmp_path / "pretended")
    killed_files, pretended_files = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("killed", "pretended")
    )

    assert killed_files == pretended_files
    async with a_spool(tmp_path / "killed") as spool:
        assert await spool.take_over() == FOUND


async def test_rows_of_a_killed_process_are_found_by_the_next_and_nothing_is_left_behind(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        assert await spool.take_over() == FOUND
        assert spool.waiting == FOUND
        rows = await emptied(spool)
        again = await spool.take_over()

    written = [(f"req_{n}", a) for n in range(10) for a in (1, 2)]
    assert [(row.request, row.attempt) for row in rows[:21]] == [*written, ("noted", 1)]
    assert rows[0] == a_row("req_0")
    assert again == 0
    assert list(tmp_path.iterdir()) == []


async def test_what_a_killed_process_had_sent_has_a_row_that_says_that_nobody_knows(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        await spool.take_over()
        rows = {row.request: row for row in (await emptied(spool))[21:]}

    assert sorted(rows) == ["long", "under_way"]
    row = rows["under_way"]
    assert (row.outcome, row.ending, row.cause, row.payer) == ("", "", "leaving", "platform")
    assert (row.tokens_in, row.tokens_out, row.usage_source, row.queue_us) == (25, 0, "estimated", 7)
    assert (row.tenant, row.service_class, row.pool, row.endpoint, row.stream) == ("acme", "batch", "small", "e1", True)
    # What does not fit goes without its metadata.
    assert rows["long"].metadata == ()


def a_note_file(path: Path, *, slots: int = 64) -> NoteFile:
    file = NoteFile(path, slots=slots)
    file.open()
    return file


async def test_more_attempts_than_there_are_slots_go_on_without_notes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "x.notes", SpoolTroubles(), slots=2)
    journal.open_now()
    first, second, third = (journal.take(a_note(name)) for name in "abc")
    assert first is not None
    journal.erase(first.slot)
    work = journal.collect()
    assert work is not None
    work.run()
    [left] = read_notes(tmp_path / "x.notes")
    journal.close().run()

    assert third is None
    assert second is not None
    assert row_of_note(left).request == "b"


async def test_truncated_journal_still_writes_and_erases_notes(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({0: framed_note(b"before"), 9: framed_note(b"kept")})
    os.truncate(tmp_path / "x.notes", 0)
    file.write({2: framed_note(b"after")})
    file.write({0: EMPTY})
    left = read_notes(tmp_path / "x.notes")
    file.close(keep=False)

    assert left == [b"after"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slots", [[3], [0, 1, 2], [0, 63], [5, 7, 20]])
async def test_notes_in_adjacent_and_distant_slots_are_all_written(tmp_path: Path, slots: list[int]) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({slot: framed_note(b"old %d" % slot) for slot in range(0, 64, 4)})
    file.write({slot: framed_note(b"new %d" % slot) for slot in slots})
    left = read_notes(tmp_path / "x.notes")
    file.close(keep=True)

    names = {slot: b"old %d" % slot for slot in range(0, 64, 4)} | {slot: b"new %d" % slot for slot in slots}
    assert left == [names[slot] for slot in sorted(names)]


async def test_failed_note_write_is_reported_and_does_not_block_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    async with a_spool(tmp_path) as spool:
        kept = spool.note(a_note("kept"))
        assert kept is not None
        written = await kept.acknowledgement.wait()
        monkeypatch.setattr(notes_module.os, "pwrite", fail)
        refused = spool.note(a_note("refused"))
        assert refused is not None
        refused_written, problem = await refused.acknowledgement.wait(), spool.problem
        spool.erase(refused.slot)
        await spool.settled()
        monkeypatch.undo()
        again = spool.note(a_note("again"))
        assert again is not None
        again_written, mended = await again.acknowledgement.wait(), spool.problem

    assert (written, refused_written, again_written) == (True, False, True)
    assert again.slot == refused.slot
    assert problem is not None
    assert "look at the disk under ledger.spool" in problem
    assert mended is None


async def test_partial_note_write_on_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: int, data: bytes, at: int) -> int:
        return true_pwrite(file, data[:20], at)

    true_pwrite = os.pwrite
    file = a_note_file(tmp_path / "x.notes")
    monkeypatch.setattr(notes_module.os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        file.write({0: framed_note(b"a note that is long enough to be cut")})
    monkeypatch.undo()
    left = read_notes(tmp_path / "x.notes")
    file.close(keep=False)

    assert left == []


async def test_a_note_has_its_room_on_disk_before_it_is_taken(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes", slots=notes_module.SLOTS)
    taken = (tmp_path / "x.notes").stat().st_blocks * 512
    file.close(keep=False)

    assert taken >= notes_module.SLOTS * notes_module.SLOT_BYTES


async def test_without_room_for_notes_requests_go_on_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notes_module.os, "posix_fallocate", full)
    async with a_spool(tmp_path) as spool:
        without, problem, left = spool.note(a_note()), spool.problem, list(tmp_path.glob("*.notes"))
        monkeypatch.undo()
        await spool.keep(look=False)
        await spool.settled()
        with_room, mended = spool.note(a_note()), spool.problem

    assert (without, left) == (None, [])
    assert with_room is not None
    assert problem is not None
    assert "make room" in problem
    assert mended is None


async def test_a_damaged_note_is_no_note(tmp_path: Path) -> None:
    file = a_note_file(tmp_path / "x.notes")
    file.write({0: framed_note(b"first"), 1: framed_note(b"second")})
    data = bytearray((tmp_path / "x.notes").read_bytes())
    data[8] ^= 1
    (tmp_path / "y.notes").write_bytes(data)
    file.close(keep=False)

    assert read_notes(tmp_path / "y.notes") == [b"second"]
    assert read_notes(tmp_path / "absent.notes") == []


async def test_what_was_found_is_doubtful_and_what_is_new_is_not(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row("new")])
        await spool.take_over()
        first = await spool.take()
        assert first is not None
        spool.done(first[0])
        second = await spool.take()

    assert second is not None
    assert (first[0].sure, second[0].sure) == (False, True)


async def test_the_files_of_a_process_that_lives_are_left_alone(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "p1") as one, a_spool(tmp_path, "p2") as other:
        one.add([a_row()])
        await one.settled()

        assert await other.take_over() == 0
        assert len(await emptied(one)) == 1


async def test_of_two_who_come_after_the_dead_only_one_inherits(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path, "p1") as one, a_spool(tmp_path, "p2") as other:
        found = await asyncio.gather(one.take_over(), other.take_over())

        assert sorted(found) == [0, FOUND]


async def test_what_is_left_at_the_end_waits_for_the_next_start(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "p1") as spool:
        spool.add([a_row("left")])
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert [row.request for row in await emptied(spool)] == ["left"]


async def test_heirs_that_leave_in_their_turn_leave_everything_to_the_next(tmp_path: Path) -> None:
    await killed(tmp_path)
    async with a_spool(tmp_path, "p1") as spool:
        await spool.take_over()
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert len(await emptied(spool)) == FOUND - 1


@pytest.mark.parametrize(
    ("cut", "more"),
    [(-3, b""), (None, bytes(4096)), (None, b"\0\0\1")],
    ids=["a record", "zeros of a machine without power", "the length of a record"],
)
async def test_a_record_that_was_half_written_is_told_and_the_rest_is_read(
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
    assert "half written" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "rubbish"])
async def test_of_a_damaged_file_what_is_whole_is_read_and_the_file_is_kept_and_counted(
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
        lost, unread = spool.lost, spool.unread

    # Those of the first request were in the record that was changed; what it had noted of it is a row.
    assert found == FOUND - (1 if damage == "changed" else 0)
    assert "noted" in {row.request for row in rows}
    assert (lost, unread) == (1, 1)
    assert "damaged" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [f"{file.name}.unread"]


@pytest.mark.parametrize(
    "what", [b"headgate rows 2\nof another version altogether", b"what is this? It is no such file"]
)
async def test_a_file_of_another_version_is_put_aside_and_counted_and_stops_nobody(
    tmp_path: Path, what: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dead.lock").touch()
    (tmp_path / "dead.00000001.rows").write_bytes(what)
    (tmp_path / "dead.00000002.rows").write_bytes(b"headgate")
    async with a_spool(tmp_path) as spool:
        assert await spool.take_over() == 0
        assert (spool.lost, spool.unread) == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["dead.00000001.rows.unread"]
    assert "docs/concepts/ledger.md" in caplog.text


async def test_rows_with_a_field_that_this_version_does_not_know_are_kept_and_counted(tmp_path: Path) -> None:
    record = msgspec.msgpack.encode((0, [["a"] * 40]))
    (tmp_path / "dead.lock").touch()
    (tmp_path / "dead.00000001.rows").write_bytes(MAGIC + framed(record) + record)
    async with a_spool(tmp_path) as spool:
        await spool.take_over()
        assert await emptied(spool) == []
        assert (spool.lost, spool.unread, spool.waiting) == (1, 1, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["dead.00000001.rows.unread"]


async def test_a_file_that_was_put_aside_is_read_again_when_it_is_given_back(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "dead") as dead:
        dead.add([a_row("kept")])
    [file] = tmp_path.glob("*.rows")
    good = file.read_bytes()
    file.write_bytes(b"another version" + good)
    async with a_spool(tmp_path, "p1") as spool:
        await spool.take_over()
    [aside] = tmp_path.iterdir()
    # As docs/concepts/ledger.md says.
    aside.write_bytes(good)
    aside.rename(file)
    (tmp_path / "dead.lock").touch()
    async with a_spool(tmp_path, "p2") as spool:
        await spool.take_over()

        assert [row.request for row in await emptied(spool)] == ["kept"]
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_somebody_took_away_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_spool(tmp_path, memory_rows_max=0) as spool:
        for number in range(SEGMENT_ROWS_MAX + 3):
            spool.add([a_row(f"req_{number}")])
        await spool.settled()
        (tmp_path / "p1.00000001.rows").unlink()
        rows = await emptied(spool)

        assert (len(rows), spool.lost, spool.unread) == (3, SEGMENT_ROWS_MAX, 0)
    assert "gone" in caplog.text


async def test_what_was_inherited_is_never_lost_for_want_of_room(tmp_path: Path) -> None:
    for name in ("dead1", "dead2"):
        async with a_spool(tmp_path, name) as dead:
            for number in range(2 * SEGMENT_ROWS_MAX):
                dead.add([a_row(f"{name}_{number}")])
    async with a_spool(tmp_path, "heir", bytes_max=1_500_000) as heir:
        found = await heir.take_over()
        for number in range(2 * SEGMENT_ROWS_MAX):
            heir.add([a_row(f"new_{number}")])
        lost, rows = heir.lost, [row.request for row in await emptied(heir)]

    assert found == 4 * SEGMENT_ROWS_MAX
    assert len([name for name in rows if name.startswith("dead")]) == found
    # Its own are bounded all the same.
    assert 0 < lost == 2 * SEGMENT_ROWS_MAX - len([name for name in rows if name.startswith("new")])


async def test_a_spool_too_small_for_anything_loses_rows_and_nothing_else(tmp_path: Path) -> None:
    async with a_spool(tmp_path, bytes_max=1_000) as spool:
        for number in range(10):
            spool.add([a_row(f"req_{number}")])

        assert await spool.take() is None
        assert (spool.lost, spool.waiting) == (10, 0)


async def test_beyond_what_memory_holds_rows_are_on_disk_alone_and_still_come_in_their_order(tmp_path: Path) -> None:
    async with a_spool(tmp_path, memory_rows_max=SEGMENT_ROWS_MAX) as spool:
        for number in range(3 * SEGMENT_ROWS_MAX + 7):
            spool.add([a_row(f"req_{number}")])
        await spool.settled()
        in_memory = sum(len(each.usage or ()) for each in spool._closed)
        rows = await emptied(spool)

    assert in_memory == SEGMENT_ROWS_MAX
    assert [row.request for row in rows] == [f"req_{number}" for number in range(3 * SEGMENT_ROWS_MAX + 7)]


async def test_a_full_spool_loses_the_oldest_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_spool(tmp_path, bytes_max=3_000_000) as spool:
        for number in range(4 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.settled()
        size = sum(file.stat().st_size for file in tmp_path.glob("*.rows"))
        lost, rows = spool.lost, await emptied(spool)

    assert size <= 3_000_000
    assert lost == 4 * SEGMENT_ROWS_MAX - len(rows) > 0
    assert rows[-1].request == f"req_{4 * SEGMENT_ROWS_MAX - 1}"
    assert "rows of the ledger are lost" in caplog.text
    assert "raise ledger.spool_max" in caplog.text


async def test_a_disk_that_takes_nothing_leaves_rows_in_memory_as_far_as_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async with a_spool(tmp_path, memory_rows_max=SEGMENT_ROWS_MAX) as spool:
        spool.add([a_row("before")])
        await spool.settled()
        monkeypatch.setattr(segment_module.os, "write", full)
        for number in range(3 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.settled()
        lost, problem = spool.lost, spool.problem
        rows = await emptied(spool)
        await spool.settled()
        monkeypatch.undo()
        spool.add([a_row("after")])
        rows += await emptied(spool)
        spool.add([a_row("later")])
        await spool.settled()
        mended = spool.problem

    assert lost + len(rows) == 3 * SEGMENT_ROWS_MAX + 2
    assert lost > 0
    assert rows[0].request == "before"
    assert problem is not None
    assert "make room" in problem
    assert mended is None


async def test_rows_reach_the_disk_itself_when_they_have_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    true_sync = os.fsync

    def sync(file: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        true_sync(file)

    monkeypatch.setattr(segment_module.os, "fsync", sync)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row()])
        await spool.settled()
        await spool.sync()
        too_early = list(forced)
        spool._current.began_at -= 2.0
        await spool.sync()
        await spool.sync()
        spool.add([a_row("left behind")])

    assert too_early == []
    assert next(name for name in forced if name.endswith(".rows")) == str(tmp_path / "p1.00000001.rows")
    # Once for what had waited; once more when it was left behind.
    assert len([name for name in forced if name.endswith(".rows")]) == 2


@pytest.mark.parametrize("call", ["fsync", "open"])
async def test_a_disk_or_limit_that_fails_ends_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    await killed(tmp_path)
    async with a_spool(tmp_path) as spool:
        spool.add([a_row()])
        await spool.settled()
        spool._current.began_at -= 2.0
        monkeypatch.setattr(segment_module.os, call, fail)
        await spool.keep(look=call == "open")
        problem = spool.problem
        monkeypatch.undo()
        await spool.keep(look=True)

        assert problem is not None
        assert "raise the limit of open files" in problem
        assert spool.problem is None
        assert len(await emptied(spool)) == FOUND


async def test_one_who_cannot_look_at_the_dead_holds_none_of_their_locks(
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


async def test_a_file_that_cannot_be_removed_stops_nobody_who_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    async with a_spool(tmp_path, bytes_max=1_000_000) as spool:
        monkeypatch.setattr(Path, "unlink", fail)
        for number in range(2 * SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        await spool.settled()
        lost, problem = spool.lost, spool.problem
        monkeypatch.undo()

    assert lost > 0
    assert problem is not None


async def test_to_take_over_many_rows_takes_little_memory_and_lets_others_have_their_turn(tmp_path: Path) -> None:
    async with a_spool(tmp_path, "dead", memory_rows_max=0) as dead:
        for number in range(4 * SEGMENT_ROWS_MAX):
            dead.add([a_row(f"req_{number}")])
    async with a_spool(tmp_path) as spool:
        tracemalloc.start()
        found = await spool.take_over()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        taken = await spool.take()

    # One file at a time, and nothing of what is in it is kept.
    assert found == 4 * SEGMENT_ROWS_MAX
    assert most < 10_000_000
    assert taken is not None
    assert len(taken[1]) == SEGMENT_ROWS_MAX


async def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with a_spool(tmp_path / "a" / "b") as spool:
        spool.add([a_row()])
        await spool.settled()
        modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "a" / "b").iterdir()}

    assert modes == {0o600}


def test_a_record_is_read_as_it_was_written() -> None:
    row = replace(a_row(), ttft_us=None, metadata=())
    assert unpacked(packed_usage([row, a_row("b")])).usage == (row, a_row("b"))


@pytest.mark.parametrize("count", [1, 15, 16, 1_000])
def test_how_many_rows_a_record_has_is_told_by_how_it_begins(count: int) -> None:
    rows = [a_row(f"req_{number}", number) for number in range(count)]
    record = packed_usage(rows)

    assert rows_in(record) == rows_in(packed_times([a_time()] * count)) == count
    assert keys_in(record) == [(row.request, row.attempt) for row in rows]
    assert keys_in(packed_times([a_time()])) == []
    assert [rows_in(each) for each in (b"", b"\x92\x07\x91", b"\x93\x00\x91", b"\x92\x00\xa1")] == [0, 0, 0, 0]


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x92\x07\x90", b"\x92\x00\x91\x91\x01", b"\x92\x01\x91\x91\x01"])
def test_what_is_no_record_is_a_value_error(record: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpacked(record)


def test_text_and_numbers_are_as_the_database_takes_them() -> None:
    assert bounded("a\0b\ud800") == "a�b?"
    assert len(bounded("x" * 500)) == 200
    assert (whole(-3), whole(10**12)) == (0, COUNT_MAX)
    assert a_time().endpoint == "e1"
