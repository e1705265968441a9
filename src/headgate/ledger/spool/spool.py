"""Keeps rows on disk until the database has them, so that they survive the end of the process or the machine.

Rows are in a folder, in files named after the process that writes them. One file is one batch for the database, and is
removed when the batch has been committed. Rows are also kept in memory, up to a bound; rows beyond it are only in their
file, which is read again when its turn comes.

Each attempt has a note in a journal (`notes.py`) from before it is sent until its rows have been written.

One thread writes all files (`disk.py`, `handover.py`); the event loop never waits for the disk. If that thread is free,
rows reach the operating system within 2 ms, in one write for all rows that arrived in the meantime. From then on they
survive the end of the process, even a kill; until then their notes do. A second later they are synced to disk, unless
the database has them by then, so only a power failure loses that second.

Each process holds a lock on its own file as long as it runs. A process that can take the lock of another one knows that
the other is dead, and takes over its files (`files.py`). Unreadable files are set aside, counted and reported.

When the files of a process reach their size limit, the oldest is removed unread, because requests are not rejected for
the sake of accounting. The lost rows are counted and logged as an error. Inherited files do not count towards the limit
and are not removed. Disk errors do not end the process: they are reported, and the operation is tried again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headgate.ledger.rows import Batch, SentNote, packed_times, packed_usage
from headgate.ledger.spool.acknowledgement import Note
from headgate.ledger.spool.disk import SpoolDisk
from headgate.ledger.spool.files import HEAD_BYTES, Left, framed, left_by_the_dead, read
from headgate.ledger.spool.handover import STALL_S, in_thread
from headgate.ledger.spool.segment import Segment, force_to_disk, inherited_segment
from headgate.ports.ledger import EndpointTimeRow, UsageRow

SEGMENT_ROWS_MAX: Final = 5_000
SEGMENT_BYTES_MAX: Final = 4 * 1024 * 1024
MEMORY_ROWS_MAX: Final = 20_000
SYNC_S: Final = 1.0
ROWS_PER_TURN: Final = 200
_TIMES_MAX: Final = 1_000
"""Rows of one record."""


class Spool:
    """Of one process. `add` and `add_time` are the Ledger that the rest of the process sees."""

    def __init__(
        self,
        folder: str,
        *,
        bytes_max: int,
        name: str,
        memory_rows_max: int = MEMORY_ROWS_MAX,
        stall_s: float = STALL_S,
        refuses: bool = False,
    ) -> None:
        """With `refuses`, requests are rejected while nothing can be recorded."""
        self._folder = Path(folder)
        self.name = name
        self._bytes_max = bytes_max
        self._memory_rows_max = memory_rows_max
        self._closed: deque[Segment] = deque()
        """The oldest first."""
        self._taken: Segment | None = None
        """Of these the first, while it is being written to the database."""
        self._number = 0
        self.wake = asyncio.Event()
        """Set when there is enough for a batch."""
        self._disk = SpoolDisk(
            self._folder, name, on_finished=self._bound, on_changed=self._begin_file, stall_s=stall_s, refuses=refuses
        )
        self._troubles = self._disk.troubles
        self._current = self._new_segment()

    # What the process adds

    def add(self, rows: Sequence[UsageRow]) -> None:
        segment = self._current
        assert segment.usage is not None
        segment.usage.extend(rows)
        self._append(segment, packed_usage(rows), len(rows))

    def add_time(self, rows: Sequence[EndpointTimeRow]) -> None:
        for first in range(0, len(rows), _TIMES_MAX):
            some = rows[first : first + _TIMES_MAX]
            self._current.times.extend(some)
            self._append(self._current, packed_times(some), len(some))

    def _append(self, segment: Segment, record: bytes, rows: int) -> None:
        if segment.rows == 0:
            segment.began_at = time.time()
        segment.rows += rows
        segment.bytes += len(record) + HEAD_BYTES
        self._disk.append(framed(record), record)
        if segment.rows >= SEGMENT_ROWS_MAX or segment.bytes >= SEGMENT_BYTES_MAX:
            self._rotate()
            self.wake.set()

    # What is under way

    def note(self, sent: SentNote) -> Note | None:
        return self._disk.note(sent)

    def erase(self, slot: int) -> None:
        self._disk.erase(slot)

    # What can be asked of it

    @property
    def problem(self) -> str | None:
        return self._troubles.problem

    @property
    def unrecordable(self) -> str | None:
        """Why rows added now would not survive the end of the process; None if they would."""
        return self._troubles.unrecordable

    @property
    def lost(self) -> int:
        return self._troubles.lost

    @property
    def unread(self) -> int:
        return self._troubles.unread

    @property
    def waiting(self) -> int:
        """Rows that the database does not have."""
        return self._current.rows + sum(each.rows for each in self._closed)

    @property
    def size(self) -> int:
        """In bytes, on disk."""
        return self._current.bytes + sum(each.bytes for each in self._closed)

    @property
    def oldest_s(self) -> float:
        """Since the oldest row that waits was added."""
        first = self._closed[0] if self._closed else self._current
        return max(0.0, time.time() - first.began_at) if first.rows else 0.0

    # What the database takes

    async def take(self) -> tuple[Segment, Batch] | None:
        """The oldest rows; None where there are none. They stay here until they are `done` with.

        Raises `OSError` where they cannot be read this time.
        """
        if not self._closed:
            if not self._current.rows:
                return None
            self._rotate()
            if not self._closed:
                return None
        segment = self._taken = self._closed[0]
        if segment.usage is not None:
            return segment, Batch(tuple(segment.usage), tuple(segment.times))
        try:
            batch = await in_thread(read, segment.path)
        except BaseException:
            self._taken = None
            raise
        self._miss(segment, segment.rows - len(batch))
        return segment, batch

    def _miss(self, segment: Segment, rows: int) -> None:
        if rows > 0:
            segment.rows -= rows
            segment.damaged = True
            self._troubles.lose(rows, f"{segment.path.name} is damaged, gone, or of another version")

    def done(self, segment: Segment) -> None:
        """The database has it."""
        assert segment is self._closed[0]
        self._closed.popleft()
        self._taken = None
        self._disk.remove(segment)

    def give_back(self, segment: Segment) -> None:
        """It could not be written; whether some of it was, nobody knows."""
        segment.sure = False
        self._taken = None

    # Its files

    def _new_segment(self) -> Segment:
        self._number += 1
        return self._disk.open(self._folder / f"{self.name}.{self._number:08}.rows")

    def failed(self, error: OSError) -> None:
        self._troubles.not_kept(error)

    async def settled(self) -> None:
        """Waits until everything added so far has been written or has failed."""
        await self._disk.settled()

    def _rotate(self) -> None:
        self._disk.finish(self._current)
        self._closed.append(self._current)
        self._current = self._new_segment()
        self._bound()

    def _begin_file(self) -> None:
        """Starts a new segment when the disk hangs (rows stay in memory) or recovers (rows have a file again)."""
        if self._current.rows:
            self._rotate()
        else:
            self._disk.remove(self._current)
            self._current = self._new_segment()

    def _bound(self) -> None:
        """Keeps memory and disk within what they may take. The newest leave memory first: their turn comes last."""
        for segment in _beyond_memory(self._closed, self._taken, self._memory_rows_max):
            if segment.on_disk:
                segment.usage, segment.times = None, []
            else:
                self._lose(segment, "the disk does not take them and memory holds no more")
        for oldest in _beyond_disk(self._closed, self._taken, self._bytes_max - self._current.bytes):
            self._lose(oldest, "ledger.spool is full; raise ledger.spool_max, or bring the database back")

    def _lose(self, segment: Segment, why: str) -> None:
        self._closed.remove(segment)
        self._troubles.lose(segment.rows, why)
        self._disk.remove(segment)

    # To the disk itself

    async def keep(self, *, look: bool) -> bool:
        """What is to be done every second or so; whether that succeeded. Never raises for what the disk does."""
        try:
            if look:
                await self.take_over()
            await self.sync()
        except OSError as error:
            self._troubles.not_kept(error)
            return False
        self._troubles.keeping = None
        self._disk.open_journal()
        if self._troubles.writing is not None and not self._disk.stalled:
            # A new file shows whether the disk accepts rows again, even without traffic.
            self._begin_file()
        return True

    async def sync(self) -> None:
        """Forces to the disk what has waited for a while."""
        old = time.time() - SYNC_S
        for segment in (*self._closed, self._current):
            size = segment.written
            if segment.synced < size and segment.began_at < old:
                await in_thread(force_to_disk, segment.path)
                segment.synced = size

    # After those who are dead

    async def take_over(self) -> int:
        """Makes the files of dead processes its own, the oldest first; how many rows those are.

        Raises `OSError` where some cannot be looked at this time; what could be is taken over all the same.
        """
        found, problem = await in_thread(left_by_the_dead, self._folder, self.name)
        self._disk.inherit(found)
        rows = 0
        files = sorted((file for left in found for file in left.files), key=lambda each: (each.began_at, each.path))
        # One that is being written to the database stays the first.
        first = int(self._taken is not None)
        for number, file in enumerate(files, first):
            self._closed.insert(number, inherited_segment(file))
        for left in found:
            self._troubles.tell_left(left)
            await self._adopt(left)
            rows += sum(each.rows for each in left.files) + len(left.under_way)
        if rows:
            self.wake.set()
        if problem is not None:
            raise problem
        return rows

    async def _adopt(self, left: Left) -> None:
        """Makes rows of its own of what a dead process had sent and never written down."""
        for number, row in enumerate(left.under_way, 1):
            self.add([row])
            if number % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self.settled()
        if self._current.on_disk or not left.under_way:
            self._disk.adopted(left)

    def close(self) -> None:
        """What has not been written stays here for whoever comes next."""
        if self._current.rows:
            self._rotate()
        self._disk.close([each for each in self._closed if not each.inherited], self._current)
        for segment in self._closed:
            if not segment.on_disk or segment.unwritten:
                self._troubles.lose(segment.rows, "the disk does not take them and this process ends")


def _beyond_memory(closed: Sequence[Segment], taken: Segment | None, rows_max: int) -> list[Segment]:
    """Those whose rows memory must not hold any longer."""
    held = sum(each.rows for each in closed if each.usage is not None)
    found: list[Segment] = []
    for segment in reversed(closed):
        if held <= rows_max:
            break
        if segment.usage is None or segment is taken:
            continue
        held -= segment.rows
        # A segment with pending writes leaves memory when its file has all rows.
        if not segment.unwritten:
            found.append(segment)
    return found


def _beyond_disk(closed: Sequence[Segment], taken: Segment | None, bytes_max: int) -> list[Segment]:
    """Those whose files the disk has no room for, the oldest first; none that was inherited."""
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
