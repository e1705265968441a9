"""Which promises of a cell are looked at, all along a run?

1. Every request ends exactly once at its member, and nothing is begun after its end.
2. Nothing is begun by an epoch that the member no longer follows, nor later than its grant allows, nor granted after
   the granting epoch's lease was over.
3. A new scheduler decides nothing before all whom it knows of have reported, or it has waited for as long as is stated.
4. What one decider has at an endpoint never exceeds what is its own: the endpoint's places for a scheduler, a share of
   them for an island. What all have together never exceeds the formula of `docs/concepts/cell.md`.
5. What is admitted of a limited tenant stays within the formula there.
6. No member goes by new rules before the scheduler that it follows does, and that one waits until all who answer have
   read them, or for as long as is stated.
7. Who leaves in peace loses nothing.
8. No process gets a name that another process renews, no process is denied a name that no other process renews, and a
   starting process waits for its name for one lease at most. If a store that lost the entry gives one name to two
   processes, one of them leaves (`names`, `doubles`).
9. When the faults are over everything ends, one scheduler is left, all follow it, and all go by the same rules. This
   requires a supervisor: a process that exits because another one had its name is restarted (`doubles`).
"""

from dataclasses import dataclass, field

from headgate.model.units import Instant, RequestId

_SHOWN_MAX = 20


@dataclass(slots=True)
class Story:
    """What became of one request."""

    member: str
    tenant: str
    opened: Instant
    sent: int = 0
    decided: Instant | None = None
    """When it was sent for the first time, or ended."""
    ended: str | None = None
    lost: bool = False
    """Its gateway died before it had ended."""
    orphaned: bool = False
    """Its gateway died, be it after its end: nobody can tell of it any more."""


@dataclass(slots=True)
class Findings:
    """What a run has shown."""

    violations: list[str] = field(default_factory=list)
    stories: dict[RequestId, Story] = field(default_factory=dict)
    islands: int = 0
    epochs: int = 0
    blank_epochs: int = 0
    """Schedulers that began without a snapshot, though another had been before."""
    twins: int = 0
    """Number of times that two processes with one name were in the cell at once."""
    worst_percent: int = 0
    """Of an endpoint's places, the most that were taken at once."""
    worst_kv_percent: int = 0

    def violated(self, now: Instant, what: str) -> None:
        if len(self.violations) < _SHOWN_MAX:
            self.violations.append(f"at {now / 1e9:.6f} s: {what}")

    def opened(self, request_id: RequestId, story: Story) -> None:
        self.stories[request_id] = story

    def sent(self, request_id: RequestId, now: Instant) -> None:
        story = self.stories[request_id]
        story.sent += 1
        story.decided = story.decided or now
        if story.ended is not None:
            self.violated(now, f"{request_id} was begun after it had ended ({story.ended})")

    def ended(self, request_id: RequestId, outcome: str, now: Instant) -> None:
        story = self.stories[request_id]
        if story.ended is not None:
            self.violated(now, f"{request_id} ended twice: {story.ended}, {outcome}")
        story.ended = outcome
        story.decided = story.decided or now
