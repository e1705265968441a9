"""Explains why a day costs more or less than the days before it.

The cost of each kind of request (tenant, model, class and pool) is a product of factors: number of all requests, share
of this kind, tokens per request, engine time per token, price of engine time, and overhead of retries. A factor's
contribution to the change is the logarithm of its own change, weighted by the logarithmic mean of the two costs (LMDI
decomposition). The contributions add up exactly to the change, do not depend on the order of the causes, and are zero
for factors that did not change. A pool's idle cost, hours times price, is split in the same way.

A kind that is new or has disappeared has no logarithm, so all of its cost counts as a change in the mix. Prompts and
responses are separate products because their token counts differ. The fixed overhead of engine steps is divided between
them in proportion to their cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import Final, NamedTuple

from headgate.model.money import NanoUsd
from headgate.ports.cost_reports import DriftPart

CACHED_TOKEN_WEIGHT: Final = 0.1
"""Cost of a cached token relative to a computed one."""
CAUSES_SHOWN_MAX: Final = 4
"""Maximum number of causes in a sentence."""

CAUSE_TEXT: Final = {
    "traffic": ("more requests", "fewer requests"),
    "mix": ("a more expensive mix", "a cheaper mix"),
    "tokens_in": ("longer prompts", "shorter prompts"),
    "tokens_out": ("longer outputs", "shorter outputs"),
    "cache": ("fewer cached prompts", "more cached prompts"),
    "batching": ("more engine time per token", "less engine time per token"),
    "price": ("higher prices", "lower prices"),
    "retries": ("retries", "fewer retries"),
    "idle": ("idle endpoints", "fewer idle endpoints"),
    "unready": ("unready endpoints", "fewer unready endpoints"),
    "unexplained": ("unexplained cost", "unexplained cost"),
}
"""Text for each cause, for an increase and for a decrease."""
_DIMENSIONS: Final = ("tenant", "model", "class", "pool")
_DIMENSIONS_BY_CAUSE: Final = {
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
"""Dimensions for each cause, in the order in which they are searched for a single main contributor."""


class RequestGroup(NamedTuple):
    tenant: str
    model: str
    service_class: str
    pool: str


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Usage and cost of one kind of request, excluding wasted attempts."""

    requests: float
    tokens_in: float
    tokens_cached: float
    tokens_out: float
    engine_us: float
    input: float
    output: float
    overhead: float
    wasted: float
    """Cost of wasted attempts."""
    token_priced: bool = False
    """Whether the pool is priced per token, so that engine time does not matter."""

    @property
    def useful(self) -> float:
        return self.input + self.output + self.overhead

    @property
    def cost(self) -> float:
        return self.useful + self.wasted

    def scaled(self, factor: float) -> "GroupCost":
        amounts = (getattr(self, each.name) * factor for each in fields(self)[:-1])
        return GroupCost(*amounts, token_priced=self.token_priced)

    def plus(self, other: "GroupCost") -> "GroupCost":
        amounts = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[:-1])
        return GroupCost(*amounts, token_priced=self.token_priced and other.token_priced)

    def as_token_priced(self) -> "GroupCost":
        return replace(self, token_priced=True)


@dataclass(frozen=True, slots=True)
class PoolDayCost:
    """Cost of a pool's endpoint time that was not used for requests."""

    hourly_price: float
    """Mean hourly price."""
    idle: float
    unready: float
    """Cost of endpoint time spent starting, not ready or late."""


@dataclass(frozen=True, slots=True)
class DayCost:
    groups: Mapping[RequestGroup, GroupCost]
    pools: Mapping[str, PoolDayCost]
    unexplained: float = 0.0

    @property
    def cost(self) -> float:
        spent = sum(each.cost for each in self.groups.values())
        return spent + sum(each.idle + each.unready for each in self.pools.values()) + self.unexplained


_NO_COST: Final = GroupCost(0, 0, 0, 0, 0, 0, 0, 0, 0)
_NO_POOL: Final = PoolDayCost(0, 0, 0)
_Parts = dict[str, dict[RequestGroup, float]]
"""Contribution to the change, by cause and kind."""


def drift(before: DayCost, today: DayCost) -> tuple[list[DriftPart], NanoUsd, NanoUsd]:
    """The parts of the change (largest first), the previous cost and today's cost. The parts add up to the
    difference.
    """
    parts: _Parts = {cause: {} for cause in CAUSE_TEXT}
    all_before = sum(each.requests for each in before.groups.values())
    all_today = sum(each.requests for each in today.groups.values())
    for kind in sorted(before.groups.keys() | today.groups.keys()):
        one, other = before.groups.get(kind, _NO_COST), today.groups.get(kind, _NO_COST)
        _split_requests(parts, kind, (one, other), (all_before, all_today))
    for pool in sorted(before.pools.keys() | today.pools.keys()):
        _split_pool(parts, pool, before.pools.get(pool, _NO_POOL), today.pools.get(pool, _NO_POOL))
    _add(parts, "unexplained", RequestGroup("", "", "", ""), today.unexplained - before.unexplained)
    cost_before, cost_today = round(before.cost), round(today.cost)
    whole = {cause: round(sum(found.values())) for cause, found in parts.items()}
    # Add the rounding difference to the largest part.
    largest = max(whole, key=lambda cause: abs(whole[cause]))
    whole[largest] += cost_today - cost_before - sum(whole.values())
    told = [_drift_part(cause, change, parts[cause], before, today) for cause, change in whole.items() if change]
    told.sort(key=lambda part: -abs(part.change_nano_usd))
    return told, NanoUsd(cost_before), NanoUsd(cost_today)


def _split_requests(
    parts: _Parts, kind: RequestGroup, both: tuple[GroupCost, GroupCost], requests: tuple[float, float]
) -> None:
    """Splits the change for one kind. `requests` contains the request counts for all kinds."""
    one, other = both
    if one.token_priced != other.token_priced:
        # If only one of the days was priced per token, only the cost per token can be compared.
        one, other = one.as_token_priced(), other.as_token_priced()
    if min(one.useful, other.useful, one.requests, other.requests) <= 0:
        # If either day had no requests, there is no mix.
        _add(parts, "mix" if min(requests) > 0 else "traffic", kind, other.useful - one.useful)
        _add(parts, "retries", kind, other.wasted - one.wasted)
        return
    again = {"retries": (one.cost / one.useful, other.cost / other.useful)}
    again["traffic"] = requests
    again["mix"] = (one.requests / requests[0], other.requests / requests[1])
    for factors in (_prompt_factors, _output_factors):
        cost_one, own_one = factors(one)
        cost_other, own_other = factors(other)
        cost_one, cost_other = cost_one * one.cost / one.useful, cost_other * other.cost / other.useful
        name = "tokens_in" if factors is _prompt_factors else "tokens_out"
        if min(*own_one.values(), *own_other.values(), cost_one, cost_other) <= 0:
            _add(parts, name, kind, cost_other - cost_one)
            continue
        whole = _log_mean(cost_one, cost_other)
        for cause, (value_one, value_other) in again.items():
            _add(parts, cause, kind, whole * log(value_other / value_one))
        for cause, value_one in own_one.items():
            _add(parts, cause, kind, whole * log(own_other[cause] / value_one))


def _prompt_factors(spent: GroupCost) -> tuple[float, dict[str, float]]:
    """Cost of prompts, and its factors other than the number of requests."""
    cost = spent.input + (spent.overhead * spent.input / (spent.input + spent.output) if spent.input else 0.0)
    computed = spent.tokens_in - (1 - CACHED_TOKEN_WEIGHT) * spent.tokens_cached
    each, fresh = spent.tokens_in / spent.requests, computed / spent.tokens_in if spent.tokens_in else 0.0
    return cost, {"tokens_in": each, "cache": fresh, **_time_and_price(spent, cost, computed)}


def _output_factors(spent: GroupCost) -> tuple[float, dict[str, float]]:
    cost = spent.useful - _prompt_factors(spent)[0]
    return cost, {"tokens_out": spent.tokens_out / spent.requests, **_time_and_price(spent, cost, spent.tokens_out)}


def _time_and_price(spent: GroupCost, cost: float, tokens: float) -> dict[str, float]:
    if tokens <= 0:
        return {"batching": 0.0, "price": 0.0}
    if spent.token_priced or spent.engine_us <= 0:
        return {"batching": 1.0, "price": cost / tokens}
    price = spent.useful / spent.engine_us
    return {"batching": cost / price / tokens, "price": price}


def _split_pool(parts: _Parts, pool: str, one: PoolDayCost, other: PoolDayCost) -> None:
    kind = RequestGroup("", "", "", pool)
    for cause, cost_one, cost_other in (("idle", one.idle, other.idle), ("unready", one.unready, other.unready)):
        by_price = 0.0
        if min(cost_one, cost_other, one.hourly_price, other.hourly_price) > 0:
            by_price = _log_mean(cost_one, cost_other) * log(other.hourly_price / one.hourly_price)
        _add(parts, "price", kind, by_price)
        _add(parts, cause, kind, cost_other - cost_one - by_price)


def _log_mean(one: float, other: float) -> float:
    # For nearly equal values, the quotient is numerically unstable, and the arithmetic mean is a good approximation.
    if abs(other - one) <= 1e-9 * one:
        return (one + other) / 2
    return (other - one) / log(other / one)


def _add(parts: _Parts, cause: str, kind: RequestGroup, change: float) -> None:
    if change:
        parts[cause][kind] = parts[cause].get(kind, 0.0) + change


# Main contributor


def _drift_part(
    cause: str, change: int, found: Mapping[RequestGroup, float], before: DayCost, today: DayCost
) -> DriftPart:
    if cause == "mix":
        found = _mix_effect(found, before, today)
    kind, name, part = _main_contributor(found, _DIMENSIONS_BY_CAUSE[cause], change)
    percent = 100 * change / before.cost if before.cost > 0 else 0.0
    return DriftPart(cause, NanoUsd(change), percent, kind, name, NanoUsd(round(part)))


def _mix_effect(found: Mapping[RequestGroup, float], before: DayCost, today: DayCost) -> dict[RequestGroup, float]:
    """Contributions to the mix, relative to requests of average cost.

    The total stays the same, because the shares that some kinds gain are lost by others.
    """
    kinds_one, kinds_other = before.groups, today.groups
    all_one, all_other = (sum(each.requests for each in kinds.values()) for kinds in (kinds_one, kinds_other))
    if all_one <= 0 or all_other <= 0:
        return dict(found)
    mean = sum(each.cost for kinds in (kinds_one, kinds_other) for each in kinds.values()) / (all_one + all_other)
    whole = (all_one + all_other) / 2
    return {
        kind: part
        - mean
        * whole
        * (kinds_other.get(kind, _NO_COST).requests / all_other - kinds_one.get(kind, _NO_COST).requests / all_one)
        for kind, part in found.items()
    }


def _main_contributor(
    found: Mapping[RequestGroup, float], dimensions: Sequence[str], change: int
) -> tuple[str, str, float]:
    """Dimension, name and contribution, from the first dimension in which a single name accounts for most of the
    change.
    """
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


# Wording


def sentence(parts: Iterable[DriftPart], *, before: int, today: int) -> str:
    parts = list(parts)
    if before <= 0:
        return "there is no cost from earlier days to compare with"
    percent = 100 * (today - before) / before
    moved = f"rose {percent:.0f}%" if percent >= 0.5 else f"fell {-percent:.0f}%" if percent <= -0.5 else "is unchanged"
    sizes = sum(abs(part.percent) for part in parts)
    named = [part for part in parts if abs(part.percent) >= max(0.5, 0.05 * sizes)][:CAUSES_SHOWN_MAX]
    if not named:
        return f"cost {moved}"
    said = [_part_text(part, falls=percent <= -0.5) for part in named]
    rest = percent - sum(part.percent for part in named)
    if abs(rest) >= 0.5:
        said.append(f"{_signed_text(rest, falls=percent <= -0.5)} from the rest")
    return f"cost {moved}: {', '.join(said)}"


def _part_text(part: DriftPart, *, falls: bool) -> str:
    words = CAUSE_TEXT[part.cause][0 if part.change_nano_usd > 0 else 1]
    whole, by_name = part.change_nano_usd, part.name_change_nano_usd
    by = ""
    if part.name and by_name / whole >= 0.5:
        by = f" for {part.kind} {part.name}" if part.cause != "mix" else f", mainly {part.kind} {part.name}"
    elif part.name:
        by = f" ({part.kind} {part.name}: {_signed_text(part.percent * by_name / whole, falls=falls)})"
    return f"{_signed_text(part.percent, falls=falls)} from {words}{by}"


def _signed_text(percent: float, *, falls: bool) -> str:
    """Percentage without a sign if it is in the direction of the total change, with a minus sign otherwise."""
    shown = -percent if falls else percent
    return f"{shown:.0f}" if round(shown) >= 0 else f"-{-shown:.0f}"
