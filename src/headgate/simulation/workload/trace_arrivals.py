"""Arrivals from a recorded trace.

A row's time is converted in these steps:

    since the trace's earliest row → + jitter → inside the window? → since the window's start → + shift → / speed_up

Time 0 is the earliest row of the file. Shift and jitter are in seconds of the trace, not of the run. Random values are
drawn for every row in the file, whether or not it is used. A window or a share of the rows is therefore an exact subset
of the complete traffic, with the same classes and tenants.
"""

from collections.abc import Iterator
from operator import attrgetter
from random import Random

from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.options import TraceTraffic
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.shares import WeightedDraw
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.trace_row import TraceRow


def trace_arrivals(traffic: TraceTraffic, *, seed: int, source: str, prefix_base: int = 0) -> Iterator[Arrival]:
    """Returns arrivals by time, then by file order. `prefix_base` is added to block names."""
    made = [
        Arrival(
            _arrival_instant(traffic, at_ns),
            # Some traces contain rows without a prompt or output, which engines do not accept.
            max(1, row.prompt_tokens),
            max(1, row.output_tokens),
            service_class,
            tenant,
            tuple(prefix_base + name for name in row.prefix) if prefix_base else row.prefix,
            row.previous_tries,
            None if row.api is None else Api(row.api),
            None if row.model is None else ModelName(row.model),
            row.stream,
        )
        for at_ns, row, service_class, tenant in _rows_with_owner(traffic, seed, source)
    ]
    made.sort(key=attrgetter("at"))
    return iter(made)


def trace_span_ns(traffic: TraceTraffic) -> Duration:
    """Returns the time from 0 to the last row in the window, before jitter and sampling."""
    rows = _rows(traffic)
    zero_ns = min(row.at_ns for row in rows)
    inside = [at_ns for row in rows if _is_inside(traffic, at_ns := row.at_ns - zero_ns)]
    return Duration(_arrival_instant(traffic, max(inside))) if inside else Duration(0)


def _rows_with_owner(
    traffic: TraceTraffic, seed: int, source: str
) -> Iterator[tuple[int, TraceRow, ClassName, TenantId]]:
    rows = _rows(traffic)
    zero_ns = min(row.at_ns for row in rows)
    # Each random decision has its own sequence, so that changing the mix does not affect the other decisions.
    kept, jitter = Random(f"{seed} keep {source}"), Random(f"{seed} jitter {source}")
    classes = WeightedDraw(traffic.classes, Random(f"{seed} class {source}")) if traffic.classes is not None else None
    tenants = WeightedDraw(traffic.tenants, Random(f"{seed} tenant {source}")) if traffic.tenants is not None else None
    for row in rows:
        at_ns = row.at_ns - zero_ns + int(jitter.random() * traffic.jitter_ns)
        service_class = classes.next() if classes is not None else row.service_class
        tenant = tenants.next() if tenants is not None else row.tenant
        if service_class is None or tenant is None:
            missing = "class" if service_class is None else "tenant"
            plural = "classes" if service_class is None else "tenants"
            raise WorkloadError(
                f"{traffic.path} has rows without a {missing}; add {plural}: NAME, or several names with weights"
            )
        if kept.random() < traffic.keep and _is_inside(traffic, at_ns):
            yield at_ns, row, ClassName(service_class), TenantId(tenant)


def _rows(traffic: TraceTraffic) -> list[TraceRow]:
    rows = list(read_trace(traffic.path))
    if not rows:
        raise WorkloadError(f"{traffic.path} contains no requests; use another trace")
    return rows


def _is_inside(traffic: TraceTraffic, at_ns: int) -> bool:
    since_ns = at_ns - traffic.start_ns
    return since_ns >= 0 and (traffic.duration_ns is None or since_ns < traffic.duration_ns)


def _arrival_instant(traffic: TraceTraffic, at_ns: int) -> Instant:
    moment_ns = int((at_ns - traffic.start_ns + traffic.shift_ns) / traffic.speed_up)
    if moment_ns < 0:
        raise WorkloadError(f"{traffic.path}: the shift moves requests before the start of the run; reduce the shift")
    return Instant(moment_ns)
