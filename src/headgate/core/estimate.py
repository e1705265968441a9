"""Estimates the cost of a request and selects suitable pools.

The response length is predicted, the pools are narrowed to those that suit the total length, and the cost is computed
from the speed of the first of these pools. Prompt tokens that an endpoint probably has in its prefix cache cost
nothing.
"""

from typing import Final

from headgate.core.cost import cost_ns, first_token_on_busy_endpoint_ns
from headgate.core.prediction import Predictions
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.model_tiers import live_pools_for_size
from headgate.core.routing.router import cached_tokens_max
from headgate.core.rules import Rules
from headgate.model.prefix import salted_hashes, unpack_hashes
from headgate.model.speed import EngineSpeed
from headgate.model.ticket import APIS_WITHOUT_OUTPUT
from headgate.model.units import Duration, PoolName

_NO_TIME: Final = Duration(0)
_PREDICTED_PERCENT_MAX: Final = 90
"""Maximum share of an e2e target that predictions may take, in percent."""
_BUSY_STEPS: Final = 2
"""Assumed duration of a decode step on a busy endpoint, in steps with one sequence."""


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
    long_tokens = rules.policy.headroom.long_prompt_tokens
    if rules.long_prompts and request.e2e_ns is None:
        long_tokens = rules.long_prompts.get(pools[0], long_tokens)
    # Providers have no long lane.
    request.long_prompt = prompt_tokens >= long_tokens and not rules.hosted_pools.issuperset(pools)
    request.speed = speed = fleet.speed(pools[0])
    request.cost_ns = cost_ns(speed, prompt_tokens, output_tokens, request.cached_tokens, ticket.prompts)
    request.ttft_ns_min, request.target_infeasible = _NO_TIME, False
    if request.service_class.ttft_ns is not None or request.service_class.ttft_assumed:
        _estimate_target(request, speed, learning=fleet.is_learning(request.pools))
    if request.e2e_ns is not None:
        _estimate_service_time(request, speed, fleet, request.e2e_ns)


def _estimate_target(request: Request, speed: EngineSpeed, *, learning: bool) -> None:
    service_class = request.service_class
    ttft_ns, assumed = service_class.ttft_ns, service_class.ttft_assumed
    # A default target is applied only once it is known whether the engines can meet it.
    request.target_infeasible = assumed and learning
    if learning or ttft_ns is None or (request.target is None and not assumed):
        return
    request.ttft_ns_min = first_token_on_busy_endpoint_ns(speed, request.prompt_tokens, request.cached_tokens)
    request.target_infeasible = assumed and request.ttft_ns_min > ttft_ns


def _estimate_service_time(request: Request, speed: EngineSpeed, fleet: FleetState, e2e_ns: Duration) -> None:
    """Predicts the time from dispatch to the end of the response, which a request with an e2e target must leave.

    The time after the first token depends on a predicted length, and that of a response without generated tokens on
    earlier responses. Neither may take more than a part of the target. Otherwise a wrong value would reject all
    requests, and nothing would ever correct it.
    """
    pool = fleet.pools.get(request.pools[0])
    percent = None if pool is None else pool.response_times.percent
    prompt_tokens, cached, later_ns = request.prompt_tokens, request.cached_tokens, 0
    if request.ticket.api in APIS_WITHOUT_OUTPUT and pool is not None and percent is not None:
        # The ratio refers to the configured speed.
        own_ns = first_token_on_busy_endpoint_ns(pool.settings.speed, prompt_tokens, cached)
        service_ns = min(percent * own_ns // 100, _PREDICTED_PERCENT_MAX * e2e_ns // 100)
    elif fleet.is_learning(request.pools):
        service_ns = 0
    else:
        first_ns = first_token_on_busy_endpoint_ns(speed, prompt_tokens, cached)
        steps = max(0, request.output_tokens // request.answers - 1)
        later_ns = steps * _BUSY_STEPS * speed.step_ps // 1_000
        later_ns = max(0, min(later_ns, _PREDICTED_PERCENT_MAX * e2e_ns // 100 - first_ns))
        service_ns = first_ns + later_ns
    request.set_service_time(Duration(service_ns), Duration(later_ns))


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
