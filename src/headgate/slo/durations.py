"""Durations in Prometheus format."""

from collections.abc import Callable
from typing import Final

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_UNITS_MS: Final = ((DAY * 1_000, "d"), (HOUR * 1_000, "h"), (MINUTE * 1_000, "m"), (1_000, "s"), (1, "ms"))

DurationFormat = Callable[[int], str]
"""Function that formats a duration in seconds for a rule."""


def duration_format(scale: float = 1.0) -> DurationFormat:
    """A formatter that multiplies every duration by `scale`, so that tests can shorten them."""

    def length(seconds: int) -> str:
        whole_ms = max(1, round(seconds * scale * 1_000))
        unit_ms, unit = next(each for each in _UNITS_MS if not whole_ms % each[0])
        return f"{whole_ms // unit_ms}{unit}"

    return length


def duration_text(seconds: int) -> str:
    """Duration as it appears in the name of a recorded series. It is not affected by the scale."""
    return duration_format()(seconds)
