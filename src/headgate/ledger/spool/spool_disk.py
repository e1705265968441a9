"""File operations for the spool. None of them run in the event loop while the process is serving requests.

Operations are queued, and the writer thread runs them in order (`disk_thread.py`). Reads and fsyncs may take a long
time even on a healthy disk, so they run in separate threads, and no request waits for them.

If the disk hangs, nothing waits for it: requests continue without a journal entry, rows stay in memory up to a limit,
and writing to files resumes when the disk responds.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from headgate.ledger.spool.disk_thread import DiskCall, DiskOperation, DiskThread
from headgate.ledger.spool.journal import Journal
from headgate.ledger.spool.orphans import Orphans
from headgate.ledger.spool.segment import Segment, SegmentFile, sync_to_disk
from headgate.ledger.spool.spool_files import OrphanedSpool, acquire_lock
from headgate.ledger.spool.spool_health import SpoolHealth

UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum total size of the rows waiting for the writer thread, in bytes. At this limit, new rows are kept only in
memory.
"""
CLOSE_S_MAX: Final = 5.0
"""Maximum time to wait for the disk on exit, in seconds."""


class _RowWrite:
    """One write of encoded rows to a segment."""

    __slots__ = ("_disk", "_file", "_segment", "chunks", "size")

    def __init__(self, disk: "SpoolDisk", segment: Segment, file: SegmentFile) -> None:
        self._disk, self._segment, self._file = disk, segment, file
        self.chunks: list[bytes] = []
        self.size = 0

    def run(self) -> None:
        self._file.append(self.chunks)

    def finish(self, error: OSError | None) -> None:
        self._disk.rows_written(self._segment, self.size, error)


class SpoolDisk:
    """File operations for the spool. Must be created inside a running event loop. Raises `OSError` if the directory
    cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        on_finished: Callable[[], None],
        on_changed: Callable[[], None],
        stall_s: float,
        reject_unrecorded: bool,
    ) -> None:
        """`on_finished` is called when a file is complete, and `on_changed` when the disk hangs or recovers."""
        self._folder, self._name = folder, name
        self._on_finished, self._on_changed = on_finished, on_changed
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = acquire_lock(folder / f"{name}.lock")
        self.health = SpoolHealth(refuses=reject_unrecorded)
        self._orphans = Orphans()
        self._operations: list[DiskOperation] = []
        self._rows: _RowWrite | None = None
        """Rows that have not been handed to the writer thread yet."""
        self._current: Segment | None = None
        self._unwritten_bytes = 0
        """Size of the rows waiting for the writer thread, in bytes."""
        self._disk_thread = DiskThread(self._collect, on_stalled=self._stall, on_resumed=self._resume, stall_s=stall_s)
        self.journal = Journal(folder / f"{name}.notes", self.health, self._disk_thread)
        self.journal.open_now()

    @property
    def stalled(self) -> bool:
        return self._disk_thread.stalled

    async def flush(self) -> None:
        await self._disk_thread.flush()

    def _queue(self, run: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self._operations.append(DiskCall(run, done))
        self._disk_thread.wake()

    def _collect(self) -> Sequence[DiskOperation]:
        works, self._operations = self._operations, []
        if self._rows is not None:
            works.append(self._rows)
            self._rows = None
        # The journal comes last, because entries must not be erased before the rows for their attempts have been
        # written.
        if (noted := self.journal.collect()) is not None:
            works.append(noted)
        return works

    # Journal of attempts in flight

    def open_journal(self) -> None:
        """Creates the journal, unless it exists or the disk is hanging."""
        if not self.journal.is_open and not self.stalled:
            self._operations.append(self.journal.open())
            self._disk_thread.wake()

    # Rows

    def open(self, path: Path) -> Segment:
        """Starts a new current segment, without a file if the disk is hanging."""
        self._queue_rows()
        segment = self._current = Segment(path, None if self.stalled else SegmentFile(path))
        if segment.file is not None:
            segment.pending_writes += 1
            self._queue(segment.file.open, partial(self.rows_written, segment, 0))
        return segment

    def append(self, record: bytes) -> None:
        """Adds a record, with its header, to the current segment."""
        segment, size = self._current, len(record)
        assert segment is not None
        if not segment.on_disk:
            return
        if self._unwritten_bytes + size > UNWRITTEN_BYTES_MAX:
            segment.on_disk = False
            return
        self._unwritten_bytes += size
        rows = self._rows
        if rows is None:
            assert segment.file is not None
            rows = self._rows = _RowWrite(self, segment, segment.file)
            segment.pending_writes += 1
        rows.chunks.append(record)
        rows.size += size
        self._disk_thread.wake_soon()

    def _queue_rows(self) -> None:
        if self._rows is not None:
            self._operations.append(self._rows)
            self._rows = None

    def rows_written(self, segment: Segment, size: int, error: OSError | None) -> None:
        segment.pending_writes -= 1
        segment.written_bytes += size
        self._unwritten_bytes -= size
        if error is not None:
            segment.on_disk = False
            self.health.write_failed(error)
        elif segment.on_disk:
            self.health.write_error = None

    def finish(self, segment: Segment) -> None:
        """Closes the segment after its last row."""
        self._queue_rows()
        if segment.file is not None:
            segment.pending_writes += 1
            self._queue(segment.file.close, partial(self._finished, segment))

    def _finished(self, segment: Segment, error: OSError | None) -> None:
        self.rows_written(segment, 0, error)
        self._on_finished()

    def remove(self, segment: Segment) -> None:
        if segment.file is not None or segment.inherited:
            file = segment.file or SegmentFile(segment.path)
            self._queue(partial(file.remove, damaged=segment.damaged), partial(self._removed, segment.path, file))

    def _removed(self, path: Path, file: SegmentFile, error: OSError | None) -> None:
        # If removal failed, the next process will find the file, whose rows are already in the database.
        self._orphan_file_removed(path, error)
        if file.was_set_aside:
            self.health.log_unreadable(path)

    # Dead processes' files

    def add_orphans(self, found: Sequence[OrphanedSpool]) -> None:
        self._orphans.add(found)

    def remove_orphan_journal(self, left: OrphanedSpool) -> None:
        """Called once a dead process's journal has been turned into rows in one of this process's files."""
        self._queue(
            partial(left.journal_path.unlink, missing_ok=True), partial(self._orphan_file_removed, left.journal_path)
        )

    def _orphan_file_removed(self, path: Path, error: OSError | None) -> None:
        self._maintenance_done(error)
        if error is None:
            for left in self._orphans.file_removed(path):
                self._queue(left.release, self._maintenance_done)

    def _maintenance_done(self, error: OSError | None) -> None:
        if error is not None:
            self.health.maintenance_failed(error)

    # Hanging disk

    def _stall(self) -> None:
        self.health.disk_stalled()
        self.journal.fail_pending()
        self._on_changed()

    def _resume(self, after_s: float) -> None:
        self.health.disk_recovered(after_s)
        self._on_changed()

    # Shutdown

    def close(self, segments: Sequence[Segment], current: Segment) -> None:
        """Leaves the segments for the next process. Blocks the event loop for up to twice `CLOSE_S_MAX`."""
        self.remove(current)
        for segment in segments:
            if segment.file is not None and segment.synced_bytes < segment.bytes:
                self._queue(partial(sync_to_disk, segment.path), self._maintenance_done)
        # Completed work may queue more work, for example the removal of a dead process's lock file after its last spool
        # file.
        answers = self._disk_thread.drain(CLOSE_S_MAX)
        if answers:
            self._operations += [self.journal.close(), DiskCall(self._release_lock, self._maintenance_done)]
            answers = self._disk_thread.drain(CLOSE_S_MAX)
        if not answers:
            self.health.exiting_while_stalled()
        self._disk_thread.close()

    def _release_lock(self) -> None:
        if not self.journal.has_entries and not any(self._folder.glob(f"{self._name}.*.rows")):
            with suppress(OSError):
                (self._folder / f"{self._name}.lock").unlink(missing_ok=True)
        self._orphans.close()
        os.close(self._lock)
