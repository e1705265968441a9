"""Files that dead processes left, until the last file of each is gone."""

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.ledger.spool.files import Left


class Heirlooms:
    def __init__(self) -> None:
        self._left: list[tuple[Left, set[Path]]] = []
        """With the files of each process that are still here, its notes among them."""

    def add(self, found: Iterable[Left]) -> None:
        self._left += [(left, {left.notes, *(each.path for each in left.files)}) for left in found]

    def gone(self, path: Path) -> list[Left]:
        """A file was removed or put aside. Returns the processes of which nothing is left now."""
        for _, files in self._left:
            files.discard(path)
        buried = [left for left, files in self._left if not files]
        self._left = [each for each in self._left if each[1]]
        return buried

    def close(self) -> None:
        for left, _ in self._left:
            os.close(left.lock)
        self._left.clear()
