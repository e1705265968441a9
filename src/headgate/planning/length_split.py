"""Splits a pool by prompt length: long prompts get a pool of their own.

A long prompt delays the other requests on its engine while it is computed. A pool for long prompts keeps that delay
away from the short ones, but two pools share less than one. Simulation shows which effect is larger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from headgate.core.cost import cost_ns
from headgate.model.policy import Model, Policy, Pool
from headgate.model.speed import EngineSpeed
from headgate.model.units import EndpointId, PoolName
from headgate.simulation.options import EngineSpec
from headgate.simulation.workload.arrival import Arrival

LONG_WORK_SHARES: Final = (0.1, 0.25, 0.5)
"""Shares of the predicted engine time that the pool for long prompts gets, at the thresholds to try."""
_PARTS: Final = 100
"""Number of engines in a split scenario. Only their proportion matters."""


@dataclass(frozen=True, slots=True)
class LengthSplit:
    prompt_tokens: int
    """Longest prompt of the first pool."""
    long_work: float
    """Share of the predicted engine time in the pool for longer prompts."""


def length_splits(
    arrivals: Iterable[Arrival], speed: EngineSpeed, shares: Sequence[float] = LONG_WORK_SHARES
) -> list[LengthSplit]:
    """Returns the thresholds, in ascending order. There is none if all prompts have the same length."""
    work = sorted((each.prompt_tokens, cost_ns(speed, each.prompt_tokens, each.output_tokens)) for each in arrivals)
    reached = list(accumulate(cost for _, cost in work))
    found: dict[int, LengthSplit] = {}
    for share in sorted(shares, reverse=True):
        place = next(number for number, done in enumerate(reached) if done >= (1 - share) * reached[-1])
        tokens = work[place][0]
        within = max(done for (prompt, _), done in zip(work, reached, strict=True) if prompt <= tokens)
        if within < reached[-1]:
            found[tokens] = LengthSplit(tokens, 1 - within / reached[-1])
    return list(found.values())


def long_pool(pool: PoolName) -> PoolName:
    return PoolName(f"{pool}-long")


def with_length_split(
    policy: Policy, engines: Sequence[EngineSpec], pool: PoolName, split: LengthSplit
) -> tuple[Policy, tuple[EngineSpec, ...]]:
    """Adds a pool with the same kind of engine, and sends it all prompts of the pool above the threshold."""
    policy = replace(
        policy,
        pools=tuple(part for each in policy.pools for part in _parts(each, pool, split.prompt_tokens)),
        models=tuple(_with_long_pool(each, pool) for each in policy.models),
        classes=tuple(replace(each, pools=_listed(each.pools, pool)) for each in policy.classes),
    )
    like = next(each for each in engines if each.pool == pool)
    long_count = min(_PARTS - 1, max(1, round(_PARTS * split.long_work)))
    sizes = {pool: _PARTS - long_count, long_pool(pool): long_count}
    added = [
        replace(like, id=EndpointId(f"{name}/{number}"), pool=name)
        for name, count in sizes.items()
        for number in range(count)
    ]
    return policy, (*(each for each in engines if each.pool != pool), *added)


def _parts(each: Pool, pool: PoolName, prompt_tokens: int) -> tuple[Pool, ...]:
    if each.name != pool:
        return (each,)
    return (
        replace(each, prompt_tokens_max=prompt_tokens),
        replace(each, name=long_pool(pool), prompt_tokens_min=prompt_tokens + 1),
    )


def _with_long_pool(model: Model, pool: PoolName) -> Model:
    tiers = tuple(replace(each, pools=_listed(each.pools, pool)) for each in model.tiers)
    return replace(model, pools=_listed(model.pools, pool), tiers=tiers)


def _listed(pools: tuple[PoolName, ...], pool: PoolName) -> tuple[PoolName, ...]:
    return tuple(name for each in pools for name in ((each, long_pool(pool)) if each == pool else (each,)))
