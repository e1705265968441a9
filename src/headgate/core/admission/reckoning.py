"""What may a request cost at most, and how long may its answer be for so much?

What it will cost is known when it has ended: an endpoint's time is divided among those that were there, and who was
there nobody knows before. So the most is what it costs alone. Then it pays for every step from its prompt to its last
token, among ninety others for a ninetieth of each. A reckoning with usual company would be nearer to most bills and
below some of them, and what is reserved has to be above: what a budget is overdrawn by is what bills come to beyond
their reservations. The rest is given back as soon as the request ends.

An answer is taken to be as long as it may be: by its class, its caller, or, where neither says, as nine in ten do not
exceed. Nothing of the prompt is taken to be in a cache.
"""

from typing import Final

from headgate.core.cost import cost_ns
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.speed import EngineSpeed
from headgate.model.ticket import WITHOUT_OUTPUT
from headgate.model.units import MINUTE, Duration, Instant, PoolName
from headgate.model.usage import Usage

_HOUR: Final = 60 * MINUTE
_MILLION: Final = 1_000_000
_PS_PER_NS: Final = 1_000
LONGEST: Final = 1 << 20
"""No answer is longer than so many tokens."""


def output_most(request: Request) -> int:
    """How many tokens all of its answers may have together."""
    ticket, answers = request.ticket, request.answers
    if ticket.api in WITHOUT_OUTPUT:
        return 0
    limits = [each for each in (request.service_class.caps.output_tokens, ticket.output_tokens_max) if each is not None]
    return min(limits) * answers if limits else request.output_tokens_most


def cost_most(request: Request, rules: Rules, now: Instant) -> NanoUsd:
    """What it may cost at the dearest of its pools."""
    tokens = output_most(request)
    return max((cost_at(request, pool, tokens, rules, now) for pool in request.pools), default=NanoUsd(0))


def cost_at(request: Request, pool: PoolName, output_tokens: int, rules: Rules, now: Instant) -> NanoUsd:
    """What it costs at a pool with an answer of so many tokens, and nobody beside it."""
    price = _price(pool, rules, now)
    if price is None:
        return NanoUsd(0)
    prompt_tokens = request.prompt_tokens
    if _by_tokens(price):
        tokens = prompt_tokens * max(price.input_tokens, price.cached_tokens) + output_tokens * price.output_tokens
        return NanoUsd(-(-tokens // _MILLION))
    time = _alone_ns(request, rules.speed(pool), output_tokens) * price.hour
    return NanoUsd(-(-time // _HOUR))


def cost_of(usage: Usage, pool: PoolName, rules: Rules, now: Instant, *, prompts: int = 1) -> NanoUsd:
    """What so much cost at a pool, in usual company: for those whose bill was lost with the one who made it."""
    price = _price(pool, rules, now)
    if price is None:
        return NanoUsd(0)
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    if _by_tokens(price):
        tokens = (usage.prompt_tokens - cached) * price.input_tokens + cached * price.cached_tokens
        return NanoUsd((tokens + usage.output_tokens * price.output_tokens) // _MILLION)
    speed = rules.speed(pool)
    time = cost_ns(speed, usage.prompt_tokens, usage.output_tokens, cached=cached, prompts=prompts) * price.hour
    return NanoUsd(time // _HOUR)


def cheapest(request: Request, pools: tuple[PoolName, ...], rules: Rules, now: Instant) -> tuple[PoolName, ...]:
    """Of these pools the one at which it costs least; all where several cost the same."""
    tokens = output_most(request)
    costs = [cost_at(request, pool, tokens, rules, now) for pool in pools]
    least = min(costs)
    return tuple(pool for pool, cost in zip(pools, costs, strict=True) if cost == least)


def output_within(request: Request, most: int, rules: Rules, now: Instant) -> int | None:
    """Of how many tokens each of its answers may be for so much, wherever it goes; None where any length may be."""
    if _dearest(request, LONGEST, rules, now) <= most:
        return None
    least, beyond = 0, LONGEST
    while beyond - least > 1:
        middle = (least + beyond) // 2
        if _dearest(request, middle, rules, now) <= most:
            least = middle
        else:
            beyond = middle
    return least


def _dearest(request: Request, tokens: int, rules: Rules, now: Instant) -> NanoUsd:
    """What it costs at the dearest of its pools with answers of so many tokens each."""
    return max(cost_at(request, pool, tokens * request.answers, rules, now) for pool in request.pools)


def _price(pool: PoolName, rules: Rules, now: Instant) -> Price | None:
    declared = rules.pools.get(pool)
    return None if declared is None else price_at(declared.prices, now)


def _by_tokens(price: Price) -> bool:
    return bool(price.input_tokens or price.cached_tokens or price.output_tokens)


def _alone_ns(request: Request, speed: EngineSpeed, output_tokens: int) -> Duration:
    """Time on an otherwise idle engine; the answers of one request share their steps."""
    prompt_tokens, answers, prompts = request.prompt_tokens, request.answers, request.ticket.prompts
    steps = -(-prompt_tokens // speed.chunk_tokens)
    own = cost_ns(speed, prompt_tokens, output_tokens, batch=answers, prompts=prompts)
    return Duration(own + steps * speed.step_ps // _PS_PER_NS)
