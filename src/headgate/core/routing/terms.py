"""What does it cost to send this request to an endpoint, term by term?

Each term is a plain function with a name that returns whole nanoseconds of predicted time. They add up without weights:
the candidate with the least sum takes the request, and `headgate explain` names the share of each term. What is the
same at all endpoints is left out. To add a term, write it here and add its line to `COST_TERMS`.

A term ranks the candidates; it does not widen the search for them (`least_seconds`).
"""

from collections.abc import Callable
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.state import Request

CostTerm = Callable[[EndpointRecord, Request, int], int]
"""An endpoint, a request and how many tokens of its prompt the endpoint probably holds."""
_PERCENT_PS_PER_NS: Final = 100 * 1_000


def pending_prefill(endpoint: EndpointRecord, _request: Request, _cached_tokens: int) -> int:
    """The prompts that the endpoint has to compute before this one."""
    pending_tokens = endpoint.shared.pending_tokens
    if not pending_tokens:
        return 0
    pending_ps = endpoint.terms.speed.prefill_token_ps * pending_tokens
    return endpoint.learned.prefill_percent * pending_ps // _PERCENT_PS_PER_NS


def interference(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """How much longer a step takes because of the sequences in flight: all of the load but the pending prompts."""
    if not endpoint.shared.pending_tokens:
        return endpoint.load_ns
    return endpoint.load_ns - pending_prefill(endpoint, request, cached_tokens)


def own_prefill(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """The request's own prompt, computed from its first token on."""
    prompt_ps = endpoint.terms.speed.prefill_ps(request.prompt_tokens)
    return endpoint.learned.prefill_percent * prompt_ps // _PERCENT_PS_PER_NS


def prefix_hit(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """The part of its own prefill that a prefix-cache hit saves, below zero."""
    if not cached_tokens:
        return 0
    rest_ps = endpoint.terms.speed.prefill_ps(request.prompt_tokens, cached=cached_tokens)
    rest_ns = endpoint.learned.prefill_percent * rest_ps // _PERCENT_PS_PER_NS
    return rest_ns - own_prefill(endpoint, request, cached_tokens)


def distance(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """The network distance between the caller's zone and the endpoint's."""
    zone = request.ticket.zone
    return endpoint.distance_ns(zone) if zone else 0


COST_TERMS: Final[tuple[CostTerm, ...]] = (pending_prefill, interference, own_prefill, prefix_hit, distance)
