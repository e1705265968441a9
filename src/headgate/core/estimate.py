"""Estimates the cost of a request and selects suitable pools.

The response length is predicted, the pools are narrowed to those that suit the total length, and the cost is computed
from the speed of the first of these pools. Prompt tokens that an endpoint probably has in its prefix cache cost
nothing.
"""

from typing import Final

from headgate.core.cost import cost_ns, first_token_ns
from headgate.core.prediction import Predictions
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.model_tiers import live_pools_for_size
from headgate.core.routing.router import cached_tokens_max
from headgate.core.rules import Rules
from headgate.model.prefix import salted_hashes, unpack_hashes
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, PoolName

_NO_TIME: Final = Duration(0)


def estimate(request: Request, predictions: Predictions, fleet: FleetState, rules: Rules) -> None:
    ticket, caps = request.ticket, request.service_class.caps
    if rules.adapters or request.adapter:
        request.adapter = rules.adapters.get(request.model, "")
    mean, most, prompt_tokens = predictions.predict(ticket, request.model)
    request.output_limit = limit = ticket.output_limit(caps.output_tokens)
    if limit is not None:
        if mean > limit:
            mean = limit
        if most > limit:
            most = limit
    answers = request.answers = ticket.answers(caps.n)
    output_tokens = mean * answers
    request.prompt_tokens = prompt_tokens
    request.output_tokens, request.output_tokens_p90 = output_tokens, most * answers
    if len(pools := request.pools) != 1:
        request.pools = pools = suitable_pools(request, pools, fleet, rules)
    request.account = rules.account(ticket.tenant)
    request.hashes, request.cached_tokens = (), 0
    if ticket.prefix_hashes and rules.policy.routing.prefix_affinity:
        request.hashes = unpack_hashes(ticket.prefix_hashes)
        if request.adapter:
            request.hashes = salted_hashes(request.hashes, request.adapter)
        request.cached_tokens = cached_tokens_max(request, fleet)
    request.long_prompt = prompt_tokens >= rules.policy.headroom.long_prompt_tokens
    request.speed = speed = fleet.speed(pools[0])
    request.cost_ns = cost_ns(speed, prompt_tokens, output_tokens, request.cached_tokens, ticket.prompts)
    request.ttft_ns_min, request.target_infeasible = _NO_TIME, False
    if request.service_class.ttft_ns is not None or request.service_class.ttft_assumed:
        _estimate_target(request, speed, learning=fleet.is_learning(request.pools))


def _estimate_target(request: Request, speed: EngineSpeed, *, learning: bool) -> None:
    service_class = request.service_class
    ttft_ns, assumed = service_class.ttft_ns, service_class.ttft_assumed
    # A default target is applied only once it is known whether the engines can meet it.
    request.target_infeasible = assumed and learning
    if learning or ttft_ns is None or (request.target is None and not assumed):
        return
    request.ttft_ns_min = ttft_ns_min(request, speed)
    request.target_infeasible = assumed and request.ttft_ns_min > ttft_ns


def suitable_pools(
    request: Request, pools: tuple[PoolName, ...], fleet: FleetState, rules: Rules
) -> tuple[PoolName, ...]:
    """Returns the pools that suit the predicted length of the request."""
    if len(pools) == 1:
        return pools
    prompt_tokens, output_tokens = request.prompt_tokens, request.output_tokens
    return live_pools_for_size(
        pools, rules.pools, fleet.live_count, prompt_tokens=prompt_tokens, output_tokens=output_tokens
    )


def ttft_ns_min(request: Request, speed: EngineSpeed) -> Duration:
    """Returns the time to first token on a busy endpoint that has headroom."""
    ahead, cached = speed.chunk_tokens // 2, request.cached_tokens
    return first_token_ns(speed, ahead, request.prompt_tokens, cached=cached, decode_ps=5 * speed.step_ps)
