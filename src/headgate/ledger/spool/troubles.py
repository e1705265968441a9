"""What goes wrong with the spool: counted, logged, and shown to operators."""

import errno
import logging
from pathlib import Path
from typing import Final

from headgate.ledger.spool.files import UNREAD, Left

log = logging.getLogger("headgate")

_STEPS: Final = {
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the limit of open files",
    errno.EIO: "look at the disk under ledger.spool, or name another folder",
}
_STEP: Final = "make room in ledger.spool, or name another folder"


class SpoolTroubles:
    def __init__(self, *, refuses: bool = False) -> None:
        """With `refuses`, requests are rejected while nothing can be recorded."""
        self._meanwhile = "requests are rejected meanwhile" if refuses else "requests are served without a record"
        self.lost = 0
        """Rows that never reach the database, as far as they can be counted."""
        self.unread = 0
        """Files that were put aside."""
        self.writing: str | None = None
        """Why rows cannot be written to the disk."""
        self.journal: str | None = None
        """Why notes cannot be written to disk."""
        self.keeping: str | None = None
        """Why files cannot be looked after."""
        self.hanging: str | None = None
        """Message while the disk does not respond."""

    @property
    def unrecordable(self) -> str | None:
        """Why notes and rows would not survive the end of the process at the moment."""
        return self.hanging or self.writing or self.journal

    @property
    def problem(self) -> str | None:
        return self.unrecordable or self.keeping

    def not_written(self, error: OSError) -> None:
        self.writing = self._told(error, "written", self.writing)

    def not_noted(self, error: OSError) -> None:
        self.journal = self._told(error, "journaled", self.journal)

    def hangs(self) -> None:
        self.hanging = "the disk under ledger.spool hangs; check the disk, or configure another folder"
        log.error("%s; %s", self.hanging, self._meanwhile)

    def answers(self, after_s: float) -> None:
        self.hanging = None
        log.warning("the disk under ledger.spool responds again after %.1f s", after_s)

    def left_hanging(self) -> None:
        log.error("the disk under ledger.spool hangs; this process exits without waiting for it")

    def not_kept(self, error: OSError) -> None:
        """Something about the files did not succeed, and is tried again."""
        self.keeping = self._told(error, "looked after", self.keeping)

    def _told(self, error: OSError, what: str, before: str | None) -> str:
        step = _STEPS.get(error.errno or 0, _STEP)
        problem = f"the spool cannot be {what} ({error.strerror or type(error).__name__}); {step}"
        if before != problem:
            log.error("%s; the operation is retried, and %s", problem, self._meanwhile)
        return problem

    def lose(self, rows: int, why: str) -> None:
        self.lost += rows
        log.error("%d rows of the ledger are lost: %s", rows, why)

    def tell_unread(self, path: Path) -> None:
        self.unread += 1
        told = "it is kept as it is; docs/concepts/ledger.md says how to read it again"
        log.error("%s is damaged or of another version, and is called %s%s; %s", path.name, path.name, UNREAD, told)

    def tell_left(self, left: Left) -> None:
        """By a process that died."""
        rows = sum(each.rows for each in left.files)
        if rows or left.under_way:
            told = rows, len(left.under_way)
            log.info("a process that died left %d rows in the spool, and %d attempts under way", *told)
        if left.half:
            log.warning("the last %d bytes that %s wrote were half written", left.half, left.lock_path.stem)
        if left.lost:
            self.lose(left.lost, f"files of {left.lock_path.stem} are damaged or of another version")
        for path in left.unread:
            self.tell_unread(path)
