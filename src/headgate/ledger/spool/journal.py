"""The journal of attempts in flight, as the event loop sees it.

Slots are given out here, without a wait. What is to be written to them is collected into one write for all notes that
are taken and erased until the writer thread is free.
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
        # Low slots are used first, so that notes stand close together and one write covers them.
        self._free = list(range(slots - 1, -1, -1))
        self._changes: dict[int, bytes] = {}
        self._next = Acknowledgement()
        """Of the notes among these changes."""
        self._handed = Acknowledgement()
        """Of those that the writer thread has."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the file has been created. While the disk has no room for it, requests go on without notes."""
        return self._is_open

    @property
    def has_notes(self) -> bool:
        return len(self._free) < self._slots

    def open(self) -> Work:
        return Work(self._file.open, self._opened)

    def open_now(self) -> None:
        """For a process that starts and serves nobody yet."""
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
        """To be run after the rows of the attempts whose notes it erases."""
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
        """The disk hangs: nobody waits for it any longer."""
        self._handed.settle(written=False)
        self._next.settle(written=False)
        self._next = Acknowledgement()

    def close(self) -> Work:
        return Work(partial(self._file.close, keep=self.has_notes), self._closed)

    def _closed(self, error: OSError | None) -> None:
        if error is not None:
            self._troubles.not_noted(error)


def _record(sent: SentNote) -> bytes:
    """Without its metadata if it is too long with it."""
    record = packed_note(sent)
    return record if len(record) <= NOTE_BYTES_MAX else packed_note((*sent[:-1], ()))
