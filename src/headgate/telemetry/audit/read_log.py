"""Read log: which operator has read which tenant's data, in files or in memory.

Entries are appended as JSON lines, and each line is written to disk before the response is sent. Each process appends
to its own file and starts a new one when the file is full. If the files in the directory exceed the size limit, the
oldest ones are deleted. Nothing else changes or deletes an entry.

Without a directory, the newest entries are kept in memory, and the gateway's log contains all of them.

Some pages require no authentication. Entries without an operator therefore have their own files, memory and limit of
log lines, so that requests for these pages cannot replace or delay entries of operators.

Keys and tokens that a caller has sent in place of a request ID or tenant are masked.
"""

import asyncio
import heapq
import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple, TypeAlias

import msgspec

from headgate.ports.read_audit import AuditUnavailable, BadCursor, ReadEntry, ReadPage
from headgate.telemetry.audit.options import AuditOptions
from headgate.telemetry.log import LogLimit, log_event

IN_MEMORY_MAX: Final = 1_000
"""Maximum number of entries kept in memory, separately for entries with and without an operator."""
OPERATOR_FILES_MIN: Final = 12
ANONYMOUS_FILES_MIN: Final = 4
"""Minimum number of files within the size limit, so that deleting one removes only a small part of the entries."""
WRITE_S_MAX: Final = 2.0
"""Maximum time for recording one read."""
READ_S_MAX: Final = 10.0
"""Maximum time for reading a page of the log."""
_OPERATOR_SUFFIX: Final = ".reads.jsonl"
_ANONYMOUS_SUFFIX: Final = ".anonymous-reads.jsonl"
"""Other files of the directory are neither read nor deleted."""
_DAMAGE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CLOCK_NS: Final = 1_000_000_000
"""Maximum difference between the file system's clock and the entries' clock."""
_AT_NS_MAX: Final = 2**63
_CURSOR: Final = re.compile(r"(\d{1,19})\.(\d{1,19})\.([A-Za-z0-9._-]{0,200})", re.ASCII)
_SECRET: Final = re.compile(r"(?<![A-Za-z0-9_-])(hg-|eyJ)[A-Za-z0-9._~+/=-]+")
"""A key or token, where only request IDs are expected."""
_SECRET_TENANT: Final = re.compile(r"(?<![A-Za-z0-9_-])(hg-[A-Za-z0-9_-]{40}|eyJ[A-Za-z0-9_-]{16})[A-Za-z0-9._~+/=-]*")
"""A complete key or token. Tenant names may start with the same characters."""


class _Place(NamedTuple):
    """Position of an entry in the log.

    Entries with the same timestamp have different positions, so that pages neither skip nor repeat them.
    """

    at_ns: int
    file: str
    number: int
    """Line of the file, or number of the entry in memory."""

    @property
    def cursor(self) -> str:
        return f"{self.at_ns}.{self.number}.{self.file}"


_Placed: TypeAlias = tuple[_Place, ReadEntry]


class ReadLog:
    """Must be used inside one event loop. Implements `ReadAudit`."""

    def __init__(
        self,
        options: AuditOptions | None,
        process: str,
        *,
        write_s_max: float = WRITE_S_MAX,
        read_s_max: float = READ_S_MAX,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`process` is a name that no other process uses."""
        self._operators: deque[_Placed] = deque(maxlen=IN_MEMORY_MAX)
        self._anonymous: deque[_Placed] = deque(maxlen=IN_MEMORY_MAX)
        self._operator_files, self._anonymous_files = (
            None if options is None else _LogFiles(Path(options.directory), process, suffix, options.bytes_max, files)
            for suffix, files in ((_OPERATOR_SUFFIX, OPERATOR_FILES_MIN), (_ANONYMOUS_SUFFIX, ANONYMOUS_FILES_MIN))
        )
        self._recorded = 0
        self._anonymous_lines = LogLimit("suppressed log lines for reads without an operator", now_s)
        self._write_s_max = write_s_max
        self._read_s_max = read_s_max
        self._reader = ThreadPoolExecutor(1, "audit-read")
        """Reads one page at a time. Writes have threads of their own and do not wait for it."""

    async def record(self, entry: ReadEntry) -> None:
        entry = _masked(entry)
        files = self._operator_files if entry.operator else self._anonymous_files
        if files is None:
            self._keep(entry)
            return
        try:
            async with asyncio.timeout(self._write_s_max):
                await files.turn.acquire()
                writing = asyncio.get_running_loop().run_in_executor(files.writer, files.append, entry)
                # If the disk hangs, only this thread waits for it, and all other reads are rejected.
                writing.add_done_callback(files.end_turn)
                await asyncio.shield(writing)
        except TimeoutError:
            slow = f"the disk of audit.directory did not respond within {self._write_s_max:g} s"
            raise AuditUnavailable(slow) from None
        except OSError as error:
            raise AuditUnavailable(f"audit.directory cannot be written: {error.strerror or error}") from None

    def _keep(self, entry: ReadEntry) -> None:
        self._recorded += 1
        memory = self._operators if entry.operator else self._anonymous
        memory.append((_Place(entry.at_ns, "", self._recorded), entry))
        if entry.operator or self._anonymous_lines.allows():
            log_event(logging.INFO, "tenant data read", **_shown(entry))

    @property
    def writes(self) -> bool:
        """Whether an entry is being written."""
        return any(each.turn.locked() for each in self._files)

    @property
    def _files(self) -> list["_LogFiles"]:
        return [each for each in (self._operator_files, self._anonymous_files) if each is not None]

    async def entries(self, *, before: str | None, tenant: str | None, limit: int) -> ReadPage:
        place = None if before is None else _place_of(before)
        if not (files := self._files):
            return _page(_newest([*self._operators, *self._anonymous], place, tenant, limit), limit, 0)
        stop = Event()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._read_s_max):
                return await loop.run_in_executor(self._reader, _newest_of_files, files, place, tenant, limit, stop)
        except TimeoutError:
            raise AuditUnavailable(f"audit.directory could not be read within {self._read_s_max:g} s") from None
        except OSError as error:
            raise AuditUnavailable(f"audit.directory cannot be read: {error.strerror or error}") from None
        finally:
            stop.set()


class _LogFiles:
    """Appends to the files of this process, and finds those of all processes. Methods raise `OSError`."""

    def __init__(self, folder: Path, process: str, suffix: str, bytes_max: int, files: int) -> None:
        """`bytes_max` limits all files in the directory. `files` is the number of full files with this suffix."""
        self._folder = folder
        self._process = process
        self._suffix = suffix
        self._file_bytes_max = bytes_max // (OPERATOR_FILES_MIN + ANONYMOUS_FILES_MIN)
        self._bytes_max = files * self._file_bytes_max
        self.turn = asyncio.Lock()
        """Held while an entry is being written."""
        self.writer = ThreadPoolExecutor(1, "audit-write")
        self._path: Path | None = None
        self._begun = 0
        """Number of files that this process has begun."""

    def end_turn(self, writing: asyncio.Future[None]) -> None:
        self.turn.release()
        if not writing.cancelled():
            writing.exception()  # Already reported, unless the read has timed out.

    def append(self, entry: ReadEntry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        path = self._path
        if path is None or not path.exists() or path.stat().st_size + len(line) > self._file_bytes_max:
            path = self._path = self._begin()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, line) < len(line):
                # The next entry must not continue an incomplete line.
                self._path = None
                raise OSError(28, "no space for a complete entry")
            os.fdatasync(file)
        finally:
            os.close(file)

    def _begin(self) -> Path:
        """Makes room for another file and returns its path."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = sorted(self.all(), key=lambda each: each[0])
        taken = sum(size for _, size, _ in files) + self._file_bytes_max
        for _, size, path in files:
            if taken <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            taken -= size
        self._begun += 1
        return self._folder / f"{self._process}-{self._begun:06d}{self._suffix}"

    def all(self) -> Iterator[tuple[int, int, Path]]:
        """Time of the last change, size and path of each file."""
        for path in self._folder.glob(f"*{self._suffix}"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # Another process has deleted it.
            if stat.S_ISREG(found.st_mode):
                yield found.st_mtime_ns, found.st_size, path


def _newest_of_files(
    files: Iterable[_LogFiles], before: _Place | None, tenant: str | None, limit: int, stop: Event
) -> ReadPage:
    """Returns early, with an incomplete result, once `stop` is set."""
    kept: list[_Placed] = []
    skipped = 0
    found = (each for kind in files for each in kind.all())
    for changed_ns, _, path in sorted(found, key=lambda each: each[0], reverse=True):
        if len(kept) == limit and changed_ns + _CLOCK_NS < kept[-1][0].at_ns:
            break  # All entries of this file and of older ones are older.
        if stop.is_set():
            break
        entries, damaged = _entries_of(path, stop)
        kept = _newest([*kept, *entries], before, tenant, limit)
        skipped += damaged
    return _page(kept, limit, skipped)


def _entries_of(path: Path, stop: Event) -> tuple[list[_Placed], int]:
    """Entries of the file, and the number of damaged lines.

    A line is damaged if the process was killed while it wrote the line, or if the disk corrupted it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0  # Another process has deleted it.
    found: list[_Placed] = []
    for number, line in enumerate(lines):
        if stop.is_set():
            break
        try:
            entry = msgspec.json.decode(line, type=ReadEntry)
        except _DAMAGE:
            continue
        if 0 <= entry.at_ns < _AT_NS_MAX:
            found.append((_Place(entry.at_ns, path.name, number), entry))
    return found, len(lines) - len(found)


def _newest(entries: Iterable[_Placed], before: _Place | None, tenant: str | None, limit: int) -> list[_Placed]:
    chosen = (
        (place, entry)
        for place, entry in entries
        if (before is None or place < before) and (tenant is None or _concerns(entry.tenant, tenant))
    )
    return heapq.nlargest(limit, chosen, key=lambda each: each[0])


def _page(entries: list[_Placed], limit: int, skipped: int) -> ReadPage:
    following = entries[-1][0].cursor if len(entries) == limit else None
    return ReadPage([entry for _, entry in entries], following, skipped)


def _place_of(cursor: str) -> _Place:
    if (found := _CURSOR.fullmatch(cursor)) is None:
        raise BadCursor('"before" is not a cursor from this log; use the value of "next" from the previous page')
    at_ns, number, file = found.groups()
    return _Place(int(at_ns), file, int(number))


def _masked(entry: ReadEntry) -> ReadEntry:
    return replace(
        entry,
        route=_SECRET.sub(r"\1***", entry.route),
        target=_SECRET.sub(r"\1***", entry.target),
        tenant=_SECRET_TENANT.sub(lambda found: f"{found[0][:3]}***", entry.tenant),
    )


def _concerns(read: str, tenant: str) -> bool:
    """Whether a read limited to the tenant `read`, or not limited, can include data of `tenant` or of one below it."""
    return not read or read == tenant or read.startswith(f"{tenant}/") or tenant.startswith(f"{read}/")


def _shown(entry: ReadEntry) -> dict[str, object]:
    return {name: value for name, value in asdict(entry).items() if name != "at_ns" and value != ""}
