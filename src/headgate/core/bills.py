"""Bills: the cost of each attempt of a request, and the reason for the attempt.

Bills are created when a request ends, one per attempt sent, at the current price. On an endpoint with an hourly price,
an attempt costs its share of endpoint time (`engine_time`). With a token price, it costs the tokens it used.

The bill's cause determines who pays (`PAYER_BY_CAUSE`). The cause of a finished attempt follows from how it ended: a
response, a rejection, or a failure with or without a retry. For an attempt still running when its request ends, the
cause is the reason the request ended. The tenant never pays for the losing attempt of a hedge or for a mirrored copy.
"""

from typing import Final

from headgate.core.attempts import Attempts
from headgate.core.events import AttemptEnding
from headgate.core.request_state import Attempt, Request
from headgate.core.rules import Rules
from headgate.model.money import Bill, BillCause, NanoUsd, Price, price_at
from headgate.model.outcome import Outcome
from headgate.model.units import Instant

_MILLION: Final = 1_000_000
_ABORT_CAUSES: Final = {
    Outcome.CANCELLED: BillCause.CLIENT_DISCONNECTED,
    Outcome.DEADLINE_EXCEEDED: BillCause.DEADLINE_EXCEEDED,
    Outcome.EVICTED: BillCause.SHUTDOWN,
}
_NOTHING: Final = NanoUsd(0)
_FREE: Final = (_NOTHING, _NOTHING, _NOTHING)
# Enum members that every request needs: Python 3.11 looks them up slowly.
_COMPLETED: Final = AttemptEnding.COMPLETED
_ANSWER: Final = BillCause.ANSWER


def bills_of(request: Request, outcome: Outcome, attempts: Attempts, rules: Rules, now: Instant) -> tuple[Bill, ...]:
    """Returns one bill per known attempt. Running attempts are billed only up to this moment."""
    if not request.attempts_made:
        return ()
    made: list[Bill] = []
    for attempt in attempts.for_request(request):
        if attempt.ending is None:
            stay, endpoint = attempt.engine_time, attempt.endpoint
            stay.clock.mark_request_ended(stay, now)
            if endpoint.engine:
                stay.clock.attribute(endpoint.id, endpoint.pool, stay)
        made.append(_bill(attempt, _cause(attempt, request, outcome), rules, now))
    return tuple(made)


def _cause(attempt: Attempt, request: Request, outcome: Outcome) -> BillCause:
    if attempt.ticket.mirror_route:
        return BillCause.MIRROR
    if attempt.superseded:
        return BillCause.HEDGE
    if attempt.ending is _COMPLETED:
        return _ANSWER
    match attempt.ending:
        case AttemptEnding.REJECTED:
            return BillCause.ENGINE_REJECTED
        case None:
            return _ABORT_CAUSES[outcome] if attempt is request.running else BillCause.HEDGE
        case _:
            return BillCause.RETRY if attempt.number < request.attempts_made else BillCause.ENGINE_ERROR


def _bill(attempt: Attempt, cause: BillCause, rules: Rules, now: Instant) -> Bill:
    stay, pool = attempt.engine_time, rules.pools.get(attempt.endpoint.pool)
    price = None if pool is None or not pool.prices else price_at(pool.prices, now)
    if price is None:
        amounts = _FREE
    elif price.is_per_token:
        amounts = _token_cost(price, attempt.tokens_so_far() if attempt.ending is None else attempt.tokens_used)
    else:
        amounts = price.of_time(stay.input_ns), price.of_time(stay.output_ns), price.of_time(stay.shared_ns)
    for_input, for_output, overhead = amounts
    return Bill(attempt.number, cause, stay.input_ns, stay.output_ns, stay.shared_ns, for_input, for_output, overhead)


def _token_cost(price: Price, used: tuple[int, int, int]) -> tuple[NanoUsd, NanoUsd, NanoUsd]:
    prompt, cached, output = used
    for_input = (prompt - cached) * price.input_per_1m_tokens + cached * price.cached_per_1m_tokens
    return _per_million(for_input), _per_million(output * price.output_per_1m_tokens), _NOTHING


def _per_million(millionths: int) -> NanoUsd:
    return NanoUsd((millionths + _MILLION // 2) // _MILLION)
