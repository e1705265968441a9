"""By when does a caller want its answer?

A caller may set a deadline for the first token, one for the whole answer, both, or neither. Both
are moments, counted from the arrival: neither a wait, nor another attempt, nor a new policy moves
them. The nearer one counts; once the first token is out, only that of the whole answer does.
"""

from dataclasses import dataclass

from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, after, seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    at: Instant
    """From this moment on it is too late."""
    allowed_ns: Duration
    """What was left of it at arrival."""
    goal: str
    """What is wanted by then."""

    def passed(self, now: Instant) -> bool:
        return self.at <= now

    def missed(self, how: str) -> str:
        """What the caller is told when it has passed."""
        if self.allowed_ns <= 0:
            return f"the caller's deadline for {self.goal} had passed before the request arrived; allow more time"
        allowed = f"the {seconds(self.allowed_ns)} that the caller allows for {self.goal}"
        return f"{allowed} were over {how}; allow more time or ask for less"


def deadlines(ticket: Ticket, now: Instant) -> tuple[Deadline | None, Deadline | None]:
    """The one that counts at first, and the one that counts once the first token is out."""
    first, whole = ticket.first_token_ns_left, ticket.completion_ns_left
    by_end = None if whole is None else Deadline(after(now, whole), whole, "the whole answer")
    if first is None or (whole is not None and whole <= first):
        return by_end, by_end
    return Deadline(after(now, first), first, "the first token"), by_end
