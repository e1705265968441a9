"""What did a kill cost those whose gateway lived?

A call counts for the kill after which it ended. One that was sent to a process which died is that process's own, and
counts for nothing; every other must end whole.

- *lost*: sent whole to a gateway that lived, and got no answer, a broken one, or one that is no refusal by the policy.
- *severed*: of those, the streams that had begun.
- *readmit_s*: how long a gateway that lived began nothing, beyond what is usual there: the longest time between two
  first bytes from the kill until all was settled, less the median of the seconds before. The worst gateway counts.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from bench.kill_cell.record import Ending, Record

BY_THE_POLICY = frozenset({"queue_full", "rate_limited", "over_budget", "shed", "expired", "too_late", "evicted"})
"""What a scheduler that is well may answer to more work than it can take. A load below that should see none of it."""
USUAL_S = 8.0
"""How long before a kill is looked at for what is usual."""
RACE_S = 0.1
"""Between the moment that was noted for a kill and the one at which a caller saw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    kind: str
    at_s: float
    settled_s: float
    """When everybody followed one scheduler again."""
    until_s: float
    """A while later: so long it is looked at."""
    victims: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Gateways that were killed: from when on, and when another process was ready in their place."""
    away: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Gateways that left by themselves, from when until when: what they do not begin meanwhile others do."""
    islands: int = 0
    """Gateways that were seen deciding by themselves."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kill did."""

    kill: Kill
    calls: int
    own: int
    """Of the killed process itself."""
    lost: tuple[Record, ...]
    severed: tuple[Record, ...]
    refused: tuple[Record, ...]
    foreign: tuple[Record, ...]
    """Of the refused, those that are not by the policy."""
    told_to_go: int
    readmit_s: float
    wait_s_worst: float
    """The longest that a caller of a living gateway waited for its first byte."""
    silence_s_worst: float
    """The longest pause in a stream of a living gateway."""


def costs_of(kills: Sequence[Kill], records: Sequence[Record]) -> list[Cost]:
    starts = [kill.at_s for kill in kills]
    of: list[list[Record]] = [[] for _ in kills]
    for record in records:
        if (number := bisect_right(starts, record.end_s + RACE_S) - 1) >= 0:
            of[number].append(record)
    return [_cost(kill, mine, records) for kill, mine in zip(kills, of, strict=True)]


def _cost(kill: Kill, mine: Sequence[Record], records: Sequence[Record]) -> Cost:
    own = [each for each in mine if is_own(kill, each)]
    others = [each for each in mine if not is_own(kill, each)]
    refused = [each for each in others if each.ending is Ending.REFUSED]
    foreign = [each for each in refused if each.outcome not in BY_THE_POLICY]
    severed = [each for each in others if each.ending is Ending.SEVERED]
    lost = [*foreign, *severed, *(each for each in others if each.ending is Ending.UNANSWERED)]
    return Cost(
        kill,
        len(mine),
        len(own),
        tuple(lost),
        tuple(severed),
        tuple(refused),
        tuple(foreign),
        sum(each.ending is Ending.TOLD_TO_GO for each in mine),
        readmit_s(kill, records),
        max((each.first_s - each.sent_s for each in others if each.first_s is not None), default=0.0),
        max((each.silence_s_max for each in others), default=0.0),
    )


def is_own(kill: Kill, record: Record) -> bool:
    dead = kill.victims.get(record.gateway)
    return dead is not None and record.sent_s < dead[1] and record.end_s > dead[0] - RACE_S


def readmit_s(kill: Kill, records: Iterable[Record]) -> float:
    begun: dict[int, list[float]] = {}
    for each in records:
        if each.streamed and each.status == 200 and each.first_s is not None and each.gateway not in kill.victims:
            begun.setdefault(each.gateway, []).append(each.first_s)
    longest = (_longest_gap_s(kill, sorted(moments), kill.away.get(number)) for number, moments in begun.items())
    return max(longest, default=0.0)


def _longest_gap_s(kill: Kill, moments: Sequence[float], away: tuple[float, float] | None) -> float:
    until_s = kill.until_s
    before = [each for each in moments if kill.at_s - USUAL_S <= each < kill.at_s]
    after = [each for each in moments if kill.at_s <= each <= until_s]
    usual_s = median(_gaps(before)) if len(before) > 2 else 0.0
    around = pairwise([*before[-1:], *after, until_s])
    gaps = [later - earlier for earlier, later in around if away is None or later <= away[0] or earlier >= away[1]]
    return max(0.0, max(gaps, default=0.0) - usual_s)


def _gaps(moments: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(moments)]


# Of all kills of one kind


@dataclass(frozen=True, slots=True)
class Summary:
    kills: int
    calls: int
    own: int
    lost: int
    severed: int
    refused: dict[str, int]
    foreign: int
    told_to_go: int
    islands: int
    readmit_s_p50: float
    readmit_s_worst: float
    wait_s_worst: float
    silence_s_worst: float


def summary_of(costs: Sequence[Cost]) -> Summary:
    refused = Counter(each.outcome or f"status {each.status}" for cost in costs for each in cost.refused)
    return Summary(
        kills=len(costs),
        calls=sum(cost.calls for cost in costs),
        own=sum(cost.own for cost in costs),
        lost=sum(len(cost.lost) for cost in costs),
        severed=sum(len(cost.severed) for cost in costs),
        refused=dict(refused),
        foreign=sum(len(cost.foreign) for cost in costs),
        told_to_go=sum(cost.told_to_go for cost in costs),
        islands=sum(cost.kill.islands for cost in costs),
        readmit_s_p50=round(median(cost.readmit_s for cost in costs), 3) if costs else 0.0,
        readmit_s_worst=round(max((cost.readmit_s for cost in costs), default=0.0), 3),
        wait_s_worst=round(max((cost.wait_s_worst for cost in costs), default=0.0), 3),
        silence_s_worst=round(max((cost.silence_s_worst for cost in costs), default=0.0), 3),
    )


def mixed(records: Iterable[Record]) -> list[Record]:
    """Answers in which one thing is of one configuration and another of the other; each has a colour of its own."""
    return [each for each in records if each.status == 200 and each.engine and each.engine != each.service_class]
