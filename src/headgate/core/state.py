"""What does the scheduler remember of a request that has not ended?

These records are mutable and slotted for speed; they never leave the core.
"""

from headgate.core.deadlines import Deadline, deadlines
from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.policy import ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, PoolName


class Attempt:
    """One place taken at one endpoint, from `Dispatch` to `AttemptEnded`.

    It outlives its request when the request ends first: the place is free only when the
    relay says so.
    """

    __slots__ = ("endpoint", "number", "stream", "streaming")

    def __init__(self, endpoint: EndpointRecord, *, number: int, stream: bool) -> None:
        self.endpoint = endpoint
        self.number = number
        self.stream = stream
        self.streaming = False
        """Whether its first token has come."""


class Request:
    """One request from its arrival to its end: either queued or in flight."""

    __slots__ = (
        "attempt",
        "avoid",
        "deadline",
        "deadline_of_whole",
        "first_token",
        "pools",
        "queued_since",
        "running",
        "sequence",
        "service_class",
        "ticket",
        "waited_ns",
    )

    def __init__(
        self, ticket: Ticket, service_class: ServiceClass, pools: tuple[PoolName, ...], *, sequence: int, now: Instant
    ) -> None:
        self.ticket = ticket
        self.service_class = service_class
        self.pools = pools
        self.sequence = sequence
        self.queued_since = now
        self.waited_ns = Duration(0)
        self.attempt = 0
        """How many attempts have been made."""
        self.first_token = False
        self.running: Attempt | None = None
        """None while it is queued."""
        self.avoid: EndpointRecord | None = None
        """Where its last attempt failed."""
        self.deadline: Deadline | None
        """The caller's deadline that counts at the moment."""
        self.deadline_of_whole: Deadline | None
        """The one that counts once the first token is out."""
        self.deadline, self.deadline_of_whole = deadlines(ticket, now)
