"""Traffic as a scenario describes it: limited to the scenario's duration, with tenants and classes from traces.

If the scenario does not list a trace's tenants, the trace is read beforehand, because the scheduler rejects tenants
that are not in its policy.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, takewhile

from headgate.model.units import SECOND, Duration, format_seconds
from headgate.simulation.options import (
    DEFAULT_TENANTS,
    RateTraffic,
    ServeGenTraffic,
    Shares,
    TraceTraffic,
    Traffic,
)
from headgate.simulation.workload.arrival import Arrivals
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.servegen_files import read_rates
from headgate.simulation.workload.shares import has_tenants, tenant_shares
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.traffic import arrivals, span_ns


def limited_span_ns(traffic: Sequence[Traffic], duration_ns: Duration | None) -> Duration:
    """Returns how long requests keep arriving. The result is at least one second, so that rates are defined."""
    span = span_ns(traffic)
    return max(SECOND, span if duration_ns is None else min(span, duration_ns))


def limited_arrivals(traffic: Sequence[Traffic], seed: int, duration_ns: Duration | None) -> Arrivals:
    """Returns the arrivals before `duration_ns`. Raises `WorkloadError` if there are none."""
    all_of_it = arrivals(traffic, seed=seed)
    first = next(all_of_it, None)
    if first is None:
        why = dict.fromkeys(_no_arrivals_reason(each, seed) for each in traffic)
        raise WorkloadError(f"no request arrives: {'; '.join(why)}")
    if duration_ns is not None and first.at >= duration_ns:
        arrival, duration = format_seconds(Duration(first.at)), format_seconds(duration_ns)
        late = f"the first would arrive after {arrival}, but duration is {duration}"
        raise WorkloadError(f"no request arrives: {late}; raise duration, or change the traffic's shift or speed_up")
    whole = chain((first,), all_of_it)
    return whole if duration_ns is None else takewhile(lambda each: each.at < duration_ns, whole)


def scaled_traffic(traffic: Traffic, factor: float) -> Traffic:
    """Returns the traffic at a multiple of its rate. A trace is replayed faster or slower."""
    if isinstance(traffic, RateTraffic):
        ramp = traffic.ramp and replace(traffic.ramp, to=factor * traffic.ramp.to)
        return replace(traffic, rate=factor * traffic.rate, ramp=ramp)
    if isinstance(traffic, ServeGenTraffic):
        return replace(traffic, keep=factor * traffic.keep)
    return replace(traffic, speed_up=factor * traffic.speed_up)


def _no_arrivals_reason(traffic: Traffic, seed: int) -> str:
    if isinstance(traffic, RateTraffic):
        length = format_seconds(traffic.duration_ns)
        return f"none was drawn at {traffic.rate:g} per second within {length}; raise rate or duration"
    name = (traffic.path if isinstance(traffic, TraceTraffic) else traffic.rates).name
    if next(arrivals((replace(traffic, keep=1.0),), seed=seed), None) is not None:
        return f"sample {traffic.keep:g} drops all requests of {name}; raise sample"
    return f"{name} has no request in the selected range; lower start or raise duration"


# ----------------------------------------------------------------------------------------------------------- tenants


def with_tenants(traffic: Traffic) -> Traffic:
    """Returns the traffic with the tenants that come from another trace, or with the default tenant."""
    match traffic:
        case TraceTraffic(path=path, tenants=None, tenants_from=None):
            return traffic if has_tenants(path) else replace(traffic, tenants=DEFAULT_TENANTS)
        case TraceTraffic(tenants_from=None) | RateTraffic(tenants_from=None) | ServeGenTraffic():
            return traffic
        case TraceTraffic(tenants_from=path) | RateTraffic(tenants_from=path):
            assert path is not None
            return replace(traffic, tenants=tenant_shares(path), tenants_from=None)


def tenant_names(traffic: Traffic) -> Iterable[str]:
    """Returns the names of the tenants that send requests. Call `with_tenants` first."""
    match traffic:
        case ServeGenTraffic():
            return sorted({each.client for each in read_rates(traffic.rates)})
        case TraceTraffic(path=path, tenants=None):
            return _names(tenant_shares(path))
        case _:
            return _names(traffic.tenants or ())


def _names(shares: Shares) -> list[str]:
    return [name for name, _ in shares]


# ----------------------------------------------------------------------------------------------------------- classes


def check_classes(traffic: Traffic, known: Collection[str]) -> None:
    """Raises `WorkloadError` if a trace that gives the class of each request lacks some or uses unknown ones."""
    if not isinstance(traffic, TraceTraffic) or traffic.classes is not None:
        return
    path = traffic.path
    named = {row.service_class for row in read_trace(path)}
    if None in named:
        which = "no class" if named == {None} else "a class for only some rows"
        some = ", ".join(sorted(known))
        raise WorkloadError(f"{traffic.location}: {path.name} has {which}; add classes: NAME, one of: {some}")
    if unknown := sorted(str(each) for each in named if each is not None and each not in known):
        listed = ", ".join(f'"{each}"' for each in unknown)
        raise WorkloadError(f"{path} uses unknown class {listed}; add it to the scenario's classes")


# ------------------------------------------------------------------------------------------------------------ models


def check_models(traffic: Traffic, known: Collection[str]) -> None:
    """Raises `WorkloadError` if a trace names unknown models. With a single known model, all requests use it."""
    if not isinstance(traffic, TraceTraffic) or len(known) < 2:
        return
    named = {row.model for row in read_trace(traffic.path)}
    if unknown := sorted(each for each in named if each is not None and each not in known):
        listed = ", ".join(f'"{each}"' for each in unknown)
        raise WorkloadError(
            f"{traffic.path} uses unknown model {listed}; add it to the scenario's models, or keep only one model there"
        )
