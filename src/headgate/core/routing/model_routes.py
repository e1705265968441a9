"""Model routes: which weighted alternative of a model serves a request?

Routes with equal matches form a group, and the first group that matches decides. Within the group, a hash of the
request's sticky key selects a point, and the cumulated weights, in the order of the routes, assign each point to a
route. Therefore every scheduler makes the same choice, and if the boundary between two routes moves, only the requests
between the old and the new boundary change sides.
"""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from headgate.core.routing.model_tiers import allowed_pools
from headgate.model.overrides import OperatorOverride, SetRouteWeights
from headgate.model.policy import Model, ServiceClass
from headgate.model.routes import WHOLE_SHARE_PPM, ModelRoute, RouteMatch, RouteMirror, Sticky
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import ModelName, PoolName

_HASH_BITS: Final = 64
# Python 3.11 looks up members of an enumeration slowly.
_REQUEST: Final = Sticky.REQUEST
_TENANT: Final = Sticky.TENANT


def choose_route(
    model: Model, ticket: Ticket, tenant: Tenant, service_class: ServiceClass, kept: str = ""
) -> ModelRoute | None:
    """Returns the route that serves the request. None if no group of routes matches.

    `kept` is the route of an earlier attempt. It stays unless it is gone or gets no more traffic. A group does not
    match if the class may use none of its pools, or if only routes with weight 0 remain.
    """
    for match in dict.fromkeys(route.match for route in model.routes):
        if not _matches(match, ticket, tenant, service_class):
            continue
        group = [
            each
            for each in model.routes
            if each.weight and each.match == match and allowed_pools(each.pools, service_class)
        ]
        if len(group) == 1:
            return group[0]
        if group:
            earlier = [each for each in group if each.name == kept] if kept else []
            return earlier[0] if earlier else _by_weight(group, sticky_point(model, ticket))
    return None


def mirror_of(model: Model, ticket: Ticket, route_name: str) -> RouteMirror | None:
    """Returns the mirror that receives a copy of a request on this route. None if the request is not copied.

    The sticky key decides, so all requests with the same key are copied or none of them. The point is independent of
    the one that selects the route. If the share grows, no request that was copied before is left out.
    """
    mirror = next((each.mirror for each in model.routes if each.name == route_name), None)
    if mirror is None or sticky_point(model, ticket, f"mirror\0{route_name}\0") * WHOLE_SHARE_PPM >> _HASH_BITS >= (
        mirror.share_ppm
    ):
        return None
    return mirror


def sticky_point(model: Model, ticket: Ticket, purpose: str = "") -> int:
    """Returns the request's point on the scale of the weights, from 0 to 2⁶⁴ - 1.

    A request without the sticky key is decided by its request id. Tenants have separate keys, and each purpose has
    independent points.
    """
    key = f"id:{ticket.request_id}"
    if model.sticky is _TENANT:
        key = "tenant"
    elif model.sticky is not _REQUEST:
        for kind, value in ticket.sticky_keys:
            if kind == model.sticky.value:
                key = f"{kind}:{value}"
    text = f"{purpose}{model.name}\0{ticket.tenant}\0{key}"
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BITS // 8).digest())


def _by_weight(group: list[ModelRoute], point: int) -> ModelRoute:
    left = point * sum(each.weight for each in group) >> _HASH_BITS
    for route in group[:-1]:
        left -= route.weight
        if left < 0:
            return route
    return group[-1]


def _matches(match: RouteMatch, ticket: Ticket, tenant: Tenant, service_class: ServiceClass) -> bool:
    return (
        (not match.plans or tenant.plan in match.plans)
        and (not match.classes or service_class.name in match.classes)
        and (not match.tenants or any(tenant.id == each or tenant.id.startswith(f"{each}/") for each in match.tenants))
        and (not match.headers or all(dict(ticket.route_headers).get(name) in values for name, values in match.headers))
    )


def route_pools(model: Model, name: str) -> tuple[PoolName, ...]:
    """Returns the pools of a route. Empty if the model does not have the route."""
    return next((each.pools for each in model.routes if each.name == name), ())


def mirror_pools(model: Model, name: str) -> tuple[PoolName, ...]:
    """Returns the pools that receive copies of a route's requests. Empty if there are none."""
    mirror = next((each.mirror for each in model.routes if each.name == name), None)
    return () if mirror is None else mirror.pools


def with_route_weights(models: Iterable[Model], overrides: Iterable[OperatorOverride]) -> dict[ModelName, Model]:
    """Returns the models by name, with the weights that operators have set. The latest override of a route applies."""
    found = {each.name: each for each in models}
    for order in overrides:
        if isinstance(order, SetRouteWeights) and (model := found.get(order.model)) is not None:
            weights = dict(order.weights)
            routes = tuple(replace(each, weight=weights.get(each.name, each.weight)) for each in model.routes)
            found[order.model] = replace(model, routes=routes)
    return found
