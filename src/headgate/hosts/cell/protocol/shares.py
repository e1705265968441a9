"""The share of a member that makes decisions as an island.

Only whole slots are assigned, and the shares of all ranks add up to exactly the slots of the endpoint. If an endpoint
has fewer slots than there are members, the members that get one differ between endpoints, so that no member is left
without any slot. Endpoints of several pools on one engine share its slots, so a member gets the same number on each of
them. Memory and limits are divided evenly.
"""

from dataclasses import replace
from zlib import crc32

from headgate.core.policy_share import share_of, split_budgets
from headgate.hosts.cell.protocol.messages import Share
from headgate.model.endpoint import Endpoint
from headgate.model.limits import Limits
from headgate.model.overrides import Throttle
from headgate.model.policy import Policy


def places_of(share: Share, engine: str, places: int) -> int:
    """Returns the number of an engine's slots that belong to this share. `engine` is its name (`engine_name`)."""
    turn = (share.rank + crc32(engine.encode())) % share.total
    return (turn + 1) * places // share.total - turn * places // share.total


def engine_name(endpoint: Endpoint) -> str:
    """Returns the name of the engine that the endpoint shares with others, or the endpoint's own name."""
    return endpoint.engine or endpoint.id


def island_endpoint(share: Share, endpoint: Endpoint) -> Endpoint | None:
    """Returns the endpoint, with the slots that an island may use, or None if there are none."""
    places = places_of(share, engine_name(endpoint), endpoint.in_flight_max)
    if not places:
        return None
    max_lora = None if endpoint.max_lora is None else max(1, endpoint.max_lora // share.total)
    return replace(endpoint, in_flight_max=places, max_lora=max_lora)


def island_policy(share: Share, policy: Policy) -> Policy:
    """Returns the policy for an island."""
    return share_of(policy, share.total)


def remaining_policy(policy: Policy, *, taken: int, of: int) -> Policy:
    """Returns the policy that remains for the scheduler while `taken` of `of` members may be islands."""
    if not taken:
        return policy
    share = share_of(policy, of)
    pools = zip(policy.pools, share.pools, strict=True)
    tenants = zip(policy.tenants, share.tenants, strict=True)
    # A share has fewer overrides, because isolated members try no settings.
    throttles = [each for each in policy.overrides if isinstance(each, Throttle)]
    throttle_shares = [each for each in share.overrides if isinstance(each, Throttle)]
    own_limits = {each: own.limits for each, own in zip(throttles, throttle_shares, strict=True)}
    kept = max(0, of - taken)
    return replace(
        policy,
        pools=tuple(
            replace(
                each,
                kv_tokens=_remaining(each.kv_tokens, own.kv_tokens, taken),
                max_lora=remaining_adapters(each.max_lora, taken=taken, of=of),
            )
            for each, own in pools
        ),
        tenants=tuple(
            replace(
                each,
                limits=_remaining_limits(each.limits, own.limits, taken),
                budgets=split_budgets(each.budgets, kept, of),
            )
            for each, own in tenants
        ),
        classes=tuple(
            replace(each, budgets=split_budgets(each.budgets, kept, of)) if each.budgets else each
            for each in policy.classes
        ),
        overrides=tuple(
            replace(each, limits=_remaining_limits(each.limits, own_limits[each], taken))
            if isinstance(each, Throttle)
            else each
            for each in policy.overrides
        ),
    )


def remaining_adapters(max_lora: int | None, *, taken: int, of: int) -> int | None:
    """Returns the distinct adapters per endpoint that remain while `taken` of `of` members may be islands."""
    if max_lora is None or not taken:
        return max_lora
    return max(1, max_lora - taken * max(1, max_lora // of))


def _remaining_limits(limits: Limits, own: Limits, taken: int) -> Limits:
    return Limits(
        requests_per_minute=_remaining(limits.requests_per_minute, own.requests_per_minute, taken),
        tokens_per_minute=_remaining(limits.tokens_per_minute, own.tokens_per_minute, taken),
        concurrency=_remaining(limits.concurrency, own.concurrency, taken),
        total_tokens_per_minute=limits.tokens_per_minute,
        total_concurrency=limits.concurrency,
    )


def _remaining(whole: int | None, own: int | None, taken: int) -> int | None:
    return None if whole is None or own is None else max(0, whole - taken * own)
