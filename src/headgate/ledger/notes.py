"""What was under way when a process was killed?

A file of slots, one for each attempt that has been sent and whose rows are yet to be written. It is mapped into memory:
to take a note and to erase it is to change a few bytes there, without any call to the system, and the bytes are the
file's even if the process is killed with the next instruction. A note that is half written has a wrong checksum; then
its attempt has not been sent either.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

SLOTS: Final = 8_192
SLOT_BYTES: Final = 512
"""A note that does not fit is taken without its metadata, or not at all."""
_HEAD: Final = struct.Struct(">HI")
"""Length and checksum; a length of 0 is an empty slot."""
_EMPTY: Final = b"\0\0"
RECORD_BYTES_MAX: Final = SLOT_BYTES - _HEAD.size


class NoteFile:
    """Of one process. Raises `OSError` where the file cannot be made."""

    def __init__(self, path: Path, *, slots: int = SLOTS) -> None:
        self._path = path
        self._slots = slots
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # All of its room is taken here: to write to a page for which there is none would end the process.
            os.posix_fallocate(file, 0, slots * SLOT_BYTES)
            self._map = mmap.mmap(file, slots * SLOT_BYTES)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        # The first slots are used again and again, and the others as seldom as possible.
        self._free = list(range(slots - 1, -1, -1))

    @property
    def taken(self) -> int:
        return self._slots - len(self._free)

    def take(self, record: bytes) -> int | None:
        if not self._free or len(record) > RECORD_BYTES_MAX:
            return None
        slot = self._free.pop()
        at = slot * SLOT_BYTES
        self._map[at : at + _HEAD.size + len(record)] = _HEAD.pack(len(record), crc32(record)) + record
        return slot

    def erase(self, slot: int) -> None:
        at = slot * SLOT_BYTES
        self._map[at : at + len(_EMPTY)] = _EMPTY
        self._free.append(slot)

    def close(self) -> None:
        """What is still noted stays for whoever comes next; without any note the file goes."""
        self._map.close()
        if not self.taken:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def read_notes(path: Path) -> list[bytes]:
    """The notes of a process that is dead."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    found: list[bytes] = []
    for at in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        length, checksum = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + length]
        if 0 < length <= RECORD_BYTES_MAX and crc32(record) == checksum:
            found.append(record)
    return found
