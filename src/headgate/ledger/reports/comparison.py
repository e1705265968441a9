"""How is a day that has only begun compared with whole ones?

Up to the same hour. Of endpoints that is known exactly. Of requests there are only the sums of days, of which as much
counts as endpoints were at work up to that hour on the days before.
"""

from collections.abc import Mapping, Sequence

from headgate.ledger.reports.accounts import OnDay, PoolTime
from headgate.ledger.reports.drift import Day, Kind, PoolDay, Spent

Kinds = Mapping[Kind, Spent]


def compared(
    kinds: Mapping[str, Kinds], times: Sequence[PoolTime], today: str, *, days: int, share: float, by_token: OnDay
) -> tuple[Day, Day]:
    """A day as those before it were on the mean, and the day itself.

    The kinds are of whole days, by the day; the times up to the same hour.
    """
    before = [each for each in kinds if each != today]
    times_before = [each for each in times if each.day != today]
    one = _day(kinds, before, times_before, by_token, (share / days, 1 / days))
    return one, _day(kinds, [today], [each for each in times if each.day == today], by_token, (1.0, 1.0))


def _day(
    kinds: Mapping[str, Kinds],
    days: Sequence[str],
    times: Sequence[PoolTime],
    by_token: OnDay,
    factors: tuple[float, float],
) -> Day:
    """The sum over these days, times one factor for what requests took and another for the time of endpoints."""
    summed: dict[Kind, Spent] = {}
    by_hour = 0.0
    for day in days:
        for kind, each in kinds.get(day, {}).items():
            spent = each.scaled(factors[0])
            if by_token(day, kind.pool):
                spent = spent.paid_by_token()
            else:
                by_hour += spent.cost
            summed[kind] = summed[kind].plus(spent) if kind in summed else spent
    pools = {
        pool: _pool_day([each for each in times if each.pool == pool], factors[1])
        for pool in sorted({each.pool for each in times})
    }
    if not times:
        return Day(summed, pools)
    paid = factors[1] * sum(each.cost(each.whole_us) for each in times)
    return Day(summed, pools, paid - by_hour - sum(each.idle + each.unready for each in pools.values()))


def _pool_day(times: Sequence[PoolTime], factor: float) -> PoolDay:
    whole_us = sum(each.whole_us for each in times)
    hour = sum(each.hour_nano_usd * each.whole_us for each in times) / whole_us if whole_us else 0.0
    idle = sum(each.cost(each.idle_us) for each in times)
    unready = sum(each.cost(each.starting_us + each.unready_us + each.late_us) for each in times)
    return PoolDay(hour, factor * idle, factor * unready)
