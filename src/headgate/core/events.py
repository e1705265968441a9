"""Events from a host to the scheduler.

Events are a closed union. They state facts and never request actions. The time is passed to `Scheduler.handle` as a
separate argument.
"""

from enum import StrEnum

from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint, EndpointProblem
from headgate.model.fault import Fault
from headgate.model.limits import LimitShare
from headgate.model.message import message
from headgate.model.money import NanoUsd, Period
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.provider_limits import ProviderLimits
from headgate.model.ticket import Ticket
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, RequestId, TenantId
from headgate.model.usage import Usage


class AttemptEnding(StrEnum):
    """How one attempt on one endpoint ended, as observed by the relay."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The connection failed, or the engine returned an error status, an error event or a broken or truncated
    response."""
    TIMEOUT = "timeout"
    """No data arrived in time."""
    REJECTED = "rejected"
    """The engine rejected the request as invalid."""
    ABORTED = "aborted"
    """The scheduler stopped the attempt."""


class WithdrawalCause(StrEnum):
    CLIENT_DISCONNECTED = "client_disconnected"
    SHUTDOWN = "shutdown"
    """The process that holds the request is shutting down and its grace period has ended."""


@message
class RequestArrived:
    ticket: Ticket


@message
class RequestRejected:
    """A gateway rejected a request from the tenant after reading its body. The request was not admitted."""

    tenant: TenantId


@message
class RequestWithdrawn:
    request_id: RequestId
    cause: WithdrawalCause


@message
class FirstToken:
    """The first token of an attempt has arrived.

    If the engine streams a response that the caller receives in one piece, the event is sent twice: without `delivered`
    at the first token, and with `delivered` when the response is complete.
    """

    request_id: RequestId
    attempt: int
    delivered: bool = True
    """Whether the caller is starting to receive the response. After that, the request is not retried."""
    limits: ProviderLimits | None = None
    """Rate limits that a hosted provider reported with the response. None if it did not, or they are already reported.
    """


@message
class AttemptProgress:
    request_id: RequestId
    attempt: int
    tokens: int
    """Tokens since the last report."""


@message
class AttemptsProgressed:
    """Tokens that all open attempts produced since the last report."""

    attempts: tuple[AttemptProgress, ...]
    late: bool = False
    """Whether the gateway's event loop has lagged since the last report. If so, the elapsed time is not engine time."""


@message
class AttemptEnded:
    """End of an attempt. Each `Dispatch` leads to exactly one such event, which frees its slot."""

    request_id: RequestId
    attempt: int
    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None
    fault: Fault | None = None
    """Fault that made the attempt fail. If it is None (unknown), the failure counts against the endpoint."""
    usage_implausible: bool = False
    """Whether the engine reported impossible usage figures, which were ignored."""
    first_token: bool = False
    """Whether the first token was delivered just before this event and has not been reported as `FirstToken`. Gateways
    set it only for a completed attempt.
    """
    limits: ProviderLimits | None = None
    """Rate limits that a hosted provider reported with the response. None if it did not, or they are already reported.
    """


# Work started under an earlier scheduler


class CountedUpTo(StrEnum):
    """How much of a request the snapshot already includes."""

    NOTHING = "nothing"
    """Nothing: the request arrived after the snapshot, or the snapshot was lost."""
    ARRIVAL = "arrival"
    """The admission. The latest attempt was sent after the snapshot."""
    SENT = "sent"
    """The admission and the latest attempt."""
    ENDED = "ended"
    """Everything except the cost."""


@message
class RequestReported:
    """A request that an earlier scheduler admitted is still queued.

    It is queued again regardless of queue and tenant limits. Queued requests are reported after all running attempts,
    the oldest first, and before any endpoint is reported as ready. They therefore keep their original order, regardless
    of the order of the reports. A request reported later than that is queued like a new one.
    """

    ticket: Ticket
    """The ticket as of the request's arrival."""
    waited_ns: Duration
    """Time spent in the queue so far, over all attempts."""
    attempts: int = 0
    """Number of attempts made. All of them have ended."""
    age_ns: Duration | None = None
    """Time since the request's arrival. None if the request has only waited."""
    held_ns: Duration = Duration(0)
    """Part of the queue time spent on hold for an endpoint to start, including a hold in progress."""
    failed_at: EndpointId | None = None
    """Endpoint of the last failed attempt."""
    counted: CountedUpTo = CountedUpTo.ARRIVAL
    route: str = ""
    """Route of the last attempt, which the request keeps."""


@message
class AttemptReported:
    """An attempt that an earlier scheduler sent is in flight. From here on, its events are the same as for any attempt.

    Attempts are reported after the endpoints have joined and before any endpoint is reported as ready, because the
    scheduler must know the occupied slots before it sends requests. An attempt occupies its slot even if its endpoint
    has not joined.
    """

    ticket: Ticket
    """The ticket as of the request's arrival."""
    attempt: int
    """Attempt number."""
    endpoint_id: EndpointId
    age_ns: Duration
    """Time since the attempt was sent."""
    first_token: bool
    """Whether the first token has arrived."""
    tokens: int
    """Tokens produced so far."""
    waited_ns: Duration
    """Time the request spent in the queue, over all attempts."""
    pool: PoolName
    service_class: ClassName
    """Class of the request. This field and the following ones have the values of the attempt's `Dispatch`."""
    caps: Caps
    level: int = 0
    hedge: bool = False
    model: ModelName | None = None
    held_ns: Duration = Duration(0)
    request_age_ns: Duration | None = None
    """Time since the request's arrival. None if the request was queued once and sent once."""
    request_ended: bool = False
    """Whether the request has already ended. If so, only its slot is still occupied."""
    superseded: bool = False
    """Whether another attempt of the request responded first."""
    counted: CountedUpTo = CountedUpTo.SENT
    cost: NanoUsd | None = NanoUsd(0)
    """Cost of a request that has ended, as in `RequestSettled`."""
    route: str = ""


@message
class RequestSettled:
    """A request has ended under an earlier scheduler, and the snapshot was taken before it ended."""

    ticket: Ticket
    attempts: int
    """Number of attempts made."""
    pool: PoolName | None = None
    """Pool of the last attempt. None if the request was never sent."""
    service_class: ClassName | None = None
    usage: Usage | None = None
    """Usage of the last attempt, reported by the engine or estimated by the relay. None if unknown."""
    completed: bool = False
    """Whether the response was complete. Only complete responses update the predictions."""
    model: ModelName | None = None
    """Model that served the request. None if it is the requested model."""
    counted: CountedUpTo = CountedUpTo.NOTHING
    age_ns: Duration = Duration(0)
    """Time since the request's arrival."""
    cost: NanoUsd | None = None
    """Cost to the tenant that is not included in any snapshot. None if the tenant pays but the bills are unknown."""


@message
class EndpointJoined:
    """An endpoint has joined, or the limits of a known endpoint have changed. An endpoint that was leaving stays."""

    endpoint: Endpoint


@message
class EndpointReady:
    """The engine reports that it is ready."""

    endpoint_id: EndpointId


@message
class EndpointNotReady:
    """The engine reports that it is not ready, for example while it loads weights."""

    endpoint_id: EndpointId


@message
class EndpointMetricsReported:
    """Metrics that the engine reports about itself."""

    endpoint_id: EndpointId
    running: int
    waiting: int
    kv_percent: int | None = None
    """Percentage of the KV cache in use. None if the engine does not report it."""
    kv_tokens: int | None = None
    """Capacity of the KV cache in tokens. None if the engine does not report it."""


@message
class EndpointProbed:
    """The probe result of an engine has changed: the probe now fails, fails for another reason, or passes again."""

    endpoint_id: EndpointId
    trouble: EndpointProblem | None
    """Why the probe fails. None if it passes."""
    detail: str = ""
    """The observed error, for operators."""


@message
class EndpointLeaving:
    """The endpoint gets no new requests and is removed when its last attempt has ended."""

    endpoint_id: EndpointId


@message
class PolicyChanged:
    policy: Policy
    hash: str


@message
class BudgetSpent:
    """Amount spent in one budget period according to the ledger."""

    scope: str
    """Budget scope, as in `BudgetStatus`."""
    period: Period
    spent: NanoUsd


@message
class BudgetsSynced:
    """The current day and month, and the amounts spent in them according to the ledger.

    The ledger lags, so the scheduler's own totals may be higher. The event is sent at startup, at the beginning of each
    period, and at regular intervals.
    """

    day_began: Instant
    day_ends: Instant
    month_began: Instant
    month_ends: Instant
    spent: tuple[BudgetSpent, ...] = ()
    ledger_read: bool = False
    """Whether the amounts are from a read of the ledger since the previous event."""


@message
class TenantShare:
    """Share of an account's limits and hard budgets that this cell may use."""

    account: TenantId
    """First component of the tenants' paths."""
    share: LimitShare
    until: Instant


@message
class SharesAssigned:
    """Shares of limits, if several cells serve the same tenants. They replace all earlier ones.

    Most shares are the same as before. Applying the event takes time in proportion to the shares that differ, if the
    map was made from the previous one with `PersistentMap.updated`.
    """

    floor_ppm: int
    """Share of an account that is not listed or whose share has expired."""
    shares: PersistentMap[TenantId, TenantShare] = PersistentMap()
    """Shares by account."""


@message
class TimerFired:
    """The time returned by `next_wakeup` has come."""


FleetEvent = (
    EndpointJoined | EndpointReady | EndpointNotReady | EndpointMetricsReported | EndpointProbed | EndpointLeaving
)
TakeoverReport = RequestReported | AttemptReported | RequestSettled
Event = (
    RequestArrived
    | RequestRejected
    | FirstToken
    | AttemptsProgressed
    | AttemptEnded
    | RequestWithdrawn
    | TimerFired
    | FleetEvent
    | PolicyChanged
    | BudgetsSynced
    | SharesAssigned
    | TakeoverReport
)
