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
from headgate.ledger.spool.disk_thread import DiskOperation
from headgate.ledger.spool.spool_health import SpoolHealth


class Journal:
    def __init__(self, path: Path, troubles: SpoolHealth, *, slots: int = SLOTS) -> None:
        self._file = JournalFile(path, slots=slots)
        self._troubles = troubles
        self._slots = slots
        # Use low slots first, so that entries are close together and one write covers them.
        self._free = list(range(slots - 1, -1, -1))
        self._changes: dict[int, bytes] = {}
        self._pending_ack = Acknowledgement()
        """Acknowledgement for the entries in `_changes`."""
        self._submitted_ack = Acknowledgement()
        """Acknowledgement for the entries that have been handed to the writer thread."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the file has been created. Without it, for example on a full disk, requests continue unrecorded."""
        return self._is_open

    @property
    def has_entries(self) -> bool:
        return len(self._free) < self._slots

    def open(self) -> DiskOperation:
        return DiskOperation(self._file.open, self._opened)

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

    def add(self, sent: JournalEntry) -> PendingEntry | None:
        """Queues an entry, without its metadata if it would be too long. Returns None if it cannot be written."""
        if not self._is_open or not self._free:
            return None
        record = pack_entry(sent)
        if len(record) > NOTE_BYTES_MAX:
            record = pack_entry((*sent[:-1], ()))
            if len(record) > NOTE_BYTES_MAX:
                return None
        slot = self._free.pop()
        self._changes[slot] = frame_entry(record)
        return PendingEntry(slot, self._pending_ack)

    def erase(self, slot: int) -> None:
        self._free.append(slot)
        self._changes[slot] = EMPTY_SLOT

    def collect(self) -> DiskOperation | None:
        """Combines all changes into one write, which must run after the rows for erased entries have been written."""
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        self._submitted_ack, self._pending_ack = self._pending_ack, Acknowledgement()
        return DiskOperation(partial(self._file.write, changes), partial(self._written, self._submitted_ack))

    def _written(self, acknowledgement: Acknowledgement, error: OSError | None) -> None:
        if error is None:
            self._troubles.journal_error = None
        else:
            self._troubles.journal_failed(error)
        acknowledgement.settle(written=error is None)

    def fail_pending(self) -> None:
        """Stops waiting for a hanging disk. Pending entries count as not written."""
        self._submitted_ack.settle(written=False)
        self._pending_ack.settle(written=False)
        self._pending_ack = Acknowledgement()

    def close(self) -> DiskOperation:
        return DiskOperation(partial(self._file.close, keep=self.has_entries), self._closed)

    def _closed(self, error: OSError | None) -> None:
        if error is not None:
            self._troubles.journal_failed(error)
