"""What can happen?

The closed union of everything a host may tell the scheduler. Events carry facts, never
wishes; the time comes beside them, as an argument of `Scheduler.handle`.
"""

from enum import StrEnum

from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint, EndpointTrouble
from headgate.model.fault import Fault
from headgate.model.message import message
from headgate.model.money import NanoUsd, Period
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, RequestId, TenantId
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
class RequestRejected:
    """A gateway rejected a request of the tenant after it had read the body; the request was not admitted."""

    tenant: TenantId


@message
class RequestWithdrawn:
    request_id: RequestId
    cause: WithdrawalCause


@message
class FirstToken:
    """The first token of an attempt has come.

    The event comes twice for an answer that the engine streams and the caller gets whole: not `delivered` with the
    first token, and `delivered` when the answer is complete.
    """

    request_id: RequestId
    attempt: int
    delivered: bool = True
    """Whether the answer begins to reach the caller; from then on the request is not retried."""


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
    late: bool = False
    """Whether the gateway's event loop was late since the last report, so that the time between is not the engine's."""


@message
class AttemptEnded:
    """Every `Dispatch` is answered by exactly one of these; only then is its place free."""

    request_id: RequestId
    attempt: int
    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None
    fault: Fault | None = None
    """The fault of a failed attempt; None if unknown, which counts against the endpoint."""
    disbelieved: bool = False
    """Whether the engine reported an impossible usage, which was ignored."""


# What was begun under an earlier scheduler


class Counted(StrEnum):
    """What the counters that a scheduler began with know already of a request."""

    NOTHING = "nothing"
    """It arrived after they were told, or they were lost: what it takes of limits and budgets is yet to be counted."""
    ARRIVAL = "arrival"
    """It was let in before they were told, and sent after."""
    SENT = "sent"
    """Its latest attempt, too, was sent before they were told."""
    ENDED = "ended"
    """They have all of it but what it cost."""


@message
class RequestReported:
    """A request that was let in under an earlier scheduler still waits.

    It is queued whatever the queue's bounds and its tenant's limits say. Those who wait are told when all that is in
    flight has been, the oldest first, and before any endpoint is said to be ready: so they go in their order, and not
    in that of the reports. Who is told later than that waits from there on as everybody does.
    """

    ticket: Ticket
    """As it was on arrival."""
    waited_ns: Duration
    """Time in the queue so far, over all attempts, up to this moment."""
    attempts: int = 0
    """How many have been made; all have ended."""
    age_ns: Duration | None = None
    """Since its arrival; None where it has done nothing but wait."""
    held_ns: Duration = Duration(0)
    """Of the time in the queue, what it was held for an endpoint to start, up to this moment if it still is."""
    failed_at: EndpointId | None = None
    """Where its last attempt failed."""
    counted: Counted = Counted.ARRIVAL


@message
class AttemptReported:
    """An attempt that was sent under an earlier scheduler is in flight. What follows of it is told as of any other.

    Attempts are told when endpoints have joined, and before any of them is said to be ready: what they hold must be
    known when places are given. One at an endpoint that has not joined holds its place there all the same.
    """

    ticket: Ticket
    """Of its request, as it was on arrival."""
    attempt: int
    """Its number."""
    endpoint_id: EndpointId
    age_ns: Duration
    """Since it was sent."""
    first_token: bool
    """Whether its first token has come."""
    tokens: int
    """What it has produced so far."""
    waited_ns: Duration
    """Time that its request was in the queue, over all attempts."""
    pool: PoolName
    service_class: ClassName
    """As in its `Dispatch`, as are those that follow."""
    caps: Caps
    level: int = 0
    hedge: bool = False
    model: ModelName | None = None
    held_ns: Duration = Duration(0)
    request_age_ns: Duration | None = None
    """Since the request's arrival; None where it has waited once, and was sent once."""
    over: bool = False
    """Whether its request has ended already: only its place is still taken."""
    let_go: bool = False
    """Whether another attempt of its request answered first."""
    counted: Counted = Counted.SENT
    cost: NanoUsd | None = NanoUsd(0)
    """Of a request that has ended: as in `RequestSettled`."""


@message
class RequestSettled:
    """A request has ended under an earlier scheduler, and the counters do not have its end."""

    ticket: Ticket
    attempts: int
    """How many were made."""
    pool: PoolName | None = None
    """Where the last one was; None where it was never sent."""
    service_class: ClassName | None = None
    usage: Usage | None = None
    """Of the last attempt, by the engine or as estimated by whoever relayed it; None where nobody can say."""
    completed: bool = False
    """Whether the answer was whole: only then something is learned from its length."""
    model: ModelName | None = None
    """As in its `Dispatch`."""
    counted: Counted = Counted.NOTHING
    age_ns: Duration = Duration(0)
    """Since its arrival."""
    cost: NanoUsd | None = None
    """What its tenant pays for it, and no counters have; None where it pays and nobody has told the bills."""


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
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None if it does not report that."""


@message
class EndpointProbed:
    """The result of probing an engine has changed: it fails, fails in another way, or passes again."""

    endpoint_id: EndpointId
    trouble: EndpointTrouble | None
    """The reason why the probe fails; None if it passes."""
    detail: str = ""
    """The observed error, for operators."""


@message
class EndpointLeaving:
    """Nothing new goes there; it is forgotten when the last attempt has ended."""

    endpoint_id: EndpointId


@message
class PolicyChanged:
    policy: Policy
    hash: str


@message
class Spent:
    """What the ledger has of a budget's period."""

    scope: str
    """As in `BudgetLeft`."""
    period: Period
    spent: NanoUsd


@message
class BudgetsTold:
    """Which day and month it is, and what the ledger has of them. It lags, so what is known here may be more.

    Told at the start, when a period begins, and from time to time.
    """

    day_began: Instant
    day_ends: Instant
    month_began: Instant
    month_ends: Instant
    spent: tuple[Spent, ...] = ()


@message
class TimerFired:
    """The moment that `next_wakeup` named has come."""


FleetEvent = EndpointJoined | EndpointReadied | EndpointUnreadied | EndpointMeasured | EndpointProbed | EndpointLeaving
Report = RequestReported | AttemptReported | RequestSettled
Event = (
    RequestArrived
    | RequestRejected
    | FirstToken
    | Progressed
    | AttemptEnded
    | RequestWithdrawn
    | TimerFired
    | FleetEvent
    | PolicyChanged
    | BudgetsTold
    | Report
)
