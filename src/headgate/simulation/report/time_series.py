"""Results of a run over time.

Requests are counted in buckets by arrival time, so that a bucket shows the results of the requests that arrived in it.
Queue and engine states are kept as sampled.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Final

from headgate.model.units import ClassName, Duration, Instant
from headgate.simulation.report.request_result import RequestResult
from headgate.simulation.report.tally import share
from headgate.simulation.virtual.run_observer import FleetSample

BUCKETS: Final = 120
SAMPLES_MAX: Final = 2_400
"""Maximum number of samples. The last requests may run for hours after the last arrival."""


class ArrivalSeries:
    """Results of one class's requests, by arrival time."""

    def __init__(self, span_ns: Duration) -> None:
        self.bucket_ns: Final = max(-(-span_ns // BUCKETS), 1)
        self.counts: Final = {fate: _counts(BUCKETS) for fate in RequestResult}

    def add(self, fate: RequestResult, at: Instant) -> None:
        self.counts[fate][min(at // self.bucket_ns, BUCKETS - 1)] += 1

    @property
    def arrivals(self) -> list[int]:
        return [sum(bucket) for bucket in zip(*self.counts.values(), strict=True)]

    def merge(self, other: "ArrivalSeries") -> None:
        for fate, counts in other.counts.items():
            mine = self.counts[fate]
            for number, count in enumerate(counts):
                mine[number] += count


class EndpointSeries:
    """Samples of one engine. They are zero while the engine is down, and the means exclude that time."""

    def __init__(self) -> None:
        self.running = _counts()
        self.waiting = _counts()
        self.kv_used = array("d")
        self.up = array("b")

    @property
    def in_flight(self) -> list[int]:
        return [running + waiting for running, waiting in zip(self.running, self.waiting, strict=True)]

    @property
    def in_flight_mean(self) -> float | None:
        return sum(self.in_flight) / samples_up if (samples_up := sum(self.up)) else None

    @property
    def in_flight_max(self) -> int:
        return max(self.in_flight, default=0)

    @property
    def kv_used_mean(self) -> float | None:
        return math.fsum(self.kv_used) / samples_up if (samples_up := sum(self.up)) else None

    @property
    def kv_used_max(self) -> float:
        return max(self.kv_used, default=0.0)


def imbalance(courses: Sequence[EndpointSeries]) -> float | None:
    """Returns the most loaded engine's in-flight requests relative to the mean of all engines that were up at that
    time.
    """
    held = [course.in_flight for course in courses]
    means = [
        share(sum(each), sum(up)) or 0.0
        for each, up in zip(zip(*held, strict=True), zip(*(course.up for course in courses), strict=True), strict=True)
    ]
    ratios: list[float] = []
    for mine, course in zip(held, courses, strict=True):
        expected = math.fsum(mean for mean, up in zip(means, course.up, strict=True) if up)
        if expected:
            ratios.append(sum(mine) / expected)
    return max(ratios, default=None)


class TimeSeries:
    """Samples of a run at regular intervals. The interval doubles when there are too many samples."""

    def __init__(self, endpoints: int) -> None:
        self.at = _counts()
        self.queued: Final[dict[ClassName, array[int]]] = {}
        self.endpoints: Final = tuple(EndpointSeries() for _ in range(endpoints))
        self._samples = 0
        self._stride = 1

    def add(self, sample: FleetSample) -> None:
        self._samples += 1
        if self._samples % self._stride:
            return
        for name in sample.queued:
            if name not in self.queued:
                self.queued[name] = _counts(len(self.at))
        for name, queued in self.queued.items():
            queued.append(sample.queued.get(name, 0))
        for course, endpoint in zip(self.endpoints, sample.endpoints, strict=True):
            course.running.append(endpoint.running)
            course.waiting.append(endpoint.waiting)
            course.kv_used.append(endpoint.kv_used_fraction)
            course.up.append(endpoint.up)
        self.at.append(sample.at)
        if len(self.at) == SAMPLES_MAX:
            self._thin_out()

    def _thin_out(self) -> None:
        """Drops every second sample, keeping those that the doubled interval would have taken."""
        self._stride *= 2
        self.at = self.at[1::2]
        for name, queued in self.queued.items():
            self.queued[name] = queued[1::2]
        for course in self.endpoints:
            course.running, course.waiting = course.running[1::2], course.waiting[1::2]
            course.kv_used, course.up = course.kv_used[1::2], course.up[1::2]


def _counts(length: int = 0) -> "array[int]":
    return array("q", [0] * length)
