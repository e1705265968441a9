"""Files that dead processes left, until the last file of each is gone."""

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.ledger.spool.files import Left


class Heirlooms:
    def __init__(self) -> None:
        self._left: list[tuple[Left, set[Path]]] = []
        """Dead processes, each with its remaining files, including its notes."""

    def add(self, found: Iterable[Left]) -> None:
        self._left += [(left, {left.notes, *(each.path for each in left.files)}) for left in found]

    def gone(self, path: Path) -> list[Left]:
        """Called when a file was removed or set aside. Returns the processes that have no files left."""
        for _, files in self._left:
            files.discard(path)
        buried = [left for left, files in self._left if not files]
        self._left = [each for each in self._left if each[1]]
        return buried

    def close(self) -> None:
        for left, _ in self._left:
            os.close(left.lock)
        self._left.clear()
