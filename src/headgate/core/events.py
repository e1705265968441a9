"""What can happen?

The closed union of everything a host may tell the scheduler. Events carry facts, never
wishes; the time comes beside them, as an argument of `Scheduler.handle`.
"""

from enum import StrEnum

from headgate.model.endpoint import Endpoint
from headgate.model.message import message
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import EndpointId, RequestId
from headgate.model.usage import Usage


class AttemptEnding(StrEnum):
    """How one try at one endpoint ended, as the relay saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Could not connect, an error status, an error event, a broken or truncated answer."""
    SILENT = "silent"
    """Nothing came in time."""
    REFUSED = "refused"
    """The engine judged the request itself to be wrong."""
    ABORTED = "aborted"
    """Stopped because the scheduler said so."""


class WithdrawalCause(StrEnum):
    CLIENT_LEFT = "client_left"
    GRACE_OVER = "grace_over"
    """The process that holds the request is leaving and cannot wait any longer."""


@message
class RequestArrived:
    ticket: Ticket


@message
class RequestWithdrawn:
    request_id: RequestId
    cause: WithdrawalCause


@message
class FirstToken:
    """The answer has begun to reach the caller: from here on nothing is retried."""

    request_id: RequestId
    attempt: int


@message
class AttemptProgress:
    request_id: RequestId
    attempt: int
    tokens: int
    """Tokens since the last report."""


@message
class Progressed:
    """What all open attempts have produced since the last report, in one event."""

    attempts: tuple[AttemptProgress, ...]


@message
class AttemptEnded:
    """Every `Dispatch` is answered by exactly one of these; only then is its place free."""

    request_id: RequestId
    attempt: int
    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None


@message
class EndpointJoined:
    """A new endpoint, or new limits of a known one; one that was leaving stays."""

    endpoint: Endpoint


@message
class EndpointReadied:
    """The engine says that it can serve."""

    endpoint_id: EndpointId


@message
class EndpointUnreadied:
    """The engine itself says that it cannot serve, for instance while loading weights."""

    endpoint_id: EndpointId


@message
class EndpointMeasured:
    """What an engine says of itself."""

    endpoint_id: EndpointId
    running: int
    waiting: int
    kv_percent: int | None = None
    """How much of its KV cache is in use; None where it does not say."""


@message
class EndpointLeaving:
    """Nothing new goes there; it is forgotten when the last attempt has ended."""

    endpoint_id: EndpointId


@message
class PolicyChanged:
    policy: Policy
    hash: str


@message
class TimerFired:
    """The moment that `next_wakeup` named has come."""


FleetEvent = EndpointJoined | EndpointReadied | EndpointUnreadied | EndpointMeasured | EndpointLeaving
Event = (
    RequestArrived | FirstToken | Progressed | AttemptEnded | RequestWithdrawn | TimerFired | FleetEvent | PolicyChanged
)
