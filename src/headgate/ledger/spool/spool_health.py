"""Counts, logs and reports spool problems."""

import errno
import logging
from pathlib import Path
from typing import Final

from headgate.ledger.spool.spool_files import UNREADABLE_SUFFIX, OrphanedSpool

log = logging.getLogger("headgate")

_NEXT_STEPS: Final = {
    errno.EMFILE: "raise the open-file limit",
    errno.ENFILE: "raise the open-file limit",
    errno.EIO: "check the disk under ledger.spool_directory or configure another directory",
}
_DEFAULT_NEXT_STEP: Final = "free disk space in ledger.spool_directory or configure another directory"


class SpoolHealth:
    def __init__(self, *, refuses: bool = False) -> None:
        """With `refuses`, requests are rejected while nothing can be recorded."""
        self._effect = "requests are rejected in the meantime" if refuses else "requests are served without a record"
        self.rows_lost = 0
        """Number of rows that will never reach the database, partly estimated."""
        self.unreadable_files = 0
        """Number of files that have been set aside."""
        self.write_error: str | None = None
        """Why rows cannot be written to disk; None if they can."""
        self.journal_error: str | None = None
        """Why journal entries cannot be written to disk; None if they can."""
        self.maintenance_error: str | None = None
        """Why files cannot be synced, taken over or removed; None if they can."""
        self.stall: str | None = None
        """Message about a hanging disk; None while the disk is responding."""

    @property
    def write_problem(self) -> str | None:
        """Why journal entries and rows would not survive the process; None if they would."""
        return self.stall or self.write_error or self.journal_error

    @property
    def problem(self) -> str | None:
        return self.write_problem or self.maintenance_error

    def write_failed(self, error: OSError) -> None:
        self.write_error = self._log_problem(error, "the spool cannot be written", self.write_error)

    def journal_failed(self, error: OSError) -> None:
        self.journal_error = self._log_problem(error, "the spool's journal cannot be written", self.journal_error)

    def disk_stalled(self) -> None:
        self.stall = "the disk under ledger.spool_directory is hanging; check the disk or configure another directory"
        log.error("%s; %s", self.stall, self._effect)

    def disk_recovered(self, after_s: float) -> None:
        self.stall = None
        log.warning("the disk under ledger.spool_directory is responding again after %.1f s", after_s)

    def exiting_while_stalled(self) -> None:
        log.error("the disk under ledger.spool_directory is hanging; exiting without waiting for it")

    def maintenance_failed(self, error: OSError) -> None:
        """Reports a failed maintenance operation, which will be retried."""
        self.maintenance_error = self._log_problem(error, "the spool cannot be maintained", self.maintenance_error)

    def _log_problem(self, error: OSError, what: str, before: str | None) -> str:
        step = _NEXT_STEPS.get(error.errno or 0, _DEFAULT_NEXT_STEP)
        problem = f"{what} ({error.strerror or type(error).__name__}); {step}"
        if before != problem:
            log.error("%s; the operation is retried and %s", problem, self._effect)
        return problem

    def add_lost(self, rows: int, why: str) -> None:
        self.rows_lost += rows
        log.error("%d ledger rows are lost: %s", rows, why)

    def log_unreadable(self, path: Path) -> None:
        self.unreadable_files += 1
        told = "its content is unchanged; see docs/concepts/ledger.md for how to recover it"
        log.error(
            "%s is damaged or from another version; renamed to %s%s; %s", path.name, path.name, UNREADABLE_SUFFIX, told
        )

    def log_orphan(self, left: OrphanedSpool) -> None:
        """Logs what was recovered from a dead process."""
        rows = sum(each.rows for each in left.files)
        if rows or left.inflight_rows:
            told = rows, len(left.inflight_rows)
            log.info("recovered %d spooled rows and %d attempts in flight from a dead process", *told)
        if left.truncated_bytes:
            log.warning(
                "discarded %d bytes of an incomplete record left by process %s",
                left.truncated_bytes,
                left.lock_path.stem,
            )
        if left.rows_lost:
            self.add_lost(left.rows_lost, f"files of {left.lock_path.stem} are damaged or from another version")
        for path in left.unreadable:
            self.log_unreadable(path)
