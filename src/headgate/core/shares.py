"""What of a policy may one of several use who do not hear of each other?

An equal part of what would otherwise be given out several times: the limits of tenants, be they declared or ordered,
the memory of endpoints, and the few extra attempts that a pool is always allowed. So all of them together stay within
the whole. Parts are rounded down, and are never less than one, or a small limit would keep everybody out: where there
are more members than a limit has units, each of them may use one.

Of hard budgets each may spend its part of what is left, and a budget may well be divided into nothing. What is left is
known where spending is counted (`admission/budgets`), so here it is only said which part.

How many requests an endpoint may be given at once is said when it joins, and is divided by whoever says it.
"""

from dataclasses import replace

from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.orders import Throttle
from headgate.model.policy import Policy

_LEAST = 1


def share_of(policy: Policy, members: int) -> Policy:
    """The policy of one of so many."""
    assert members >= 1, f"a share of {members} members; the one that asks is a member itself"
    return replace(
        policy,
        tenants=tuple(
            replace(each, limits=_part_of(each.limits, members), budgets=parted(each.budgets, 1, members))
            for each in policy.tenants
        ),
        classes=tuple(
            replace(each, budgets=parted(each.budgets, 1, members)) if each.budgets else each for each in policy.classes
        ),
        pools=tuple(replace(each, kv_tokens=_part(each.kv_tokens, members)) for each in policy.pools),
        retry=replace(policy.retry, pool_extra_min=_least_one(policy.retry.pool_extra_min, members)),
        orders=tuple(
            replace(each, limits=_part_of(each.limits, members)) if isinstance(each, Throttle) else each
            for each in policy.orders
        ),
    )


def parted(budgets: tuple[Budget, ...], parts: int, of: int) -> tuple[Budget, ...]:
    """The same where of what is left only so many of so many parts may be spent. A soft one refuses nobody anyhow."""
    if parts == of:
        return budgets
    return tuple(replace(each, part=(parts, of)) if each.hard else each for each in budgets)


def _part_of(limits: Limits, members: int) -> Limits:
    if members == 1:
        return limits
    return Limits(
        requests_per_minute=_part(limits.requests_per_minute, members),
        tokens_per_minute=_part(limits.tokens_per_minute, members),
        concurrency=_part(limits.concurrency, members),
        tokens_whole=limits.tokens_per_minute,
        concurrency_whole=limits.concurrency,
    )


def _part(whole: int | None, members: int) -> int | None:
    return None if whole is None else _least_one(whole, members)


def _least_one(whole: int, members: int) -> int:
    """What is nothing altogether stays nothing."""
    return min(whole, max(_LEAST, whole // members))
