"""How many endpoints are wanted of each pool, and how much is asked of those it has?

For whoever scales by plain Prometheus metrics, and for the page that says why a pool grows. How much is asked is told
of every pool of the present policy, how many are wanted of those that are scaled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.core.autoscaling.starts import StartPhase
from headgate.model.units import SECOND, Duration, PoolName
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.page import Family, family

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolScaling:
    pool: PoolName
    endpoints_wanted: int | None
    """None where the pool is not scaled."""
    demand_ppm: int
    """Engine time asked for in each second, in millionths of what one endpoint gives."""
    endpoints_ready: int
    starting: Mapping[StartPhase, int] = field(default_factory=dict[StartPhase, int])
    """Starts under way by phase."""
    oldest_start_ns: Duration = Duration(0)
    """Age of the oldest start under way that is not stuck."""
    lead_ns: Duration | None = None
    """None if the pool is not scaled, like `cold_starts`."""
    cold_starts: Histogram | None = None
    correction_ppm: int | None = None
    """The factor by which measured attainment corrects predicted work; None if the pool is not scaled."""


def scaling_metrics(pools: Sequence[PoolScaling]) -> Iterator[Family]:
    yield from _demand_metrics(pools)
    yield from _start_metrics(pools)


def _demand_metrics(pools: Sequence[PoolScaling]) -> Iterator[Family]:
    wanted, demand = family("headgate_endpoints_wanted"), family("headgate_demand_endpoints")
    over_capacity, corrections = family("headgate_demand_over_capacity"), family("headgate_scaling_correction_ratio")
    for each in pools:
        asked = each.demand_ppm / _MILLION
        if each.endpoints_wanted is not None:
            wanted.add((each.pool,), each.endpoints_wanted)
        demand.add((each.pool,), asked)
        over_capacity.add((each.pool,), asked / max(1, each.endpoints_ready))
        if each.correction_ppm is not None:
            corrections.add((each.pool,), each.correction_ppm / _MILLION)
    return iter((wanted, demand, over_capacity, corrections))


def _start_metrics(pools: Sequence[PoolScaling]) -> Iterator[Family]:
    starting, ages = family("headgate_endpoints_starting"), family("headgate_endpoint_start_age_seconds")
    leads, cold_starts = family("headgate_scaling_lead_seconds"), family("headgate_cold_start_seconds")
    for each in pools:
        for phase in StartPhase:
            starting.add((each.pool, phase.value), each.starting.get(phase, 0))
        ages.add((each.pool,), each.oldest_start_ns / SECOND)
        if each.lead_ns is not None:
            leads.add((each.pool,), each.lead_ns / SECOND)
        if each.cold_starts is not None:
            cold_starts.add_histogram((each.pool,), each.cold_starts)
    return iter((starting, ages, leads, cold_starts))
