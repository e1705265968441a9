"""Warnings about scenarios that can run, but probably not as intended."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from headgate.model.units import SECOND, Duration, format_seconds
from headgate.simulation.options import RateTraffic, Traffic
from headgate.simulation.virtual.scenario import Scenario

REQUESTS_WARN_ABOVE: Final = 5_000_000
"""Expected request count above which a warning about the run's duration is printed."""

SECONDS_PER_REQUEST: Final = 300e-6
"""Approximate time to simulate one request, in seconds. See docs/project/simulation-accuracy.md."""


def size_warnings(traffic: Sequence[Traffic], duration_ns: Duration | None) -> tuple[str, ...]:
    """Warns if the run would take a very long time."""
    expected = sum(_expected_requests(each, duration_ns) for each in traffic)
    if expected <= REQUESTS_WARN_ABOVE:
        return ()
    minutes = expected * SECONDS_PER_REQUEST / 60
    takes = f"{minutes / 60:,.0f} hours" if minutes >= 120 else f"{minutes:.0f} minutes"
    return (f"about {expected / 1e6:,.0f} million requests take about {takes}; lower rate, for or duration",)


def _expected_requests(traffic: Traffic, duration_ns: Duration | None) -> float:
    """Returns the mean number of arrivals at a rate, without ramps and spikes. Traces count as 0, because any trace
    that can be read is short enough.
    """
    if not isinstance(traffic, RateTraffic):
        return 0.0
    left_ns = traffic.duration_ns if duration_ns is None else duration_ns - traffic.shift_ns
    return traffic.rate * max(0, min(traffic.duration_ns, left_ns)) / SECOND


def late_fault_warnings(simulated: Scenario) -> tuple[str, ...]:
    """Warns about faults scheduled after the traffic ends. The end is known only once the traces have been read."""
    late = [each for each in simulated.faults if each.at >= simulated.span_ns]
    warnings: list[str] = []
    for (kind, at), same in groupby(late, key=lambda each: (type(each).__name__.lower(), each.at)):
        first, *others = (each.endpoint_id for each in same)
        who = f"{first} and {len(others)} more" if others else first
        end = format_seconds(simulated.span_ns)
        warnings.append(
            f"{kind} of {who} at {format_seconds(Duration(at))}: requests arrive only until {end}; lower at"
        )
    return tuple(warnings)
