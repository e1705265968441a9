"""Journal of the attempts that were in flight when a process was killed.

The file has one slot for each attempt that has been sent and whose rows are not written yet. Notes are written and
erased with `pwrite`. Once that returns, the bytes are in the page cache and survive the end of the process. A
half-written note has a wrong checksum; its attempt was not sent.

The file is not mapped into memory: if a page were lost (file truncated, disk failing), SIGBUS would end the process. A
failed `pwrite` raises an `OSError` for the notes that it covers.
"""

import errno
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

SLOTS: Final = 8_192
SLOT_BYTES: Final = 512
"""Size of a slot. A note that does not fit is written without its metadata, or not at all. A slot never spans two
pages, so a process that is killed during a write leaves each slot either old or new."""
_HEAD: Final = struct.Struct(">HI")
"""Length and checksum; a length of 0 is an empty slot."""
EMPTY: Final = b"\0\0"
RECORD_BYTES_MAX: Final = SLOT_BYTES - _HEAD.size
_SPREAD_MAX: Final = 8
"""If the range from the first to the last changed slot has at most this many slots per changed slot, one write covers
it."""


def framed_note(record: bytes) -> bytes:
    return _HEAD.pack(len(record), crc32(record)) + record


class NoteFile:
    """The journal of one process, for the thread that writes it. Each method may raise `OSError`."""

    def __init__(self, path: Path, *, slots: int = SLOTS) -> None:
        self._path = path
        self._slots = slots
        self._file: int | None = None
        self._data = bytearray()
        """Content of the file, so that one write can cover slots that did not change."""

    def open(self) -> None:
        """Creates the file."""
        assert self._file is None
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # Reserve all blocks now, so that notes can be written even if the disk fills up later.
            os.posix_fallocate(file, 0, self._slots * SLOT_BYTES)
        except BaseException:
            os.close(file)
            self._path.unlink(missing_ok=True)
            raise
        self._file, self._data = file, bytearray(self._slots * SLOT_BYTES)

    def write(self, changes: Mapping[int, bytes]) -> None:
        """Writes the bytes to the start of each slot."""
        for slot, change in changes.items():
            self._data[slot * SLOT_BYTES : slot * SLOT_BYTES + len(change)] = change
        first, last = min(changes), max(changes)
        if last - first < _SPREAD_MAX * len(changes):
            self._write(first, last)
        else:
            for slot in changes:
                self._write(slot, slot)

    def _write(self, first: int, last: int) -> None:
        assert self._file is not None
        at, end = first * SLOT_BYTES, (last + 1) * SLOT_BYTES
        with memoryview(self._data) as data:
            if os.pwrite(self._file, data[at:end], at) < end - at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self, *, keep: bool) -> None:
        """Closes the file, and removes it unless the next process needs it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not keep:
                self._path.unlink(missing_ok=True)


def read_notes(path: Path) -> list[bytes]:
    """The notes of a process that is dead."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    found: list[bytes] = []
    # If the file was truncated while its process ran, the last slot is incomplete.
    for at in range(0, len(data) - _HEAD.size + 1, SLOT_BYTES):
        length, checksum = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + length]
        if 0 < length <= RECORD_BYTES_MAX and crc32(record) == checksum:
            found.append(record)
    return found
