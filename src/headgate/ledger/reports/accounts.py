"""On what was spent what endpoints cost, and who pays for those that stood idle?

Endpoints by the hour cost their time, whatever they do in it. Those of others, by the token, cost what their attempts
cost and nothing else: a pool counts as such on a day on which its endpoints had no price by the hour. Where nobody
wrote their time down, the policy's price of that day decides. Whatever the parts do not come to is unexplained, and may
be below nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.money import PAYERS, NanoUsd, Payer
from headgate.ports.reports import Account

KEPT: Final = tuple(str(cause) for cause, payer in PAYERS.items() if payer is Payer.TENANT)
"""Causes of attempts that were not in vain."""
US_PER_HOUR: Final = 3_600_000_000

OnDay = Callable[[str, str], bool]
"""(day, pool) -> whether it is so."""


@dataclass(frozen=True, slots=True)
class PoolTime:
    """How the endpoints of a pool spent a day, as far as one price was in force."""

    day: str
    pool: str
    hour_nano_usd: int
    whole_us: int
    starting_us: int
    unready_us: int
    idle_us: int
    late_us: int

    def cost(self, length_us: int) -> int:
        return nearest(length_us * self.hour_nano_usd, US_PER_HOUR)


@dataclass(frozen=True, slots=True)
class PoolSpending:
    """What the attempts at a pool cost on a day, by who pays and why."""

    day: str
    pool: str
    payer: str
    cause: str
    nano_usd: int


def nearest(dividend: int, divisor: int) -> int:
    """The whole number nearest to the quotient."""
    return (2 * dividend + divisor) // (2 * divisor)


def by_token(times: Iterable[PoolTime], by_hour: OnDay) -> OnDay:
    """Whether a pool was paid by the token on a day. `by_hour` is what the policy says, for want of anything better."""
    known: dict[tuple[str, str], bool] = {}
    for each in times:
        place = each.day, each.pool
        known[place] = known.get(place, True) and not each.hour_nano_usd
    return lambda day, pool: known[day, pool] if (day, pool) in known else not by_hour(day, pool)


def account_of(times: Sequence[PoolTime], spendings: Sequence[PoolSpending], by_hour: OnDay) -> Account:
    hosted = by_token(times, by_hour)
    paid_time = sum(each.cost(each.whole_us) for each in times)
    paid_tokens = sum(each.nano_usd for each in spendings if hosted(each.day, each.pool))
    attributed = sum(each.nano_usd for each in spendings if each.payer == Payer.TENANT)
    waste: dict[str, int] = {}
    for each in spendings:
        if each.payer == Payer.PLATFORM and each.nano_usd:
            waste[each.cause] = waste.get(each.cause, 0) + each.nano_usd
    starting = sum(each.cost(each.starting_us) for each in times)
    unready = sum(each.cost(each.unready_us) for each in times)
    late = sum(each.cost(each.late_us) for each in times)
    idle = sum(each.cost(each.idle_us) for each in times)
    paid = paid_time + paid_tokens
    unexplained = paid - attributed - sum(waste.values()) - starting - unready - late - idle
    return Account(
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


def accounts_by_pool(
    times: Sequence[PoolTime], spendings: Sequence[PoolSpending], by_hour: OnDay
) -> dict[str, Account]:
    pools = sorted({each.pool for each in (*times, *spendings) if each.pool})
    return {
        pool: account_of(
            [each for each in times if each.pool == pool], [each for each in spendings if each.pool == pool], by_hour
        )
        for pool in pools
    }


def divided(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """The amount in parts by these weights, which come to exactly it: each begins where the one before it ends."""
    whole, weight, given = sum(weights.values()), 0, 0
    parts: dict[str, int] = {}
    for name in sorted(weights):
        weight += weights[name]
        end = amount * weight // whole
        if end > given:
            parts[name] = end - given
        given = end
    return parts


Shares = tuple[str, str, Mapping[str, int]]
"""A day, a pool, and what each tenant bears of its idle time on that day."""


def idle_shares(
    times: Iterable[PoolTime], weights: Mapping[str, Mapping[str, int]], begun: Mapping[str, str]
) -> Iterator[Shares]:
    """A pool that nobody may use stays with the platform. Nobody bears a part of days before its first (`begun`)."""
    idle: dict[tuple[str, str], int] = {}
    for each in times:
        idle[each.day, each.pool] = idle.get((each.day, each.pool), 0) + each.cost(each.idle_us)
    for (day, pool), cost in sorted(idle.items()):
        mine = weights.get(pool, {})
        yield day, pool, divided(cost, {name: mine[name] for name in mine if begun.get(name, "") <= day})


def path_of(tenant: str, depth: int) -> str:
    """So many steps of it."""
    return "/".join(tenant.split("/")[:depth])
