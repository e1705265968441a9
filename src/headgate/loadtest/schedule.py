"""When does each request go out, who sends it, and how large is it?

All of it is fixed before the first request is sent, so that a slow server cannot slow the arrivals down: a real crowd
does not wait for the previous answer before its next member asks. The same seed gives the same schedule.
"""

from array import array
from collections.abc import Iterable
from random import Random
from typing import Final

from headgate.loadtest.problem import Problem
from headgate.loadtest.senders import TOKENS_MAX, Roster
from headgate.simulation.workload.traces import Row

ARRIVALS_MAX: Final = 5_000_000
"""The longest schedule; it is held in memory at 24 bytes each."""


class Schedule:
    """Arrivals in the order of their moments, as columns."""

    def __init__(self, length_ns: int = 0, *, arrivals_max: int = ARRIVALS_MAX) -> None:
        self._arrivals_max = arrivals_max
        self.at_ns = array("q")
        """Since the start of the run."""
        self.prompt_tokens = array("l")
        self.output_tokens = array("l")
        self.sender = array("H")
        self.length_ns = length_ns
        """How long arrivals go on; rates are counted over it."""

    def __len__(self) -> int:
        return len(self.at_ns)

    def add(self, at_ns: int, *, prompt_tokens: int, output_tokens: int, sender: int) -> None:
        if len(self.at_ns) >= self._arrivals_max:
            raise Problem(
                f"the schedule has more than {self._arrivals_max} requests; use --limit or a shorter --duration"
            )
        self.at_ns.append(at_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        self.sender.append(sender)


def poisson(roster: Roster, *, rate: float, duration_s: float, seed: int, limit: int | None = None) -> Schedule:
    """Arrivals at random, `rate` a second on average, shared out between the senders."""
    # Each question of chance has its own sequence, so that another mix does not move the arrivals.
    when, who, size = (Random(f"{seed} {purpose}") for purpose in ("when", "who", "size"))
    schedule = Schedule(round(duration_s * 1e9))
    numbers, shares = range(len(roster.senders)), [sender.share for sender in roster.senders]
    at_s = when.expovariate(rate)
    while at_s < duration_s and (limit is None or len(schedule) < limit):
        [number] = who.choices(numbers, shares) if len(shares) > 1 else [0]
        sender = roster.senders[number]
        schedule.add(
            int(at_s * 1e9),
            prompt_tokens=sender.prompt.draw(size),
            output_tokens=sender.output.draw(size),
            sender=number,
        )
        at_s += when.expovariate(rate)
    if limit is not None and len(schedule) == limit:
        schedule.length_ns = min(schedule.length_ns, int(at_s * 1e9))
    return schedule


def from_trace(
    rows: Iterable[Row],
    roster: Roster,
    *,
    seed: int,
    speed_up: float = 1.0,
    jitter_s: float = 0.0,
    duration_s: float | None = None,
    limit: int | None = None,
) -> Schedule:
    """The trace's own moments and sizes, from its first row on. Rows that name no class or tenant are shared out.

    Some traces tell their moments on a coarse grid; jitter spreads each over up to so many seconds of the trace.
    """
    who, when = Random(f"{seed} who"), Random(f"{seed} when")
    given = len(roster.senders)
    shares = [sender.share for sender in roster.senders]
    moments = ((row.at_ns + (int(when.uniform(0, jitter_s * 1e9)) if jitter_s else 0), row) for row in rows)
    ordered = sorted(moments, key=lambda each: each[0])
    schedule = Schedule()
    for moment_ns, row in ordered[:limit]:
        at_ns = int((moment_ns - ordered[0][0]) / speed_up)
        if duration_s is not None and at_ns >= duration_s * 1e9:
            break
        if row.service_class is None and row.tenant is None:
            [number] = who.choices(range(given), shares)
        else:
            number = roster.named(row.service_class, row.tenant)
        schedule.add(
            at_ns,
            # A trace has a few rows without a prompt or an answer; no server takes such a request.
            prompt_tokens=min(max(row.prompt_tokens, 1), TOKENS_MAX),
            output_tokens=min(max(row.output_tokens, 1), TOKENS_MAX),
            sender=number,
        )
    if len(schedule) > 0:
        schedule.length_ns = schedule.at_ns[-1]
    return schedule
