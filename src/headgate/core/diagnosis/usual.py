"""What is usual of a single number that is measured again and again?"""

from typing import Final

from headgate.model.units import Duration

_FADES: Final = 300
"""So many of the last count, roughly."""
_LEAST: Final = 10
"""Of fewer nothing is usual."""


class Usual:
    """A number that changes slowly, and not by what is out of the ordinary."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._count = self._total = 0

    def add(self, value: int) -> None:
        self._count += 1
        self._total += value
        if self._count > _FADES:
            self._total -= self._total // self._count
            self._count -= 1

    @property
    def value(self) -> Duration | None:
        return Duration(self._total // self._count) if self._count >= _LEAST else None
