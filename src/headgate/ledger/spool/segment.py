"""One file of the spool and its rows."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from headgate.ledger.spool.spool_files import MAGIC, OrphanedFile, set_aside
from headgate.ports.ledger import EndpointTimeRow, UsageRow


class SegmentFile:
    """A segment's file. Used by the writer thread; each method may raise `OSError`."""

    __slots__ = ("_file", "_path", "was_set_aside")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.was_set_aside = False

    def open(self) -> None:
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._append(MAGIC)

    def append(self, chunks: Sequence[bytes]) -> None:
        # The file was closed after an incomplete record, because records after it could not be read.
        if self._file is not None:
            self._append(b"".join(chunks))

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def remove(self, *, damaged: bool) -> None:
        """Removes the file, or renames it if it is damaged."""
        self.close()
        if damaged and self._path.exists():
            set_aside(self._path)
            self.was_set_aside = True
        else:
            self._path.unlink(missing_ok=True)


class Segment:
    """The event loop's view of the rows in one file."""

    __slots__ = (
        *("began_at", "bytes", "damaged", "endpoint_times", "file", "inherited", "on_disk", "path", "pending_writes"),
        *("rows", "synced_bytes", "untried", "usage", "written_bytes"),
    )

    def __init__(self, path: Path, file: SegmentFile | None = None) -> None:
        self.path = path
        self.file = file
        """The open file; None if the segment was inherited, or was created while disk I/O was stalled."""
        self.usage: list[UsageRow] | None = []
        """Rows in memory; None if they are only in the file."""
        self.endpoint_times: list[EndpointTimeRow] = []
        self.rows = 0
        self.bytes = 0
        self.began_at = time.time()
        self.on_disk = file is not None
        """Whether the file contains all rows, or will contain them once the pending writes are done."""
        self.pending_writes = 0
        """Number of writes that the thread has not acknowledged yet."""
        self.written_bytes = 0
        """Number of bytes that the thread has written."""
        self.synced_bytes = 0
        """Number of bytes that have been synced to disk."""
        self.untried = True
        """Whether it is certain that none of the rows are in the database yet."""
        self.inherited = False
        self.damaged = False
        """Whether some rows are unreadable. If so, the file is set aside once the others are in the database."""


def inherited_segment(file: OrphanedFile) -> Segment:
    segment = Segment(file.path)
    segment.usage, segment.rows, segment.bytes, segment.began_at = None, file.rows, file.bytes, file.began_at
    segment.written_bytes = segment.synced_bytes = file.bytes
    segment.on_disk, segment.untried = True, False
    segment.inherited, segment.damaged = True, file.damaged
    return segment


def sync_to_disk(path: Path) -> None:
    """Syncs a file and its directory entry to disk. Does nothing if the file has been removed."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)
    holder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(holder)
    finally:
        os.close(holder)
