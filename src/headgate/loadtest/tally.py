"""What do many requests add up to?

Latencies are those of completed requests; what was refused, broken off or abandoned is counted beside them, never mixed
in.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headgate.loadtest.endings import Ending, Story
from headgate.simulation.report.spread import nanoseconds
from headgate.simulation.report.targets import met

CODES_MAX: Final = 50
"""How many different codes are counted by name; a server could invent a new one each time."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What makes a completed request a good one; None asks nothing."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None


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
    ttft_ns: "array[int]" = field(default_factory=nanoseconds)
    tpot_ns: "array[int]" = field(default_factory=nanoseconds)
    e2e_ns: "array[int]" = field(default_factory=nanoseconds)

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
        self.good += met(targets, ttft_ns=story.ttft_ns, tpot_ns=story.tpot_ns, e2e_ns=story.e2e_ns)
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
