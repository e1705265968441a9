"""Breaks endpoint costs down by use, and divides the cost of idle time among tenants.

Endpoints with an hourly price are billed for their total time, busy or idle. Hosted endpoints, which are priced per
token, cost only the sum of their attempts. A pool counts as hosted on days when its endpoints had no hourly price. If
its time was not recorded, this is determined by the price in the policy on that day. The difference between the total
and the sum of the parts is `unexplained` and may be negative.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.money import PAYER_BY_CAUSE, NanoUsd, Payer
from headgate.ports.cost_reports import CostBreakdown

USEFUL_CAUSES: Final = tuple(str(cause) for cause, payer in PAYER_BY_CAUSE.items() if payer is Payer.TENANT)
"""Causes of attempts that are billed to the tenant. The cost of all other attempts is waste."""
US_PER_HOUR: Final = 3_600_000_000

DayPoolTest = Callable[[str, str], bool]
"""Predicate over a day and a pool."""


@dataclass(frozen=True, slots=True)
class PoolTime:
    """A pool's endpoint time on one day at one hourly price."""

    day: str
    pool: str
    hour_nano_usd: int
    total_us: int
    starting_us: int
    unready_us: int
    idle_us: int
    abort_lag_us: int

    def cost(self, length_us: int) -> int:
        return divide_rounded(length_us * self.hour_nano_usd, US_PER_HOUR)


@dataclass(frozen=True, slots=True)
class PoolSpending:
    """Cost of a pool's attempts on one day, by payer and cause."""

    day: str
    pool: str
    payer: str
    cause: str
    nano_usd: int


def divide_rounded(dividend: int, divisor: int) -> int:
    """Quotient rounded to the nearest integer."""
    return (2 * dividend + divisor) // (2 * divisor)


def is_token_priced(times: Iterable[PoolTime], is_hour_priced: DayPoolTest) -> DayPoolTest:
    """Whether a pool was priced per token on a day. If no endpoint time was recorded, the policy decides
    (`is_hour_priced`).
    """
    known: dict[tuple[str, str], bool] = {}
    for each in times:
        place = each.day, each.pool
        known[place] = known.get(place, True) and not each.hour_nano_usd
    return lambda day, pool: known[day, pool] if (day, pool) in known else not is_hour_priced(day, pool)


def cost_breakdown(times: Sequence[PoolTime], spendings: Sequence[PoolSpending], by_hour: DayPoolTest) -> CostBreakdown:
    hosted = is_token_priced(times, by_hour)
    paid_time = sum(each.cost(each.total_us) for each in times)
    paid_tokens = sum(each.nano_usd for each in spendings if hosted(each.day, each.pool))
    attributed = sum(each.nano_usd for each in spendings if each.payer == Payer.TENANT)
    waste: dict[str, int] = {}
    for each in spendings:
        if each.payer == Payer.PLATFORM and each.nano_usd:
            waste[each.cause] = waste.get(each.cause, 0) + each.nano_usd
    starting = sum(each.cost(each.starting_us) for each in times)
    unready = sum(each.cost(each.unready_us) for each in times)
    late = sum(each.cost(each.abort_lag_us) for each in times)
    idle = sum(each.cost(each.idle_us) for each in times)
    paid = paid_time + paid_tokens
    unexplained = paid - attributed - sum(waste.values()) - starting - unready - late - idle
    return CostBreakdown(
        paid_time_nano_usd=NanoUsd(paid_time),
        paid_tokens_nano_usd=NanoUsd(paid_tokens),
        attributed_nano_usd=NanoUsd(attributed),
        waste_nano_usd={cause: NanoUsd(cost) for cause, cost in sorted(waste.items(), key=lambda each: -each[1])},
        starting_nano_usd=NanoUsd(starting),
        unready_nano_usd=NanoUsd(unready),
        late_nano_usd=NanoUsd(late),
        idle_nano_usd=NanoUsd(idle),
        unexplained_nano_usd=NanoUsd(unexplained),
        unexplained_fraction=unexplained / paid if paid else None,
    )


def cost_breakdowns_by_pool(
    times: Sequence[PoolTime], spendings: Sequence[PoolSpending], by_hour: DayPoolTest
) -> dict[str, CostBreakdown]:
    pools = sorted({each.pool for each in (*times, *spendings) if each.pool})
    return {
        pool: cost_breakdown(
            [each for each in times if each.pool == pool], [each for each in spendings if each.pool == pool], by_hour
        )
        for pool in pools
    }


def split_by_weight(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divides the amount by weight. The parts add up exactly to the amount."""
    whole, weight, given = sum(weights.values()), 0, 0
    parts: dict[str, int] = {}
    for name in sorted(weights):
        weight += weights[name]
        end = amount * weight // whole
        if end > given:
            parts[name] = end - given
        given = end
    return parts


IdleShares = tuple[str, str, Mapping[str, int]]
"""Day, pool, and each tenant's share of the pool's idle cost on that day."""


def idle_shares(
    times: Iterable[PoolTime], weights: Mapping[str, Mapping[str, int]], first_days: Mapping[str, str]
) -> Iterator[IdleShares]:
    """Shares of idle cost. The platform pays for pools that no tenant may use.

    A tenant has no share for days before its first day (`first_days`).
    """
    idle: dict[tuple[str, str], int] = {}
    for each in times:
        idle[each.day, each.pool] = idle.get((each.day, each.pool), 0) + each.cost(each.idle_us)
    for (day, pool), cost in sorted(idle.items()):
        mine = weights.get(pool, {})
        yield day, pool, split_by_weight(cost, {name: mine[name] for name in mine if first_days.get(name, "") <= day})


def path_prefix(tenant: str, depth: int) -> str:
    """The first `depth` steps of the tenant's path."""
    return "/".join(tenant.split("/")[:depth])
