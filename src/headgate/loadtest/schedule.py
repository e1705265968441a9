"""Load test schedule: the time, sender and size of each request.

The schedule is fixed before the first request is sent, so that a slow server cannot delay arrivals. Real users do not
wait for each other's responses either. The same seed gives the same schedule.
"""

from array import array
from collections.abc import Iterable
from random import Random
from typing import Final

from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.senders import TOKENS_MAX, SenderTable
from headgate.simulation.workload.trace_row import TraceRow

ARRIVALS_MAX: Final = 5_000_000
"""Maximum number of requests in a schedule. Each takes 24 bytes of memory."""


class Schedule:
    """Arrivals in chronological order, stored as columns."""

    def __init__(self, length_ns: int = 0, *, arrivals_max: int = ARRIVALS_MAX) -> None:
        self._arrivals_max = arrivals_max
        self.at_ns = array("q")
        """Arrival times, in nanoseconds since the start of the run."""
        self.prompt_tokens = array("l")
        self.output_tokens = array("l")
        self.sender = array("H")
        self.prefixes: dict[int, tuple[int, ...]] = {}
        """Names of the prompt's blocks, by request number. Only for requests that have any."""
        self.length_ns = length_ns
        """Time during which requests arrive, in nanoseconds. Request rates are relative to it."""

    def __len__(self) -> int:
        return len(self.at_ns)

    def add(
        self, at_ns: int, *, prompt_tokens: int, output_tokens: int, sender: int, prefix: tuple[int, ...] = ()
    ) -> None:
        if len(self.at_ns) >= self._arrivals_max:
            raise WorkloadError(
                f"the schedule has more than {self._arrivals_max} requests; use --limit or a shorter --duration"
            )
        if prefix:
            self.prefixes[len(self.at_ns)] = prefix
        self.at_ns.append(at_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        self.sender.append(sender)


def poisson(roster: SenderTable, *, rate: float, duration_s: float, seed: int, limit: int | None = None) -> Schedule:
    """Generates Poisson arrivals with an average of `rate` per second, distributed among the senders."""
    # Times, senders and sizes have separate random sequences, so that changing the mix does not change the times.
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
    rows: Iterable[TraceRow],
    roster: SenderTable,
    *,
    seed: int,
    speed_up: float = 1.0,
    jitter_s: float = 0.0,
    duration_s: float | None = None,
    limit: int | None = None,
) -> Schedule:
    """Builds a schedule with the arrival times and sizes of a trace, starting at its first row.

    Rows without a class and tenant are distributed among the senders. Some traces have coarse timestamps, so `jitter_s`
    delays each row by a random time of up to that many seconds in the trace.
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
        base = None
        if row.service_class is None and row.tenant is None:
            [base] = who.choices(range(given), shares)
        number = roster.index_for(row.service_class, row.tenant, model=row.model, stream=row.stream, base=base)
        schedule.add(
            at_ns,
            # Some traces have rows with no prompt or output tokens, which servers reject.
            prompt_tokens=min(max(row.prompt_tokens, 1), TOKENS_MAX),
            output_tokens=min(max(row.output_tokens, 1), TOKENS_MAX),
            sender=number,
            prefix=row.prefix,
        )
    if len(schedule) > 0:
        schedule.length_ns = schedule.at_ns[-1]
    return schedule
