"""How long will an answer be, and how many tokens has a prompt?

Neither is known before an answer has ended. Both depend on the caller: lengths of answers and tokens per byte of
prompts are remembered per tenant and model (`Habits`), bounded in number, and forgotten slowly. Once a tenant has sent
enough requests, only its own record counts.

A tenant with few requests is judged by a prior that all tenants share. No tenant, and no wrong report of an engine, may
move the estimates of others by more than a tenth. So the prior is a mean in which each tenant has one vote, clipped to
a range around the first guess, beside `GUESS_VOTES` votes for the guess itself. A median would not do: it jumps by any
distance when one side of a gap gains a vote.

The effect of a single report on the tenant's own record is bounded as well: reports beyond a multiple of the present
estimate count as that multiple, and impossible reports (`impossible`) are ignored.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from headgate.core.counters import MILLION, LengthsCounter, PromptCounter
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import BYTES_PER_TOKEN, ModelName, TenantId
from headgate.model.usage import Usage, impossible

LENGTH_BOUNDS: Final = tuple(round(2 ** (step / 4)) for step in range(4, 69))
"""Upper bounds of the buckets, from 2 to 131,072 tokens: each is about a fifth above the last."""
_LAST: Final = len(LENGTH_BOUNDS) - 1
LENGTH_BUCKETS: Final = len(LENGTH_BOUNDS)
_FORGET_AFTER: Final = 512
"""When so many lengths are remembered, half of them are forgotten."""
TRUSTED_FROM: Final = 16
"""The number of reports from which a tenant's own record counts alone."""
TENANTS_MAX: Final = 10_000
"""The largest number of tenant records; beyond it, the record that was updated longest ago is dropped."""
MEAN_GUESS: Final = 150
NINETIETH_GUESS: Final = 400
_LENGTH_TIMES_MAX: Final = 16
"""A longer answer counts as this multiple of the present 90th percentile."""

RATE_GUESS: Final = MILLION // BYTES_PER_TOKEN
"""Tokens per byte of a prompt, in millionths, as are all rates."""
_RATE_MIN: Final = MILLION // 64
RATE_MAX: Final = 2 * MILLION
_RATE_TIMES_MAX: Final = 2
"""A rate further from the present estimate than by this factor, up or down, counts as that multiple or fraction."""
_BYTES_COUNTED_MAX: Final = 65_536
"""A longer prompt weighs no more than one with this many bytes."""
_BYTES_REMEMBERED: Final = 1_000_000
_BYTES_TRUSTED: Final = 2_048
"""The weight of the prior, in bytes of the tenant's own prompts."""

GUESS_VOTES: Final = 48
"""The number of tenant votes that the first guess counts as in a prior."""
VOTE_TIMES_MAX: Final = 4
"""A tenant's vote differs from the first guess by at most this factor."""


class Prior:
    """The mean of the tenants' votes, each clipped to a range around the guess."""

    __slots__ = ("_guess", "_least", "_most", "_sum", "_votes")

    def __init__(self, guess: int) -> None:
        self._guess = guess
        self._least, self._most = guess // VOTE_TIMES_MAX, guess * VOTE_TIMES_MAX
        self._sum = guess * GUESS_VOTES
        self._votes = GUESS_VOTES

    @property
    def value(self) -> int:
        return self._sum // self._votes

    def change(self, old: int | None, new: int | None) -> int | None:
        """Replaces a vote and returns the vote that counts. None is no vote."""
        if new is not None:
            new = min(self._most, max(self._least, new))
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
    """The estimates for an unknown tenant, for one model."""

    __slots__ = ("mean", "most", "rate")

    def __init__(self) -> None:
        self.mean, self.most, self.rate = Prior(MEAN_GUESS), Prior(NINETIETH_GUESS), Prior(RATE_GUESS)


class Lengths:
    """How long the answers of one kind were."""

    __slots__ = ("_buckets", "_counts", "_known", "_sums", "_tokens", "total")

    def __init__(self) -> None:
        self._counts = [0] * len(LENGTH_BOUNDS)
        self._sums = [0] * len(LENGTH_BOUNDS)
        self._tokens = 0
        """All sums together."""
        self._known: tuple[int, int] | None = None
        self._buckets: tuple[tuple[int, int, int], ...] | None = None
        """As last told to a successor, as long as that is true: of many tenants few have learned since."""
        self.total = 0

    def learn(self, tokens: int) -> None:
        tokens = min(tokens, self._counted_max())
        bucket = min(bisect_left(LENGTH_BOUNDS, tokens), _LAST)
        self._counts[bucket] += 1
        self._sums[bucket] += tokens
        self._tokens += tokens
        self.total += 1
        self._buckets = self._known = None
        if self.total >= _FORGET_AFTER:
            self._forget_half()

    def _counted_max(self) -> int:
        most = self.mean_and_ninetieth()[1] if self.total >= TRUSTED_FROM else NINETIETH_GUESS
        return min(LENGTH_BOUNDS[_LAST], _LENGTH_TIMES_MAX * most)

    def mean_and_ninetieth(self) -> tuple[int, int]:
        if self._known is None:
            mean = min(LENGTH_BOUNDS[_LAST], self._tokens // self.total)
            self._known = (mean, self.quantile(90))
        return self._known

    def quantile(self, percent: int) -> int:
        """A length that so many percent of the answers did not exceed, rounded up to a bucket's bound."""
        wanted = -(-self.total * percent // 100)
        return LENGTH_BOUNDS[bisect_left(tuple(accumulate(self._counts)), wanted)]

    def buckets(self) -> tuple[tuple[int, int, int], ...]:
        """Those that are not empty: number, answers, and their tokens together."""
        if self._buckets is None:
            counted = zip(self._counts, self._sums, strict=True)
            self._buckets = tuple((bucket, count, tokens) for bucket, (count, tokens) in enumerate(counted) if count)
        return self._buckets

    def restore(self, buckets: Iterable[tuple[int, int, int]]) -> None:
        """Replaces the recorded lengths."""
        self._counts, self._sums = [0] * LENGTH_BUCKETS, [0] * LENGTH_BUCKETS
        for bucket, count, tokens in buckets:
            self._counts[bucket], self._sums[bucket] = count, tokens
        self.total, self._tokens = sum(self._counts), sum(self._sums)
        self._buckets = self._known = None

    def _forget_half(self) -> None:
        for bucket, count in enumerate(self._counts):
            kept = count // 2
            if count:
                self._sums[bucket] = self._sums[bucket] * kept // count
            self._counts[bucket] = kept
        self.total, self._tokens = sum(self._counts), sum(self._sums)


class Habits:
    """The recorded requests of one tenant to one model.

    All estimates follow from the length buckets and two sums, so a successor that receives these continues with the
    same estimates.
    """

    __slots__ = ("_mean_vote", "_most_vote", "_priors", "_rate_vote", "bytes_counted", "lengths", "tokens_counted")

    def __init__(self, priors: Priors) -> None:
        self._priors = priors
        self.lengths = Lengths()
        self.bytes_counted = self.tokens_counted = 0
        """Totals over the remembered prompts; tokens in millionths."""
        self._mean_vote: int | None = None
        self._most_vote: int | None = None
        self._rate_vote: int | None = None

    # Estimates

    @property
    def rate(self) -> int:
        """Tokens per byte of its prompts, clamped to the valid range even if a predecessor sent other values."""
        tokens = self.tokens_counted + _BYTES_TRUSTED * self._priors.rate.value
        return min(RATE_MAX, max(_RATE_MIN, tokens // (self.bytes_counted + _BYTES_TRUSTED)))

    def output_tokens(self) -> tuple[int, int]:
        """The mean and the 90th percentile of one answer."""
        if self.lengths.total >= TRUSTED_FROM:
            return self.lengths.mean_and_ninetieth()
        return self._priors.mean.value, self._priors.most.value

    # Learning

    def learn_output(self, tokens: int) -> None:
        self.lengths.learn(tokens)
        self._vote_lengths()

    def learn_prompt(self, prompt_bytes: int, tokens: int) -> None:
        """Adds a prompt. Half of the record is forgotten from time to time."""
        counted, rate = min(prompt_bytes, _BYTES_COUNTED_MAX), self.rate
        told = tokens * MILLION // prompt_bytes
        believed = min(RATE_MAX, _RATE_TIMES_MAX * rate, max(_RATE_MIN, rate // _RATE_TIMES_MAX, told))
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
        if self.lengths.total >= TRUSTED_FROM:
            mean, most = self.lengths.mean_and_ninetieth()
            self._mean_vote = self._priors.mean.change(self._mean_vote, mean)
            self._most_vote = self._priors.most.change(self._most_vote, most)

    def _vote_rate(self) -> None:
        if self.bytes_counted >= _BYTES_TRUSTED:
            own = self.tokens_counted // self.bytes_counted
            self._rate_vote = self._priors.rate.change(self._rate_vote, own)

    def withdraw(self) -> None:
        """Withdraws its votes, because its record is dropped."""
        self._priors.mean.change(self._mean_vote, None)
        self._priors.most.change(self._most_vote, None)
        self._priors.rate.change(self._rate_vote, None)


class Predictions:
    __slots__ = ("_habits", "_priors")

    def __init__(self) -> None:
        self._habits: dict[tuple[TenantId, ModelName], Habits] = {}
        """In the order of their last update, the latest last."""
        self._priors: dict[ModelName, Priors] = {}

    def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
        """Of one answer: the mean, and what nine in ten do not exceed."""
        if ticket.api in WITHOUT_OUTPUT:
            return 0, 0
        if (habits := self._habits.get((ticket.tenant, model))) is not None:
            return habits.output_tokens()
        if (priors := self._priors.get(model)) is not None:
            return priors.mean.value, priors.most.value
        return MEAN_GUESS, NINETIETH_GUESS

    def prompt_tokens(self, ticket: Ticket, model: ModelName) -> int:
        habits = self._habits.get((ticket.tenant, model))
        return _prompt_tokens(ticket, self._shared_rate(model) if habits is None else habits.rate)

    def prompt_tokens_of_leaver(self, ticket: Ticket, model: ModelName) -> int:
        """Tokens charged for a prompt if its caller leaves before the engine has counted them.

        The rate is the larger of the tenant's own and the shared one. A tenant can teach its own rate with prompts that
        have few tokens per byte, and then leave prompts that have many; no single tenant moves the shared rate by much.
        """
        return max(self.prompt_tokens(ticket, model), _prompt_tokens(ticket, self._shared_rate(model)))

    def _shared_rate(self, model: ModelName) -> int:
        priors = self._priors.get(model)
        return RATE_GUESS if priors is None else priors.rate.value

    def learn(self, ticket: Ticket, model: ModelName, usage: Usage, *, answers: int, output_most: int | None) -> None:
        """Learns from the usage that an engine reported. `output_most` is the limit of each answer."""
        if impossible(usage, ticket, answers=answers, output_most=output_most) is not None:
            return
        habits = self._latest(ticket.tenant, model)
        if ticket.prompt_bytes and usage.prompt_tokens:
            habits.learn_prompt(ticket.prompt_bytes, usage.prompt_tokens)
        if ticket.api not in WITHOUT_OUTPUT:
            habits.learn_output(usage.output_tokens // answers)

    def _latest(self, tenant: TenantId, model: ModelName) -> Habits:
        """The record of a tenant, moved to the end of the update order."""
        habits = self._habits.pop((tenant, model), None)
        if habits is None:
            if len(self._habits) >= TENANTS_MAX:
                self._habits.pop(next(iter(self._habits))).withdraw()
            if (priors := self._priors.get(model)) is None:
                priors = self._priors[model] = Priors()
            habits = Habits(priors)
        self._habits[tenant, model] = habits
        return habits

    # For a successor

    def lengths(self) -> tuple[LengthsCounter, ...]:
        """The lengths of all tenants in update order, including those with known prompts only."""
        return tuple(
            LengthsCounter(tenant, model, habits.lengths.buckets()) for (tenant, model), habits in self._habits.items()
        )

    def prompts(self) -> tuple[PromptCounter, ...]:
        return tuple(
            PromptCounter(model, habits.bytes_counted, habits.tokens_counted, tenant)
            for (tenant, model), habits in self._habits.items()
            if habits.bytes_counted
        )

    def restore(self, lengths: Iterable[LengthsCounter], prompts: Iterable[PromptCounter]) -> None:
        """Restores the records. Skips totals over all tenants, which earlier versions sent under an empty name."""
        for each in lengths:
            if each.tenant:
                self._latest(each.tenant, each.model).restore_lengths(each.buckets)
        for each in prompts:
            if (habits := self._habits.get((each.tenant, each.model))) is not None:
                habits.restore_prompts(each.prompt_bytes, each.tokens)


def _prompt_tokens(ticket: Ticket, rate: int) -> int:
    return max(1, ticket.prompt_bytes * rate // MILLION)
