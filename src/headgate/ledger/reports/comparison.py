"""Compares an incomplete day with the complete days before it, up to the same time of day.

Endpoint times are known for any part of a day. Requests only have daily totals, which are scaled by the share of work
that endpoints had done by that time on the preceding days.
"""

from collections.abc import Mapping, Sequence

from headgate.ledger.reports.cost_breakdown import DayPoolTest, PoolTime
from headgate.ledger.reports.drift import DayCost, GroupCost, PoolDayCost, RequestGroup

GroupCosts = Mapping[RequestGroup, GroupCost]


def compare_days(
    groups: Mapping[str, GroupCosts],
    times: Sequence[PoolTime],
    today: str,
    *,
    days: int,
    share: float,
    by_token: DayPoolTest,
) -> tuple[DayCost, DayCost]:
    """The mean of the preceding days, and the day itself.

    `groups` covers complete days, and `times` only the part up to the same time of day.
    """
    before = [each for each in groups if each != today]
    times_before = [each for each in times if each.day != today]
    one = _sum_days(groups, before, times_before, by_token, (share / days, 1 / days))
    return one, _sum_days(groups, [today], [each for each in times if each.day == today], by_token, (1.0, 1.0))


def _sum_days(
    kinds: Mapping[str, GroupCosts],
    days: Sequence[str],
    times: Sequence[PoolTime],
    by_token: DayPoolTest,
    factors: tuple[float, float],
) -> DayCost:
    """Sum over these days. `factors` scale the requests and the endpoint time."""
    summed: dict[RequestGroup, GroupCost] = {}
    by_hour = 0.0
    for day in days:
        for kind, each in kinds.get(day, {}).items():
            spent = each.scaled(factors[0])
            if by_token(day, kind.pool):
                spent = spent.as_token_priced()
            else:
                by_hour += spent.cost
            summed[kind] = summed[kind].plus(spent) if kind in summed else spent
    pools = {
        pool: _pool_day([each for each in times if each.pool == pool], factors[1])
        for pool in sorted({each.pool for each in times})
    }
    if not times:
        return DayCost(summed, pools)
    paid = factors[1] * sum(each.cost(each.total_us) for each in times)
    return DayCost(summed, pools, paid - by_hour - sum(each.idle + each.unready for each in pools.values()))


def _pool_day(times: Sequence[PoolTime], factor: float) -> PoolDayCost:
    total_us = sum(each.total_us for each in times)
    hour = sum(each.hour_nano_usd * each.total_us for each in times) / total_us if total_us else 0.0
    idle = sum(each.cost(each.idle_us) for each in times)
    unready = sum(each.cost(each.starting_us + each.unready_us + each.abort_lag_us) for each in times)
    return PoolDayCost(hour, factor * idle, factor * unready)
