"""Base class for baselines.

A baseline replaces the scheduler. It receives the same events and returns the same commands. It applies the policy's
rules for access, models and pools, but has no deadlines, ejections or retries: a failed attempt fails its request. As
in the core, a request ends exactly once, and a slot becomes free when its attempt has ended.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

from headgate.core.admission.gate import Admitted, check_policy
from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    AttemptsProgressed,
    BudgetsSynced,
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
    FirstToken,
    PolicyChanged,
    RequestArrived,
    RequestRejected,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
    SharesAssigned,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.rules import Rules
from headgate.model.endpoint import Endpoint
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, RequestId, TenantId

_OUTCOMES: Final[Mapping[AttemptEnding, Outcome]] = MappingProxyType(
    {
        AttemptEnding.COMPLETED: Outcome.COMPLETED,
        AttemptEnding.FAILED: Outcome.ENGINE_ERROR,
        AttemptEnding.TIMEOUT: Outcome.ENGINE_TIMEOUT,
        AttemptEnding.REJECTED: Outcome.ENGINE_REJECTED,
        AttemptEnding.ABORTED: Outcome.ENGINE_ERROR,
    }
)


class BaselineRequest:
    """A request that has not ended."""

    __slots__ = ("arrived_at", "endpoint", "id", "pools", "service_class", "tenant", "waited_ns")

    def __init__(self, ticket: Ticket, admitted: Admitted, now: Instant) -> None:
        self.id: RequestId = ticket.request_id
        self.tenant: TenantId = ticket.tenant
        self.service_class: ServiceClass = admitted.service_class
        self.pools: tuple[PoolName, ...] = admitted.pools
        self.arrived_at = now
        self.endpoint: BaselineEndpoint | None = None
        """Endpoint of the request's attempt. None while the request is waiting."""
        self.waited_ns = Duration(0)


class BaselineEndpoint:
    """An endpoint as seen by a baseline."""

    __slots__ = ("id", "in_flight", "leaving", "pool", "ready")

    def __init__(self, endpoint: Endpoint) -> None:
        self.id: EndpointId = endpoint.id
        self.pool: PoolName = endpoint.pool
        self.ready = False
        self.leaving = False
        self.in_flight = 0


class Baseline(ABC):
    """A decider without timers. Baselines only react to events."""

    def __init__(self) -> None:
        self._rules = Rules(Policy(), "")
        self._requests: dict[RequestId, BaselineRequest] = {}
        self._attempts: dict[RequestId, BaselineEndpoint] = {}
        """Attempts in flight, by request. An aborted attempt stays until it has ended."""
        self._endpoints: dict[EndpointId, BaselineEndpoint] = {}

    def handle(self, event: Event, now: Instant) -> list[Command]:
        out: list[Command] = []
        match event:
            case RequestArrived(ticket):
                self._arrive(ticket, now, out)
            case AttemptEnded():
                self._attempt_ended(event, out)
            case RequestWithdrawn(request_id, cause):
                self._withdraw(request_id, cause, now, out)
            case PolicyChanged(policy, policy_hash):
                self._rules = Rules(policy, policy_hash)
            case EndpointJoined(endpoint):
                self._endpoints.setdefault(endpoint.id, BaselineEndpoint(endpoint)).leaving = False
            case EndpointReady(endpoint_id):
                self._endpoints[endpoint_id].ready = True
            case EndpointNotReady(endpoint_id):
                self._endpoints[endpoint_id].ready = False
            case EndpointLeaving(endpoint_id):
                self._endpoints[endpoint_id].leaving = True
                self._remove_if_drained(self._endpoints[endpoint_id])
            case RequestRejected() | EndpointMetricsReported() | EndpointProbed() | FirstToken():
                pass
            case AttemptsProgressed() | TimerFired() | BudgetsSynced() | SharesAssigned():
                pass
            case RequestReported() | AttemptReported() | RequestSettled():
                raise AssertionError("a baseline does not take over from another scheduler")
            case _:
                assert_never(event)
        self._dispatch_waiting(now, out)
        return out

    def next_wakeup(self) -> Instant | None:
        return None

    # ------------------------------------------------------------------------------------ defined by each baseline

    @abstractmethod
    def _admit(self, held: BaselineRequest, now: Instant, out: list[Command]) -> None:
        """Sends, queues or rejects a new request."""

    @abstractmethod
    def _dequeue(self, held: BaselineRequest) -> None:
        """Removes a waiting request from its queue because it is about to end."""

    @abstractmethod
    def _dispatch_waiting(self, now: Instant, out: list[Command]) -> None:
        """Assigns free slots to waiting requests. Called after every event."""

    # ------------------------------------------------------------------------------------ shared by all baselines

    def _ready_endpoints(self, held: BaselineRequest) -> list[BaselineEndpoint]:
        """Returns the endpoints that can serve the request, in the order in which they joined."""
        return [
            each for each in self._endpoints.values() if each.ready and not each.leaving and each.pool in held.pools
        ]

    def _send(
        self, held: BaselineRequest, target: BaselineEndpoint, now: Instant, out: list[Command], reason: str
    ) -> None:
        service_class = held.service_class
        held.endpoint = self._attempts[held.id] = target
        held.waited_ns = Duration(now - held.arrived_at)
        target.in_flight += 1
        out.append(
            Dispatch(
                held.id,
                1,
                target.id,
                target.pool,
                service_class.name,
                held.waited_ns,
                service_class.first_token_ns_max,
                service_class.idle_ns_max,
                service_class.total_ns_max,
                service_class.caps,
                reason,
            )
        )

    def _end(
        self,
        held: BaselineRequest,
        outcome: Outcome,
        out: list[Command],
        reason: str,
        *,
        retry_after: Duration | None = None,
    ) -> None:
        del self._requests[held.id]
        attempts = 0 if held.endpoint is None else 1
        out.append(End(held.id, outcome, held.service_class.name, attempts, held.waited_ns, retry_after, reason))

    def _arrive(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        verdict = check_policy(ticket, self._rules)
        if not isinstance(verdict, Admitted):
            name = verdict.service_class.name if verdict.service_class else None
            out.append(End(ticket.request_id, verdict.outcome, name, 0, Duration(0), None, verdict.reason))
            return
        held = self._requests[ticket.request_id] = BaselineRequest(ticket, verdict, now)
        if self._ready_endpoints(held):
            self._admit(held, now, out)
        else:
            self._end(held, Outcome.NO_ENDPOINTS, out, "no endpoint is ready", retry_after=SECOND)

    def _attempt_ended(self, event: AttemptEnded, out: list[Command]) -> None:
        target = self._attempts.pop(event.request_id)
        target.in_flight -= 1
        self._remove_if_drained(target)
        held = self._requests.get(event.request_id)
        if held is not None:
            self._end(held, _OUTCOMES[event.ending], out, event.detail)

    def _withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        held = self._requests.get(request_id)
        if held is None:
            return
        if held.endpoint is None:
            self._dequeue(held)
            held.waited_ns = Duration(now - held.arrived_at)
        else:
            out.append(Abort(request_id, 1, held.endpoint.id, cause.value))
        if cause is WithdrawalCause.CLIENT_DISCONNECTED:
            self._end(held, Outcome.CANCELLED, out, "the client disconnected")
        else:
            outcome = Outcome.DRAINING if held.endpoint is None else Outcome.EVICTED
            self._end(held, outcome, out, "the gateway is shutting down", retry_after=SECOND)

    def _remove_if_drained(self, target: BaselineEndpoint) -> None:
        if target.leaving and not target.in_flight:
            self._endpoints.pop(target.id, None)


def least_outstanding(targets: list[BaselineEndpoint]) -> BaselineEndpoint:
    """Returns the endpoint with the fewest attempts in flight. The first to join wins a tie."""
    return min(targets, key=lambda each: each.in_flight)
