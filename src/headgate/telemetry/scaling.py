"""How many endpoints are wanted of each pool, and how much is asked of those it has?

For whoever scales by plain Prometheus metrics, and for the page that says why a pool grows. The pools are those of the
present policy that are scaled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from headgate.model.units import PoolName

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PoolScaling:
    pool: PoolName
    endpoints_wanted: int
    demand_ppm: int
    """Engine time asked for in each second, in millionths of what one endpoint gives."""
    endpoints_ready: int


def scaling_metrics(pools: Sequence[PoolScaling]) -> Iterator[Metric]:
    wanted = GaugeMetricFamily("headgate_endpoints_wanted", "Endpoints that there should be.", labels=["pool"])
    demand = GaugeMetricFamily(
        "headgate_demand_endpoints", "Engine time asked for, by what one endpoint can give.", labels=["pool"]
    )
    over_capacity = GaugeMetricFamily(
        "headgate_demand_over_capacity",
        "Engine time asked for, by what the ready endpoints can give; where there are none, by one.",
        labels=["pool"],
    )
    for each in pools:
        asked = each.demand_ppm / _MILLION
        wanted.add_metric([each.pool], each.endpoints_wanted)
        demand.add_metric([each.pool], asked)
        over_capacity.add_metric([each.pool], asked / max(1, each.endpoints_ready))
    return iter((wanted, demand, over_capacity))
