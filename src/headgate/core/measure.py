"""What will this request take, and where?

Its length is predicted, of its pools those are kept that are meant for it, and its price follows from the speed of the
first of them. What some endpoint probably holds of its prompt already costs nothing.
"""

from headgate.core.cost import cost_ns, first_token_ns
from headgate.core.prediction import Predictions
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import cached_tokens_most
from headgate.core.routing.rungs import narrowed
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.prefix import unpack
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, PoolName


def measure(request: Request, predictions: Predictions, fleet: Fleet, rules: Rules) -> None:
    ticket, caps = request.ticket, request.service_class.caps
    mean, most = predictions.output_tokens(ticket, request.model)
    for limit in (caps.output_tokens, ticket.output_tokens_max):
        if limit is not None:
            mean, most = min(mean, limit), min(most, limit)
    answers = request.answers = ticket.answers(caps.n)
    request.prompt_tokens = predictions.prompt_tokens(ticket, request.model)
    request.output_tokens, request.output_tokens_most = mean * answers, most * answers
    request.pools = meant(request, request.pools, fleet, rules)
    request.account = rules.account(ticket.tenant)
    request.hashes = unpack(ticket.prefix) if rules.policy.routing.prefix else ()
    request.cached_tokens = cached_tokens_most(request, fleet)
    request.long = request.prompt_tokens >= rules.policy.headroom.long_tokens
    speed, cached = fleet.speed(request.pools[0]), request.cached_tokens
    tokens, prompts = (request.prompt_tokens, request.output_tokens), ticket.prompts
    request.cost_ns = cost_ns(speed, *tokens, cached=cached, prompts=prompts)
    _measure_target(request, speed, learning=fleet.learning(request.pools))


def _measure_target(request: Request, speed: EngineSpeed, *, learning: bool) -> None:
    service_class = request.service_class
    ttft_ns, assumed = service_class.ttft_ns, service_class.ttft_assumed
    request.soonest_ns, request.beyond_target = Duration(0), False
    if learning or ttft_ns is None or (request.target is None and not assumed):
        return
    request.soonest_ns = soonest_ns(request, speed)
    request.beyond_target = assumed and request.soonest_ns > ttft_ns


def meant(request: Request, pools: tuple[PoolName, ...], fleet: Fleet, rules: Rules) -> tuple[PoolName, ...]:
    """Of these pools those that are meant for what it takes."""
    if len(pools) == 1:
        return pools
    prompt_tokens, output_tokens = request.prompt_tokens, request.output_tokens
    return narrowed(pools, rules.pools, fleet.live, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def soonest_ns(request: Request, speed: EngineSpeed) -> Duration:
    """How long its first token takes at a busy endpoint of its pool that has headroom."""
    ahead, cached = speed.chunk_tokens // 2, request.cached_tokens
    return first_token_ns(speed, ahead, request.prompt_tokens, cached=cached, decode_ps=5 * speed.step_ps)
