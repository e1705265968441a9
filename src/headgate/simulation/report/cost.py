"""Cost of a run at the pools' prices.

A pool with an hourly price costs money for every engine from its start to its end, whether or not it serves requests. A
pool with a token price costs what the scheduler's bills for its attempts add up to. The bills of a pool with an hourly
price divide part of its cost among the requests. The rest is not billed: time in which engines were idle, starting or
down, and work for requests that had already ended.

All amounts are integer nano-dollars, so that the parts add up to the total.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headgate.model.money import NanoUsd, price_at
from headgate.model.policy import Pool
from headgate.model.units import Duration, Instant, PoolName
from headgate.simulation.virtual.run_observer import EngineTotals

_START = Instant(0)


@dataclass(frozen=True, slots=True)
class PoolCost:
    pool: PoolName
    paid_ns: Duration
    """Engine time that is paid by the hour, over all engines. 0 for a token price."""
    billed: NanoUsd
    """Sum of the bills."""
    unbilled: NanoUsd
    """Cost of engine time that is in no bill. Slightly negative if rounded bills cover all of the time."""

    @property
    def total(self) -> NanoUsd:
        return NanoUsd(self.billed + self.unbilled)


@dataclass(frozen=True, slots=True)
class RunCost:
    pools: tuple[PoolCost, ...]
    """Pools that have a price, in policy order."""

    @staticmethod
    def of(pools: Iterable[Pool], engines: Iterable[EngineTotals], billed: Mapping[PoolName, int]) -> "RunCost | None":
        engines = tuple(engines)
        found: list[PoolCost] = []
        for pool in pools:
            price = price_at(pool.prices, _START)
            if price is None:
                continue
            bills = NanoUsd(billed.get(pool.name, 0))
            if price.is_per_token:
                found.append(PoolCost(pool.name, Duration(0), bills, NanoUsd(0)))
                continue
            paid_ns = Duration(sum(each.paid_ns for each in engines if each.pool == pool.name))
            found.append(PoolCost(pool.name, paid_ns, bills, NanoUsd(price.of_time(paid_ns) - bills)))
        return RunCost(tuple(found)) if found else None

    @property
    def paid_ns(self) -> Duration:
        return Duration(sum(each.paid_ns for each in self.pools))

    @property
    def billed(self) -> NanoUsd:
        return NanoUsd(sum(each.billed for each in self.pools))

    @property
    def unbilled(self) -> NanoUsd:
        return NanoUsd(sum(each.unbilled for each in self.pools))

    @property
    def total(self) -> NanoUsd:
        return NanoUsd(sum(each.total for each in self.pools))


def cost_per(amount: int, count: int) -> NanoUsd | None:
    """Returns the rounded cost of one of `count` items. None if there are none."""
    return NanoUsd((2 * amount + count) // (2 * count)) if count else None
