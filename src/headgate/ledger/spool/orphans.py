"""Tracks dead processes' files until all files of a process have been removed."""

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.ledger.spool.spool_files import OrphanedSpool


class Orphans:
    def __init__(self) -> None:
        self._spools: list[tuple[OrphanedSpool, set[Path]]] = []
        """Spools of dead processes, each with its remaining files, including the journal."""

    def add(self, found: Iterable[OrphanedSpool]) -> None:
        self._spools += [(left, {left.journal_path, *(each.path for each in left.files)}) for left in found]

    def file_removed(self, path: Path) -> list[OrphanedSpool]:
        """Called when a file has been removed or set aside. Returns the processes that have no files left."""
        for _, files in self._spools:
            files.discard(path)
        buried = [left for left, files in self._spools if not files]
        self._spools = [each for each in self._spools if each[1]]
        return buried

    def close(self) -> None:
        for left, _ in self._spools:
            os.close(left.lock)
        self._spools.clear()
