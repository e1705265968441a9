"""Divides a policy into equal shares for isolated members.

Members that cannot communicate must not hand out the same capacity several times. Each member gets an equal share of
the tenant limits, whether configured or set by an operator, of the endpoint memory, and of the minimum number of extra
attempts per pool. Together the members stay within the total. Shares are rounded down but are never less than one,
because otherwise a small limit would reject every request. If there are more members than units of a limit, each member
may use one unit.

Each member may also spend its share of the amount left in a hard budget, and that share may be zero. Only the code that
counts spending (`admission/budgets`) knows the amount, so this module sets only the fraction.

An endpoint's maximum number of concurrent requests is set, and divided, when the endpoint joins.
"""

from dataclasses import replace

from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.overrides import SetSetting, Throttle
from headgate.model.policy import Policy

_LEAST = 1


def share_of(policy: Policy, members: int) -> Policy:
    """Returns the policy for one of `members` members."""
    assert members >= 1, f"share of {members} members; the number of members must be at least 1"
    return replace(
        policy,
        tenants=tuple(
            replace(each, limits=_split_limits(each.limits, members), budgets=split_budgets(each.budgets, 1, members))
            for each in policy.tenants
        ),
        classes=tuple(
            replace(each, budgets=split_budgets(each.budgets, 1, members)) if each.budgets else each
            for each in policy.classes
        ),
        pools=tuple(
            replace(each, kv_tokens=_split(each.kv_tokens, members), max_lora=_split(each.max_lora, members))
            for each in policy.pools
        ),
        retry=replace(policy.retry, pool_retries_min=_split_min_one(policy.retry.pool_retries_min, members)),
        overrides=tuple(
            replace(each, limits=_split_limits(each.limits, members)) if isinstance(each, Throttle) else each
            for each in policy.overrides
            # The scheduler that measures a setting does not see the requests of isolated members.
            if members == 1 or not isinstance(each, SetSetting)
        ),
    )


def split_budgets(budgets: tuple[Budget, ...], parts: int, of: int) -> tuple[Budget, ...]:
    """Returns budgets of which only `parts` out of `of` parts of the remaining amount may be spent.

    Soft budgets never reject a request and stay unchanged.
    """
    if parts == of:
        return budgets
    return tuple(replace(each, share=(parts, of)) if each.hard else each for each in budgets)


def _split_limits(limits: Limits, members: int) -> Limits:
    if members == 1:
        return limits
    return Limits(
        requests_per_minute=_split(limits.requests_per_minute, members),
        tokens_per_minute=_split(limits.tokens_per_minute, members),
        concurrency=_split(limits.concurrency, members),
        total_tokens_per_minute=limits.tokens_per_minute,
        total_concurrency=limits.concurrency,
    )


def _split(whole: int | None, members: int) -> int | None:
    return None if whole is None else _split_min_one(whole, members)


def _split_min_one(whole: int, members: int) -> int:
    """Returns the share, which is at least one unless the total is zero."""
    return min(whole, max(_LEAST, whole // members))
