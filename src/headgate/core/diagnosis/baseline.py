"""Usual value of a quantity that is measured repeatedly."""

from typing import Final

from headgate.model.units import Duration

_SAMPLES_KEPT: Final = 300
"""Approximate number of recent measurements that determine the usual value."""
_SAMPLES_MIN: Final = 10
"""Minimum number of measurements for a usual value."""


class LearnedBaseline:
    """Slow moving average."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._count = self._total = 0

    def add(self, value: int) -> None:
        self._count += 1
        self._total += value
        if self._count > _SAMPLES_KEPT:
            self._total -= self._total // self._count
            self._count -= 1

    @property
    def value(self) -> Duration | None:
        return Duration(self._total // self._count) if self._count >= _SAMPLES_MIN else None
