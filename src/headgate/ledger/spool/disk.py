"""File operations of the spool while the process serves. None of them runs in the event loop.

Operations are queued in order, and the writer thread runs them (`handover.py`). Reads and fsyncs may take long even on
a healthy disk; they run in separate threads, and no request waits for them.

If the disk hangs, nothing waits for it: requests continue without a note, rows stay in memory up to a bound, and files
are written again as soon as the disk responds.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from headgate.ledger.rows import SentNote
from headgate.ledger.spool.acknowledgement import Note
from headgate.ledger.spool.files import Left, lock_of
from headgate.ledger.spool.handover import Handover, Work
from headgate.ledger.spool.heirlooms import Heirlooms
from headgate.ledger.spool.journal import Journal
from headgate.ledger.spool.segment import Segment, SegmentFile, force_to_disk
from headgate.ledger.spool.troubles import SpoolTroubles

UNWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of rows that may wait for the writer thread. Rows beyond that stay in memory only."""
CLOSE_S_MAX: Final = 5.0
"""How long a process waits for the disk when it exits."""


class SpoolDisk:
    """Created inside a running event loop. Raises `OSError` if the folder cannot be used."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        on_finished: Callable[[], None],
        on_changed: Callable[[], None],
        stall_s: float,
        refuses: bool,
    ) -> None:
        """`on_finished` is called when a file is complete, `on_changed` when the disk hangs or recovers."""
        self._folder, self._name = folder, name
        self._on_finished, self._on_changed = on_finished, on_changed
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = lock_of(folder / f"{name}.lock")
        self.troubles = SpoolTroubles(refuses=refuses)
        self._journal = Journal(folder / f"{name}.notes", self.troubles)
        self._heirlooms = Heirlooms()
        self._works: list[Work] = []
        self._chunks: list[bytes] = []
        """Rows to be written to the current file next."""
        self._current: Segment | None = None
        self._unwritten = 0
        """Bytes that wait for the writer thread."""
        self._journal.open_now()
        self._handover = Handover(self._collect, on_stalled=self._stall, on_resumed=self._resume, stall_s=stall_s)

    @property
    def stalled(self) -> bool:
        return self._handover.stalled

    async def settled(self) -> None:
        await self._handover.settled()

    def _queue(self, run: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self._works.append(Work(run, done))
        self._handover.wake()

    def _collect(self) -> Sequence[Work]:
        self._hand_chunks()
        works, self._works = self._works, []
        # The journal comes last, because notes are erased after the rows of their attempts have been written.
        if (noted := self._journal.collect()) is not None:
            works.append(noted)
        return works

    # Notes of attempts in flight

    def open_journal(self) -> None:
        """Creates the journal, unless it exists or the disk hangs."""
        if not self._journal.is_open and not self.stalled:
            self._works.append(self._journal.open())
            self._handover.wake()

    def note(self, sent: SentNote) -> Note | None:
        note = None if self.stalled else self._journal.take(sent)
        if note is not None:
            self._handover.wake()
        return note

    def erase(self, slot: int) -> None:
        self._journal.erase(slot)
        self._handover.wake_soon()

    # Rows

    def open(self, path: Path) -> Segment:
        """A new current segment; without a file if the disk hangs."""
        self._hand_chunks()
        segment = self._current = Segment(path, None if self.stalled else SegmentFile(path))
        if segment.file is not None:
            segment.unwritten += 1
            self._queue(segment.file.open, partial(self._written, segment, 0))
        return segment

    def append(self, frame: bytes, record: bytes) -> None:
        """Adds a record to the current segment."""
        segment, size = self._current, len(frame) + len(record)
        assert segment is not None
        if not segment.on_disk:
            return
        if self._unwritten + size > UNWRITTEN_BYTES_MAX:
            segment.on_disk = False
            return
        self._unwritten += size
        self._chunks.append(frame)
        self._chunks.append(record)
        self._handover.wake_soon()

    def _hand_chunks(self) -> None:
        segment, chunks = self._current, self._chunks
        if not chunks or segment is None or segment.file is None:
            return
        self._chunks = []
        segment.unwritten += 1
        size = sum(map(len, chunks))
        self._works.append(Work(partial(segment.file.append, chunks), partial(self._written, segment, size)))

    def _written(self, segment: Segment, size: int, error: OSError | None) -> None:
        segment.unwritten -= 1
        segment.written += size
        self._unwritten -= size
        if error is not None:
            segment.on_disk = False
            self.troubles.not_written(error)
        elif segment.on_disk:
            self.troubles.writing = None

    def finish(self, segment: Segment) -> None:
        """Ends the segment: it gets no more rows."""
        self._hand_chunks()
        if segment.file is not None:
            segment.unwritten += 1
            self._queue(segment.file.close, partial(self._finished, segment))

    def _finished(self, segment: Segment, error: OSError | None) -> None:
        self._written(segment, 0, error)
        self._on_finished()

    def remove(self, segment: Segment) -> None:
        if segment.file is not None or segment.inherited:
            file = segment.file or SegmentFile(segment.path)
            self._queue(partial(file.remove, damaged=segment.damaged), partial(self._removed, segment.path, file))

    def _removed(self, path: Path, file: SegmentFile, error: OSError | None) -> None:
        # If the file could not be removed, the next process finds it, and its rows in the database.
        self._gone(path, error)
        if file.was_put_aside:
            self.troubles.tell_unread(path)

    # Files of dead processes

    def inherit(self, found: Sequence[Left]) -> None:
        self._heirlooms.add(found)

    def adopted(self, left: Left) -> None:
        """Called when the notes of a dead process have become rows in a file of this process."""
        self._queue(partial(left.notes.unlink, missing_ok=True), partial(self._gone, left.notes))

    def _gone(self, path: Path, error: OSError | None) -> None:
        self._not_kept(error)
        if error is None:
            for left in self._heirlooms.gone(path):
                self._queue(left.bury, self._not_kept)

    def _not_kept(self, error: OSError | None) -> None:
        if error is not None:
            self.troubles.not_kept(error)

    # Hanging disk

    def _stall(self) -> None:
        self.troubles.hangs()
        self._journal.release()
        self._on_changed()

    def _resume(self, after_s: float) -> None:
        self.troubles.answers(after_s)
        self._on_changed()

    # Shutdown

    def close(self, segments: Sequence[Segment], current: Segment) -> None:
        """Leaves the segments to the next process. Blocks the event loop for at most twice `CLOSE_S_MAX`."""
        self.remove(current)
        for segment in segments:
            if segment.file is not None and segment.synced < segment.bytes:
                self._queue(partial(force_to_disk, segment.path), self._not_kept)
        # Finished work may queue more, such as the removal of a dead process's lock after its last file.
        answers = self._handover.drain(CLOSE_S_MAX)
        if answers:
            self._works += [self._journal.close(), Work(self._leave, self._not_kept)]
            answers = self._handover.drain(CLOSE_S_MAX)
        if not answers:
            self.troubles.left_hanging()
        self._handover.close()

    def _leave(self) -> None:
        if not self._journal.has_notes and not any(self._folder.glob(f"{self._name}.*.rows")):
            with suppress(OSError):
                (self._folder / f"{self._name}.lock").unlink(missing_ok=True)
        self._heirlooms.close()
        os.close(self._lock)
