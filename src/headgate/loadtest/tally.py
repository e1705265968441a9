"""Totals over many requests.

Latencies cover only completed requests. Failed, interrupted and abandoned requests are counted separately.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.simulation.report.latency_summary import empty_durations
from headgate.simulation.report.targets import LatencyTargets, meets_targets

CODES_MAX: Final = 50
"""Maximum number of codes counted separately, because a server could send a new one each time."""


@dataclass(frozen=True, slots=True)
class LoadTestTargets:
    """Latency targets that a request must meet to be good. None means no target."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None


@dataclass(slots=True)
class LoadTestTally:
    """Totals over a group of requests."""

    offered: int = 0
    outcomes: Counter[LoadTestOutcome] = field(default_factory=Counter[LoadTestOutcome])
    codes: dict[LoadTestOutcome, Counter[str]] = field(default_factory=dict[LoadTestOutcome, Counter[str]])
    good: int = 0
    retries: int = 0
    retried_for: Counter[str] = field(default_factory=Counter[str])
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Output tokens in all responses, including interrupted ones."""
    without_usage: int = 0
    """Number of completed responses for which the server did not report usage."""
    ttft_ns: "array[int]" = field(default_factory=empty_durations)
    tpot_ns: "array[int]" = field(default_factory=empty_durations)
    e2e_ns: "array[int]" = field(default_factory=empty_durations)

    def add(self, story: LoadTestRequest, targets: LatencyTargets) -> bool:
        """Counts a request. Returns whether it was good."""
        self.offered += 1
        self.outcomes[story.outcome] += 1
        self.retries += story.retries
        self.prompt_tokens += story.prompt_tokens
        self.output_tokens += story.output_tokens
        for code in story.retry_codes:
            _count(self.retried_for, code)
        if story.code:
            _count(self.codes.setdefault(story.outcome, Counter()), story.code)
        if story.outcome is not LoadTestOutcome.COMPLETED:
            return False
        self._add_completed(story)
        good = meets_targets(targets, ttft_ns=story.ttft_ns, tpot_ns=story.tpot_ns, e2e_ns=story.e2e_ns)
        self.good += good
        return good

    def _add_completed(self, story: LoadTestRequest) -> None:
        self.without_usage += not story.usage_reported
        self.e2e_ns.append(story.e2e_ns)
        if story.ttft_ns is not None:
            self.ttft_ns.append(story.ttft_ns)
        if story.tpot_ns is not None:
            self.tpot_ns.append(story.tpot_ns)


def _count(counter: Counter[str], code: str) -> None:
    counter[code if code in counter or len(counter) < CODES_MAX else "other"] += 1


def merge(tallies: Iterable[LoadTestTally]) -> LoadTestTally:
    total = LoadTestTally()
    for tally in tallies:
        total.offered += tally.offered
        total.outcomes.update(tally.outcomes)
        for ending, codes in tally.codes.items():
            total.codes.setdefault(ending, Counter()).update(codes)
        total.good += tally.good
        total.retries += tally.retries
        total.retried_for.update(tally.retried_for)
        total.prompt_tokens += tally.prompt_tokens
        total.output_tokens += tally.output_tokens
        total.without_usage += tally.without_usage
        total.ttft_ns.extend(tally.ttft_ns)
        total.tpot_ns.extend(tally.tpot_ns)
        total.e2e_ns.extend(tally.e2e_ns)
    return total
