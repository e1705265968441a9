"""What does every simple gateway have in common?

The baselines stand where the scheduler stands: told the same events, they answer with the same commands. They follow
the policy where it says who may ask, for what and where, and know nothing of deadlines, ejections and retries: an
attempt that fails fails its request. As in the core a request ends exactly once, and a place is free when its attempt
has ended.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

from headgate.core.admission.gate import Admitted, judge
from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    BudgetsTold,
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestRejected,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
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
        AttemptEnding.FAILED: Outcome.ENGINE_FAILED,
        AttemptEnding.SILENT: Outcome.ENGINE_SILENT,
        AttemptEnding.REFUSED: Outcome.ENGINE_REFUSED,
        AttemptEnding.ABORTED: Outcome.ENGINE_FAILED,
    }
)


class Held:
    """A request that has not ended."""

    __slots__ = ("arrived_at", "endpoint", "id", "pools", "service_class", "tenant", "waited_ns")

    def __init__(self, ticket: Ticket, admitted: Admitted, now: Instant) -> None:
        self.id: RequestId = ticket.request_id
        self.tenant: TenantId = ticket.tenant
        self.service_class: ServiceClass = admitted.service_class
        self.pools: tuple[PoolName, ...] = admitted.pools
        self.arrived_at = now
        self.endpoint: Target | None = None
        """Where it was sent; None while it waits."""
        self.waited_ns = Duration(0)


class Target:
    """An endpoint as a simple gateway sees it."""

    __slots__ = ("id", "in_flight", "leaving", "pool", "ready")

    def __init__(self, endpoint: Endpoint) -> None:
        self.id: EndpointId = endpoint.id
        self.pool: PoolName = endpoint.pool
        self.ready = False
        self.leaving = False
        self.in_flight = 0


class StandIn(ABC):
    """Says nothing of its own accord: all of them act on what they are told."""

    def __init__(self) -> None:
        self._rules = Rules(Policy(), "")
        self._held: dict[RequestId, Held] = {}
        self._attempts: dict[RequestId, Target] = {}
        """Every attempt under way; one that was stopped stays until it has ended."""
        self._targets: dict[EndpointId, Target] = {}

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
                self._targets.setdefault(endpoint.id, Target(endpoint)).leaving = False
            case EndpointReadied(endpoint_id):
                self._targets[endpoint_id].ready = True
            case EndpointUnreadied(endpoint_id):
                self._targets[endpoint_id].ready = False
            case EndpointLeaving(endpoint_id):
                self._targets[endpoint_id].leaving = True
                self._forget_if_empty(self._targets[endpoint_id])
            case RequestRejected() | EndpointMeasured() | FirstToken() | Progressed() | TimerFired() | BudgetsTold():
                pass
            case RequestReported() | AttemptReported() | RequestSettled():
                raise AssertionError("a stand-in has no predecessor")
            case _:
                assert_never(event)
        self._fill(now, out)
        return out

    def next_wakeup(self) -> Instant | None:
        return None

    # ------------------------------------------------------------------------------------ what sets them apart

    @abstractmethod
    def _take(self, held: Held, now: Instant, out: list[Command]) -> None:
        """Sends a request that has come in, lets it wait, or refuses it."""

    @abstractmethod
    def _leave_line(self, held: Held) -> None:
        """A request that waited is about to end."""

    @abstractmethod
    def _fill(self, now: Instant, out: list[Command]) -> None:
        """Gives what places there are to those who wait. Called after every event."""

    # --------------------------------------------------------------------------------------------- what they share

    def _open_to(self, held: Held) -> list[Target]:
        """The endpoints that serve it, in the order in which they joined."""
        return [each for each in self._targets.values() if each.ready and not each.leaving and each.pool in held.pools]

    def _send(self, held: Held, target: Target, now: Instant, out: list[Command], reason: str) -> None:
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
        self, held: Held, outcome: Outcome, out: list[Command], reason: str, *, retry_after: Duration | None = None
    ) -> None:
        del self._held[held.id]
        attempts = 0 if held.endpoint is None else 1
        out.append(End(held.id, outcome, held.service_class.name, attempts, held.waited_ns, retry_after, reason))

    def _arrive(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        verdict = judge(ticket, self._rules)
        if not isinstance(verdict, Admitted):
            name = verdict.service_class.name if verdict.service_class else None
            out.append(End(ticket.request_id, verdict.outcome, name, 0, Duration(0), None, verdict.reason))
            return
        held = self._held[ticket.request_id] = Held(ticket, verdict, now)
        if self._open_to(held):
            self._take(held, now, out)
        else:
            self._end(held, Outcome.NO_ENDPOINTS, out, "no endpoint is ready", retry_after=SECOND)

    def _attempt_ended(self, event: AttemptEnded, out: list[Command]) -> None:
        target = self._attempts.pop(event.request_id)
        target.in_flight -= 1
        self._forget_if_empty(target)
        held = self._held.get(event.request_id)
        if held is not None:
            self._end(held, _OUTCOMES[event.ending], out, event.detail)

    def _withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        held = self._held.get(request_id)
        if held is None:
            return
        if held.endpoint is None:
            self._leave_line(held)
            held.waited_ns = Duration(now - held.arrived_at)
        else:
            out.append(Abort(request_id, 1, held.endpoint.id, cause.value))
        if cause is WithdrawalCause.CLIENT_LEFT:
            self._end(held, Outcome.CANCELLED, out, "the client left")
        else:
            outcome = Outcome.DRAINING if held.endpoint is None else Outcome.EVICTED
            self._end(held, outcome, out, "this process is leaving", retry_after=SECOND)

    def _forget_if_empty(self, target: Target) -> None:
        if target.leaving and not target.in_flight:
            self._targets.pop(target.id, None)


def least_outstanding(targets: list[Target]) -> Target:
    """The one with the fewest attempts under way; the first to join among equals."""
    return min(targets, key=lambda each: each.in_flight)
