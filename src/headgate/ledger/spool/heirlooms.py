"""Files that dead processes left, until the last file of each is gone."""

import os
from collections.abc import Iterable
from pathlib import Path

from headgate.ledger.spool.files import Left


class Heirlooms:
    def __init__(self) -> None:
        self._left: list[tuple[Left, set[Path]]] = []
        """With the files of each process that are still here."""

    def add(self, found: Iterable[Left]) -> None:
        self._left += [(left, {each.path for each in left.files}) for left in found]

    def gone(self, path: Path) -> None:
        """A file of the spool was removed or put aside."""
        for heirloom in tuple(self._left):
            heirloom[1].discard(path)
            if not heirloom[1]:
                self._left.remove(heirloom)
                heirloom[0].bury()

    def adopted(self, left: Left) -> None:
        """The rows that its notes led to have been added."""
        for heirloom in tuple(self._left):
            if heirloom[0] is left and not heirloom[1]:
                self._left.remove(heirloom)
                left.bury()

    def close(self) -> None:
        for left, _ in self._left:
            os.close(left.lock)
        self._left.clear()
