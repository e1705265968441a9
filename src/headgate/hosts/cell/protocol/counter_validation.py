"""Validates the counters in a snapshot before a scheduler starts from them.

Counters come from the store, where another version may have written them. `InvalidMessage` describes the problem.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.counters import MILLION, Counters, LengthsCounter, PromptCounter
from headgate.core.hedging import FIRST_TOKEN_BUCKETS
from headgate.core.prediction import LENGTH_BOUNDS, LENGTH_BUCKETS, RATE_MAX
from headgate.hosts.cell.protocol.validation import (
    TIMESTAMP_MAX,
    non_negative,
    require,
    valid_durations,
    valid_names,
)

LEARNED_ANSWERS_MAX: Final = 1 << 20
"""Maximum number of responses in one length bucket.

Like the next limit, this is far more than a scheduler keeps, because another version may keep more.
"""
LEARNED_BYTES_MAX: Final = 1 << 30
"""Maximum number of prompt bytes counted for one tenant."""
_SUM_MAX: Final = 1 << 40
"""Largest sum used to compute the speed of an endpoint, in millionths."""


def check_counters(counters: Counters) -> None:
    """Checks counters. Counts must not be negative, but turns, credits and minimum-share credits may be."""
    for turns in counters.fair_queues:
        require(
            _in_range(turns.level, *(charged for _, charged in (*turns.waiting, *turns.others))),
            "turns are out of range",
        )
    require(
        _in_range(*(each.credit for each in counters.min_shares), *(each for _, each in counters.retry_credits)),
        "credits are out of range",
    )
    for limit in counters.limits:
        require(
            non_negative(limit.requests, limit.tokens, limit.duration_ns),
            f'limits of "{limit.tenant}" are out of range',
        )
    for window in counters.attempt_windows:
        attempts = (*window.firsts, *window.extras)
        require(
            non_negative(*(number for each in attempts for number in each)),
            f'attempts at "{window.pool}" are out of range',
        )
    require(_unique([(each.tenant, each.model) for each in counters.lengths]), "duplicate lengths")
    for lengths in counters.lengths:
        _check_buckets(lengths.buckets, f'lengths of "{lengths.model}" are invalid', LENGTH_BUCKETS)
        require(_possible_lengths(lengths), f'lengths of "{lengths.model}" are invalid')
    require(_unique([(each.tenant, each.model) for each in counters.prompts]), "duplicate prompts")
    for prompts in counters.prompts:
        require(non_negative(prompts.prompt_bytes, prompts.tokens), f'prompts of "{prompts.model}" are invalid')
        require(_possible_prompts(prompts), f'prompts of "{prompts.model}" are invalid')
    require(_unique([(each.service_class, each.pool) for each in counters.first_tokens]), "duplicate first-token times")
    for waits in counters.first_tokens:
        _check_buckets(waits.buckets, f'first-token times at "{waits.pool}" are invalid', FIRST_TOKEN_BUCKETS)
        require(valid_durations(waits.wait_ns), f'first-token times at "{waits.pool}" are invalid')
    for route in counters.pool_groups:
        require(0 <= route.fraction < MILLION and _in_range(route.pressure, *route.ranks), "a route is out of range")
        for ladder in route.degradations:
            require(
                non_negative(ladder.step, ladder.above_ns or 0, ladder.below_ns or 0),
                "a degradation level is out of range",
            )
    for endpoint in counters.endpoints:
        require(non_negative(endpoint.ejections), f'ejections of "{endpoint.endpoint_id}" are out of range')
        require(
            _in_range(*endpoint.factors) and _possible_sums(*endpoint.sums),
            f'speed of "{endpoint.endpoint_id}" is invalid',
        )
    for start in counters.cold_starts:
        require(valid_durations(start.took_ns), f'start time of "{start.pool}" is out of range')
    quarantined = counters.quarantine
    require(
        all(valid_names(each.identity) and valid_durations(each.left_ns) for each in quarantined),
        "a quarantined request is invalid",
    )
    for budget in counters.budgets:
        require(_in_range(budget.spent, budget.began or 0), f'budget of "{budget.scope}" is out of range')


def _check_buckets(buckets: tuple[tuple[int, ...], ...], what: str, length: int) -> None:
    """Checks buckets. Each may occur only once, or responses would count twice. `length` is the number of buckets."""
    require(_unique([each[0] for each in buckets]) and all(each[0] < length for each in buckets), what)
    require(non_negative(*(number for each in buckets for number in each)), what)


def _possible_lengths(lengths: LengthsCounter) -> bool:
    """Returns whether no response in a bucket is longer than the upper bound of the bucket."""
    return all(
        answers <= LEARNED_ANSWERS_MAX and tokens <= answers * LENGTH_BOUNDS[bucket]
        for bucket, answers, tokens in lengths.buckets
    )


def _possible_prompts(prompts: PromptCounter) -> bool:
    """Returns whether a prompt of this many bytes can have this many tokens.

    Bytes and tokens are halved from time to time and rounded down, so one more byte is allowed.
    """
    if not prompts.prompt_bytes:
        return not prompts.tokens
    most = (prompts.prompt_bytes + 1) * RATE_MAX
    return prompts.prompt_bytes <= LEARNED_BYTES_MAX and prompts.tokens <= most


def _possible_sums(dd: int, dp: int, pp: int, dy: int, py: int) -> bool:
    """Returns whether these values can be sums of squares and products.

    Otherwise the equations have no valid solution.
    """
    return all(0 <= each <= _SUM_MAX for each in (dd, dp, pp, dy, py)) and dp * dp <= (dd + 2) * (pp + 2)


def _unique(keys: Sequence[object]) -> bool:
    return len(set(keys)) == len(keys)


def _in_range(*numbers: int) -> bool:
    return all(-TIMESTAMP_MAX <= number <= TIMESTAMP_MAX for number in numbers)
