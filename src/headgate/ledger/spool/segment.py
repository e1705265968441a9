"""One file of the spool, and its rows."""

import os
import time
from contextlib import suppress
from pathlib import Path

from headgate.ledger.spool.files import MAGIC, LeftFile
from headgate.ports.ledger import EndpointTimeRow, UsageRow


class Segment:
    """One file's worth of rows."""

    __slots__ = (
        *("began_at", "bytes", "damaged", "file", "inherited", "on_disk", "path", "rows", "sure", "synced"),
        *("times", "usage"),
    )

    def __init__(self, path: Path, file: int | None) -> None:
        self.path = path
        self.file = file
        """None when it is closed, or could not be opened."""
        self.usage: list[UsageRow] | None = []
        """None where the file alone has the rows."""
        self.times: list[EndpointTimeRow] = []
        self.rows = 0
        self.bytes = 0
        self.began_at = time.time()
        self.on_disk = file is not None
        """Whether the file has all of it."""
        self.synced = 0
        """So many of its bytes have been forced to the disk."""
        self.sure = True
        """Whether none of it can be in the database yet."""
        self.inherited = False
        self.damaged = False
        """Whether some of it cannot be read: then the file is put aside when the rest has been written."""

    def close(self) -> None:
        if self.file is not None:
            with suppress(OSError):
                os.close(self.file)
            self.file = None

    def force(self) -> None:
        """Forces the file to the disk and closes it."""
        if self.file is not None:
            with suppress(OSError):
                os.fsync(self.file)
            os.close(self.file)
            self.file = None


def new_segment(path: Path) -> tuple[Segment, OSError | None]:
    """A file to be written, and why the disk does not take it, if it does not."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return Segment(path, None), error
    segment = Segment(path, file)
    try:
        os.write(file, MAGIC)
    except OSError as error:
        segment.on_disk = False
        return segment, error
    return segment, None


def inherited_segment(file: LeftFile) -> Segment:
    segment = Segment(file.path, None)
    segment.usage, segment.rows, segment.bytes, segment.began_at = None, file.rows, file.bytes, file.began_at
    segment.synced, segment.on_disk, segment.sure = file.bytes, True, False
    segment.inherited, segment.damaged = True, file.damaged
    return segment


def force_to_disk(file: int, folder: Path) -> None:
    try:
        os.fsync(file)
        holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(holder)
        finally:
            os.close(holder)
    finally:
        os.close(file)
