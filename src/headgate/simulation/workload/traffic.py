"""What traffic is meant, and which requests come of it?

Traffic is a plain value of one of three kinds: a recorded trace, ServeGen's per-client processes, or plain chance.
Several kinds at once are merged in the order of time; where two requests come at one instant, the traffic named first
goes first. Chance is seeded per question and per traffic, so that a further traffic moves nothing of those named before
it, nor of those from other files; where one file, or plain chance, is named again, it is told apart by its place.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import assert_never

from headgate.model.units import Duration
from headgate.simulation.workload.arrival import Arrivals
from headgate.simulation.workload.lengths import Lengths, LogNormal, Uniform
from headgate.simulation.workload.poisson import PoissonTraffic, poisson_arrivals
from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.recorded import TraceTraffic, trace_arrivals, trace_span_ns
from headgate.simulation.workload.servegen import ServeGenTraffic, servegen_arrivals, servegen_span_ns
from headgate.simulation.workload.shares import Shares, client_shares, names_tenants

__all__ = [
    "Lengths",
    "LogNormal",
    "PoissonTraffic",
    "Problem",
    "ServeGenTraffic",
    "Shares",
    "TraceTraffic",
    "Traffic",
    "Uniform",
    "arrivals",
    "client_shares",
    "names_tenants",
    "span_ns",
]

Traffic = TraceTraffic | ServeGenTraffic | PoissonTraffic

_PREFIX_BITS = 40
"""Each file's names of prompt blocks have so many bits of their own: equal names of two files mean nothing."""


def arrivals(traffic: Sequence[Traffic], *, seed: int) -> Arrivals:
    """Files are read at once, so that a fault in them is told before the run; requests are made as they are taken."""
    sources = _sources(traffic)
    paths = list(dict.fromkeys(each.path for each in traffic if isinstance(each, TraceTraffic)))
    streams = [
        _stream(each, seed=seed, source=source, paths=paths) for each, source in zip(traffic, sources, strict=True)
    ]
    return streams[0] if len(streams) == 1 else merge(*streams, key=attrgetter("at"))


def span_ns(traffic: Sequence[Traffic]) -> Duration:
    """How long requests keep coming: from time 0 to a trace's last row, or to the end of what was asked for."""
    return max((_span_ns(each) for each in traffic), default=Duration(0))


def _stream(traffic: Traffic, *, seed: int, source: str, paths: Sequence[Path]) -> Arrivals:
    match traffic:
        case TraceTraffic():
            base = paths.index(traffic.path) << _PREFIX_BITS
            return trace_arrivals(traffic, seed=seed, source=source, prefix_base=base)
        case ServeGenTraffic():
            return servegen_arrivals(traffic, seed=seed, source=source)
        case PoissonTraffic():
            return poisson_arrivals(traffic, seed=seed, source=source)
        case _:
            assert_never(traffic)


def _span_ns(traffic: Traffic) -> Duration:
    match traffic:
        case TraceTraffic():
            return trace_span_ns(traffic)
        case ServeGenTraffic():
            return servegen_span_ns(traffic)
        case PoissonTraffic():
            return Duration(traffic.shift_ns + traffic.length_ns)
        case _:
            assert_never(traffic)


def _sources(traffic: Sequence[Traffic]) -> list[str]:
    """What seeds each: its file's name, not its place, and a number where a file is named again."""
    names = [_name(each) for each in traffic]
    seen = Counter[str]()
    sources: list[str] = []
    for name in names:
        sources.append(f"{name} {seen[name]}")
        seen[name] += 1
    return sources


def _name(traffic: Traffic) -> str:
    match traffic:
        case TraceTraffic():
            return traffic.path.name
        case ServeGenTraffic():
            return traffic.rates.name
        case PoissonTraffic():
            return "poisson"
        case _:
            assert_never(traffic)
