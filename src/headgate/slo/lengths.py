"""How does Prometheus write a length of time?"""

from collections.abc import Callable
from typing import Final

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_UNITS_MS: Final = ((DAY * 1_000, "d"), (HOUR * 1_000, "h"), (MINUTE * 1_000, "m"), (1_000, "s"), (1, "ms"))

Length = Callable[[int], str]
"""Seconds, as they stand in a rule."""


def lengths(scale: float = 1.0) -> Length:
    """All lengths of the rules times `scale`: tests that cannot wait three days have shorter ones."""

    def length(seconds: int) -> str:
        whole_ms = max(1, round(seconds * scale * 1_000))
        unit_ms, unit = next(each for each in _UNITS_MS if not whole_ms % each[0])
        return f"{whole_ms // unit_ms}{unit}"

    return length


def name(seconds: int) -> str:
    """As it stands in the name of a recorded series, which says the same whatever the scale."""
    return lengths()(seconds)
