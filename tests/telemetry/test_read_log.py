"""The log of operators' reads: entries in files and in memory, their order, size limit and failures."""

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.ports.read_audit import AuditUnavailable, ReadEntry
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.audit.read_log import IN_MEMORY_MAX, ReadLog

ENTRY = ReadEntry(1_000, "ann", "192.0.2.7", "/admin/v1/cost/report", "acme", "", 200)


def in_files(folder: Path, process: str = "one", *, bytes_max: int = 64_000, **options: Any) -> ReadLog:
    return ReadLog(AuditOptions(str(folder), bytes_max), process, **options)


async def all_of(log: ReadLog, limit: int = 10_000, **wanted: Any) -> list[ReadEntry]:
    return list(await log.entries(**{"before_ns": None, "tenant": None, "limit": limit, **wanted}))


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

    first = await all_of(log, 3)
    second = await all_of(log, 3, before_ns=first[-1].at_ns)
    assert [each.at_ns for each in (*first, *second)] == [7, 6, 5, 4, 3, 2]


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


async def test_directory_that_cannot_be_written_makes_the_read_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AuditUnavailable, match=r"audit\.directory cannot be written: "):
        await in_files(tmp_path / "file").record(ENTRY)


async def test_hanging_disk_makes_reads_fail_and_blocks_one_thread_only(tmp_path: Path) -> None:
    """A FIFO without a reader blocks the open call, like a disk that does not respond."""
    log = in_files(tmp_path, write_s_max=0.05)
    os.mkfifo(tmp_path / "one-000001.jsonl")
    hung = [asyncio.create_task(log.record(ENTRY)) for _ in range(20)]
    for each in hung:
        with pytest.raises(AuditUnavailable, match="the disk of audit"):
            await each

    # The first thread is still in its call. It ends when the FIFO gets a reader, and the log recovers.
    reader = os.open(tmp_path / "one-000001.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with asyncio.timeout(10):
            while log.writes:
                await asyncio.sleep(0)
    finally:
        os.close(reader)
    (tmp_path / "one-000001.jsonl").unlink()
    await log.record(ENTRY)
    assert await all_of(log) == [ENTRY]


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
