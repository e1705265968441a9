"""How long will an answer be, and how many tokens has a prompt?

Nobody knows before an answer has ended, and the length of the prompt tells nothing about it. What tells is who asks:
lengths are remembered per tenant and model, in buckets a quarter apart, and forgotten slowly. A tenant of which little
is known is taken to be like all of them together, and all of them like a first guess.

Prompts come as bytes. How many bytes make a token is learned per model from what engines say.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from headgate.core.counters import LengthsCounter, PromptCounter
from headgate.model.ticket import WITHOUT_OUTPUT, Ticket
from headgate.model.units import BYTES_PER_TOKEN, ModelName, TenantId
from headgate.model.usage import Usage

_BOUNDS: Final = tuple(round(2 ** (step / 4)) for step in range(4, 69))
"""Upper bounds of the buckets, from 2 to 131,072 tokens: each is about a fifth above the last."""
_LAST: Final = len(_BOUNDS) - 1
_FORGET_AFTER: Final = 512
"""When so many lengths are remembered, half of them are forgotten."""
_TRUSTED_FROM: Final = 16
"""So many lengths make a tenant's own record better than everybody's."""
_RECKONED_EVERY: Final = 8
"""What follows from a record that is trusted is reckoned anew after so many more."""
TENANTS_MAX: Final = 10_000
"""Records of tenants; beyond them all are taken alike."""
MEAN_GUESS: Final = 150
NINETIETH_GUESS: Final = 400
_BYTES_REMEMBERED: Final = 100_000_000
_EVERYBODY: Final = TenantId("")


class Lengths:
    """How long the answers of one kind were."""

    __slots__ = ("_buckets", "_counts", "_known", "_sums", "total")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sums = [0] * len(_BOUNDS)
        self._known: tuple[int, int] | None = None
        self._buckets: tuple[tuple[int, int, int], ...] | None = None
        """As last told to a successor, as long as that is true: of many tenants few have learned since."""
        self.total = 0

    def learn(self, tokens: int) -> None:
        bucket = min(bisect_left(_BOUNDS, tokens), _LAST)
        self._counts[bucket] += 1
        self._sums[bucket] += tokens
        self.total += 1
        self._buckets = None
        if self.total <= _TRUSTED_FROM or self.total % _RECKONED_EVERY == 0:
            self._known = None
        if self.total >= _FORGET_AFTER:
            self._forget_half()

    def mean_and_ninetieth(self) -> tuple[int, int]:
        if self._known is None:
            self._known = (sum(self._sums) // self.total, self.quantile(90))
        return self._known

    def quantile(self, percent: int) -> int:
        """A length that so many percent of the answers did not exceed, rounded up to a bucket's bound."""
        wanted = -(-self.total * percent // 100)
        return _BOUNDS[bisect_left(tuple(accumulate(self._counts)), wanted)]

    def buckets(self) -> tuple[tuple[int, int, int], ...]:
        """Those that are not empty: number, answers, and their tokens together."""
        if self._buckets is None:
            counted = zip(self._counts, self._sums, strict=True)
            self._buckets = tuple((bucket, count, tokens) for bucket, (count, tokens) in enumerate(counted) if count)
        return self._buckets

    def restore(self, buckets: Iterable[tuple[int, int, int]]) -> None:
        for bucket, count, tokens in buckets:
            self._counts[bucket], self._sums[bucket] = count, tokens
            self.total += count

    def _forget_half(self) -> None:
        for bucket, count in enumerate(self._counts):
            kept = count // 2
            if count:
                self._sums[bucket] = self._sums[bucket] * kept // count
            self._counts[bucket] = kept
        self.total = sum(self._counts)


class Predictions:
    __slots__ = ("_all", "_bytes", "_of_tenant", "_tokens")

    def __init__(self) -> None:
        self._of_tenant: dict[tuple[TenantId, ModelName], Lengths] = {}
        self._all: dict[ModelName, Lengths] = {}
        self._bytes: dict[ModelName, int] = {}
        self._tokens: dict[ModelName, int] = {}

    def output_tokens(self, ticket: Ticket, model: ModelName) -> tuple[int, int]:
        """Of one answer: the mean, and what nine in ten do not exceed."""
        if ticket.api in WITHOUT_OUTPUT:
            return 0, 0
        lengths = self._of_tenant.get((ticket.tenant, model))
        if lengths is None or lengths.total < _TRUSTED_FROM:
            lengths = self._all.get(model)
        if lengths is None or lengths.total < _TRUSTED_FROM:
            return MEAN_GUESS, NINETIETH_GUESS
        return lengths.mean_and_ninetieth()

    def prompt_tokens(self, model: ModelName, prompt_bytes: int) -> int:
        tokens = self._tokens.get(model, 0)
        if not tokens:
            return max(1, prompt_bytes // BYTES_PER_TOKEN)
        return max(1, prompt_bytes * tokens // self._bytes[model])

    def learn(self, ticket: Ticket, model: ModelName, usage: Usage, *, answers: int) -> None:
        """What an engine says that a request has come to."""
        self.learn_prompt(model, prompt_bytes=ticket.prompt_bytes, tokens=usage.prompt_tokens)
        if ticket.api not in WITHOUT_OUTPUT:
            self.learn_output(ticket.tenant, model, usage.output_tokens // answers)

    def learn_output(self, tenant: TenantId, model: ModelName, tokens: int) -> None:
        if (everybody := self._all.get(model)) is None:
            everybody = self._all[model] = Lengths()
        everybody.learn(tokens)
        lengths = self._of_tenant.get((tenant, model))
        if lengths is None:
            if len(self._of_tenant) >= TENANTS_MAX:
                return
            lengths = self._of_tenant[tenant, model] = Lengths()
        lengths.learn(tokens)

    def learn_prompt(self, model: ModelName, *, prompt_bytes: int, tokens: int) -> None:
        """What an engine said of a prompt. Half of what is known is forgotten now and then."""
        if not prompt_bytes or not tokens:
            return
        self._bytes[model] = self._bytes.get(model, 0) + prompt_bytes
        self._tokens[model] = self._tokens.get(model, 0) + tokens
        if self._bytes[model] > _BYTES_REMEMBERED:
            self._bytes[model] //= 2
            self._tokens[model] //= 2

    # For a successor

    def lengths(self) -> tuple[LengthsCounter, ...]:
        everybody = tuple(LengthsCounter(_EVERYBODY, model, known.buckets()) for model, known in self._all.items())
        return everybody + tuple(
            LengthsCounter(tenant, model, known.buckets()) for (tenant, model), known in self._of_tenant.items()
        )

    def prompts(self) -> tuple[PromptCounter, ...]:
        return tuple(PromptCounter(model, count, self._tokens[model]) for model, count in self._bytes.items())

    def restore(self, lengths: Iterable[LengthsCounter], prompts: Iterable[PromptCounter]) -> None:
        for each in lengths:
            known = Lengths()
            known.restore(each.buckets)
            if each.tenant == _EVERYBODY:
                self._all[each.model] = known
            else:
                self._of_tenant[each.tenant, each.model] = known
        for each in prompts:
            self._bytes[each.model], self._tokens[each.model] = each.prompt_bytes, each.tokens
