"""What did each attempt of a request cost, and why was it made?

Bills are made when a request ends, one for each attempt that was sent, by the price that holds at that moment. At an
endpoint that is paid by the hour an attempt costs its part of the endpoint's time (`engine_time`); where others host
the engine and take a price for tokens, what it has used.

The cause says who pays (`PAYERS`). An attempt that has ended was made for what it ended with: an answer, a refusal, or
a failure, after which another was made or not. One that is in flight when its request ends was stopped for the reason
that ended it. What was done beside the attempt that counts is nobody's wish but ours.
"""

from typing import Final

from headgate.core.attempts import Attempts
from headgate.core.engine_time import Stay
from headgate.core.events import AttemptEnding
from headgate.core.rules import Rules
from headgate.core.state import Attempt, Request
from headgate.model.money import Bill, Cause, NanoUsd, Price, price_at
from headgate.model.outcome import Outcome
from headgate.model.units import MINUTE, Instant

_HOUR: Final = 60 * MINUTE
_HALF_AN_HOUR: Final = _HOUR // 2
_MILLION: Final = 1_000_000
_STOPPED: Final = {
    Outcome.CANCELLED: Cause.CLIENT_LEFT,
    Outcome.TOO_LATE: Cause.EXPIRED,
    Outcome.EVICTED: Cause.LEAVING,
}
_NOTHING: Final = NanoUsd(0)


def bills_of(request: Request, outcome: Outcome, attempts: Attempts, rules: Rules, now: Instant) -> tuple[Bill, ...]:
    """One for each attempt that is known here. Those in flight are nobody's from here on."""
    if not request.attempt:
        return ()
    made: list[Bill] = []
    for attempt in attempts.of(request):
        if attempt.ending is None:
            attempt.endpoint.time.turn_late(attempt.stay, now)
        made.append(_bill(attempt, _cause(attempt, request, outcome), rules, now))
    return tuple(made)


def _cause(attempt: Attempt, request: Request, outcome: Outcome) -> Cause:
    if attempt.let_go:
        return Cause.HEDGE
    match attempt.ending:
        case AttemptEnding.COMPLETED:
            return Cause.ANSWER
        case AttemptEnding.REFUSED:
            return Cause.REFUSED
        case None:
            return _STOPPED[outcome] if attempt is request.running else Cause.HEDGE
        case _:
            return Cause.RETRY if attempt.number < request.attempt else Cause.ENGINE_FAILED


def _bill(attempt: Attempt, cause: Cause, rules: Rules, now: Instant) -> Bill:
    stay, pool = attempt.stay, rules.pools.get(attempt.endpoint.pool)
    price = None if pool is None or not pool.prices else price_at(pool.prices, now)
    if price is None:
        amounts = (_NOTHING, _NOTHING, _NOTHING)
    elif price.input_tokens or price.cached_tokens or price.output_tokens:
        amounts = _of_tokens(price, attempt.so_far() if attempt.ending is None else attempt.used)
    else:
        amounts = _of_time(price.hour, stay)
    return Bill(attempt.number, cause, stay.input_ns, stay.output_ns, stay.shared_ns, *amounts)


def _of_time(hour: NanoUsd, stay: Stay) -> tuple[NanoUsd, NanoUsd, NanoUsd]:
    for_input = (stay.input_ns * hour + _HALF_AN_HOUR) // _HOUR
    for_output = (stay.output_ns * hour + _HALF_AN_HOUR) // _HOUR
    overhead = (stay.shared_ns * hour + _HALF_AN_HOUR) // _HOUR
    return NanoUsd(for_input), NanoUsd(for_output), NanoUsd(overhead)


def _of_tokens(price: Price, used: tuple[int, int, int]) -> tuple[NanoUsd, NanoUsd, NanoUsd]:
    prompt, cached, output = used
    for_input = (prompt - cached) * price.input_tokens + cached * price.cached_tokens
    return _rounded(for_input), _rounded(output * price.output_tokens), _NOTHING


def _rounded(millionths: int) -> NanoUsd:
    return NanoUsd((millionths + _MILLION // 2) // _MILLION)
