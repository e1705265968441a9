"""Totals over many requests.

A tally contains counters, and every latency at eight bytes each, so a million requests take about 30 MB. Requests,
tokens and engine-seconds are counted by result. Work on a request that was not good is wasted.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.outcome import Outcome
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.report.latency_summary import empty_durations
from headgate.simulation.report.request_result import RequestResult, result_of
from headgate.simulation.report.targets import meets_targets
from headgate.simulation.virtual.run_observer import RequestTrace


@dataclass(slots=True)
class RequestTally:
    """Totals over a set of requests."""

    requests: Counter[RequestResult] = field(default_factory=Counter[RequestResult])
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    failed_after_first_token: int = 0
    """Failed requests whose clients had already received part of the response. They are not retried."""
    retries: int = 0
    """Client tries beyond the first."""
    dispatched: int = 0
    """Requests that were sent to an endpoint at least once."""
    attempts: int = 0
    output_tokens: int = 0
    """Tokens that clients received."""
    tokens: Counter[RequestResult] = field(default_factory=Counter[RequestResult])
    """Prompt and output tokens computed by engines, by result."""
    engine_ps: Counter[RequestResult] = field(default_factory=Counter[RequestResult])
    tokens_served: int = 0
    """Prompt and output tokens of completed responses, including prompt tokens found in a prefix cache."""
    billed_nano_usd: Counter[RequestResult] = field(default_factory=Counter[RequestResult])
    """The scheduler's bills, by result."""
    ttft_ns: "array[int]" = field(default_factory=empty_durations)
    """TTFT of all requests that got a first token."""
    tpot_ns: "array[int]" = field(default_factory=empty_durations)
    """TPOT of completed responses with at least two tokens."""
    e2e_ns: "array[int]" = field(default_factory=empty_durations)
    """End-to-end latency of completed responses."""
    queue_wait_ns: "array[int]" = field(default_factory=empty_durations)
    """Queue wait of all requests that were sent to an endpoint."""

    def add(self, story: RequestTrace, callers: CallerBehaviour) -> RequestResult:
        outcome = story.outcome
        assert outcome is not None, f"request {story.number} was reported before it ended"
        in_time = self._measure(story, callers, completed=outcome is Outcome.COMPLETED)
        fate = result_of(outcome, in_time=in_time)
        self.requests[fate] += 1
        self.outcomes[outcome] += 1
        self.failed_after_first_token += fate is RequestResult.FAILED and story.first_token_at is not None
        self.retries += story.tries - 1
        self.attempts += story.attempts
        self.output_tokens += story.output_tokens
        self.tokens[fate] += story.prompt_tokens_computed + story.output_tokens_computed
        self.engine_ps[fate] += story.engine_ps
        self.billed_nano_usd[fate] += story.billed_nano_usd.total()
        if outcome is Outcome.COMPLETED:
            self.tokens_served += story.prompt_tokens + story.output_tokens
        return fate

    def _measure(self, story: RequestTrace, callers: CallerBehaviour, *, completed: bool) -> bool:
        """Records the latencies, measured from the first try, and returns whether all of them meet their
        targets.
        """
        ttft_ns = tpot_ns = None
        e2e_ns = story.ended_at - story.arrived_at
        if story.attempts:
            self.dispatched += 1
            self.queue_wait_ns.append(story.waited_ns)
        # The client of a non-streaming response does not see a first token.
        if callers.stream and story.first_token_at is not None:
            ttft_ns = story.first_token_at - story.arrived_at
            self.ttft_ns.append(ttft_ns)
            if completed and story.output_tokens > 1:
                tpot_ns = (story.ended_at - story.first_token_at) // (story.output_tokens - 1)
                self.tpot_ns.append(tpot_ns)
        if completed:
            self.e2e_ns.append(e2e_ns)
        return meets_targets(callers, ttft_ns=ttft_ns, tpot_ns=tpot_ns, e2e_ns=e2e_ns)

    @property
    def arrivals(self) -> int:
        return self.requests.total()

    @property
    def good(self) -> int:
        return self.requests[RequestResult.GOOD]

    @property
    def completed(self) -> int:
        return self.outcomes[Outcome.COMPLETED]

    @property
    def attainment(self) -> float | None:
        """Share of good requests among all arrivals."""
        return share(self.good, self.arrivals)

    @property
    def amplification(self) -> float | None:
        """Attempts per request, among requests that were sent to an endpoint."""
        return share(self.attempts, self.dispatched)

    @property
    def tokens_wasted(self) -> int:
        return self.tokens.total() - self.tokens[RequestResult.GOOD]

    @property
    def engine_ps_wasted(self) -> int:
        return self.engine_ps.total() - self.engine_ps[RequestResult.GOOD]

    @property
    def billed_nano_usd_wasted(self) -> int:
        return self.billed_nano_usd.total() - self.billed_nano_usd[RequestResult.GOOD]


def share(part: int, whole: int) -> float | None:
    """Returns `part` divided by `whole`. None if `whole` is zero."""
    return part / whole if whole else None


def merge(tallies: Iterable[RequestTally]) -> RequestTally:
    merged = RequestTally()
    for tally in tallies:
        merged.requests.update(tally.requests)
        merged.outcomes.update(tally.outcomes)
        merged.failed_after_first_token += tally.failed_after_first_token
        merged.retries += tally.retries
        merged.dispatched += tally.dispatched
        merged.attempts += tally.attempts
        merged.output_tokens += tally.output_tokens
        merged.tokens.update(tally.tokens)
        merged.engine_ps.update(tally.engine_ps)
        merged.tokens_served += tally.tokens_served
        merged.billed_nano_usd.update(tally.billed_nano_usd)
        merged.ttft_ns.extend(tally.ttft_ns)
        merged.tpot_ns.extend(tally.tpot_ns)
        merged.e2e_ns.extend(tally.e2e_ns)
        merged.queue_wait_ns.extend(tally.queue_wait_ns)
    return merged
