"""What a kill costs the clients of surviving gateways.

A call belongs to the last kill before it ended. Calls sent to the killed process itself are counted separately. Every
other call must complete.

- *lost*: sent completely to a surviving gateway, and got no response, a truncated one, or a rejection not caused by the
  policy.
- *severed*: lost streams that had started.
- *readmit_s*: longest time for which a surviving gateway started no response, beyond what is usual there. It is the
  longest time between two first bytes, from the kill until the cell settled, minus the median in the seconds before.
  The worst gateway counts.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from bench.kill_cell.record import Ending, Record

POLICY_REJECTIONS = frozenset(
    {"queue_full", "rate_limited", "budget_exceeded", "shed", "queue_timeout", "deadline_exceeded", "evicted"}
)
"""Outcomes with which a healthy scheduler may reject work under overload. A load below capacity should not produce any.
"""
USUAL_S = 8.0
"""Length in seconds of the period before a kill used to compute the usual gap."""
RACE_S = 0.1
"""Tolerance in seconds between the recorded time of a kill and the time at which a client noticed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    kind: str
    at_s: float
    settled_s: float
    """Time at which all parts followed one scheduler again."""
    until_s: float
    """End of the observation, some time after the cell settled."""
    victims: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Killed gateways, each with the time of the kill and the time at which its replacement was ready."""
    away: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """Gateways that were stopped gracefully, with the start and end of the stop. Other gateways take their calls in the
    meantime.
    """
    islands: int = 0
    """Number of gateways that became islands."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class KillImpact:
    """Effects of one kill."""

    kill: Kill
    calls: int
    of_victim: int
    """Calls to the killed process itself."""
    lost: tuple[Record, ...]
    severed: tuple[Record, ...]
    rejected: tuple[Record, ...]
    rejected_unexpectedly: tuple[Record, ...]
    """Calls rejected for a reason other than the policy."""
    redirected: int
    readmit_s: float
    wait_s_worst: float
    """Longest time a client of a surviving gateway waited for the first byte."""
    silence_s_worst: float
    """Longest gap in a stream from a surviving gateway."""


def impacts_of(kills: Sequence[Kill], records: Sequence[Record]) -> list[KillImpact]:
    starts = [kill.at_s for kill in kills]
    of: list[list[Record]] = [[] for _ in kills]
    for record in records:
        if (number := bisect_right(starts, record.end_s + RACE_S) - 1) >= 0:
            of[number].append(record)
    return [_impact(kill, mine, records) for kill, mine in zip(kills, of, strict=True)]


def _impact(kill: Kill, mine: Sequence[Record], records: Sequence[Record]) -> KillImpact:
    own = [each for each in mine if is_of_victim(kill, each)]
    others = [each for each in mine if not is_of_victim(kill, each)]
    refused = [each for each in others if each.ending is Ending.REJECTED]
    foreign = [each for each in refused if each.outcome not in POLICY_REJECTIONS]
    severed = [each for each in others if each.ending is Ending.SEVERED]
    lost = [*foreign, *severed, *(each for each in others if each.ending is Ending.UNANSWERED)]
    return KillImpact(
        kill,
        len(mine),
        len(own),
        tuple(lost),
        tuple(severed),
        tuple(refused),
        tuple(foreign),
        sum(each.ending is Ending.REDIRECTED for each in mine),
        readmit_s(kill, records),
        max((each.first_s - each.sent_s for each in others if each.first_s is not None), default=0.0),
        max((each.silence_s_max for each in others), default=0.0),
    )


def is_of_victim(kill: Kill, record: Record) -> bool:
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


# Summary of one kind


@dataclass(frozen=True, slots=True)
class Summary:
    kills: int
    calls: int
    of_victim: int
    lost: int
    severed: int
    rejected: dict[str, int]
    rejected_unexpectedly: int
    redirected: int
    islands: int
    readmit_s_p50: float
    readmit_s_worst: float
    wait_s_worst: float
    silence_s_worst: float


def summary_of(costs: Sequence[KillImpact]) -> Summary:
    refused = Counter(each.outcome or f"status {each.status}" for cost in costs for each in cost.rejected)
    return Summary(
        kills=len(costs),
        calls=sum(cost.calls for cost in costs),
        of_victim=sum(cost.of_victim for cost in costs),
        lost=sum(len(cost.lost) for cost in costs),
        severed=sum(len(cost.severed) for cost in costs),
        rejected=dict(refused),
        rejected_unexpectedly=sum(len(cost.rejected_unexpectedly) for cost in costs),
        redirected=sum(cost.redirected for cost in costs),
        islands=sum(cost.kill.islands for cost in costs),
        readmit_s_p50=round(median(cost.readmit_s for cost in costs), 3) if costs else 0.0,
        readmit_s_worst=round(max((cost.readmit_s for cost in costs), default=0.0), 3),
        wait_s_worst=round(max((cost.wait_s_worst for cost in costs), default=0.0), 3),
        silence_s_worst=round(max((cost.silence_s_worst for cost in costs), default=0.0), 3),
    )


def mixed_config_records(records: Iterable[Record]) -> list[Record]:
    """Return responses that mix both configurations. Within a configuration, engine and class share a name."""
    return [each for each in records if each.status == 200 and each.engine and each.engine != each.service_class]
