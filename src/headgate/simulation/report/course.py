"""When did it hurt?

Requests are counted in buckets by when they arrived, so that a bucket tells what became of those who came then. How
things stood in the queue and in the engines is kept as it was sampled.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Final

from headgate.model.units import ClassName, Duration, Instant
from headgate.simulation.report.fate import Fate
from headgate.simulation.report.tally import share
from headgate.simulation.virtual.story import Sample

BUCKETS: Final = 120
SAMPLES_MAX: Final = 2_400
"""Stragglers may go on for hours after the last arrival."""


class Arrived:
    """What became of the requests of one class, by when they arrived."""

    def __init__(self, span_ns: Duration) -> None:
        self.bucket_ns: Final = max(-(-span_ns // BUCKETS), 1)
        self.counts: Final = {fate: _counts(BUCKETS) for fate in Fate}

    def add(self, fate: Fate, at: Instant) -> None:
        self.counts[fate][min(at // self.bucket_ns, BUCKETS - 1)] += 1

    @property
    def arrivals(self) -> list[int]:
        return [sum(bucket) for bucket in zip(*self.counts.values(), strict=True)]

    def include(self, other: "Arrived") -> None:
        for fate, counts in other.counts.items():
            mine = self.counts[fate]
            for number, count in enumerate(counts):
                mine[number] += count


class EndpointCourse:
    """One engine. While it is down it holds nothing, and its means leave that time out."""

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


def imbalance(courses: Sequence[EndpointCourse]) -> float | None:
    """What the fullest engine held, as a multiple of the mean over those that were up with it."""
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


class Course:
    """The samples, by what they are of; at even distances, which double when there are too many."""

    def __init__(self, endpoints: int) -> None:
        self.at = _counts()
        self.queued: Final[dict[ClassName, array[int]]] = {}
        self.endpoints: Final = tuple(EndpointCourse() for _ in range(endpoints))
        self._seen = 0
        self._every = 1

    def add(self, sample: Sample) -> None:
        self._seen += 1
        if self._seen % self._every:
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
        """Of two neighbours the later one stays, as it would have with twice the distance from the start."""
        self._every *= 2
        self.at = self.at[1::2]
        for name, queued in self.queued.items():
            self.queued[name] = queued[1::2]
        for course in self.endpoints:
            course.running, course.waiting = course.running[1::2], course.waiting[1::2]
            course.kv_used, course.up = course.kv_used[1::2], course.up[1::2]


def _counts(length: int = 0) -> "array[int]":
    return array("q", [0] * length)
