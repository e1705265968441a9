"""How many endpoints are wanted of each pool, and how much is asked of those it has?

For whoever scales by plain Prometheus metrics, and for the page that says why a pool grows. How much is asked is told
of every pool of the present policy, how many are wanted of those that are scaled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.model.units import PoolName
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


def scaling_metrics(pools: Sequence[PoolScaling]) -> Iterator[Family]:
    wanted, demand = family("headgate_endpoints_wanted"), family("headgate_demand_endpoints")
    over_capacity = family("headgate_demand_over_capacity")
    for each in pools:
        asked = each.demand_ppm / _MILLION
        if each.endpoints_wanted is not None:
            wanted.add((each.pool,), each.endpoints_wanted)
        demand.add((each.pool,), asked)
        over_capacity.add((each.pool,), asked / max(1, each.endpoints_ready))
    return iter((wanted, demand, over_capacity))
