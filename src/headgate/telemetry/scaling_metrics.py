"""Scaling metrics: desired endpoints and demand for each pool.

Autoscalers can read them from Prometheus, and dashboards show why a pool is scaled. Every pool in the current policy
has a demand. Only autoscaled pools have a desired replica count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.core.autoscaling.starts import StartPhase
from headgate.model.units import SECOND, Duration, PoolName
from headgate.telemetry.exposition import MetricFamily, family
from headgate.telemetry.histogram import Histogram

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolScaling:
    pool: PoolName
    endpoints_desired: int | None
    """Desired replica count; None if the pool is not autoscaled."""
    demand_ppm: int
    """Demand in millionths of one endpoint's capacity."""
    endpoints_ready: int
    starting: Mapping[StartPhase, int] = field(default_factory=dict[StartPhase, int])
    """Number of cold starts in progress, by phase."""
    oldest_start_age_ns: Duration = Duration(0)
    """Age of the oldest cold start in progress that is not stuck."""
    lead_time_ns: Duration | None = None
    """Scaling lead time; None if the pool is not autoscaled."""
    cold_starts: Histogram | None = None
    """Cold start durations; None if the pool is not autoscaled."""
    correction_ppm: int | None = None
    """Correction factor for the predicted work, derived from measured SLO attainment; None if the pool is not
    autoscaled.
    """


def scaling_metrics(pools: Sequence[PoolScaling]) -> Iterator[MetricFamily]:
    yield from _demand_metrics(pools)
    yield from _start_metrics(pools)


def _demand_metrics(pools: Sequence[PoolScaling]) -> Iterator[MetricFamily]:
    wanted, demand = family("headgate_endpoints_desired"), family("headgate_demand_endpoints")
    over_capacity, corrections = (
        family("headgate_demand_to_capacity_ratio"),
        family("headgate_scaling_correction_ratio"),
    )
    for each in pools:
        asked = each.demand_ppm / _MILLION
        if each.endpoints_desired is not None:
            wanted.add((each.pool,), each.endpoints_desired)
        demand.add((each.pool,), asked)
        over_capacity.add((each.pool,), asked / max(1, each.endpoints_ready))
        if each.correction_ppm is not None:
            corrections.add((each.pool,), each.correction_ppm / _MILLION)
    return iter((wanted, demand, over_capacity, corrections))


def _start_metrics(pools: Sequence[PoolScaling]) -> Iterator[MetricFamily]:
    starting, ages = family("headgate_endpoints_starting"), family("headgate_endpoint_start_age_seconds")
    leads, cold_starts = family("headgate_scaling_lead_time_seconds"), family("headgate_cold_start_seconds")
    for each in pools:
        for phase in StartPhase:
            starting.add((each.pool, phase.value), each.starting.get(phase, 0))
        ages.add((each.pool,), each.oldest_start_age_ns / SECOND)
        if each.lead_time_ns is not None:
            leads.add((each.pool,), each.lead_time_ns / SECOND)
        if each.cold_starts is not None:
            cold_starts.add_histogram((each.pool,), each.cold_starts)
    return iter((starting, ages, leads, cold_starts))
