"""Which requests come of a recorded trace?

A row's time passes through these steps, in this order:

    since the trace's earliest row → + jitter → inside the window? → since the window's start → + shift → / speed_up

so time 0 is the earliest row, whatever the file calls it, and shift and jitter are seconds of the trace, not of the
run. Chance is asked for every row of the file, wanted or not: a window, or a share of the rows, is then exactly a part
of the whole, with the same classes and tenants.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from random import Random

from headgate.model.units import ClassName, Duration, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.shares import Draw, Shares
from headgate.simulation.workload.traces import Row, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTraffic:
    path: Path
    classes: Shares | None = None
    """None takes the trace's own column."""
    tenants: Shares | None = None
    """None takes the trace's own column."""
    speed_up: float = 1.0
    shift_ns: Duration = Duration(0)
    jitter_ns: Duration = Duration(0)
    """Each row comes up to so much later, by chance: for a trace that tells its times on a grid of this width."""
    keep: float = 1.0
    """The share of rows that are kept, by chance."""
    start_ns: Duration = Duration(0)
    length_ns: Duration | None = None
    """None goes on to the trace's end."""


def trace_arrivals(traffic: TraceTraffic, *, seed: int, source: str, prefix_base: int = 0) -> Iterator[Arrival]:
    """In the order of time, rows of one instant in the order of the file. `prefix_base` is added to names of blocks."""
    made = [
        Arrival(
            _moment(traffic, at_ns),
            # Some traces hold rows without a prompt or an answer; no engine takes such a request.
            max(1, row.prompt_tokens),
            max(1, row.output_tokens),
            service_class,
            tenant,
            tuple(prefix_base + name for name in row.prefix) if prefix_base else row.prefix,
        )
        for at_ns, row, service_class, tenant in _labelled(traffic, seed, source)
    ]
    made.sort(key=attrgetter("at"))
    return iter(made)


def trace_span_ns(traffic: TraceTraffic) -> Duration:
    """From time 0 to the last row of the window, before chance moves or drops any."""
    rows = _rows(traffic)
    zero_ns = min(row.at_ns for row in rows)
    inside = [at_ns for row in rows if _is_inside(traffic, at_ns := row.at_ns - zero_ns)]
    return Duration(_moment(traffic, max(inside))) if inside else Duration(0)


def _labelled(traffic: TraceTraffic, seed: int, source: str) -> Iterator[tuple[int, Row, ClassName, TenantId]]:
    rows = _rows(traffic)
    zero_ns = min(row.at_ns for row in rows)
    # Each question of chance has its own sequence, so that another mix does not move the other answers.
    kept, jitter = Random(f"{seed} keep {source}"), Random(f"{seed} jitter {source}")
    classes = Draw(traffic.classes, Random(f"{seed} class {source}")) if traffic.classes is not None else None
    tenants = Draw(traffic.tenants, Random(f"{seed} tenant {source}")) if traffic.tenants is not None else None
    for row in rows:
        at_ns = row.at_ns - zero_ns + int(jitter.random() * traffic.jitter_ns)
        service_class = classes.next() if classes is not None else row.service_class
        tenant = tenants.next() if tenants is not None else row.tenant
        if service_class is None or tenant is None:
            missing = "class" if service_class is None else "tenant"
            plural = "classes" if service_class is None else "tenants"
            raise Problem(
                f"{traffic.path} names no {missing} for every row; add {plural}: NAME, or several with shares"
            )
        if kept.random() < traffic.keep and _is_inside(traffic, at_ns):
            yield at_ns, row, ClassName(service_class), TenantId(tenant)


def _rows(traffic: TraceTraffic) -> list[Row]:
    rows = list(read_trace(traffic.path))
    if not rows:
        raise Problem(f"{traffic.path} holds no requests; name another trace")
    return rows


def _is_inside(traffic: TraceTraffic, at_ns: int) -> bool:
    since_ns = at_ns - traffic.start_ns
    return since_ns >= 0 and (traffic.length_ns is None or since_ns < traffic.length_ns)


def _moment(traffic: TraceTraffic, at_ns: int) -> Instant:
    moment_ns = int((at_ns - traffic.start_ns + traffic.shift_ns) / traffic.speed_up)
    if moment_ns < 0:
        raise Problem(f"{traffic.path}: the shift moves requests before the start of the run; shift by less")
    return Instant(moment_ns)
