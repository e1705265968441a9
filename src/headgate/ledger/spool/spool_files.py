"""Spool file format, and recovery of files left behind by dead processes.

A file starts with magic bytes that identify the format version, followed by records, each with a length and checksum.
Records with a wrong checksum are skipped. A truncated record was being written when its process died; its attempt is
still in the journal. Any other unreadable content is damaged or from another version. Such a file is renamed rather
than deleted, so that it can be examined.

Files are read in a separate thread, in small slices with pauses, so that streams are not delayed.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from headgate.ledger.inflight_journal import read_entries
from headgate.ledger.rows import RowBatch, count_rows, row_of_entry, unpack_record, usage_keys
from headgate.ports.ledger import EndpointTimeRow, UsageRow

MAGIC: Final = b"headgate rows 1\n"
RECORD_BYTES_MAX: Final = 1024 * 1024
UNREADABLE_SUFFIX: Final = ".unread"
"""Suffix of a file that has been set aside."""
_HEADER: Final = struct.Struct(">II")
"""Length and checksum of a record."""
HEADER_BYTES: Final = _HEADER.size
_ROW_BYTES: Final = 200
"""Approximate size of a row, used to estimate the number of rows in an unreadable file."""
_TRANSIENT_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Temporary read errors that do not mean that the file is damaged."""
_SLICE: Final = 128
"""Number of records read between two pauses."""
_PAUSE_S: Final = 0.0002


def frame_record(record: bytes) -> bytes:
    """Returns the record with its header."""
    return _HEADER.pack(len(record), crc32(record)) + record


# Reading a file


@dataclass(slots=True)
class Contents:
    records: list[bytes] = field(default_factory=list[bytes])
    rows: int = 0
    truncated_bytes: int = 0
    """Size of the truncated record at the end, in bytes."""
    rows_lost: int = 0
    """Estimated number of unreadable rows."""


def read_contents(path: Path) -> Contents:
    """Reads the file. Raises `OSError` for temporary errors. If the file is permanently unreadable, all its rows count
    as lost.
    """
    found = Contents()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return found
    except OSError as error:
        if error.errno in _TRANSIENT_ERRNOS:
            raise
        found.rows_lost = _estimate_rows(path.stat().st_size)
        return found
    if not data.startswith(MAGIC):
        found.rows_lost = _estimate_rows(len(data)) if len(data) > len(MAGIC) else 0
        return found
    # A power failure may leave zeros at the end of the file.
    end, at = len(data.rstrip(b"\0")), len(MAGIC)
    while at < end:
        length, checksum = _HEADER.unpack_from(data, at) if at + HEADER_BYTES <= len(data) else (1, 0)
        record = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if not 0 < length <= RECORD_BYTES_MAX:
            found.rows_lost += _estimate_rows(len(data) - at)
            return found
        if len(record) < length:
            break
        at += HEADER_BYTES + length
        rows = count_rows(record) if crc32(record) == checksum else 0
        if rows:
            found.records.append(record)
            found.rows += rows
        else:
            found.rows_lost += 1
        _yield_cpu(len(found.records) + found.rows_lost)
    found.truncated_bytes = len(data) - at
    return found


def read_batch(path: Path) -> RowBatch:
    """Rows from the file that this version can decode."""
    usage: list[UsageRow] = []
    times: list[EndpointTimeRow] = []
    for number, record in enumerate(read_contents(path).records, 1):
        with suppress(ValueError):
            batch = unpack_record(record)
            usage += batch.usage
            times += batch.endpoint_times
        _yield_cpu(number)
    return RowBatch(tuple(usage), tuple(times))


def set_aside(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}{UNREADABLE_SUFFIX}"))


def _estimate_rows(size: int) -> int:
    return max(1, size // _ROW_BYTES)


def _yield_cpu(number: int) -> None:
    if number % _SLICE == 0:
        time.sleep(_PAUSE_S)


# Dead processes' files


@dataclass(frozen=True, slots=True)
class OrphanedFile:
    path: Path
    rows: int
    bytes: int
    began_at: float
    damaged: bool


@dataclass(slots=True)
class OrphanedSpool:
    """Files of a dead process, whose lock this process now holds."""

    lock: int
    lock_path: Path
    files: list[OrphanedFile] = field(default_factory=list[OrphanedFile])
    inflight_rows: list[UsageRow] = field(default_factory=list[UsageRow])
    """Rows for the attempts that were in flight, recovered from the journal."""
    truncated_bytes: int = 0
    rows_lost: int = 0
    unreadable: list[Path] = field(default_factory=list[Path])
    """Files that contain no readable rows."""

    @property
    def journal_path(self) -> Path:
        return self.lock_path.with_suffix(".notes")

    def release(self) -> None:
        """Removes and releases the lock, after all other files have been removed."""
        with suppress(OSError):
            self.lock_path.unlink(missing_ok=True)
        os.close(self.lock)


def find_orphans(folder: Path, own: str) -> tuple[list[OrphanedSpool], OSError | None]:
    """All dead processes' files, and the error if some files could not be read and must be retried."""
    found: list[OrphanedSpool] = []
    problem: OSError | None = None
    for path in sorted(folder.glob("*.lock")):
        try:
            left = None if path.stem == own else _orphan(path)
        except OSError as error:
            problem = error
        else:
            found += [] if left is None else [left]
    return found, problem


def _orphan(path: Path) -> OrphanedSpool | None:
    lock = try_lock(path)
    if lock is None:
        return None
    left = OrphanedSpool(lock, path)
    try:
        _inspect(left)
    except BaseException:
        os.close(lock)
        raise
    return left


def _inspect(left: OrphanedSpool) -> None:
    for path in sorted(left.lock_path.parent.glob(f"{left.lock_path.stem}.*.rows")):
        seen, told = read_contents(path), path.stat()
        left.truncated_bytes += seen.truncated_bytes
        left.rows_lost += seen.rows_lost
        if seen.rows:
            left.files.append(OrphanedFile(path, seen.rows, told.st_size, told.st_mtime, damaged=seen.rows_lost > 0))
        elif seen.rows_lost:
            set_aside(path)
            left.unreadable.append(path)
        else:
            path.unlink(missing_ok=True)
    notes = {(row.request, row.attempt): row for row in _rows_of(read_entries(left.journal_path))}
    # An entry may still exist even though its rows have been written. Such rows are in the last two files.
    for key in _keys_of(left.files[-2:]) if notes else ():
        notes.pop(key, None)
    left.inflight_rows = list(notes.values())


def _keys_of(files: Sequence[OrphanedFile]) -> Iterator[tuple[str, int]]:
    for file in files:
        for number, record in enumerate(read_contents(file.path).records, 1):
            with suppress(ValueError):
                yield from usage_keys(record)
            _yield_cpu(number)


def _rows_of(notes: Sequence[bytes]) -> Iterator[UsageRow]:
    for note in notes:
        with suppress(ValueError):
            yield row_of_entry(note)


# Locks


def acquire_lock(path: Path) -> int:
    """Takes this process's own lock and returns its descriptor. Closing it releases the lock."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # A process looking for dead processes may briefly hold the lock and remove the file.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_same_file(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def try_lock(path: Path) -> int | None:
    """Takes a dead process's lock. Returns None if the process is alive or another process has taken the lock."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed the file.
        if _is_same_file(lock, path):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _is_same_file(file: int, path: Path) -> bool:
    """Whether the descriptor refers to the file at this path."""
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
