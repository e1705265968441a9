"""How often did a value fall between which bounds?

Requests have the dense bounds: from 10 ms to 60 s each is at most a quarter above the one before, so a percentile
that is read from the buckets is wrong by a quarter at most, and mostly by far less. What happens rarely, such as the
start of an endpoint, has the coarse ones.
"""

from bisect import bisect_left
from typing import Final

from headgate.model.units import SECOND

_STEPS: Final = (1.0, 1.25, 1.5, 1.8, 2.2, 2.7, 3.3, 4.0, 5.0, 6.0, 7.5, 9.0)
"""Each at most a quarter above the one before, and the first of the next ten likewise."""
LATENCY_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.0075),
    *(round(step / 100, 5) for step in _STEPS),
    *(round(step / 10, 5) for step in _STEPS),
    *_STEPS,
    *(10.0, 12.5, 15.0, 18.0, 22.0, 27.0, 33.0, 40.0, 50.0, 60.0),
    *(90.0, 120.0, 180.0, 300.0, 600.0),
)
COARSE_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class Scale:
    """The bounds of a histogram: as values are compared with them, and as they are shown."""

    __slots__ = ("bounds", "shown", "unit")

    def __init__(self, bounds: tuple[float, ...], unit: int) -> None:
        self.bounds = tuple(round(bound * unit) for bound in bounds)
        self.shown = (*(str(float(bound)) for bound in bounds), "+Inf")
        self.unit = unit
        """So many of what is counted make one of what is shown."""


LATENCY: Final = Scale(LATENCY_BOUNDS_S, SECOND)
COARSE: Final = Scale(COARSE_BOUNDS_S, SECOND)
BATCH: Final = Scale((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 1)
"""Of batches, in inputs."""


class Histogram:
    """How often a value fell between each bound and the one before; the last has no bound. By default a duration."""

    __slots__ = ("_bounds", "counts", "form", "shown_bounds", "total", "unit")

    def __init__(self, scale: Scale = COARSE) -> None:
        self._bounds = scale.bounds
        self.shown_bounds = scale.shown
        self.unit = scale.unit
        self.counts = [0] * (len(scale.bounds) + 1)
        self.total = 0
        self.form: tuple[object, str] | None = None
        """Its lines on the page without the figures, and under which name and labels; kept by `page.py`."""

    def add(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
