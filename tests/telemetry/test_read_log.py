"""The read log: entries in files and in memory, their order, size limit and failures."""

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.ports.read_audit import AuditUnavailable, BadCursor, ReadEntry, ReadPage
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.audit.read_log import IN_MEMORY_MAX, ReadLog
from headgate.telemetry.log import LINES_PER_S_MAX

ENTRY = ReadEntry(1_000, "ann", "192.0.2.7", "/admin/v1/cost/report", "acme", "", 200)


def in_files(folder: Path, process: str = "one", *, bytes_max: int = 64_000, **options: Any) -> ReadLog:
    """A log in files. Its timeouts are long, because the disk of a busy machine may be slow."""
    timeouts = {"write_s_max": 60.0, "read_s_max": 60.0}
    return ReadLog(AuditOptions(str(folder), bytes_max), process, **timeouts | options)


async def page_of(log: ReadLog, limit: int = 10_000, before: str | None = None, tenant: str | None = None) -> ReadPage:
    return await log.entries(before=before, tenant=tenant, limit=limit)


async def all_of(log: ReadLog, **wanted: Any) -> list[ReadEntry]:
    return list((await page_of(log, **wanted)).entries)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_entries_survive_a_restart_and_are_listed_newest_first(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    await in_files(folder).record(ENTRY)
    second = replace(ENTRY, at_ns=2_000, operator="bob")
    await in_files(folder, "two").record(second)

    assert await all_of(in_files(folder, "three")) == [second, ENTRY]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}


async def test_pages_continue_before_the_last_entry(tmp_path: Path) -> None:
    log = in_files(tmp_path)
    entries = [replace(ENTRY, at_ns=number) for number in range(1, 8)]
    for each in entries:
        await log.record(each)

    first = await page_of(log, 3)
    second = await page_of(log, 3, first.next)
    last = await page_of(log, 3, second.next)
    assert [each.at_ns for page in (first, second, last) for each in page.entries] == [7, 6, 5, 4, 3, 2, 1]
    assert last.next is None


async def test_pages_neither_skip_nor_repeat_entries_of_the_same_nanosecond(tmp_path: Path) -> None:
    """Two processes write to the directory, each in turn."""
    in_memory = ReadLog(None, "")
    for number in range(10):
        entry = replace(ENTRY, operator=f"operator {number}")
        await in_memory.record(entry)
        await in_files(tmp_path, f"process.{number % 2}").record(entry)

    for log in (in_files(tmp_path, "three"), in_memory):
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(4):
            page = await page_of(log, 3, cursor)
            seen += [each.operator for each in page.entries]
            cursor = page.next
        assert cursor is None
        assert sorted(seen) == [f"operator {number}" for number in range(10)]


@pytest.mark.parametrize("cursor", ["", "7", "1.x.", "-1.2.", "1.2.a/b", "1.2.\n", "1" * 30 + ".1."])
async def test_invalid_cursor_is_rejected(cursor: str) -> None:
    with pytest.raises(BadCursor, match='use the value of "next"'):
        await page_of(ReadLog(None, ""), before=cursor)


async def test_file_that_was_changed_just_before_its_last_entry_is_read(tmp_path: Path) -> None:
    """The clock of a file system has a lower resolution than that of the entries."""
    now = 1_700_000_000_000_000_000
    for number, process in enumerate(("one", "two")):
        await in_files(tmp_path, process).record(replace(ENTRY, at_ns=now - number, operator=process))
    older, newer = (tmp_path / f"{each}-000001.reads.jsonl" for each in ("one", "two"))
    os.utime(older, ns=(now - 4_000_000, now - 4_000_000))
    os.utime(newer, ns=(now, now))

    assert [each.operator for each in await all_of(in_files(tmp_path, "three"), limit=1)] == ["one"]


@pytest.mark.parametrize(
    ("read", "asked", "shown"),
    [
        ("", "acme", True),
        ("acme", "acme", True),
        ("acme/search", "acme", True),
        ("acme", "acme/search", True),
        ("acme/mail", "acme/search", False),
        ("acme2", "acme", False),
        ("bolt", "acme", False),
    ],
)
async def test_filter_shows_reads_that_concern_a_tenant(tmp_path: Path, read: str, asked: str, *, shown: bool) -> None:
    for log in (in_files(tmp_path), ReadLog(None, "")):
        await log.record(replace(ENTRY, tenant=read))

        assert bool(await all_of(log, tenant=asked)) is shown


async def test_files_are_only_appended_to_and_the_oldest_are_deleted_at_the_limit(tmp_path: Path) -> None:
    log = in_files(tmp_path, bytes_max=16_000)
    seen: dict[str, bytes] = {}
    for number in range(1, 301):
        await log.record(replace(ENTRY, at_ns=number))
        now = contents(tmp_path)
        assert all(data.startswith(seen.get(name, b"")) for name, data in now.items())
        assert sum(map(len, now.values())) <= 16_000
        seen |= now

    kept = [each.at_ns for each in await all_of(log)]
    assert kept == list(range(300, 300 - len(kept), -1))
    assert 50 < len(kept) < 300


async def test_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    await in_files(tmp_path).record(ENTRY)
    [(name, data)] = contents(tmp_path).items()
    (tmp_path / name).write_bytes(data + b'{"at_ns": 5, "oper')

    assert await all_of(in_files(tmp_path, "two")) == [ENTRY]


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"at_ns":1,"operator":"\xff","address":"","route":"","tenant":"","target":"","status":1}',
        b"[" * 100_000,
        bytes(512),
        b'{"at_ns":1' + b"0" * 30 + b',"operator":"","address":"","route":"","tenant":"","target":"","status":1}',
    ],
    ids=["invalid UTF-8", "nesting", "zeros", "time"],
)
async def test_damaged_lines_are_skipped_and_counted(tmp_path: Path, damaged: bytes) -> None:
    await in_files(tmp_path).record(ENTRY)
    [(name, data)] = contents(tmp_path).items()
    (tmp_path / name).write_bytes(damaged + b"\n" + data + damaged)

    page = await page_of(in_files(tmp_path, "two"))
    assert (page.entries, page.skipped) == ([ENTRY], 2)


async def test_other_files_are_neither_read_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "training.jsonl").write_bytes(b"x" * 100_000)
    (tmp_path / "folder.reads.jsonl").mkdir()
    log = in_files(tmp_path, bytes_max=16_000)
    for number in range(300):
        await log.record(replace(ENTRY, at_ns=number))

    page = await page_of(log)
    assert (len(page.entries) > 50, page.skipped) == (True, 0)
    assert (tmp_path / "training.jsonl").read_bytes() == b"x" * 100_000
    assert (tmp_path / "folder.reads.jsonl").is_dir()


async def test_reads_without_an_operator_never_replace_entries_of_operators_in_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    log = ReadLog(None, "", now_s=lambda: 1.0)
    await log.record(ENTRY)
    for number in range(2 * IN_MEMORY_MAX):
        await log.record(replace(ENTRY, at_ns=2_000 + number, operator=""))

    kept = await all_of(log)
    assert (len(kept), kept[-1]) == (1 + IN_MEMORY_MAX, ENTRY)
    assert len(caplog.records) == 1 + LINES_PER_S_MAX
    await log.record(replace(ENTRY, at_ns=9_000))
    assert caplog.records[-1].fields["operator"] == "ann"  # type: ignore[attr-defined]


async def test_reads_without_an_operator_never_delete_files_of_operators(tmp_path: Path) -> None:
    log = in_files(tmp_path, bytes_max=16_000)
    await log.record(ENTRY)
    for number in range(300):
        await log.record(replace(ENTRY, at_ns=2_000 + number, operator=""))

    kept = await all_of(log)
    assert kept[-1] == ENTRY
    assert 15 < len(kept) < 50
    assert sum(map(len, contents(tmp_path).values())) <= 16_000


async def test_hanging_write_of_a_read_without_an_operator_does_not_delay_operators(tmp_path: Path) -> None:
    """A FIFO without a reader blocks the open call, like a disk that does not respond."""
    log = in_files(tmp_path)
    os.mkfifo(tmp_path / "one-000001.anonymous-reads.jsonl")
    hung = asyncio.create_task(log.record(replace(ENTRY, operator="")))
    try:
        await log.record(ENTRY)
        assert not hung.done()
    finally:
        reader = os.open(tmp_path / "one-000001.anonymous-reads.jsonl", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(AuditUnavailable):
            await hung
        os.close(reader)


async def test_log_does_not_wait_for_the_default_executor(tmp_path: Path) -> None:
    log = in_files(tmp_path)
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, release.wait)
    try:
        await log.record(ENTRY)
        assert await all_of(log) == [ENTRY]
        assert not busy.done()
    finally:
        release.set()
        await busy


async def test_thread_of_a_read_that_timed_out_ends_before_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, process in enumerate(("older", "newer")):
        await in_files(tmp_path, process).record(replace(ENTRY, operator=process))
        os.utime(tmp_path / f"{process}-000001.reads.jsonl", ns=(number, number))
    release = threading.Event()
    opened: list[str] = []
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        opened.append(path.name.partition("-")[0])
        assert release.wait(30)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    log = in_files(tmp_path, read_s_max=0.05)
    while not opened:
        with pytest.raises(AuditUnavailable, match="could not be read within"):
            await all_of(log)
    release.set()
    async with asyncio.timeout(30):
        while "older" not in opened:
            with suppress(AuditUnavailable):
                await all_of(log)

    assert opened[:2] == ["newer", "newer"]


@pytest.mark.parametrize("secret", [f"hg-{'k' * 43}", "hg-short", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbg"])
async def test_key_in_place_of_a_request_id_is_masked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    for log in (in_files(tmp_path), ReadLog(None, "")):
        await log.record(replace(ENTRY, route=f"/explain/{secret}", target=secret))

        [entry] = await all_of(log)
        assert (entry.route, entry.target) == (f"/explain/{secret[:3]}***", f"{secret[:3]}***")
    assert secret not in str([vars(each) for each in caplog.records])
    assert secret.encode() not in b"".join(contents(tmp_path).values())


async def test_complete_key_in_place_of_a_tenant_is_masked_and_names_are_kept(tmp_path: Path) -> None:
    log = in_files(tmp_path)
    for tenant in ("hg-bank/eyJ", "req_hg-1", f"acme/hg-{'k' * 43}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbg"):
        await log.record(replace(ENTRY, tenant=tenant, target="req_hg-1"))

    entries = await all_of(log)
    assert [each.tenant for each in reversed(entries)] == ["hg-bank/eyJ", "req_hg-1", "acme/hg-***", "eyJ***"]
    assert {each.target for each in entries} == {"req_hg-1"}


async def test_directory_that_cannot_be_written_makes_the_read_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AuditUnavailable, match=r"audit\.directory cannot be written: "):
        await in_files(tmp_path / "file").record(ENTRY)


async def test_hanging_disk_makes_reads_fail_and_blocks_one_thread_only(tmp_path: Path) -> None:
    """A FIFO without a reader blocks the open call, like a disk that does not respond."""
    log = in_files(tmp_path, write_s_max=0.05)
    os.mkfifo(tmp_path / "one-000001.reads.jsonl")
    hung = [asyncio.create_task(log.record(ENTRY)) for _ in range(20)]
    for each in hung:
        with pytest.raises(AuditUnavailable, match="the disk of audit"):
            await each

    # The first thread is still in its call. It ends when the FIFO gets a reader, and the log recovers.
    reader = os.open(tmp_path / "one-000001.reads.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with asyncio.timeout(10):
            while log.writes:
                await asyncio.sleep(0)
    finally:
        os.close(reader)
    (tmp_path / "one-000001.reads.jsonl").unlink()
    recorded = False
    async with asyncio.timeout(60):
        while not recorded:
            # A working disk may also take longer than the short timeout.
            with suppress(AuditUnavailable):
                await log.record(ENTRY)
                recorded = True
    assert set(await all_of(log)) == {ENTRY}


async def test_without_a_directory_entries_are_logged_and_the_newest_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    log = ReadLog(None, "")
    for number in range(IN_MEMORY_MAX + 5):
        await log.record(replace(ENTRY, at_ns=number))

    assert [each.at_ns for each in await all_of(log)] == list(range(IN_MEMORY_MAX + 4, 4, -1))
    lines = [each for each in caplog.records if each.getMessage() == "tenant data read"]
    assert len(lines) == IN_MEMORY_MAX + 5
    fields = {"operator": "ann", "address": "192.0.2.7", "route": "/admin/v1/cost/report", "tenant": "acme"}
    assert lines[0].fields == {**fields, "status": 200}  # type: ignore[attr-defined]
