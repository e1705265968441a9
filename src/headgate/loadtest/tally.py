"""What do many requests add up to?

Every latency is kept, eight bytes each, so percentiles are exact: the nearest rank, a value that did occur. Latencies
are those of completed requests; what was refused, broken off or abandoned is counted beside them, never mixed in.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate.loadtest.endings import Ending, Story

PERCENTILES: Final = (50, 90, 95, 99)
CODES_MAX: Final = 50
"""How many different codes are counted by name; a server could invent a new one each time."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What makes a completed request a good one; None asks nothing."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None

    def met_by(self, story: Story) -> bool:
        """What was not measured, as the first token of an answer that came whole, is not held against a request."""
        return (
            _within(story.ttft_ns, self.ttft_ns)
            and _within(story.tpot_ns, self.tpot_ns)
            and _within(story.e2e_ns, self.e2e_ns)
        )


def _within(value: int | None, target: int | None) -> bool:
    return value is None or target is None or value <= target


def _nanoseconds() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Tally:
    """The sum of some requests."""

    offered: int = 0
    endings: Counter[Ending] = field(default_factory=Counter[Ending])
    codes: dict[Ending, Counter[str]] = field(default_factory=dict[Ending, Counter[str]])
    good: int = 0
    retries: int = 0
    retried_for: Counter[str] = field(default_factory=Counter[str])
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Of all answers, also those that broke off."""
    tokens_untold: int = 0
    """How many answers came without the server's own count."""
    ttft_ns: "array[int]" = field(default_factory=_nanoseconds)
    tpot_ns: "array[int]" = field(default_factory=_nanoseconds)
    e2e_ns: "array[int]" = field(default_factory=_nanoseconds)

    def add(self, story: Story, targets: Targets) -> None:
        self.offered += 1
        self.endings[story.ending] += 1
        self.retries += story.retries
        self.prompt_tokens += story.prompt_tokens
        self.output_tokens += story.output_tokens
        for code in story.retried_for:
            _count(self.retried_for, code)
        if story.code:
            _count(self.codes.setdefault(story.ending, Counter()), story.code)
        if story.ending is Ending.COMPLETED:
            self._add_completed(story, targets)

    def _add_completed(self, story: Story, targets: Targets) -> None:
        self.good += targets.met_by(story)
        self.tokens_untold += not story.tokens_told
        self.e2e_ns.append(story.e2e_ns)
        if story.ttft_ns is not None:
            self.ttft_ns.append(story.ttft_ns)
        if story.tpot_ns is not None:
            self.tpot_ns.append(story.tpot_ns)


def _count(counter: Counter[str], code: str) -> None:
    counter[code if code in counter or len(counter) < CODES_MAX else "other"] += 1


def merge(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.offered += tally.offered
        total.endings.update(tally.endings)
        for ending, codes in tally.codes.items():
            total.codes.setdefault(ending, Counter()).update(codes)
        total.good += tally.good
        total.retries += tally.retries
        total.retried_for.update(tally.retried_for)
        total.prompt_tokens += tally.prompt_tokens
        total.output_tokens += tally.output_tokens
        total.tokens_untold += tally.tokens_untold
        total.ttft_ns.extend(tally.ttft_ns)
        total.tpot_ns.extend(tally.tpot_ns)
        total.e2e_ns.extend(tally.e2e_ns)
    return total


@dataclass(frozen=True, slots=True)
class Spread:
    """The percentiles of some durations, in nanoseconds."""

    count: int
    at: dict[int, int]
    """Percentile -> value."""
    most: int

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> "Spread | None":
        """None where there are none."""
        if not durations_ns:
            return None
        ordered = sorted(durations_ns)
        return cls(len(ordered), {each: percentile(ordered, each) for each in PERCENTILES}, ordered[-1])


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The least value that at least `percent` in a hundred do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]
