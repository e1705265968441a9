"""Keeps rows on disk until the database has them, so that they survive a crash of the process or a power failure.

The files are in one directory and named after the process that writes them. Each file is one batch for the database,
and is removed once the batch has been committed. Rows are also kept in memory, up to a limit. Rows beyond the limit are
only in their file, which is read back later.

Each attempt has a journal entry (`inflight_journal.py`) from before it is sent until its rows have been written.

One thread writes all files (`spool_disk.py`, `disk_thread.py`), and the event loop never waits for the disk. If the
thread is free, rows reach the operating system within 2 ms, in one write for all rows that arrived in that time. From
then on, they survive even if the process is killed; until then, their journal entries do. A second later, they are
synced to disk unless the database already has them. Only a power failure can lose that second.

Each process holds a lock on its own file while it runs. If a process can take another's lock, the other process is
dead, and the first takes over its files (`spool_files.py`). Unreadable files are set aside, counted and reported.

When a process's files reach their size limit, the oldest is removed without being written to the database, because
requests are not rejected for the sake of accounting. The lost rows are counted and logged as an error. Inherited files
do not count toward the limit and are not removed. Disk errors do not end the process: they are reported, and the
operation is retried.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headgate.ledger.rows import RowBatch, pack_endpoint_times, pack_usage
from headgate.ledger.spool.disk_thread import STALL_AFTER_S, in_thread
from headgate.ledger.spool.journal import Journal
from headgate.ledger.spool.segment import Segment, inherited_segment, sync_to_disk
from headgate.ledger.spool.spool_disk import SpoolDisk
from headgate.ledger.spool.spool_files import OrphanedSpool, find_orphans, frame_record, read_batch
from headgate.ports.ledger import EndpointTimeRow, UsageRow

SEGMENT_ROWS_MAX: Final = 5_000
SEGMENT_BYTES_MAX: Final = 4 * 1024 * 1024
MEMORY_ROWS_MAX: Final = 20_000
SYNC_AFTER_S: Final = 1.0
ROWS_PER_ITERATION: Final = 200
_ROWS_PER_RECORD_MAX: Final = 1_000
"""Maximum number of rows in one record."""


class Spool:
    """The spool of one process. Its methods `add` and `add_endpoint_times` implement the `Ledger` port."""

    def __init__(
        self,
        folder: str,
        *,
        bytes_max: int,
        name: str,
        memory_rows_max: int = MEMORY_ROWS_MAX,
        stall_s: float = STALL_AFTER_S,
        reject_unrecorded: bool = False,
    ) -> None:
        """With `reject_unrecorded`, requests are rejected while nothing can be recorded."""
        self._folder = Path(folder)
        self.name = name
        self._bytes_max = bytes_max
        self._memory_rows_max = memory_rows_max
        self._closed: deque[Segment] = deque()
        """Complete segments, oldest first."""
        self._in_progress: Segment | None = None
        """The first of the complete segments, while it is being written to the database."""
        self._number = 0
        self.wake = asyncio.Event()
        """Set when there are enough rows for a batch."""
        self._disk = SpoolDisk(
            self._folder,
            name,
            on_finished=self._enforce_limits,
            on_changed=self._start_segment,
            stall_s=stall_s,
            reject_unrecorded=reject_unrecorded,
        )
        self._health = self._disk.health
        self._current = self._new_segment()

    # Adding rows

    def add(self, rows: Sequence[UsageRow]) -> None:
        segment = self._current
        assert segment.usage is not None
        segment.usage.extend(rows)
        self._append(segment, pack_usage(rows), len(rows))

    def add_endpoint_times(self, rows: Sequence[EndpointTimeRow]) -> None:
        for first in range(0, len(rows), _ROWS_PER_RECORD_MAX):
            some = rows[first : first + _ROWS_PER_RECORD_MAX]
            self._current.endpoint_times.extend(some)
            self._append(self._current, pack_endpoint_times(some), len(some))

    def _append(self, segment: Segment, record: bytes, rows: int) -> None:
        if segment.rows == 0:
            segment.began_at = time.time()
        segment.rows += rows
        framed = frame_record(record)
        segment.bytes += len(framed)
        self._disk.append(framed)
        if segment.rows >= SEGMENT_ROWS_MAX or segment.bytes >= SEGMENT_BYTES_MAX:
            self._rotate()
            self.wake.set()

    # State

    @property
    def journal(self) -> Journal:
        return self._disk.journal

    @property
    def problem(self) -> str | None:
        return self._health.problem

    @property
    def write_problem(self) -> str | None:
        """Why rows added now would not survive the process; None if they would."""
        return self._health.write_problem

    @property
    def rows_lost(self) -> int:
        return self._health.rows_lost

    @property
    def unreadable_files(self) -> int:
        return self._health.unreadable_files

    @property
    def rows_waiting(self) -> int:
        """Number of rows waiting to be written to the database."""
        return self._current.rows + sum(each.rows for each in self._closed)

    @property
    def size_bytes(self) -> int:
        """Size on disk in bytes."""
        return self._current.bytes + sum(each.bytes for each in self._closed)

    @property
    def oldest_row_age_s(self) -> float:
        """Age of the oldest waiting row, in seconds."""
        first = self._closed[0] if self._closed else self._current
        return max(0.0, time.time() - first.began_at) if first.rows else 0.0

    # Writing to the database

    async def next_batch(self) -> tuple[Segment, RowBatch] | None:
        """The oldest segment and its rows; None if there are no segments. The segment stays in the spool until
        `commit`.

        Raises `OSError` if the file cannot currently be read.
        """
        if not self._closed:
            if not self._current.rows:
                return None
            self._rotate()
            if not self._closed:
                return None
        segment = self._in_progress = self._closed[0]
        if segment.usage is not None:
            return segment, RowBatch(tuple(segment.usage), tuple(segment.endpoint_times))
        try:
            batch = await in_thread(read_batch, segment.path)
        except BaseException:
            self._in_progress = None
            raise
        self._mark_damaged(segment, segment.rows - len(batch))
        return segment, batch

    def _mark_damaged(self, segment: Segment, rows: int) -> None:
        if rows > 0:
            segment.rows -= rows
            segment.damaged = True
            self._health.add_lost(rows, f"{segment.path.name} is damaged, missing or from another version")

    def commit(self, segment: Segment) -> None:
        """Removes a segment that has been written to the database."""
        assert segment is self._closed[0]
        self._closed.popleft()
        self._in_progress = None
        self._disk.remove(segment)

    def return_batch(self, segment: Segment) -> None:
        """Puts a segment back after a failed write. Some of its rows may already be in the database."""
        segment.untried = False
        self._in_progress = None

    # Files

    def _new_segment(self) -> Segment:
        self._number += 1
        return self._disk.open(self._folder / f"{self.name}.{self._number:08}.rows")

    def report_error(self, error: OSError) -> None:
        self._health.maintenance_failed(error)

    async def flush(self) -> None:
        """Waits until all rows added so far have been written or have failed."""
        await self._disk.flush()

    def _rotate(self) -> None:
        self._disk.finish(self._current)
        self._closed.append(self._current)
        self._current = self._new_segment()
        self._enforce_limits()

    def _start_segment(self) -> None:
        """Starts a new segment. It has no file while the disk is hanging."""
        if self._current.rows:
            self._rotate()
        else:
            self._disk.remove(self._current)
            self._current = self._new_segment()

    def _enforce_limits(self) -> None:
        """Enforces the memory and disk limits.

        The newest segments are dropped from memory first, because they are needed last.
        """
        for segment in _over_memory_limit(self._closed, self._in_progress, self._memory_rows_max):
            if segment.on_disk:
                segment.usage, segment.endpoint_times = None, []
            else:
                self._drop(segment, "they cannot be written to disk and the memory limit is reached")
        for oldest in _over_disk_limit(self._closed, self._in_progress, self._bytes_max - self._current.bytes):
            self._drop(oldest, "the spool is full; raise ledger.spool_bytes_max or restore the database")

    def _drop(self, segment: Segment, why: str) -> None:
        self._closed.remove(segment)
        self._health.add_lost(segment.rows, why)
        self._disk.remove(segment)

    # Maintenance

    async def maintain(self, *, take_over: bool) -> bool:
        """Performs periodic maintenance, about once a second.

        Returns whether it succeeded; disk errors are not raised.
        """
        try:
            if take_over:
                await self.take_over()
            await self.sync()
        except OSError as error:
            self._health.maintenance_failed(error)
            return False
        self._health.maintenance_error = None
        self._disk.open_journal()
        if self._health.write_error is not None and not self._disk.stalled:
            # Creating a file shows whether the disk accepts rows again, even without traffic.
            self._start_segment()
        return True

    async def sync(self) -> None:
        """Syncs segments that are older than `SYNC_AFTER_S` to disk."""
        old = time.time() - SYNC_AFTER_S
        for segment in (*self._closed, self._current):
            size = segment.written_bytes
            if segment.synced_bytes < size and segment.began_at < old:
                await in_thread(sync_to_disk, segment.path)
                segment.synced_bytes = size

    # Dead processes' files

    async def take_over(self) -> int:
        """Takes over dead processes' files, oldest first. Returns the number of rows in them.

        If some files cannot currently be read, takes over the others and then raises `OSError`.
        """
        found, problem = await in_thread(find_orphans, self._folder, self.name)
        self._disk.add_orphans(found)
        rows = 0
        files = sorted((file for left in found for file in left.files), key=lambda each: (each.began_at, each.path))
        # The segment being written to the database must stay first.
        first = int(self._in_progress is not None)
        for number, file in enumerate(files, first):
            self._closed.insert(number, inherited_segment(file))
        for left in found:
            self._health.log_orphan(left)
            await self._adopt(left)
            rows += sum(each.rows for each in left.files) + len(left.inflight_rows)
        if rows:
            self.wake.set()
        if problem is not None:
            raise problem
        return rows

    async def _adopt(self, left: OrphanedSpool) -> None:
        """Adds rows for the attempts that were in flight in a dead process."""
        for number, row in enumerate(left.inflight_rows, 1):
            self.add([row])
            if number % ROWS_PER_ITERATION == 0:
                await asyncio.sleep(0)
        await self.flush()
        if self._current.on_disk or not left.inflight_rows:
            self._disk.remove_orphan_journal(left)

    def close(self) -> None:
        """Closes the files. Rows that are not in the database remain for the next process."""
        if self._current.rows:
            self._rotate()
        self._disk.close([each for each in self._closed if not each.inherited], self._current)
        for segment in self._closed:
            if not segment.on_disk or segment.pending_writes:
                self._health.add_lost(segment.rows, "they cannot be written to disk and this process is exiting")


def _over_memory_limit(closed: Sequence[Segment], taken: Segment | None, rows_max: int) -> list[Segment]:
    """Segments whose rows must be dropped from memory."""
    held = sum(each.rows for each in closed if each.usage is not None)
    found: list[Segment] = []
    for segment in reversed(closed):
        if held <= rows_max:
            break
        if segment.usage is None or segment is taken:
            continue
        held -= segment.rows
        # A segment with pending writes stays in memory until its file contains all its rows.
        if not segment.pending_writes:
            found.append(segment)
    return found


def _over_disk_limit(closed: Sequence[Segment], taken: Segment | None, bytes_max: int) -> list[Segment]:
    """Segments beyond the size limit on disk, oldest first. Inherited segments are excluded."""
    own = [each for each in closed if not each.inherited]
    size = sum(each.bytes for each in own)
    found: list[Segment] = []
    for oldest in own:
        if size <= bytes_max:
            break
        if oldest is taken:
            continue
        size -= oldest.bytes
        found.append(oldest)
    return found
