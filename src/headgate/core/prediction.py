"""Predicts response lengths and prompt token counts.

Neither value is known until the response has ended, and both depend on the caller. Response lengths and tokens per
prompt byte are therefore recorded per tenant and model (`TenantStats`). The number of records is bounded and old values
decay. Once a tenant has sent enough requests, only its own record is used.

For a tenant with few requests, estimates come from a prior that all tenants share. Neither a single tenant nor a wrong
engine report may change other tenants' estimates by more than a tenth. The prior is therefore a mean with one vote per
tenant, clipped to a range around the initial guess, plus `GUESS_VOTES` votes for the guess itself. A median would not
work: one additional vote can move it by any distance.

The effect of a single report on the tenant's own record is bounded too. A report above a certain multiple of the
current estimate is clipped to that multiple, and impossible reports (`usage_problem`) are ignored.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from headgate.core.counters import MILLION, LengthsCounter, PromptCounter
from headgate.model.ticket import APIS_WITHOUT_OUTPUT, Ticket
from headgate.model.units import BYTES_PER_TOKEN, ModelName, TenantId
from headgate.model.usage import Usage, usage_problem

LENGTH_BOUNDS: Final = tuple(round(2 ** (step / 4)) for step in range(4, 69))
"""Upper bucket bounds, from 2 to 131,072 tokens. Each bound is about a fifth above the previous one."""
_LAST: Final = len(LENGTH_BOUNDS) - 1
_LONGEST: Final = LENGTH_BOUNDS[_LAST]
LENGTH_BUCKETS: Final = len(LENGTH_BOUNDS)
_FORGET_AFTER: Final = 512
"""Number of recorded lengths at which all counts are halved."""
TRUSTED_SAMPLES_MIN: Final = 16
"""Number of reports after which only the tenant's own record is used."""
TENANTS_MAX: Final = 10_000
"""Maximum number of tenant records. When it is exceeded, the least recently updated record is dropped."""
MEAN_GUESS: Final = 150
P90_GUESS: Final = 400
_LENGTH_TIMES_MAX: Final = 16
"""Maximum recorded response length, as a multiple of the current 90th percentile.

Longer responses count as this length.
"""

RATE_GUESS: Final = MILLION // BYTES_PER_TOKEN
"""Initial guess for the tokens per prompt byte, in millionths. All rates are in millionths."""
_RATE_MIN: Final = MILLION // 64
RATE_MAX: Final = 2 * MILLION
_RATE_TIMES_MAX: Final = 2
"""Maximum factor by which a recorded rate may differ from the current estimate. Larger differences are clipped."""
_BYTES_COUNTED_MAX: Final = 65_536
"""Maximum weight of one prompt, in bytes."""
_BYTES_REMEMBERED: Final = 1_000_000
_BYTES_TRUSTED: Final = 2_048
"""Weight of the prior, in bytes of the tenant's own prompts."""

GUESS_VOTES: Final = 48
"""Number of votes for the initial guess in a prior."""
VOTE_TIMES_MAX: Final = 4
"""Maximum factor by which a tenant's vote may differ from the initial guess."""


class Prior:
    """Mean of the tenants' votes, each clipped to a range around the initial guess."""

    __slots__ = ("_guess", "_least", "_most", "_sum", "_votes")

    def __init__(self, guess: int) -> None:
        self._guess = guess
        self._least, self._most = guess // VOTE_TIMES_MAX, guess * VOTE_TIMES_MAX
        self._sum = guess * GUESS_VOTES
        self._votes = GUESS_VOTES

    def value(self) -> int:
        return self._sum // self._votes

    def replace_vote(self, old: int | None, new: int | None) -> int | None:
        """Replaces a vote and returns the clipped vote. None means no vote."""
        if new is not None:
            if new < self._least:
                new = self._least
            elif new > self._most:
                new = self._most
            if new == old:
                return new
        if old is not None:
            self._sum -= old
            self._votes -= 1
        if new is None:
            return None
        self._sum += new
        self._votes += 1
        return new


class Priors:
    """Estimates for one model, for tenants without a record."""

    __slots__ = ("mean", "p90", "rate")

    def __init__(self) -> None:
        self.mean, self.p90, self.rate = Prior(MEAN_GUESS), Prior(P90_GUESS), Prior(RATE_GUESS)


class LengthHistogram:
    """Histogram of response lengths."""

    __slots__ = ("_below_p90", "_buckets", "_counts", "_p90_bucket", "_sums", "_tokens", "total")

    def __init__(self) -> None:
        self._counts = [0] * len(LENGTH_BOUNDS)
        self._sums = [0] * len(LENGTH_BOUNDS)
        self._tokens = 0
        """Total tokens over all buckets."""
        self._p90_bucket = self._below_p90 = 0
        """Bucket of the 90th percentile, and the number of lengths in the buckets below it."""
        self._buckets: tuple[tuple[int, int, int], ...] | None = None
        """Cached result of `buckets`. Only a few of many tenants change between two snapshots."""
        self.total = 0

    def learn(self, tokens: int) -> None:
        p90 = LENGTH_BOUNDS[self._p90_bucket] if self.total >= TRUSTED_SAMPLES_MIN else P90_GUESS
        if tokens > _LENGTH_TIMES_MAX * p90:
            tokens = _LENGTH_TIMES_MAX * p90
        if tokens > _LONGEST:
            tokens = _LONGEST
        bucket = bisect_left(LENGTH_BOUNDS, tokens)
        self._counts[bucket] += 1
        self._sums[bucket] += tokens
        self._tokens += tokens
        self.total += 1
        self._buckets = None
        if self.total >= _FORGET_AFTER:
            self._forget_half()
        else:
            if bucket < self._p90_bucket:
                self._below_p90 += 1
            self._find_p90()

    def mean_and_p90(self) -> tuple[int, int]:
        """Returns the mean and the 90th percentile, which is rounded up to a bucket bound."""
        mean = self._tokens // self.total
        return mean if mean < _LONGEST else _LONGEST, LENGTH_BOUNDS[self._p90_bucket]

    def _find_p90(self) -> None:
        """Moves from the last bucket of the percentile to the current one, which is seldom another one."""
        wanted = -(-self.total * 90 // 100)
        while self._below_p90 + self._counts[self._p90_bucket] < wanted:
            self._below_p90 += self._counts[self._p90_bucket]
            self._p90_bucket += 1
        while self._below_p90 and self._below_p90 >= wanted:
            self._p90_bucket -= 1
            self._below_p90 -= self._counts[self._p90_bucket]

    def buckets(self) -> tuple[tuple[int, int, int], ...]:
        """Returns the non-empty buckets as (bucket, responses, total tokens)."""
        if self._buckets is None:
            counted = zip(self._counts, self._sums, strict=True)
            self._buckets = tuple((bucket, count, tokens) for bucket, (count, tokens) in enumerate(counted) if count)
        return self._buckets

    def restore(self, buckets: Iterable[tuple[int, int, int]]) -> None:
        """Replaces the recorded lengths."""
        self._counts, self._sums = [0] * LENGTH_BUCKETS, [0] * LENGTH_BUCKETS
        # The first snapshot of a new scheduler would otherwise take several times as long as the others.
        self._buckets = tuple(sorted(each for each in buckets if each[1]))
        for bucket, count, tokens in self._buckets:
            self._counts[bucket], self._sums[bucket] = count, tokens
        self._sum_up()

    def _forget_half(self) -> None:
        for bucket, count in enumerate(self._counts):
            kept = count // 2
            if count:
                self._sums[bucket] = self._sums[bucket] * kept // count
            self._counts[bucket] = kept
        self._sum_up()

    def _sum_up(self) -> None:
        """Recomputes the totals and the percentile after all buckets have changed."""
        self.total, self._tokens = sum(self._counts), sum(self._sums)
        self._p90_bucket = self._below_p90 = 0
        self._find_p90()


class TenantStats:
    """Recorded requests from one tenant to one model.

    All estimates are derived from the length buckets and two sums. A scheduler that restores these arrives at the same
    estimates.
    """

    __slots__ = ("_mean_vote", "_p90_vote", "_priors", "_rate_vote", "bytes_counted", "lengths", "tokens_counted")

    def __init__(self, priors: Priors) -> None:
        self._priors = priors
        self.lengths = LengthHistogram()
        self.bytes_counted = self.tokens_counted = 0
        """Totals over the recorded prompts. Tokens are in millionths."""
        self._mean_vote: int | None = None
        self._p90_vote: int | None = None
        self._rate_vote: int | None = None

    # Estimates

    def rate(self) -> int:
        """Returns the tokens per prompt byte.

        They are clipped to the valid range because a restored snapshot may contain other values.
        """
        tokens = self.tokens_counted + _BYTES_TRUSTED * self._priors.rate.value()
        rate = tokens // (self.bytes_counted + _BYTES_TRUSTED)
        if rate < _RATE_MIN:
            return _RATE_MIN
        return rate if rate < RATE_MAX else RATE_MAX

    def output_tokens(self) -> tuple[int, int]:
        """Returns the mean and the 90th percentile of the length of one completion."""
        if self.lengths.total >= TRUSTED_SAMPLES_MIN:
            return self.lengths.mean_and_p90()
        return self._priors.mean.value(), self._priors.p90.value()

    # Learning

    def learn_output(self, tokens: int) -> None:
        self.lengths.learn(tokens)
        self._vote_lengths()

    def learn_prompt(self, prompt_bytes: int, tokens: int) -> None:
        """Adds a prompt. The sums are halved when they become large."""
        counted = prompt_bytes if prompt_bytes < _BYTES_COUNTED_MAX else _BYTES_COUNTED_MAX
        rate, believed = self.rate(), tokens * MILLION // prompt_bytes
        if believed < rate // _RATE_TIMES_MAX:
            believed = rate // _RATE_TIMES_MAX
        elif believed > rate * _RATE_TIMES_MAX:
            believed = rate * _RATE_TIMES_MAX
        if believed < _RATE_MIN:
            believed = _RATE_MIN
        elif believed > RATE_MAX:
            believed = RATE_MAX
        self.bytes_counted += counted
        self.tokens_counted += counted * believed
        if self.bytes_counted > _BYTES_REMEMBERED:
            self.bytes_counted //= 2
            self.tokens_counted //= 2
        self._vote_rate()

    def restore_lengths(self, buckets: Iterable[tuple[int, int, int]]) -> None:
        self.lengths.restore(buckets)
        self._vote_lengths()

    def restore_prompts(self, prompt_bytes: int, tokens: int) -> None:
        self.bytes_counted, self.tokens_counted = prompt_bytes, tokens
        self._vote_rate()

    def _vote_lengths(self) -> None:
        if self.lengths.total >= TRUSTED_SAMPLES_MIN:
            mean, most = self.lengths.mean_and_p90()
            self._mean_vote = self._priors.mean.replace_vote(self._mean_vote, mean)
            self._p90_vote = self._priors.p90.replace_vote(self._p90_vote, most)

    def _vote_rate(self) -> None:
        if self.bytes_counted >= _BYTES_TRUSTED:
            own = self.tokens_counted // self.bytes_counted
            self._rate_vote = self._priors.rate.replace_vote(self._rate_vote, own)

    def withdraw_votes(self) -> None:
        """Withdraws the votes of a record that is being dropped."""
        self._priors.mean.replace_vote(self._mean_vote, None)
        self._priors.p90.replace_vote(self._p90_vote, None)
        self._priors.rate.replace_vote(self._rate_vote, None)


class Predictions:
    __slots__ = ("_newest", "_priors", "_stats")

    def __init__(self) -> None:
        self._newest: TenantStats | None = None
        """Last record of `_stats`."""
        self._stats: dict[tuple[TenantId, ModelName], TenantStats] = {}
        """Records ordered by last update, most recent last."""
        self._priors: dict[ModelName, Priors] = {}

    def predict(self, ticket: Ticket, model: ModelName) -> tuple[int, int, int]:
        """Returns the mean and the 90th percentile of the length of one completion, and the prompt tokens."""
        habits = self._stats.get((ticket.tenant, model))
        if habits is None or ticket.api in APIS_WITHOUT_OUTPUT:
            return *self.output_tokens(ticket, model), self.prompt_tokens(ticket, model)
        mean, most = habits.output_tokens()
        return mean, most, ticket.prompt_bytes * habits.rate() // MILLION or 1

    def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
        """Returns the mean and the 90th percentile of the length of one completion."""
        if ticket.api in APIS_WITHOUT_OUTPUT:
            return 0, 0
        if (habits := self._stats.get((ticket.tenant, model))) is not None:
            return habits.output_tokens()
        if (priors := self._priors.get(model)) is not None:
            return priors.mean.value(), priors.p90.value()
        return MEAN_GUESS, P90_GUESS

    def prompt_tokens(self, ticket: Ticket, model: ModelName) -> int:
        habits = self._stats.get((ticket.tenant, model))
        return _prompt_tokens(ticket, self._shared_rate(model) if habits is None else habits.rate())

    def prompt_tokens_if_cancelled(self, ticket: Ticket, model: ModelName) -> int:
        """Returns the prompt tokens to charge if the client disconnects before the engine has counted them.

        The rate is the larger of the tenant's own rate and the shared rate. A tenant could lower its own rate with
        prompts that have few tokens per byte and then abandon prompts that have many. No single tenant can move the
        shared rate by much.
        """
        return max(self.prompt_tokens(ticket, model), _prompt_tokens(ticket, self._shared_rate(model)))

    def _shared_rate(self, model: ModelName) -> int:
        priors = self._priors.get(model)
        return RATE_GUESS if priors is None else priors.rate.value()

    def learn(self, ticket: Ticket, model: ModelName, usage: Usage, *, answers: int, output_limit: int | None) -> None:
        """Learns from the usage that an engine reported. `output_limit` is the token limit of each completion."""
        if usage_problem(usage, ticket, answers=answers, output_limit=output_limit) is not None:
            return
        habits = self._touch(ticket.tenant, model)
        if ticket.prompt_bytes and usage.prompt_tokens:
            habits.learn_prompt(ticket.prompt_bytes, usage.prompt_tokens)
        if ticket.api not in APIS_WITHOUT_OUTPUT:
            habits.learn_output(usage.output_tokens // answers)

    def _touch(self, tenant: TenantId, model: ModelName) -> TenantStats:
        """Returns the record of a tenant and marks it as most recently updated."""
        key = (tenant, model)
        habits = self._stats.get(key)
        if habits is None:
            if len(self._stats) >= TENANTS_MAX:
                self._stats.pop(next(iter(self._stats))).withdraw_votes()
            if (priors := self._priors.get(model)) is None:
                priors = self._priors[model] = Priors()
            habits = TenantStats(priors)
        elif habits is self._newest:
            return habits
        else:
            del self._stats[key]
        self._stats[key] = self._newest = habits
        return habits

    # Snapshot

    def lengths(self) -> tuple[LengthsCounter, ...]:
        """Returns the lengths of all tenants, ordered by last update. A tenant with only prompts has no buckets."""
        return tuple(
            LengthsCounter(tenant, model, habits.lengths.buckets()) for (tenant, model), habits in self._stats.items()
        )

    def prompts(self) -> tuple[PromptCounter, ...]:
        return tuple(
            PromptCounter(model, habits.bytes_counted, habits.tokens_counted, tenant)
            for (tenant, model), habits in self._stats.items()
            if habits.bytes_counted
        )

    def restore(self, lengths: Iterable[LengthsCounter], prompts: Iterable[PromptCounter]) -> None:
        """Restores the records.

        Skips the totals over all tenants that earlier versions stored under an empty tenant name.
        """
        for each in lengths:
            if each.tenant:
                self._touch(each.tenant, each.model).restore_lengths(each.buckets)
        for counter in prompts:
            if (habits := self._stats.get((counter.tenant, counter.model))) is not None:
                habits.restore_prompts(counter.prompt_bytes, counter.tokens)


def _prompt_tokens(ticket: Ticket, rate: int) -> int:
    return ticket.prompt_bytes * rate // MILLION or 1
