"""Rate of requests over time, relative to the mean rate.

Ramps, spikes and a daily peak multiply. Between two changes, the rate is constant or changes linearly, so a position in
the arrival process converts to a time in closed form. The same process therefore drives every curve: without a curve,
its positions are the arrival times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from headgate.simulation.options import DailyPeak, Ramp, RateTraffic, Spike


@dataclass(frozen=True, slots=True)
class RateSegment:
    """A period in which the rate changes linearly. Factors are relative to the mean rate."""

    start_ns: int
    end_ns: int
    first: float
    """Factor at the start."""
    last: float
    """Factor at the end."""

    @property
    def work_ns(self) -> float:
        """Time that the same number of requests would take at the mean rate."""
        return (self.first + self.last) / 2 * (self.end_ns - self.start_ns)

    def moment_ns(self, work_ns: float) -> float:
        """Time at which this much of `work_ns` is done."""
        slope = (self.last - self.first) / (self.end_ns - self.start_ns)
        speed = self.first + sqrt(max(0.0, self.first**2 + 2 * slope * work_ns))
        return self.start_ns + (2 * work_ns / speed if speed else 0.0)


def rate_segments(traffic: RateTraffic) -> Iterator[RateSegment]:
    start_ns = 0
    while start_ns < traffic.duration_ns:
        end_ns = min(traffic.duration_ns, *_changes(traffic, start_ns))
        level = _day_factor(traffic.day, start_ns)
        for spike in traffic.spikes:
            level *= spike.factor if spike.at_ns <= start_ns < spike.at_ns + spike.duration_ns else 1.0
        first, last = (_ramp_factor(traffic, moment_ns) for moment_ns in (start_ns, end_ns))
        yield RateSegment(start_ns, end_ns, first * level, last * level)
        start_ns = end_ns


def _changes(traffic: RateTraffic, after_ns: int) -> Iterator[int]:
    """Returns the next change of each kind. The end of the traffic is always one."""
    yield traffic.duration_ns
    periods: list[Ramp | Spike] = [*traffic.spikes, *([traffic.ramp] if traffic.ramp else ())]
    for period in periods:
        yield from (each for each in (period.at_ns, period.at_ns + period.duration_ns) if each > after_ns)
    if (day := traffic.day) is not None:
        midnight_ns = after_ns - after_ns % day.day_ns
        bounds = (day.at_ns, day.at_ns + day.duration_ns, day.day_ns)
        yield next(midnight_ns + each for each in bounds if midnight_ns + each > after_ns)


def _ramp_factor(traffic: RateTraffic, moment_ns: int) -> float:
    ramp = traffic.ramp
    if ramp is None:
        return 1.0
    done = min(1.0, max(0.0, (moment_ns - ramp.at_ns) / ramp.duration_ns))
    return 1.0 + (ramp.to / traffic.rate - 1.0) * done


def _day_factor(day: DailyPeak | None, moment_ns: int) -> float:
    if day is None:
        return 1.0
    part = day.duration_ns / day.day_ns
    is_peak = day.at_ns <= moment_ns % day.day_ns < day.at_ns + day.duration_ns
    return day.share / part if is_peak else (1 - day.share) / (1 - part)
