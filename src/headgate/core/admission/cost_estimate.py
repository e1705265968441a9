"""Maximum cost of a request, and maximum response length within a given cost.

The actual cost is known only once the request has ended, because an endpoint's time is divided among the requests in
its batch. The maximum is what the request would cost if it ran alone on an endpoint and paid for every step. In a batch
of 90, it pays for only a ninetieth of each step. An estimate based on a typical batch would be closer to most bills but
below some of them. Reservations must not be too low, because any amount by which a bill exceeds its reservation
overdraws the budget. The excess is released as soon as the request ends.

The estimate assumes the longest response that the class or the caller allows. If neither sets a limit, it assumes a
length that nine out of ten responses do not exceed. It assumes that no part of the prompt is cached.
"""

from typing import Final

from headgate.core.cost import cost_ns
from headgate.core.request_state import Request
from headgate.core.rules import Rules
from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.speed import EngineSpeed
from headgate.model.ticket import APIS_WITHOUT_OUTPUT
from headgate.model.units import MINUTE, Duration, Instant, PoolName
from headgate.model.usage import Usage

_HOUR: Final = 60 * MINUTE
_MILLION: Final = 1_000_000
_PS_PER_NS: Final = 1_000
OUTPUT_TOKENS_MAX: Final = 1 << 20
"""Maximum length of a response, in tokens."""


def max_output_tokens(request: Request) -> int:
    """Returns the maximum total number of output tokens over all choices."""
    ticket, answers = request.ticket, request.answers
    if ticket.api in APIS_WITHOUT_OUTPUT:
        return 0
    limits = [each for each in (request.service_class.caps.output_tokens, ticket.output_tokens_max) if each is not None]
    return min(limits) * answers if limits else request.output_tokens_p90


def max_cost(request: Request, rules: Rules, now: Instant) -> NanoUsd:
    """Returns the maximum cost of the request in its most expensive pool."""
    tokens = max_output_tokens(request)
    return max((cost_at(request, pool, tokens, rules, now) for pool in request.pools), default=NanoUsd(0))


def cost_at(request: Request, pool: PoolName, output_tokens: int, rules: Rules, now: Instant) -> NanoUsd:
    """Returns the cost of the request if it runs alone in a pool and generates this many output tokens."""
    price = _price(pool, rules, now)
    if price is None:
        return NanoUsd(0)
    prompt_tokens = request.prompt_tokens
    if _is_per_token(price):
        tokens = (
            prompt_tokens * max(price.input_per_1m_tokens, price.cached_per_1m_tokens)
            + output_tokens * price.output_per_1m_tokens
        )
        return NanoUsd(-(-tokens // _MILLION))
    time = _alone_ns(request, rules.speed(pool), output_tokens) * price.per_hour
    return NanoUsd(-(-time // _HOUR))


def cost_of_usage(usage: Usage, pool: PoolName, rules: Rules, now: Instant, *, prompts: int = 1) -> NanoUsd:
    """Returns the cost of this usage in a pool, assuming a typical batch. Used when a bill was lost in a failover."""
    price = _price(pool, rules, now)
    if price is None:
        return NanoUsd(0)
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    if _is_per_token(price):
        tokens = (usage.prompt_tokens - cached) * price.input_per_1m_tokens + cached * price.cached_per_1m_tokens
        return NanoUsd((tokens + usage.output_tokens * price.output_per_1m_tokens) // _MILLION)
    speed = rules.speed(pool)
    time = cost_ns(speed, usage.prompt_tokens, usage.output_tokens, cached=cached, prompts=prompts) * price.per_hour
    return NanoUsd(time // _HOUR)


def cheapest_pools(request: Request, pools: tuple[PoolName, ...], rules: Rules, now: Instant) -> tuple[PoolName, ...]:
    """Returns the pools in which the request's maximum cost is lowest."""
    tokens = max_output_tokens(request)
    costs = [cost_at(request, pool, tokens, rules, now) for pool in pools]
    least = min(costs)
    return tuple(pool for pool, cost in zip(pools, costs, strict=True) if cost == least)


def output_tokens_within(request: Request, cost_limit: int, rules: Rules, now: Instant) -> int | None:
    """Returns the maximum tokens per choice that stay within a cost limit in all of the request's pools.

    None if unlimited.
    """
    if _cost_at_dearest_pool(request, OUTPUT_TOKENS_MAX, rules, now) <= cost_limit:
        return None
    least, beyond = 0, OUTPUT_TOKENS_MAX
    while beyond - least > 1:
        middle = (least + beyond) // 2
        if _cost_at_dearest_pool(request, middle, rules, now) <= cost_limit:
            least = middle
        else:
            beyond = middle
    return least


def _cost_at_dearest_pool(request: Request, tokens: int, rules: Rules, now: Instant) -> NanoUsd:
    """Returns the cost in the request's most expensive pool, with this many tokens per choice."""
    return max(cost_at(request, pool, tokens * request.answers, rules, now) for pool in request.pools)


def _price(pool: PoolName, rules: Rules, now: Instant) -> Price | None:
    declared = rules.pools.get(pool)
    return None if declared is None else price_at(declared.prices, now)


def _is_per_token(price: Price) -> bool:
    return bool(price.input_per_1m_tokens or price.cached_per_1m_tokens or price.output_per_1m_tokens)


def _alone_ns(request: Request, speed: EngineSpeed, output_tokens: int) -> Duration:
    """Returns how long the request takes on an otherwise idle engine. The choices of one request share their steps."""
    prompt_tokens, answers, prompts = request.prompt_tokens, request.answers, request.ticket.prompts
    steps = -(-prompt_tokens // speed.chunk_tokens)
    own = cost_ns(speed, prompt_tokens, output_tokens, batch=answers, prompts=prompts)
    return Duration(own + steps * speed.step_ps // _PS_PER_NS)
