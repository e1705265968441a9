"""Durations in the Prometheus format."""

from collections.abc import Callable
from typing import Final

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_UNITS_MS: Final = ((DAY * 1_000, "d"), (HOUR * 1_000, "h"), (MINUTE * 1_000, "m"), (1_000, "s"), (1, "ms"))

Length = Callable[[int], str]
"""Formats seconds for a rule."""


def lengths(scale: float = 1.0) -> Length:
    """A formatter that multiplies every duration by `scale`, which shortens them for tests."""

    def length(seconds: int) -> str:
        whole_ms = max(1, round(seconds * scale * 1_000))
        unit_ms, unit = next(each for each in _UNITS_MS if not whole_ms % each[0])
        return f"{whole_ms // unit_ms}{unit}"

    return length


def name(seconds: int) -> str:
    """Duration in the name of a recorded series, which does not depend on the scale."""
    return lengths()(seconds)
