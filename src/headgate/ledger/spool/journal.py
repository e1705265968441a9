"""The journal of attempts in flight, as the event loop sees it.

Slots are allocated here, without waiting. Until the writer thread is free, new and erased notes are collected into one
write.
"""

from functools import partial
from pathlib import Path

from headgate.ledger.notes import EMPTY, SLOTS, NoteFile, framed_note
from headgate.ledger.notes import RECORD_BYTES_MAX as NOTE_BYTES_MAX
from headgate.ledger.rows import SentNote, packed_note
from headgate.ledger.spool.acknowledgement import Acknowledgement, Note
from headgate.ledger.spool.handover import Work
from headgate.ledger.spool.troubles import SpoolTroubles


class Journal:
    def __init__(self, path: Path, troubles: SpoolTroubles, *, slots: int = SLOTS) -> None:
        self._file = NoteFile(path, slots=slots)
        self._troubles = troubles
        self._slots = slots
        # Use low slots first, so that notes are close together and one write covers them.
        self._free = list(range(slots - 1, -1, -1))
        self._changes: dict[int, bytes] = {}
        self._next = Acknowledgement()
        """Acknowledgement of the notes in `_changes`."""
        self._handed = Acknowledgement()
        """Acknowledgement of the notes that the writer thread has."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the file has been created. While the disk has no room for it, requests continue without notes."""
        return self._is_open

    @property
    def has_notes(self) -> bool:
        return len(self._free) < self._slots

    def open(self) -> Work:
        return Work(self._file.open, self._opened)

    def open_now(self) -> None:
        """Creates the file immediately. For a process that starts and has no requests yet."""
        try:
            self._file.open()
        except OSError as error:
            self._opened(error)
        else:
            self._opened(None)

    def _opened(self, error: OSError | None) -> None:
        if error is None:
            self._is_open, self._troubles.journal = True, None
        else:
            self._troubles.not_noted(error)

    def take(self, sent: SentNote) -> Note | None:
        record = _record(sent)
        if not self._is_open or not self._free or len(record) > NOTE_BYTES_MAX:
            return None
        slot = self._free.pop()
        self._changes[slot] = framed_note(record)
        return Note(slot, self._next)

    def erase(self, slot: int) -> None:
        self._free.append(slot)
        self._changes[slot] = EMPTY

    def collect(self) -> Work | None:
        """One write for all changes. It must run after the rows of the attempts whose notes it erases."""
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        self._handed, self._next = self._next, Acknowledgement()
        return Work(partial(self._file.write, changes), partial(self._written, self._handed))

    def _written(self, acknowledgement: Acknowledgement, error: OSError | None) -> None:
        if error is None:
            self._troubles.journal = None
        else:
            self._troubles.not_noted(error)
        acknowledgement.settle(written=error is None)

    def release(self) -> None:
        """Stops waiting for a hanging disk: the notes count as not written."""
        self._handed.settle(written=False)
        self._next.settle(written=False)
        self._next = Acknowledgement()

    def close(self) -> Work:
        return Work(partial(self._file.close, keep=self.has_notes), self._closed)

    def _closed(self, error: OSError | None) -> None:
        if error is not None:
            self._troubles.not_noted(error)


def _record(sent: SentNote) -> bytes:
    """The encoded note, without its metadata if it would be too long."""
    record = packed_note(sent)
    return record if len(record) <= NOTE_BYTES_MAX else packed_note((*sent[:-1], ()))
