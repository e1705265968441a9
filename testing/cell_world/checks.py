"""Invariants of a cell that are checked throughout a simulated run.

1. Every request ends exactly once at its member, and no attempt starts after the end.
2. A member starts attempts only for the epoch it is following and only until the grant expires. An epoch makes grants
   only until its lease expires.
3. A new scheduler makes no decision until all members it knows have reported or the documented wait has passed.
4. One decider's attempts on an endpoint never exceed its own slots: all slots for a scheduler, a share for an island.
   All deciders' attempts together never exceed the formula in `docs/concepts/cell.md`.
5. The number of requests admitted for a rate-limited tenant stays within the formula in the same document.
6. No member applies a new policy before its scheduler does. The scheduler waits until all reachable members have read
   the policy or the documented wait has passed.
7. A member that shuts down gracefully loses no request.
8. No process gets a name that another process renews, no process is denied a name that no other process renews, and a
   starting process waits for its name for one lease at most. If a store that has lost the entry gives one name to two
   processes, one of the processes leaves (`member_names`, `duplicate_processes`).
9. After the last fault, every request ends, one scheduler remains, all members follow it and all apply the same policy.
   This requires a supervisor that restarts any process that exited because its name was taken (`duplicate_processes`).
"""

from dataclasses import dataclass, field

from headgate.model.units import Instant, RequestId

_SHOWN_MAX = 20


@dataclass(slots=True)
class RequestTrace:
    """History of one request."""

    member: str
    tenant: str
    opened: Instant
    sent: int = 0
    decided: Instant | None = None
    """Time at which the request was first sent to an engine, or ended without being sent."""
    ended: str | None = None
    lost: bool = False
    """Whether the gateway died before the request ended."""
    orphaned: bool = False
    """Whether the gateway died, before or after the request ended. No remaining process can report on the request."""


@dataclass(slots=True)
class Findings:
    """Results from a run."""

    violations: list[str] = field(default_factory=list)
    traces: dict[RequestId, RequestTrace] = field(default_factory=dict)
    islands: int = 0
    epochs: int = 0
    blank_epochs: int = 0
    """Number of schedulers that started without a snapshot although the cell had previously had a scheduler."""
    duplicates: int = 0
    """Number of times that two processes with the same name were in the cell at once."""
    worst_percent: int = 0
    """Highest slot usage on any endpoint, as a percentage of its slots."""
    worst_kv_percent: int = 0

    def violated(self, now: Instant, what: str) -> None:
        if len(self.violations) < _SHOWN_MAX:
            self.violations.append(f"at {now / 1e9:.6f} s: {what}")

    def opened(self, request_id: RequestId, story: RequestTrace) -> None:
        self.traces[request_id] = story

    def sent(self, request_id: RequestId, now: Instant) -> None:
        story = self.traces[request_id]
        story.sent += 1
        story.decided = story.decided or now
        if story.ended is not None:
            self.violated(now, f"{request_id} was started after it had ended ({story.ended})")

    def ended(self, request_id: RequestId, outcome: str, now: Instant) -> None:
        story = self.traces[request_id]
        if story.ended is not None:
            self.violated(now, f"{request_id} ended twice: {story.ended}, {outcome}")
        story.ended = outcome
        story.decided = story.decided or now
