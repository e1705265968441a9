"""Does a pool's measured speed still match its configured speed?

The scheduler learns for each endpoint how long decoding and prefill take relative to the pool's `speed`. A pool whose
speed is not configured has nothing to drift from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from headgate.core.summary import EndpointSummary
from headgate.model.policy import Pool
from headgate.model.units import PoolName

DRIFT_PERCENT: Final = 25
"""Difference from the configured speed above which it is reported."""
_FACTOR_MAX: Final = 1 + DRIFT_PERCENT / 100


@dataclass(frozen=True, slots=True)
class SpeedDrift:
    pool: PoolName
    decode_percent: int
    """Median decode time of the pool's endpoints in percent of the configured time. Above 100 is slower."""
    prefill_percent: int


def speed_drifts(pools: Iterable[Pool], endpoints: Iterable[EndpointSummary]) -> list[SpeedDrift]:
    """The pools whose configured speed is wrong."""
    by_pool: dict[PoolName, list[EndpointSummary]] = {}
    for each in endpoints:
        by_pool.setdefault(each.pool, []).append(each)
    measured = [
        SpeedDrift(
            each.name,
            round(median(endpoint.decode_percent for endpoint in by_pool[each.name])),
            round(median(endpoint.prefill_percent for endpoint in by_pool[each.name])),
        )
        for each in pools
        if each.name in by_pool and not each.speed_assumed and not each.hosted
    ]
    return [each for each in measured if max(_factor(each.decode_percent), _factor(each.prefill_percent)) > _FACTOR_MAX]


def _factor(percent: int) -> float:
    """How many times slower or faster."""
    return max(percent, 1) / 100 if percent > 100 else 100 / max(percent, 1)
