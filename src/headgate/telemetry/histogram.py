"""Histograms with fixed buckets.

Request latencies use dense buckets: from 10 ms to 60 s each bound is at most 25% above the previous one. Percentiles
computed from these buckets are off by at most 25%, and usually by much less. Rare events such as endpoint starts use
coarse buckets.
"""

from bisect import bisect_left
from typing import Final

from headgate.model.units import SECOND

_DECADE_STEPS: Final = (1.0, 1.25, 1.5, 1.8, 2.2, 2.7, 3.3, 4.0, 5.0, 6.0, 7.5, 9.0)
"""Bounds within one decade, each at most 25% above the previous one."""
LATENCY_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.0075),
    *(round(step / 100, 5) for step in _DECADE_STEPS),
    *(round(step / 10, 5) for step in _DECADE_STEPS),
    *_DECADE_STEPS,
    *(10.0, 12.5, 15.0, 18.0, 22.0, 27.0, 33.0, 40.0, 50.0, 60.0),
    *(90.0, 120.0, 180.0, 300.0, 600.0),
)
COARSE_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class Buckets:
    """Bucket bounds of a histogram, as integers for comparison and as text for exposition."""

    __slots__ = ("bounds", "labels", "unit")

    def __init__(self, bounds: tuple[float, ...], unit: int) -> None:
        self.bounds = tuple(round(bound * unit) for bound in bounds)
        self.labels = (*(str(float(bound)) for bound in bounds), "+Inf")
        self.unit = unit
        """Recorded units per exposed unit, for example nanoseconds per second."""


LATENCY_BUCKETS: Final = Buckets(LATENCY_BOUNDS_S, SECOND)
COARSE_BUCKETS: Final = Buckets(COARSE_BOUNDS_S, SECOND)
BATCH_SIZE_BUCKETS: Final = Buckets((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 1)
"""Batch sizes, in inputs."""


class Histogram:
    """Histogram with a count per bucket. The last bucket is unbounded. By default values are durations in
    nanoseconds.
    """

    __slots__ = ("_bounds", "bucket_labels", "counts", "template", "total", "unit")

    def __init__(self, buckets: Buckets = COARSE_BUCKETS) -> None:
        self._bounds = buckets.bounds
        self.bucket_labels = buckets.labels
        self.unit = buckets.unit
        self.counts = [0] * (len(buckets.bounds) + 1)
        self.total = 0
        self.template: tuple[object, str] | None = None
        """Cached exposition format string, including the metric name and labels. Set by `page.py`."""

    def add(self, value: int) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def add_several(self, value: int, times: int) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
