"""Which of a model's pools may serve this request?

A public model name stands for pools from small to large: its rungs. Rules that the policy declares choose among them,
by class, plan, size, or what the caller names; the first rule that fits does. Of the pools that it leaves, those that
were declared for prompts and answers of this length take the request, if there are any.
Where none of those takes work it may go to the others, if its prompt is not too long for them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headgate.model.policy import Model, Pool, RungRule, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import PoolName


class Asker(NamedTuple):
    """What rules ask of a request."""

    service_class: ServiceClass
    tenant: Tenant
    prompt_tokens: int
    rung: str | None
    """What the caller named."""


def rung_names(model: Model) -> tuple[str, ...]:
    """What a caller may name in `x-headgate-rung`."""
    return tuple(dict.fromkeys(rule.named for rule in model.rungs if rule.named is not None))


def chosen(model: Model, asker: Asker) -> tuple[PoolName, ...]:
    """The pools that the rules leave, from small to large; empty where its class may use none of the model's.

    A rule whose pools its class may not use does not fit.
    """
    allowed = usable(model.pools, asker.service_class)
    for rule in model.rungs:
        if _fits(rule, asker) and (pools := tuple(pool for pool in allowed if pool in rule.pools)):
            return pools
    return allowed


def lowered(pools: tuple[PoolName, ...], model: Model) -> tuple[PoolName, ...]:
    """One rung further down: in place of each pool the one below it, in the order of the model's pools.

    The smallest stays. A model without rules for rungs has none: its pools are alike, and all of them stay. What comes
    out may hold pools that the request's class may not use; `usable` leaves them out.
    """
    if not model.rungs:
        return pools
    below = {pool: model.pools[max(0, place - 1)] for place, pool in enumerate(model.pools)}
    return tuple(dict.fromkeys(below.get(pool, pool) for pool in pools))


def usable(pools: tuple[PoolName, ...], service_class: ServiceClass) -> tuple[PoolName, ...]:
    """Those that the class may use."""
    if not service_class.pools:
        return pools
    return tuple(pool for pool in pools if pool in service_class.pools)


def narrowed(
    pools: tuple[PoolName, ...],
    declared: Mapping[PoolName, Pool],
    live: Callable[[tuple[PoolName, ...]], int],
    *,
    prompt_tokens: int,
    output_tokens: int,
) -> tuple[PoolName, ...]:
    """Of these pools those that a request of this size is meant for, as long as any endpoint of theirs takes work.

    `live` counts such endpoints.
    """
    taking = meant(pools, declared, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    if taking is pools or live(taking):
        return taking
    return holding(pools, declared, prompt_tokens=prompt_tokens)


def meant(
    pools: tuple[PoolName, ...], declared: Mapping[PoolName, Pool], *, prompt_tokens: int, output_tokens: int
) -> tuple[PoolName, ...]:
    """Of these pools those that are meant for a prompt and an answer of this length, or all if none is."""
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


def holding(
    pools: tuple[PoolName, ...], declared: Mapping[PoolName, Pool], *, prompt_tokens: int
) -> tuple[PoolName, ...]:
    """Of these pools those that can serve a prompt of this length, be they meant for others.

    A longer prompt than a pool is meant for may be more than its engines take. A short one, or an answer of any length,
    they would serve all the same, if not as cheaply.
    """
    return tuple(
        name
        for name in pools
        if (pool := declared.get(name)) is None or _within(prompt_tokens, 0, pool.prompt_tokens_max)
    )


def _fits(rule: RungRule, asker: Asker) -> bool:
    return (
        (not rule.classes or asker.service_class.name in rule.classes)
        and (not rule.plans or asker.tenant.plan in rule.plans)
        and _within(asker.prompt_tokens, 0, rule.prompt_tokens_max)
        and (rule.named is None or rule.named == asker.rung)
    )


def _within(count: int, least: int, most: int | None) -> bool:
    return least <= count and (most is None or count <= most)
