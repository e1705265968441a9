"""Why does a day cost more, or less, than those before it?

What each kind of request costs (a tenant's, of a model, in a class, at a pool) is a product: how many there are, times
their part of all, times the tokens of each, times the engine time that a token takes, times the price of that time,
times what retries add. Each factor's part in a change is the logarithm of its own change, weighted alike for all of
them (the logarithmic mean of both costs). So the parts come to the change exactly, no order among the causes is
preferred, and what did not change has no part. The idle time of a pool is hours times their price, likewise.

A kind that is new or gone has no logarithm: all of it is a matter of the mix. Prompts and answers are two products,
since their tokens differ; what a step takes whatever is in it is divided between them as the rest is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import Final, NamedTuple

from headgate.model.money import NanoUsd
from headgate.ports.reports import DriftPart

CACHED_TOKEN: Final = 0.1
"""What a token counts that was computed before, beside one that was not."""
NAMED_MAX: Final = 4
"""So many causes are named in a sentence."""

WORDS: Final = {
    "traffic": ("more requests", "fewer requests"),
    "mix": ("a dearer mix", "a cheaper mix"),
    "tokens_in": ("longer prompts", "shorter prompts"),
    "tokens_out": ("longer outputs", "shorter outputs"),
    "cache": ("fewer cached prompts", "more cached prompts"),
    "batching": ("more engine time per token", "less engine time per token"),
    "price": ("higher prices", "lower prices"),
    "retries": ("retries", "fewer retries"),
    "idle": ("idle endpoints", "fewer idle endpoints"),
    "unready": ("endpoints that were not ready", "fewer endpoints that were not ready"),
    "unexplained": ("what is unexplained", "what is unexplained"),
}
"""Each cause, when it adds to the cost and when it takes from it."""
_DIMENSIONS: Final = ("tenant", "model", "class", "pool")
_FIRST: Final = {
    "traffic": ("tenant", "model", "class", "pool"),
    "mix": ("model", "pool", "class", "tenant"),
    "tokens_in": ("tenant", "model", "class", "pool"),
    "tokens_out": ("tenant", "model", "class", "pool"),
    "cache": ("tenant", "model", "class", "pool"),
    "batching": ("pool", "model", "class", "tenant"),
    "retries": ("pool", "tenant", "model", "class"),
    "price": ("pool",),
    "idle": ("pool",),
    "unready": ("pool",),
    "unexplained": (),
}
"""Among what the one is looked for that contributes most; the first kind in which one stands out is named."""


class Kind(NamedTuple):
    tenant: str
    model: str
    service_class: str
    pool: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What a kind of request took, of attempts that were not in vain."""

    requests: float
    tokens_in: float
    tokens_cached: float
    tokens_out: float
    engine_us: float
    input: float
    output: float
    overhead: float
    in_vain: float
    """The cost of all other attempts."""
    hosted: bool = False
    """Whether it is paid by the token, so that engine time plays no part."""

    @property
    def kept(self) -> float:
        return self.input + self.output + self.overhead

    @property
    def cost(self) -> float:
        return self.kept + self.in_vain

    def scaled(self, factor: float) -> "Spent":
        amounts = (getattr(self, each.name) * factor for each in fields(self)[:-1])
        return Spent(*amounts, hosted=self.hosted)

    def plus(self, other: "Spent") -> "Spent":
        amounts = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[:-1])
        return Spent(*amounts, hosted=self.hosted and other.hosted)

    def paid_by_token(self) -> "Spent":
        return replace(self, hosted=True)


@dataclass(frozen=True, slots=True)
class PoolDay:
    """What a pool's endpoints did not spend on requests, in cost and in hours at its price."""

    hour: float
    """The price, on the mean."""
    idle: float
    unready: float
    """Starting, not ready or late."""


@dataclass(frozen=True, slots=True)
class Day:
    kinds: Mapping[Kind, Spent]
    pools: Mapping[str, PoolDay]
    unexplained: float = 0.0

    @property
    def cost(self) -> float:
        spent = sum(each.cost for each in self.kinds.values())
        return spent + sum(each.idle + each.unready for each in self.pools.values()) + self.unexplained


_NOTHING: Final = Spent(0, 0, 0, 0, 0, 0, 0, 0, 0)
_NO_POOL: Final = PoolDay(0, 0, 0)
_Parts = dict[str, dict[Kind, float]]
"""Cause -> kind -> its part in the change."""


def drift(before: Day, today: Day) -> tuple[list[DriftPart], NanoUsd, NanoUsd]:
    """The parts, the largest first, which come to the difference of the two costs; those of before and of today."""
    parts: _Parts = {cause: {} for cause in WORDS}
    all_before = sum(each.requests for each in before.kinds.values())
    all_today = sum(each.requests for each in today.kinds.values())
    for kind in sorted(before.kinds.keys() | today.kinds.keys()):
        one, other = before.kinds.get(kind, _NOTHING), today.kinds.get(kind, _NOTHING)
        _split_requests(parts, kind, (one, other), (all_before, all_today))
    for pool in sorted(before.pools.keys() | today.pools.keys()):
        _split_pool(parts, pool, before.pools.get(pool, _NO_POOL), today.pools.get(pool, _NO_POOL))
    _add(parts, "unexplained", Kind("", "", "", ""), today.unexplained - before.unexplained)
    cost_before, cost_today = round(before.cost), round(today.cost)
    whole = {cause: round(sum(found.values())) for cause, found in parts.items()}
    # What rounding leaves over is less than one of the parts.
    largest = max(whole, key=lambda cause: abs(whole[cause]))
    whole[largest] += cost_today - cost_before - sum(whole.values())
    told = [_told(cause, change, parts[cause], before, today) for cause, change in whole.items() if change]
    told.sort(key=lambda part: -abs(part.change_nano_usd))
    return told, NanoUsd(cost_before), NanoUsd(cost_today)


def _split_requests(parts: _Parts, kind: Kind, both: tuple[Spent, Spent], requests: tuple[float, float]) -> None:
    """`requests` are those of all kinds."""
    one, other = both
    if one.hosted != other.hosted:
        # What a token costs can be compared, engine time that was paid with engine time that was not cannot.
        one, other = one.paid_by_token(), other.paid_by_token()
    if min(one.kept, other.kept, one.requests, other.requests) <= 0:
        # Where there were no requests at all there was no mix of them either.
        _add(parts, "mix" if min(requests) > 0 else "traffic", kind, other.kept - one.kept)
        _add(parts, "retries", kind, other.in_vain - one.in_vain)
        return
    again = {"retries": (one.cost / one.kept, other.cost / other.kept)}
    again["traffic"] = requests
    again["mix"] = (one.requests / requests[0], other.requests / requests[1])
    for factors in (_prompt_factors, _answer_factors):
        cost_one, own_one = factors(one)
        cost_other, own_other = factors(other)
        cost_one, cost_other = cost_one * one.cost / one.kept, cost_other * other.cost / other.kept
        name = "tokens_in" if factors is _prompt_factors else "tokens_out"
        if min(*own_one.values(), *own_other.values(), cost_one, cost_other) <= 0:
            _add(parts, name, kind, cost_other - cost_one)
            continue
        whole = _log_mean(cost_one, cost_other)
        for cause, (value_one, value_other) in again.items():
            _add(parts, cause, kind, whole * log(value_other / value_one))
        for cause, value_one in own_one.items():
            _add(parts, cause, kind, whole * log(own_other[cause] / value_one))


def _prompt_factors(spent: Spent) -> tuple[float, dict[str, float]]:
    """The cost of prompts, and the factors of which, with the number of requests, it is the product."""
    cost = spent.input + (spent.overhead * spent.input / (spent.input + spent.output) if spent.input else 0.0)
    computed = spent.tokens_in - (1 - CACHED_TOKEN) * spent.tokens_cached
    each, fresh = spent.tokens_in / spent.requests, computed / spent.tokens_in if spent.tokens_in else 0.0
    return cost, {"tokens_in": each, "cache": fresh, **_time_and_price(spent, cost, computed)}


def _answer_factors(spent: Spent) -> tuple[float, dict[str, float]]:
    cost = spent.kept - _prompt_factors(spent)[0]
    return cost, {"tokens_out": spent.tokens_out / spent.requests, **_time_and_price(spent, cost, spent.tokens_out)}


def _time_and_price(spent: Spent, cost: float, tokens: float) -> dict[str, float]:
    if tokens <= 0:
        return {"batching": 0.0, "price": 0.0}
    if spent.hosted or spent.engine_us <= 0:
        return {"batching": 1.0, "price": cost / tokens}
    price = spent.kept / spent.engine_us
    return {"batching": cost / price / tokens, "price": price}


def _split_pool(parts: _Parts, pool: str, one: PoolDay, other: PoolDay) -> None:
    kind = Kind("", "", "", pool)
    for cause, cost_one, cost_other in (("idle", one.idle, other.idle), ("unready", one.unready, other.unready)):
        by_price = 0.0
        if min(cost_one, cost_other, one.hour, other.hour) > 0:
            by_price = _log_mean(cost_one, cost_other) * log(other.hour / one.hour)
        _add(parts, "price", kind, by_price)
        _add(parts, cause, kind, cost_other - cost_one - by_price)


def _log_mean(one: float, other: float) -> float:
    # Close to each other the quotient is of two numbers near nothing; their mean is as good.
    if abs(other - one) <= 1e-9 * one:
        return (one + other) / 2
    return (other - one) / log(other / one)


def _add(parts: _Parts, cause: str, kind: Kind, change: float) -> None:
    if change:
        parts[cause][kind] = parts[cause].get(kind, 0.0) + change


# Who it was


def _told(cause: str, change: int, found: Mapping[Kind, float], before: Day, today: Day) -> DriftPart:
    if cause == "mix":
        found = _centred(found, before, today)
    kind, name, part = _most(found, _FIRST[cause], change)
    percent = 100 * change / before.cost if before.cost > 0 else 0.0
    return DriftPart(cause, NanoUsd(change), percent, kind, name, NanoUsd(round(part)))


def _centred(found: Mapping[Kind, float], before: Day, today: Day) -> dict[Kind, float]:
    """What a kind's part of all requests changed, beyond what the same change would be for requests of mean cost.

    The whole is the same: what one gains of all requests the others lose.
    """
    kinds_one, kinds_other = before.kinds, today.kinds
    all_one, all_other = (sum(each.requests for each in kinds.values()) for kinds in (kinds_one, kinds_other))
    if all_one <= 0 or all_other <= 0:
        return dict(found)
    mean = sum(each.cost for kinds in (kinds_one, kinds_other) for each in kinds.values()) / (all_one + all_other)
    whole = (all_one + all_other) / 2
    return {
        kind: part
        - mean
        * whole
        * (kinds_other.get(kind, _NOTHING).requests / all_other - kinds_one.get(kind, _NOTHING).requests / all_one)
        for kind, part in found.items()
    }


def _most(found: Mapping[Kind, float], dimensions: Sequence[str], change: int) -> tuple[str, str, float]:
    """The kind of thing, its name and its part: of the first dimension in which one makes up most of the change."""
    best = ("", "", 0.0)
    for dimension in dimensions:
        sums: dict[str, float] = {}
        for kind, part in found.items():
            name = kind[_DIMENSIONS.index(dimension)]
            sums[name] = sums.get(name, 0.0) + part
        name = max(sums, key=lambda each: sums[each] * change, default="")
        if name and (sums[name] * change > 0) and (len(sums) > 1 or not best[1]):
            if len(sums) > 1 and sums[name] / change >= 0.5:
                return dimension, name, sums[name]
            best = best if best[1] else (dimension, name, sums[name])
    return best


# In words


def sentence(parts: Iterable[DriftPart], *, before: int, today: int) -> str:
    parts = list(parts)
    if before <= 0:
        return "there is nothing before this day to compare it with"
    percent = 100 * (today - before) / before
    moved = (
        f"rose {percent:.0f} %" if percent >= 0.5 else f"fell {-percent:.0f} %" if percent <= -0.5 else "is the same"
    )
    sizes = sum(abs(part.percent) for part in parts)
    named = [part for part in parts if abs(part.percent) >= max(0.5, 0.05 * sizes)][:NAMED_MAX]
    if not named:
        return f"cost {moved}"
    said = [_said(part, falls=percent <= -0.5) for part in named]
    rest = percent - sum(part.percent for part in named)
    if abs(rest) >= 0.5:
        said.append(f"{_signed(rest, falls=percent <= -0.5)} from the rest")
    return f"cost {moved}: {', '.join(said)}"


def _said(part: DriftPart, *, falls: bool) -> str:
    words = WORDS[part.cause][0 if part.change_nano_usd > 0 else 1]
    whole, by_name = part.change_nano_usd, part.name_change_nano_usd
    by = ""
    if part.name and by_name / whole >= 0.5:
        by = f" of {part.kind} {part.name}" if part.cause != "mix" else f", above all {part.kind} {part.name}"
    elif part.name:
        by = f" (of {part.kind} {part.name} {_signed(part.percent * by_name / whole, falls=falls)})"
    return f"{_signed(part.percent, falls=falls)} from {words}{by}"


def _signed(percent: float, *, falls: bool) -> str:
    """In the direction of the whole without a sign, against it with one."""
    shown = -percent if falls else percent
    return f"{shown:.0f}" if round(shown) >= 0 else f"-{-shown:.0f}"
