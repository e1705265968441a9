"""One file of the spool, and its rows."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from headgate.ledger.spool.files import MAGIC, LeftFile, put_aside
from headgate.ports.ledger import EndpointTimeRow, UsageRow


class SegmentFile:
    """The file of a segment, for the thread that writes it. Each method may raise `OSError`."""

    __slots__ = ("_file", "_path", "was_put_aside")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.was_put_aside = False

    def open(self) -> None:
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._append(MAGIC)

    def append(self, chunks: Sequence[bytes]) -> None:
        # Nothing may follow an incomplete record, because it could not be read.
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
        """Removes the file, or sets it aside if parts of it could not be read."""
        self.close()
        if damaged and self._path.exists():
            put_aside(self._path)
            self.was_put_aside = True
        else:
            self._path.unlink(missing_ok=True)


class Segment:
    """One file's worth of rows, as the event loop sees it."""

    __slots__ = (
        *("began_at", "bytes", "damaged", "file", "inherited", "on_disk", "path", "rows", "sure", "synced"),
        *("times", "unwritten", "usage", "written"),
    )

    def __init__(self, path: Path, file: SegmentFile | None = None) -> None:
        self.path = path
        self.file = file
        """None if the segment was inherited, or created while the disk hung."""
        self.usage: list[UsageRow] | None = []
        """None where the file alone has the rows."""
        self.times: list[EndpointTimeRow] = []
        self.rows = 0
        self.bytes = 0
        self.began_at = time.time()
        self.on_disk = file is not None
        """Whether the file has all rows, or will have them after the pending writes."""
        self.unwritten = 0
        """Pending writes: the thread has not acknowledged them yet."""
        self.written = 0
        """Bytes that the thread has acknowledged."""
        self.synced = 0
        """Bytes that have been synced to disk."""
        self.sure = True
        """Whether none of it can be in the database yet."""
        self.inherited = False
        self.damaged = False
        """Whether some of it cannot be read: then the file is put aside when the rest has been written."""


def inherited_segment(file: LeftFile) -> Segment:
    segment = Segment(file.path)
    segment.usage, segment.rows, segment.bytes, segment.began_at = None, file.rows, file.bytes, file.began_at
    segment.written = segment.synced = file.bytes
    segment.on_disk, segment.sure = True, False
    segment.inherited, segment.damaged = True, file.damaged
    return segment


def force_to_disk(path: Path) -> None:
    """Syncs a file and its directory entry to disk. A file that was removed in the meantime is skipped."""
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
