"""What do many requests add up to?

Counts, and every latency, eight bytes each: a million requests take some 30 MB. Requests are counted by their fate, and
so are the tokens and the engine-seconds that they cost: what was computed for a request that was not good is wasted.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.outcome import Outcome
from headgate.simulation.report.fate import Fate, fate_of
from headgate.simulation.report.spread import nanoseconds
from headgate.simulation.report.targets import met
from headgate.simulation.virtual.scenario import Callers
from headgate.simulation.virtual.story import Story


@dataclass(slots=True)
class Tally:
    """The sum of some requests."""

    requests: Counter[Fate] = field(default_factory=Counter[Fate])
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    failed_after_first_token: int = 0
    """Nobody tries these again: part of the answer is with the caller."""
    retries: int = 0
    """Tries of callers beyond the first."""
    sent: int = 0
    """Requests that were sent to an endpoint at least once."""
    attempts: int = 0
    output_tokens: int = 0
    """What callers got."""
    tokens: Counter[Fate] = field(default_factory=Counter[Fate])
    """What engines computed, of prompts and answers."""
    engine_ps: Counter[Fate] = field(default_factory=Counter[Fate])
    ttft_ns: "array[int]" = field(default_factory=nanoseconds)
    """Of all that got a first token."""
    tpot_ns: "array[int]" = field(default_factory=nanoseconds)
    """Of completed answers of two tokens or more."""
    e2e_ns: "array[int]" = field(default_factory=nanoseconds)
    """Of completed answers."""
    queue_wait_ns: "array[int]" = field(default_factory=nanoseconds)
    """Of all that were sent to an endpoint."""

    def add(self, story: Story, callers: Callers) -> Fate:
        outcome = story.outcome
        assert outcome is not None, f"request {story.number} was told before its end"
        in_time = self._measure(story, callers, completed=outcome is Outcome.COMPLETED)
        fate = fate_of(outcome, in_time=in_time)
        self.requests[fate] += 1
        self.outcomes[outcome] += 1
        self.failed_after_first_token += fate is Fate.FAILED and story.first_token_at is not None
        self.retries += story.tries - 1
        self.attempts += story.attempts
        self.output_tokens += story.output_tokens
        self.tokens[fate] += story.prompt_tokens_computed + story.output_tokens_computed
        self.engine_ps[fate] += story.engine_ps
        return fate

    def _measure(self, story: Story, callers: Callers, *, completed: bool) -> bool:
        """Note the latencies; whether all of them are within the targets. Times count from the first try."""
        ttft_ns = tpot_ns = None
        e2e_ns = story.ended_at - story.arrived_at
        if story.attempts:
            self.sent += 1
            self.queue_wait_ns.append(story.waited_ns)
        # Of an answer that comes whole, the caller sees no first token.
        if callers.stream and story.first_token_at is not None:
            ttft_ns = story.first_token_at - story.arrived_at
            self.ttft_ns.append(ttft_ns)
            if completed and story.output_tokens > 1:
                tpot_ns = (story.ended_at - story.first_token_at) // (story.output_tokens - 1)
                self.tpot_ns.append(tpot_ns)
        if completed:
            self.e2e_ns.append(e2e_ns)
        return met(callers, ttft_ns=ttft_ns, tpot_ns=tpot_ns, e2e_ns=e2e_ns)

    @property
    def arrivals(self) -> int:
        return self.requests.total()

    @property
    def good(self) -> int:
        return self.requests[Fate.GOOD]

    @property
    def completed(self) -> int:
        return self.outcomes[Outcome.COMPLETED]

    @property
    def attainment(self) -> float | None:
        """The share of all arrivals that was good."""
        return share(self.good, self.arrivals)

    @property
    def amplification(self) -> float | None:
        """How many attempts a request took that was sent to an endpoint."""
        return share(self.attempts, self.sent)

    @property
    def tokens_wasted(self) -> int:
        return self.tokens.total() - self.tokens[Fate.GOOD]

    @property
    def engine_ps_wasted(self) -> int:
        return self.engine_ps.total() - self.engine_ps[Fate.GOOD]


def share(part: int, whole: int) -> float | None:
    """None where there is nothing to have a share of."""
    return part / whole if whole else None


def merge(tallies: Iterable[Tally]) -> Tally:
    merged = Tally()
    for tally in tallies:
        merged.requests.update(tally.requests)
        merged.outcomes.update(tally.outcomes)
        merged.failed_after_first_token += tally.failed_after_first_token
        merged.retries += tally.retries
        merged.sent += tally.sent
        merged.attempts += tally.attempts
        merged.output_tokens += tally.output_tokens
        merged.tokens.update(tally.tokens)
        merged.engine_ps.update(tally.engine_ps)
        merged.ttft_ns.extend(tally.ttft_ns)
        merged.tpot_ns.extend(tally.tpot_ns)
        merged.e2e_ns.extend(tally.e2e_ns)
        merged.queue_wait_ns.extend(tally.queue_wait_ns)
    return merged
