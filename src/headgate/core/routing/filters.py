"""Filters that determine which endpoints may serve a request.

Each filter is a function that checks one endpoint. An endpoint is a candidate only if it passes all of `FILTERS`.
`router` applies the filters in this order to the few endpoints that it considers. Filters have no side effects.
To add a filter, define it here and add it to `FILTERS`.
"""

from collections.abc import Callable
from typing import Final

from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord, Reservation

RoutingFilter = Callable[[EndpointRecord, Request, Reservation], bool]
"""Predicate on an endpoint, a request, and the reservation without any prefix-cache hit."""


def is_not_excluded(endpoint: EndpointRecord, request: Request, _promised: Reservation) -> bool:
    """The request's last attempt did not fail on this endpoint, or no other endpoint is live."""
    return endpoint is not request.excluded


def is_reachable(endpoint: EndpointRecord, request: Request, _promised: Reservation) -> bool:
    """The request's cell member can reach the endpoint, or no other endpoint is live."""
    return endpoint not in request.unreachable_endpoints


def has_capacity(endpoint: EndpointRecord, _request: Request, promised: Reservation) -> bool:
    """The request fits the slots of its class, the KV cache and the TPOT target."""
    return endpoint.fits(promised)


FILTERS: Final[tuple[RoutingFilter, ...]] = (is_not_excluded, is_reachable, has_capacity)
