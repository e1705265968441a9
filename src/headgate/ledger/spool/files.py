"""What does a file of the spool hold, and what did processes leave there that are dead?

A file begins with the mark of its version; records follow, each with its length and checksum. One whose checksum is
wrong is left out, and those after it are still read. A record that ends too early was half written when its process
died: its attempt still stands in the notes. Anything else that cannot be read is damage, or of another version. Such a
file is never deleted but put aside under another name, for whoever can make something of it.

All of this is read in a thread beside the event loop, a little at a time, so that streams do not wait for it.
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

from headgate.ledger.notes import read_notes
from headgate.ledger.rows import Batch, keys_in, row_of_note, rows_in, unpacked
from headgate.ports.ledger import EndpointTimeRow, UsageRow

MAGIC: Final = b"headgate rows 1\n"
RECORD_BYTES_MAX: Final = 1024 * 1024
UNREAD: Final = ".unread"
"""What the name of a file that is put aside ends in."""
_HEAD: Final = struct.Struct(">II")
"""Length and checksum of a record."""
HEAD_BYTES: Final = _HEAD.size
_ROW_BYTES: Final = 200
"""About what a row takes, where only bytes can be counted."""
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""What a read may fail by that says nothing about the file."""
_SLICE: Final = 128
"""Records that are looked at before others get their turn."""
_PAUSE_S: Final = 0.0002


def framed(record: bytes) -> bytes:
    """What stands before a record."""
    return _HEAD.pack(len(record), crc32(record))


# One file


@dataclass(slots=True)
class Contents:
    records: list[bytes] = field(default_factory=list[bytes])
    rows: int = 0
    half: int = 0
    """Bytes at the end of what was half written."""
    lost: int = 0
    """About how many rows cannot be read."""


def contents(path: Path) -> Contents:
    """Raises `OSError` where it may be read another time; a file that can never be read has lost all its rows."""
    found = Contents()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return found
    except OSError as error:
        if error.errno in _PASSING:
            raise
        found.lost = _about(path.stat().st_size)
        return found
    if not data.startswith(MAGIC):
        found.lost = _about(len(data)) if len(data) > len(MAGIC) else 0
        return found
    # A machine that loses its power may leave nothing but zeros at the end.
    end, at = len(data.rstrip(b"\0")), len(MAGIC)
    while at < end:
        length, checksum = _HEAD.unpack_from(data, at) if at + HEAD_BYTES <= len(data) else (1, 0)
        record = data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        if not 0 < length <= RECORD_BYTES_MAX:
            found.lost += _about(len(data) - at)
            return found
        if len(record) < length:
            break
        at += HEAD_BYTES + length
        rows = rows_in(record) if crc32(record) == checksum else 0
        if rows:
            found.records.append(record)
            found.rows += rows
        else:
            found.lost += 1
        _breathe(len(found.records) + found.lost)
    found.half = len(data) - at
    return found


def read(path: Path) -> Batch:
    """The rows of it that this version can read."""
    usage: list[UsageRow] = []
    times: list[EndpointTimeRow] = []
    for number, record in enumerate(contents(path).records, 1):
        with suppress(ValueError):
            batch = unpacked(record)
            usage += batch.usage
            times += batch.times
        _breathe(number)
    return Batch(tuple(usage), tuple(times))


def put_aside(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}{UNREAD}"))


def _about(size: int) -> int:
    return max(1, size // _ROW_BYTES)


def _breathe(number: int) -> None:
    if number % _SLICE == 0:
        time.sleep(_PAUSE_S)


# Of those who are dead


@dataclass(frozen=True, slots=True)
class LeftFile:
    path: Path
    rows: int
    bytes: int
    began_at: float
    damaged: bool


@dataclass(slots=True)
class Left:
    """What one of them left. Its lock is held from here on."""

    lock: int
    lock_path: Path
    files: list[LeftFile] = field(default_factory=list[LeftFile])
    under_way: list[UsageRow] = field(default_factory=list[UsageRow])
    """Rows of what it had sent and not written down."""
    half: int = 0
    lost: int = 0
    unread: list[Path] = field(default_factory=list[Path])
    """Files in which nothing can be read."""

    @property
    def notes(self) -> Path:
        return self.lock_path.with_suffix(".notes")

    def bury(self) -> None:
        """Nothing is left of that process."""
        with suppress(OSError):
            self.lock_path.unlink(missing_ok=True)
        os.close(self.lock)


def left_by_the_dead(folder: Path, own: str) -> tuple[list[Left], OSError | None]:
    """Of every dead process what it left, and why something could not be looked at, which is to be tried again."""
    found: list[Left] = []
    problem: OSError | None = None
    for path in sorted(folder.glob("*.lock")):
        try:
            left = None if path.stem == own else _left(path)
        except OSError as error:
            problem = error
        else:
            found += [] if left is None else [left]
    return found, problem


def _left(path: Path) -> Left | None:
    lock = locked(path)
    if lock is None:
        return None
    left = Left(lock, path)
    try:
        _look(left)
    except BaseException:
        os.close(lock)
        raise
    return left


def _look(left: Left) -> None:
    for path in sorted(left.lock_path.parent.glob(f"{left.lock_path.stem}.*.rows")):
        seen, told = contents(path), path.stat()
        left.half += seen.half
        left.lost += seen.lost
        if seen.rows:
            left.files.append(LeftFile(path, seen.rows, told.st_size, told.st_mtime, damaged=seen.lost > 0))
        elif seen.lost:
            put_aside(path)
            left.unread.append(path)
        else:
            path.unlink(missing_ok=True)
    notes = {(row.request, row.attempt): row for row in _rows_of(read_notes(left.notes))}
    # One whose rows were handed over and that was not erased yet: they are among the last.
    for key in _keys_of(left.files[-2:]) if notes else ():
        notes.pop(key, None)
    left.under_way = list(notes.values())


def _keys_of(files: Sequence[LeftFile]) -> Iterator[tuple[str, int]]:
    for file in files:
        for number, record in enumerate(contents(file.path).records, 1):
            with suppress(ValueError):
                yield from keys_in(record)
            _breathe(number)


def _rows_of(notes: Sequence[bytes]) -> Iterator[UsageRow]:
    for note in notes:
        with suppress(ValueError):
            yield row_of_note(note)


# Locks


def lock_of(path: Path) -> int:
    """A lock of one's own, held until it is closed."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Whoever looks for dead processes may hold it for a moment, sees that there is nothing, and takes it away.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(lock, path):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def locked(path: Path) -> int | None:
    """The lock of a process that is dead, held by us; None where it lives, or somebody else was quicker."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have taken the file away just now.
        if _is(lock, path):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _is(file: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
