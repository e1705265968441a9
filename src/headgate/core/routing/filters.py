"""Which endpoints may take this request at all?

Each filter is a plain function with a name that answers for one endpoint; an endpoint is a candidate only if all of
`FILTERS` agree. They are asked for the few candidates that `least_seconds` looks at, in the order given here, and
change nothing. To add one, write it here and add its line to `FILTERS`.
"""

from collections.abc import Callable
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord, Reservation
from headgate.core.state import Request

RoutingFilter = Callable[[EndpointRecord, Request, Reservation], bool]
"""An endpoint, a request, and what the endpoint would be promised if it held nothing of the prompt."""


def is_not_excluded(endpoint: EndpointRecord, request: Request, _promised: Reservation) -> bool:
    """The endpoint is another than the one where the last attempt failed, unless no other takes work."""
    return endpoint is not request.excluded


def is_within_reach(endpoint: EndpointRecord, request: Request, _promised: Reservation) -> bool:
    """The member of a cell that holds the request can reach the endpoint, unless it could reach no other."""
    return endpoint not in request.out_of_reach


def has_capacity(endpoint: EndpointRecord, _request: Request, promised: Reservation) -> bool:
    """The request fits: into its class's places, the KV cache and the time per token that is promised there."""
    return endpoint.fits(promised)


FILTERS: Final[tuple[RoutingFilter, ...]] = (is_not_excluded, is_within_reach, has_capacity)
