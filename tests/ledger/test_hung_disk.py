"""A hung disk never blocks the event loop and delays a request by at most the stall limit.

The disk is simulated: writes in the spool's thread wait for an event.
"""

# ruff: noqa: ASYNC240  These tests read files in memory.

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.core.commands import Dispatch
from headgate.ledger import inflight_journal as notes_module
from headgate.ledger.inflight_journal import read_entries
from headgate.ledger.recorder import UsageRecorder
from headgate.ledger.rows import row_of_entry
from headgate.ledger.spool import segment as segment_module
from headgate.ledger.spool.acknowledgement import Acknowledgement
from headgate.ledger.spool.spool import Spool
from headgate.model.units import RequestId
from testing.builders import arrived, at, dispatch
from tests.ledger.databases import until
from tests.ledger.rows import a_row, a_spool
from tests.ledger.test_spool import a_note, emptied

STALL_S = 0.02
PATIENT_S = 600.0
"""Stall limit while the disk is working; long enough that a slow machine does not count as a hung disk."""
HELD_UP_S = 30.0
"""Timeout for waits on a hung disk. It is far above `STALL_S`, so only a wait for the disk exceeds it."""


class Disk:
    """While the disk is hung, writes block in all threads except the event loop's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self._loop_thread = threading.get_ident()
        self.notes_written = 0
        self.in_loop: list[str] = []
        true_write, true_pwrite = os.write, os.pwrite

        def write(file: int, data: bytes) -> int:
            self._wait(file)
            return true_write(file, data)

        def pwrite(file: int, data: bytes, place: int) -> int:
            self._wait(file)
            self.notes_written += 1
            return true_pwrite(file, data, place)

        monkeypatch.setattr(notes_module.os, "write", write)
        monkeypatch.setattr(notes_module.os, "pwrite", pwrite)

    def _wait(self, file: int) -> None:
        name = str(Path(f"/proc/self/fd/{file}").readlink())
        if not name.endswith((".rows", ".notes")):
            return
        if threading.get_ident() == self._loop_thread:
            self.in_loop.append(name)
        else:
            self._answers.wait()

    def hangs(self, spool: Spool | None = None) -> None:
        """Hang the disk. If a spool is given, set its stall limit to `STALL_S`."""
        if spool is not None:
            limit(spool, STALL_S)
        self._answers.clear()

    def answers(self, spool: Spool | None = None) -> None:
        if spool is not None:
            limit(spool, PATIENT_S)
        self._answers.set()


def limit(spool: Spool, stall_s: float) -> None:
    handover = spool._disk._disk_thread
    handover._stall_s = stall_s
    if handover._timer is not None:
        handover._timer.cancel()
        handover._timer = None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.answers()


async def hung(spool: Spool, disk: Disk) -> None:
    """Hang the disk and wait until the spool reports it."""
    disk.hangs(spool)
    assert spool.journal.add_entry(a_note("unlucky")) is not None
    await until(lambda: spool.problem is not None)


async def test_note_is_acknowledged_once_it_is_on_disk(tmp_path: Path, disk: Disk) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        disk.hangs()
        note = spool.journal.add_entry(a_note("sent"))
        assert note is not None
        for _ in range(5):
            await asyncio.sleep(0)
        early = note.acknowledgement.written
        disk.answers()
        written = await note.acknowledgement.wait()
        on_disk = [row_of_entry(each).request for each in read_entries(tmp_path / "p1.notes")]

    assert (early, written, on_disk) == (None, True, ["sent"])
    assert disk.in_loop == []


async def test_notes_from_one_turn_are_written_in_one_call(tmp_path: Path, disk: Disk) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        notes = [spool.journal.add_entry(a_note(f"req_{number}")) for number in range(50)]
        for note in notes:
            assert note is not None
            assert await note.acknowledgement.wait()
        writes = disk.notes_written

    assert writes == 1


async def test_request_waits_for_a_hanging_disk_no_longer_than_the_stall_timeout(tmp_path: Path, disk: Disk) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        disk.hangs(spool)
        first = spool.journal.add_entry(a_note("first"))
        await asyncio.sleep(STALL_S / 4)
        second = spool.journal.add_entry(a_note("second"))
        assert first is not None
        assert second is not None
        async with asyncio.timeout(HELD_UP_S):
            await first.acknowledgement.wait()
        # The second note is released with the first, before its own limit is reached.
        written = [each.acknowledgement.written for each in (first, second)]
        third, problem = spool.journal.add_entry(a_note("third")), spool.problem
        disk.answers(spool)
        await spool.flush()
        after = spool.journal.add_entry(a_note("after"))
        assert after is not None
        after_written, mended = await after.acknowledgement.wait(), spool.problem

    assert (written, third, after_written) == ([False, False], None, True)
    assert problem is not None
    assert "the disk under ledger.spool_directory is hanging" in problem
    assert mended is None


async def test_rows_reach_the_database_from_memory_while_the_disk_hangs(tmp_path: Path, disk: Disk) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        spool.add([a_row("before")])
        await spool.flush()
        await hung(spool, disk)
        spool.add([a_row("during")])
        taken = await spool.next_batch()
        assert taken is not None
        spool.commit(taken[0])
        spool.add([a_row("later")])
        again = await spool.next_batch()
        assert again is not None
        spool.commit(again[0])
        disk.answers(spool)
        await spool.flush()
        left, lost = list(tmp_path.glob("*.rows")), spool.rows_lost
        spool.add([a_row("after")])
        await spool.flush()
        size = sum(file.stat().st_size for file in tmp_path.glob("*.rows"))

    assert [row.request for row in (*taken[1].usage, *again[1].usage)] == ["before", "during", "later"]
    assert (len(left), lost) == (1, 0)
    assert size > 100
    assert disk.in_loop == []


async def test_rows_beyond_the_memory_limit_are_lost_and_counted_while_the_disk_hangs(
    tmp_path: Path, disk: Disk
) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S, memory_rows_max=5_000) as spool:
        await hung(spool, disk)
        for number in range(20_000):
            spool.add([a_row(f"req_{number}")])
        lost = spool.rows_lost
        disk.answers(spool)
        rows = await emptied(spool)

    assert lost == 15_000
    assert len(rows) == 5_000


async def test_rows_waiting_for_a_hanging_disk_are_written_when_it_recovers(tmp_path: Path, disk: Disk) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        disk.hangs(spool)
        spool.add([a_row("hung")])
        await until(lambda: spool.problem is not None)
        disk.answers(spool)
        await spool.flush()
        spool.add([a_row("after")])
    lost = spool.rows_lost
    async with a_spool(tmp_path, "p2", stall_s=PATIENT_S) as heir:
        await heir.take_over()
        rows = await emptied(heir)

    assert [row.request for row in rows] == ["hung", "after"]
    assert lost == 0


async def test_cancelling_one_waiting_request_does_not_wake_the_others() -> None:
    acknowledgement = Acknowledgement()
    waiting = [asyncio.create_task(acknowledgement.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait([waiting[0]])
    early = [task.done() for task in waiting[1:]]
    acknowledgement.settle(written=True)
    acknowledgement.settle(written=False)

    assert early == [False, False]
    assert await asyncio.gather(*waiting[1:]) == [True, True]


async def test_attempt_without_a_note_on_disk_is_counted_as_unrecorded(tmp_path: Path, disk: Disk) -> None:
    def sent(request: str) -> Dispatch:
        return dispatch(request)

    async with a_spool(tmp_path, stall_s=PATIENT_S) as spool:
        recorder = UsageRecorder(spool, spool.journal)
        recorder.observe(arrived("a"), [sent("a")], at(0))
        await recorder.wait_journaled(RequestId("a"), 1)
        on_disk, unrecorded = len(read_entries(tmp_path / "p1.notes")), recorder.unjournaled_attempts
        disk.hangs(spool)
        recorder.observe(arrived("b"), [sent("b")], at(0))
        await recorder.wait_journaled(RequestId("b"), 1)
        recorder.observe(arrived("c"), [sent("c")], at(0))
        await recorder.wait_journaled(RequestId("c"), 1)
        await recorder.wait_journaled(RequestId("over"), 1)
        disk.answers(spool)

    assert (on_disk, unrecorded, recorder.unjournaled_attempts) == (1, 0, 2)


async def test_reject_unrecorded_rejects_attempts_until_a_hanging_disk_recovers(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_spool(tmp_path, stall_s=PATIENT_S, reject_unrecorded=True) as spool:
        recorder = UsageRecorder(spool, spool.journal, reject_unrecorded=True)
        recorder.observe(arrived("a"), [dispatch("a")], at(0))
        before = await recorder.wait_journaled(RequestId("a"), 1)
        disk.hangs(spool)
        recorder.observe(arrived("b"), [dispatch("b")], at(0))
        async with asyncio.timeout(HELD_UP_S):
            during = await recorder.wait_journaled(RequestId("b"), 1)
        recorder.observe(arrived("c"), [dispatch("c")], at(0))
        at_once = await recorder.wait_journaled(RequestId("c"), 1)
        disk.answers(spool)
        await spool.flush()
        recorder.observe(arrived("d"), [dispatch("d")], at(0))
        after = await recorder.wait_journaled(RequestId("d"), 1)

    assert (before, after, recorder.unjournaled_attempts) == (None, None, 0)
    for why in (during, at_once):
        assert why is not None
        assert "the disk under ledger.spool_directory is hanging" in why
    assert "requests are rejected in the meantime" in caplog.text
    assert "is responding again" in caplog.text


async def test_reject_unrecorded_rejects_attempts_until_a_full_disk_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    async with a_spool(tmp_path, stall_s=PATIENT_S, reject_unrecorded=True) as spool:
        recorder = UsageRecorder(spool, spool.journal, reject_unrecorded=True)
        monkeypatch.setattr(segment_module.os, "write", full)
        spool.add([a_row("unwritten")])
        await spool.flush()
        recorder.observe(arrived("a"), [dispatch("a")], at(0))
        refused = await recorder.wait_journaled(RequestId("a"), 1)
        await spool.maintain(take_over=False)
        await spool.flush()
        still = spool.write_problem
        monkeypatch.undo()
        # No request is served in the meantime, so only `keep` can notice that the disk is working again.
        await spool.maintain(take_over=False)
        await spool.flush()
        recorder.observe(arrived("b"), [dispatch("b")], at(0))
        served = await recorder.wait_journaled(RequestId("b"), 1)
        rows = await emptied(spool)

    assert refused is not None
    assert "free disk space in ledger.spool_directory" in refused
    assert still is not None
    assert served is None
    assert "unwritten" in {row.request for row in rows}
