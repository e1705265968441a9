"""Journal file for attempts in flight. If the process is killed, their rows are recovered from it.

The file has one slot for each attempt that has been sent and whose rows have not been written yet. Entries are written
and erased with `pwrite`. Once it returns, the bytes are in the page cache and survive the process. A partially written
entry has a wrong checksum, and its attempt was not sent.

The file is not memory-mapped, because a lost page (truncated file, failing disk) would end the process with SIGBUS. A
failed `pwrite` only raises an `OSError` for the entries that it covers.
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
"""Slot size in bytes. An entry that does not fit is written without its metadata, or not at all. A slot never spans two
pages, so if the process is killed during a write, each slot has either its old or its new content.
"""
_HEADER: Final = struct.Struct(">HI")
"""Length and checksum of an entry. A length of 0 marks an empty slot."""
EMPTY_SLOT: Final = b"\0\0"
ENTRY_BYTES_MAX: Final = SLOT_BYTES - _HEADER.size
_SLOTS_PER_CHANGE_MAX: Final = 8
"""Maximum ratio of total slots to changed slots in a range that is written at once."""


def frame_entry(record: bytes) -> bytes:
    return _HEADER.pack(len(record), crc32(record)) + record


class JournalFile:
    """The journal of one process, for the thread that writes it. Each method may raise `OSError`."""

    def __init__(self, path: Path, *, slots: int = SLOTS) -> None:
        self._path = path
        self._slots = slots
        self._file: int | None = None
        self._data = bytearray()
        """Copy of the file's content, so that one write can also cover slots that did not change."""

    def open(self) -> None:
        """Creates the file."""
        assert self._file is None
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # Reserve all blocks now, so that entries can be written even if the disk fills up later.
            os.posix_fallocate(file, 0, self._slots * SLOT_BYTES)
        except BaseException:
            os.close(file)
            self._path.unlink(missing_ok=True)
            raise
        self._file, self._data = file, bytearray(self._slots * SLOT_BYTES)

    def write(self, changes: Mapping[int, bytes]) -> None:
        """Writes each change to the start of its slot."""
        for slot, change in changes.items():
            self._data[slot * SLOT_BYTES : slot * SLOT_BYTES + len(change)] = change
        first, last = min(changes), max(changes)
        if last - first < _SLOTS_PER_CHANGE_MAX * len(changes):
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
        """Closes the file and removes it unless `keep` is true."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not keep:
                self._path.unlink(missing_ok=True)


def read_entries(path: Path) -> list[bytes]:
    """Entries left behind by a dead process."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    found: list[bytes] = []
    # If the file was truncated while its process was running, the last slot is incomplete.
    for at in range(0, len(data) - _HEADER.size + 1, SLOT_BYTES):
        length, checksum = _HEADER.unpack_from(data, at)
        record = data[at + _HEADER.size : at + _HEADER.size + length]
        if 0 < length <= ENTRY_BYTES_MAX and crc32(record) == checksum:
            found.append(record)
    return found
