"""Model tiers: selects the pools of a model that may serve a request.

A public model name maps to pools from small to large: its tiers. Rules in the policy select pools by class, plan,
prompt size or the tier that the caller names. The first matching rule applies. Of the selected pools, those declared
for prompts and responses of this size are used, if there are any. If none of these is live, the request may use the
other selected pools, unless its prompt is too long for them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headgate.model.policy import Model, ModelTierRule, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import PoolName


class TierCriteria(NamedTuple):
    """Properties of a request that tier rules match."""

    service_class: ServiceClass
    tenant: Tenant
    prompt_tokens: int
    model_tier: str | None
    """Tier that the caller named."""


def tier_names(model: Model) -> tuple[str, ...]:
    """Returns the tiers that a caller may name in `x-headgate-model-tier`."""
    return tuple(dict.fromkeys(rule.name for rule in model.tiers if rule.name is not None))


def tier_pools(
    model: Model, criteria: TierCriteria, routed: tuple[PoolName, ...] | None = None
) -> tuple[PoolName, ...]:
    """Returns the pools that the rules select, from small to large. Empty if the class may not use any pool of the
    model.

    A rule does not match if the class may use none of its pools. `routed` are the pools of the request's route, which
    replace those of the model.
    """
    allowed = allowed_pools(model.pools if routed is None else routed, criteria.service_class)
    for rule in model.tiers:
        if _matches(rule, criteria) and (pools := tuple(pool for pool in allowed if pool in rule.pools)):
            return pools
    return allowed


def next_lower_tier(pools: tuple[PoolName, ...], model: Model) -> tuple[PoolName, ...]:
    """Replaces each pool with the next smaller one of the model.

    The smallest pool stays. A model without tier rules has no tiers, so all its pools stay. The result can include
    pools that the request's class may not use; `allowed_pools` removes them.
    """
    if not model.tiers:
        return pools
    below = {pool: model.pools[max(0, place - 1)] for place, pool in enumerate(model.pools)}
    return tuple(dict.fromkeys(below.get(pool, pool) for pool in pools))


def allowed_pools(pools: tuple[PoolName, ...], service_class: ServiceClass) -> tuple[PoolName, ...]:
    """Returns the pools that the class may use."""
    if not service_class.pools:
        return pools
    return tuple(pool for pool in pools if pool in service_class.pools)


def live_pools_for_size(
    pools: tuple[PoolName, ...],
    declared: Mapping[PoolName, Pool],
    live: Callable[[tuple[PoolName, ...]], int],
    *,
    prompt_tokens: int,
    output_tokens: int,
) -> tuple[PoolName, ...]:
    """Returns the pools intended for a request of this size or, if none of them is live, all pools that can serve its
    prompt.

    `live` returns the number of live endpoints in some pools.
    """
    taking = pools_for_size(pools, declared, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    if taking is pools or live(taking):
        return taking
    return pools_fitting_prompt(pools, declared, prompt_tokens=prompt_tokens)


def pools_for_size(
    pools: tuple[PoolName, ...], declared: Mapping[PoolName, Pool], *, prompt_tokens: int, output_tokens: int
) -> tuple[PoolName, ...]:
    """Returns the pools intended for prompts and responses of this length, or all pools if there are none."""
    taking = tuple(
        name
        for name in pools
        if (pool := declared.get(name)) is None
        or (
            _within(prompt_tokens, pool.prompt_tokens_min, pool.prompt_tokens_max)
            and _within(output_tokens, pool.output_tokens_min, pool.output_tokens_max)
        )
    )
    return taking if taking and len(taking) < len(pools) else pools


def pools_fitting_prompt(
    pools: tuple[PoolName, ...], declared: Mapping[PoolName, Pool], *, prompt_tokens: int
) -> tuple[PoolName, ...]:
    """Returns the pools that can serve a prompt of this length, even if they are intended for other sizes.

    A prompt that is too long for a pool may exceed its engines' limit. Shorter prompts and responses of any length work
    in every pool but may cost more.
    """
    return tuple(
        name
        for name in pools
        if (pool := declared.get(name)) is None or _within(prompt_tokens, 0, pool.prompt_tokens_max)
    )


def _matches(rule: ModelTierRule, criteria: TierCriteria) -> bool:
    return (
        (not rule.classes or criteria.service_class.name in rule.classes)
        and (not rule.plans or criteria.tenant.plan in rule.plans)
        and _within(criteria.prompt_tokens, 0, rule.prompt_tokens_max)
        and (rule.name is None or rule.name == criteria.model_tier)
    )


def _within(count: int, least: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)
