"""A scenario's traffic, and the arrivals it generates.

Traffic is a recorded trace, ServeGen's client processes or a Poisson process. Several sources are merged in
chronological order. If two requests arrive at the same instant, the one from the source listed first goes first.

Random values are seeded per decision and traffic source. A source added at the end, or one from a
different file, does not change the arrivals of the others. Sources from the same file, and Poisson processes, are
distinguished by their order.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import assert_never

from headgate.model.units import Duration
from headgate.simulation.options import RateTraffic, ServeGenTraffic, TraceTraffic, Traffic
from headgate.simulation.workload.arrival import Arrivals
from headgate.simulation.workload.rate_arrivals import rate_arrivals
from headgate.simulation.workload.servegen import servegen_arrivals, servegen_span_ns
from headgate.simulation.workload.trace_arrivals import trace_arrivals, trace_span_ns

_PREFIX_BITS = 40
"""Number of bits for one file's block names. Equal names in different files are unrelated."""


def arrivals(traffic: Sequence[Traffic], *, seed: int) -> Arrivals:
    """Returns all arrivals."""
    streams = source_arrivals(traffic, seed=seed)
    return streams[0] if len(streams) == 1 else merge(*streams, key=attrgetter("at"))


def source_arrivals(traffic: Sequence[Traffic], *, seed: int) -> list[Arrivals]:
    """Returns the arrivals of each source. Files are read immediately, so that errors appear before the run starts."""
    sources = _sources(traffic)
    paths = list(dict.fromkeys(each.path for each in traffic if isinstance(each, TraceTraffic)))
    return [_stream(each, seed=seed, source=source, paths=paths) for each, source in zip(traffic, sources, strict=True)]


def span_ns(traffic: Sequence[Traffic]) -> Duration:
    """Returns the duration of the traffic, up to the last row of a trace or the end of the selected range."""
    return max((_span_ns(each) for each in traffic), default=Duration(0))


def _stream(traffic: Traffic, *, seed: int, source: str, paths: Sequence[Path]) -> Arrivals:
    match traffic:
        case TraceTraffic():
            base = paths.index(traffic.path) << _PREFIX_BITS
            return trace_arrivals(traffic, seed=seed, source=source, prefix_base=base)
        case ServeGenTraffic():
            return servegen_arrivals(traffic, seed=seed, source=source)
        case RateTraffic():
            return rate_arrivals(traffic, seed=seed, source=source)
        case _:
            assert_never(traffic)


def _span_ns(traffic: Traffic) -> Duration:
    match traffic:
        case TraceTraffic():
            return trace_span_ns(traffic)
        case ServeGenTraffic():
            return servegen_span_ns(traffic)
        case RateTraffic():
            return Duration(traffic.shift_ns + traffic.duration_ns)
        case _:
            assert_never(traffic)


def _sources(traffic: Sequence[Traffic]) -> list[str]:
    """Returns the seed names: the file name, and a number to distinguish repeated files."""
    names = [_seed_name(each) for each in traffic]
    seen = Counter[str]()
    sources: list[str] = []
    for name in names:
        sources.append(f"{name} {seen[name]}")
        seen[name] += 1
    return sources


def _seed_name(traffic: Traffic) -> str:
    match traffic:
        case TraceTraffic():
            return traffic.path.name
        case ServeGenTraffic():
            return traffic.rates.name
        case RateTraffic():
            return "poisson"
        case _:
            assert_never(traffic)
