"""What is one member's part of everything, when it decides by itself?

An endpoint's places are dealt out whole: the parts of all ranks together are exactly what the endpoint has. Where it
has fewer places than there are members, who gets one differs from endpoint to endpoint, so that nobody goes without
everywhere. What can be divided, memory and limits, is divided evenly.
"""

from dataclasses import replace
from zlib import crc32

from headgate.core.shares import parted, share_of
from headgate.hosts.cell.protocol.messages import Share
from headgate.model.endpoint import Endpoint
from headgate.model.limits import Limits
from headgate.model.orders import Throttle
from headgate.model.policy import Policy
from headgate.model.units import EndpointId


def places_of(share: Share, endpoint_id: EndpointId, places: int) -> int:
    """How many of an endpoint's places belong to this share."""
    turn = (share.rank + crc32(endpoint_id.encode())) % share.of
    return (turn + 1) * places // share.of - turn * places // share.of


def own_endpoint(share: Share, endpoint: Endpoint) -> Endpoint | None:
    """The endpoint as an island may use it; None where nothing of it is its own."""
    places = places_of(share, endpoint.id, endpoint.in_flight_max)
    return replace(endpoint, in_flight_max=places) if places else None


def own_policy(share: Share, policy: Policy) -> Policy:
    """The policy of an island."""
    return share_of(policy, share.of)


def rest_policy(policy: Policy, *, taken: int, of: int) -> Policy:
    """What is left to a scheduler of a cell of which so many members may be islands."""
    if not taken:
        return policy
    share = share_of(policy, of)
    pools = zip(policy.pools, share.pools, strict=True)
    tenants = zip(policy.tenants, share.tenants, strict=True)
    orders = zip(policy.orders, share.orders, strict=True)
    kept = max(0, of - taken)
    return replace(
        policy,
        pools=tuple(replace(each, kv_tokens=_less(each.kv_tokens, own.kv_tokens, taken)) for each, own in pools),
        tenants=tuple(
            replace(each, limits=_rest(each.limits, own.limits, taken), budgets=parted(each.budgets, kept, of))
            for each, own in tenants
        ),
        classes=tuple(
            replace(each, budgets=parted(each.budgets, kept, of)) if each.budgets else each for each in policy.classes
        ),
        orders=tuple(
            replace(each, limits=_rest(each.limits, own.limits, taken))
            if isinstance(each, Throttle) and isinstance(own, Throttle)
            else each
            for each, own in orders
        ),
    )


def _rest(limits: Limits, own: Limits, taken: int) -> Limits:
    return Limits(
        requests_per_minute=_less(limits.requests_per_minute, own.requests_per_minute, taken),
        tokens_per_minute=_less(limits.tokens_per_minute, own.tokens_per_minute, taken),
        concurrency=_less(limits.concurrency, own.concurrency, taken),
        tokens_whole=limits.tokens_per_minute,
        concurrency_whole=limits.concurrency,
    )


def _less(whole: int | None, own: int | None, taken: int) -> int | None:
    return None if whole is None or own is None else max(0, whole - taken * own)
