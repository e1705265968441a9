"""Client deadlines for the first token and for the complete response.

A caller can set a deadline for the first token, for the complete response, for both, or for neither. Deadlines are
measured from the time the request arrived. Waiting, retries and policy changes do not move them. The earlier deadline
applies first. After the first token, only the deadline for the complete response applies.
"""

from dataclasses import dataclass

from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, after, format_seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    at: Instant
    """Time at which the deadline passes."""
    allowed_ns: Duration
    """Time from the request's arrival to its deadline."""
    goal: str
    """Part of the response that the deadline is for."""

    def passed(self, now: Instant) -> bool:
        return self.at <= now

    def missed_reason(self, when: str) -> str:
        """Returns the message for a missed deadline."""
        if self.allowed_ns <= 0:
            return f"the caller's deadline for {self.goal} had passed before the request arrived; allow more time"
        allowed = f"the caller's deadline of {format_seconds(self.allowed_ns)} for {self.goal}"
        return f"{allowed} passed {when}; allow more time or send a smaller request"


def deadlines(ticket: Ticket, now: Instant) -> tuple[Deadline | None, Deadline | None]:
    """Returns the deadline that applies first and the deadline that applies after the first token."""
    first, whole = ticket.first_token_ns_left, ticket.completion_ns_left
    by_end = None if whole is None else Deadline(after(now, whole), whole, "the complete response")
    if first is None or (whole is not None and whole <= first):
        return by_end, by_end
    return Deadline(after(now, first), first, "the first token"), by_end
