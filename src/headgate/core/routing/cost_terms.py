"""Cost terms of the routing score.

Each cost term is a function that returns predicted time in nanoseconds. The terms are added without weights, and the
candidate with the lowest sum gets the request. `headgate explain` shows the value of each term. Costs that are the same
for all endpoints are omitted. To add a term, define it here and add it to `COST_TERMS`.

Terms only rank the candidates that `router` selects. It adds `session_preference` itself, because few requests need it.
"""

from collections.abc import Callable
from typing import Final

from headgate.core.cost import first_token_on_busy_endpoint_ns
from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.ticket import APIS_WITHOUT_OUTPUT

CostTerm = Callable[[EndpointRecord, Request, int], int]
"""Cost of an endpoint for a request, given the number of prompt tokens that the endpoint probably has cached."""
_PERCENT_PS_PER_NS: Final = 100 * 1_000


def pending_prefill(endpoint: EndpointRecord, _request: Request, _cached_tokens: int) -> int:
    """Prefill time of the prompts ahead of this one."""
    pending_tokens = endpoint.device_load.pending_tokens
    if not pending_tokens:
        return 0
    pending_ps = endpoint.settings.speed.prefill_token_ps * pending_tokens
    return endpoint.speed_estimator.prefill_percent * pending_ps // _PERCENT_PS_PER_NS


def interference(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """Delay that the sequences in flight add to each decode step (the endpoint's load excluding pending prompts)."""
    if not endpoint.device_load.pending_tokens:
        return endpoint.load_ns()
    return endpoint.load_ns() - pending_prefill(endpoint, request, cached_tokens)


def own_prefill(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """Prefill time of the request's own prompt without a prefix-cache hit."""
    prompt_ps = endpoint.settings.speed.prefill_ps(request.prompt_tokens)
    return endpoint.speed_estimator.prefill_percent * prompt_ps // _PERCENT_PS_PER_NS


def prefix_hit(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """Prefill time that a prefix-cache hit saves, as a negative number."""
    if not cached_tokens:
        return 0
    rest_ps = endpoint.settings.speed.prefill_ps(request.prompt_tokens, cached=cached_tokens)
    rest_ns = endpoint.speed_estimator.prefill_percent * rest_ps // _PERCENT_PS_PER_NS
    return rest_ns - own_prefill(endpoint, request, cached_tokens)


def distance(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """Network time between the caller's zone and the endpoint's zone."""
    zone = request.ticket.zone
    return endpoint.distance_ns(zone) if zone else 0


def adapter_load(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """Time to load the request's LoRA adapter, unless the adapter is active."""
    return 0 if request.adapter in endpoint.adapters.slots.active else endpoint.settings.adapter_load_ns


def later_tokens(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """Decode time of the tokens after the first, for a request with an e2e target."""
    steps = request.output_tokens // request.answers - 1
    if steps < 1:
        return 0
    shared, speed = endpoint.device_load, endpoint.settings.speed
    sequences = shared.in_flight + shared.foreign + request.answers
    step_ps = speed.decode_ps(sequences, shared.kv_used + shared.kv_foreign + request.prompt_tokens)
    return endpoint.speed_estimator.decode_percent * steps * step_ps // _PERCENT_PS_PER_NS


def measured_response(endpoint: EndpointRecord, request: Request, cached_tokens: int) -> int:
    """Measured time of responses without generated tokens, relative to the other endpoints of the pool."""
    percent = endpoint.response_times.relative_percent()
    if not percent or request.ticket.api not in APIS_WITHOUT_OUTPUT:
        return 0
    own_ns = first_token_on_busy_endpoint_ns(endpoint.settings.speed, request.prompt_tokens, cached_tokens)
    return percent * own_ns // 100


def session_preference(endpoint: EndpointRecord, request: Request, _cached_tokens: int) -> int:
    """Preference for the endpoint that served the request's session last.

    Other endpoints cost the configured time, in proportion to the part of the prompt that the session's last endpoint
    has probably seen and the prefix index does not know.
    """
    seen_tokens = 0
    for last, tokens in request.session_visits:
        if last is endpoint:
            return 0
        seen_tokens = max(seen_tokens, tokens)
    return endpoint.settings.session_ns * seen_tokens // request.prompt_tokens


COST_TERMS: Final[tuple[CostTerm, ...]] = (pending_prefill, interference, own_prefill, prefix_hit, distance)
ADAPTER_COST_TERMS: Final[tuple[CostTerm, ...]] = (adapter_load,)
"""Terms that apply only to requests with a LoRA adapter."""
E2E_COST_TERMS: Final[tuple[CostTerm, ...]] = (later_tokens, measured_response)
"""Terms that apply only to requests with an e2e target."""
