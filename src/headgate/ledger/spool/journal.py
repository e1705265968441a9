"""The event loop's side of the journal of attempts in flight.

Slots are allocated here without blocking. New and erased entries are collected into one write until the writer thread
is free.
"""

from functools import partial
from pathlib import Path

from headgate.ledger.inflight_journal import EMPTY_SLOT, SLOTS, JournalFile, frame_entry
from headgate.ledger.inflight_journal import ENTRY_BYTES_MAX as NOTE_BYTES_MAX
from headgate.ledger.rows import JournalEntry, pack_entry
from headgate.ledger.spool.acknowledgement import Acknowledgement, PendingEntry
from headgate.ledger.spool.disk_thread import DiskCall, DiskOperation, DiskThread
from headgate.ledger.spool.spool_health import SpoolHealth


class _JournalWrite(Acknowledgement):
    """One write of the journal, which is also the acknowledgement for the entries in it."""

    __slots__ = ("_file", "_health", "changes")

    def __init__(self, file: JournalFile, health: SpoolHealth) -> None:
        super().__init__()
        self._file, self._health = file, health
        self.changes: dict[int, bytes] = {}
        """New content by slot."""

    def run(self) -> None:
        self._file.write(self.changes)

    def finish(self, error: OSError | None) -> None:
        if error is None:
            self._health.journal_error = None
        else:
            self._health.journal_failed(error)
        self.settle(written=error is None)


class Journal:
    def __init__(self, path: Path, troubles: SpoolHealth, disk_thread: DiskThread, *, slots: int = SLOTS) -> None:
        self._file = JournalFile(path, slots=slots)
        self._disk_thread = disk_thread
        self._troubles = troubles
        self._slots = slots
        # Use low slots first, so that entries are close together and one write covers them.
        self._free = list(range(slots - 1, -1, -1))
        self._pending = self._new_write()
        """The next write, which collects changes."""
        self._submitted = self._pending
        """The last write that has been handed to the writer thread."""
        self._is_open = False

    def _new_write(self) -> _JournalWrite:
        return _JournalWrite(self._file, self._troubles)

    @property
    def is_open(self) -> bool:
        """Whether the file has been created. Without it, for example on a full disk, requests continue unrecorded."""
        return self._is_open

    @property
    def has_entries(self) -> bool:
        return len(self._free) < self._slots

    def open(self) -> DiskOperation:
        return DiskCall(self._file.open, self._opened)

    def open_now(self) -> None:
        """Creates the file, blocking the event loop. Used at startup, before there are requests."""
        try:
            self._file.open()
        except OSError as error:
            self._opened(error)
        else:
            self._opened(None)

    def _opened(self, error: OSError | None) -> None:
        if error is None:
            self._is_open, self._troubles.journal_error = True, None
        else:
            self._troubles.journal_failed(error)

    @property
    def write_problem(self) -> str | None:
        """Why entries written now would not survive the process; None if they would."""
        return self._troubles.write_problem

    def add_entry(self, sent: JournalEntry) -> PendingEntry | None:
        """Queues an entry, without its metadata if it would be too long. Returns None if it cannot be written."""
        if not self._is_open or not self._free or self._disk_thread.stalled:
            return None
        record = pack_entry(sent)
        if len(record) > NOTE_BYTES_MAX:
            record = pack_entry((*sent[:-1], ()))
            if len(record) > NOTE_BYTES_MAX:
                return None
        slot, pending = self._free.pop(), self._pending
        pending.changes[slot] = frame_entry(record)
        self._disk_thread.wake()
        return PendingEntry(slot, pending)

    def erase(self, slot: int) -> None:
        self._free.append(slot)
        self._pending.changes[slot] = EMPTY_SLOT
        self._disk_thread.wake_soon()

    def collect(self) -> DiskOperation | None:
        """Combines all changes into one write, which must run after the rows for erased entries have been written."""
        if not self._pending.changes:
            return None
        self._submitted, self._pending = self._pending, self._new_write()
        return self._submitted

    def fail_pending(self) -> None:
        """Stops waiting for a hanging disk. Pending entries count as not written."""
        self._submitted.settle(written=False)
        failed, self._pending = self._pending, self._new_write()
        self._pending.changes = failed.changes
        failed.settle(written=False)

    def close(self) -> DiskOperation:
        return DiskCall(partial(self._file.close, keep=self.has_entries), self._closed)

    def _closed(self, error: OSError | None) -> None:
        if error is not None:
            self._troubles.journal_failed(error)
