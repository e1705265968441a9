"""Who is to blame for a failed attempt: the endpoint, the request, its tenant, its model, or this gateway?

Only failures of the endpoint eject it. The adapter's observation decides first: refused or reset connections are always
the endpoint's fault, and operations that failed in this process are the gateway's. A failure after the engine has
accepted the request is judged by the endpoint's service to others:

- The request is to blame if it has failed at another endpoint too, both have served other requests within the last
  seconds, and no other request has failed at either since its last success. An engine that has died fails others as
  well, so none of them is blamed. The request is not retried and is quarantined: during the quarantine the same body
  from the same tenant is rejected without asking an engine.
- The tenant is to blame if all failures since the endpoint's last success are of one tenant, and the endpoint has
  served other tenants within the last seconds. The same holds for models.
- Otherwise the endpoint is to blame.

A stream without a token for too long is judged by the same rules, with one stricter condition: the endpoint must have
served the others in the later half of the silence. An engine that hangs serves no request from then on, so its silent
streams are the endpoint's fault and eject it as quickly as any other failure.

An answer that is too long for the limit of its class (`total_max`) is the request's fault, without a quarantine.
Exception: if the engine used to report its own state and has stopped, it may hang, so the endpoint is to blame.

In a cell, a failure of the endpoint counts only if most members that have tried it within the last seconds agree.
Otherwise the failure is the member's own, and the member is shown as one that the endpoint does not serve.

A failure attributed to a tenant or a model counts against its endpoint after all as soon as the same request is
answered elsewhere: then nothing was wrong with the request. The same holds for failures of the gateway, since it may
lack a port or an address for one endpoint only; unless it has failed alike at most endpoints within the last seconds.
In a cell the members must agree on that, too.

A successor does not receive the suspected requests: two failures identify them again. It does receive the quarantined
ones.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from headgate.core.counters import QuarantineCounter
from headgate.core.events import AttemptEnded, AttemptEnding
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.state import Attempt
from headgate.model.endpoint import EndpointState
from headgate.model.fault import Fault, FaultOrigin
from headgate.model.ticket import Ticket
from headgate.model.units import MINUTE, SECOND, Duration, EndpointId, Instant, after

SERVED_NS_MAX: Final = Duration(10 * SECOND)
"""An endpoint serves others if it has done so within this time."""
SUSPECT_NS_MAX: Final = Duration(MINUTE)
"""Two failures of the same request are compared if they are at most this far apart."""
QUARANTINE_NS: Final = Duration(MINUTE)
REQUESTS_MAX: Final = 1_024
"""The largest number of suspected requests, and of quarantined ones. The oldest are dropped."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Way = tuple[str, EndpointId]
"""A gateway (empty without a cell) and an endpoint."""


class _Suspect(NamedTuple):
    """The place of a request's last failure after it had been accepted."""

    endpoint: EndpointRecord
    at: Instant
    counted: bool
    """Whether the failure was counted against the endpoint."""


class Blame:
    __slots__ = ("_quarantined", "_requests_max", "_suspects", "_unreached")

    def __init__(self, *, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._suspects: dict[str, _Suspect] = {}
        self._unreached: dict[_Way, Instant] = {}
        """The last time at which each gateway lacked the resources to ask an endpoint; the earliest first."""
        self._quarantined: dict[str, Instant] = {}
        """Request identities, each with the end of its quarantine; the earliest first."""

    def quarantined(self, ticket: Ticket, now: Instant) -> Duration | None:
        """The rest of a request's quarantine; None if it is not quarantined."""
        if not self._quarantined or (until := self._quarantined.get(ticket.identity)) is None or until <= now:
            return None
        return Duration(until - now)

    def count(self, now: Instant) -> int:
        """The number of quarantined requests."""
        return sum(until > now for until in self._quarantined.values())

    def answered(self, ticket: Ticket) -> None:
        """Clears a request that was answered in full, so nothing is wrong with it."""
        if self._suspects:
            self._suspects.pop(ticket.identity, None)
        if self._quarantined:
            self._quarantined.pop(ticket.identity, None)

    def judge(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        """The origin of an attempt's failure or silence at its endpoint.

        In a cell the endpoint is to blame only if most members that have tried it within the last seconds failed.
        """
        endpoint, ticket = attempt.endpoint, attempt.ticket
        origin = self._judge(attempt, event, now)
        if origin is FaultOrigin.ENDPOINT and not _members_agree(endpoint, ticket, now):
            origin = FaultOrigin.MEMBER
        if origin is not FaultOrigin.REQUEST and _may_be_the_requests(attempt, event, now):
            self._suspect(endpoint, ticket, now, counted=origin is FaultOrigin.ENDPOINT)
        return origin

    def is_endpoints_after_all(
        self,
        endpoint: EndpointRecord,
        ticket: Ticket,
        excuse: FaultOrigin,
        now: Instant,
        *,
        among: Iterable[EndpointRecord],
    ) -> bool:
        """Whether a failure counts against the endpoint, now that the request was answered elsewhere.

        A gateway that recently could not ask most of these endpoints is to blame for all of these failures.
        """
        if excuse is not FaultOrigin.GATEWAY:
            return True
        since = now - SERVED_NS_MAX
        unreached = sum(by == ticket.gateway and at >= since for (by, _), at in self._unreached.items())
        could_be_asked = sum(each.state is not EndpointState.WARMING and not each.leaving for each in among)
        return 2 * unreached <= could_be_asked and _members_agree(endpoint, ticket, now)

    def _judge(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        endpoint, ticket = attempt.endpoint, attempt.ticket
        if event.fault is Fault.GATEWAY:
            self._note_unreached(endpoint, ticket, now)
            return FaultOrigin.GATEWAY
        if event.fault is Fault.LIMIT:
            return FaultOrigin.ENDPOINT if endpoint.silent else FaultOrigin.REQUEST
        if self.quarantined(ticket, now) is None:
            endpoint.service.let_down(ticket)
        accepted = _was_accepted(event)
        if not (accepted or event.fault is Fault.UNAVAILABLE):
            return FaultOrigin.ENDPOINT
        if self.quarantined(ticket, now) is not None:
            return FaultOrigin.REQUEST
        endpoint.service.failed(ticket, attempt.model)
        if accepted and self._is_poison(attempt, event, now):
            return FaultOrigin.REQUEST
        return _among_others(attempt, _meanwhile(attempt, event, now))

    def _is_poison(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> bool:
        """Whether the request has failed at another endpoint as well, while both serve other requests and fail none."""
        endpoint, ticket, since = attempt.endpoint, attempt.ticket, _meanwhile(attempt, event, now)
        suspect = self._suspects.get(ticket.identity)
        # Silences are compared by their beginning: otherwise limits of a minute and more would never be compared.
        began = attempt.heard_at if event.ending is AttemptEnding.SILENT else now
        if suspect is None or suspect.endpoint is endpoint or began - suspect.at > SUSPECT_NS_MAX:
            return False
        if not all(_serves_other_requests(each, ticket, since) for each in (suspect.endpoint, endpoint)):
            return False
        if suspect.counted and suspect.endpoint.failures:
            suspect.endpoint.failures -= 1
        del self._suspects[ticket.identity]
        self._quarantine(ticket.identity, after(now, QUARANTINE_NS))
        return True

    def _quarantine(self, identity: str, until: Instant) -> None:
        self._quarantined.pop(identity, None)
        self._make_room(self._quarantined)
        self._quarantined[identity] = until

    def _suspect(self, endpoint: EndpointRecord, ticket: Ticket, now: Instant, *, counted: bool) -> None:
        self._suspects.pop(ticket.identity, None)
        self._make_room(self._suspects)
        self._suspects[ticket.identity] = _Suspect(endpoint, now, counted)

    def _note_unreached(self, endpoint: EndpointRecord, ticket: Ticket, now: Instant) -> None:
        key = (ticket.gateway, endpoint.id)
        self._unreached.pop(key, None)
        self._make_room(self._unreached)
        self._unreached[key] = now

    def _make_room(self, table: dict[_Key, _Value]) -> None:
        if len(table) >= self._requests_max:
            del table[next(iter(table))]

    # Handover to the next scheduler

    def counters(self, now: Instant) -> tuple[QuarantineCounter, ...]:
        return tuple(
            QuarantineCounter(identity, Duration(until - now))
            for identity, until in self._quarantined.items()
            if until > now
        )

    def restore(self, counters: Iterable[QuarantineCounter], now: Instant) -> None:
        for each in counters:
            self._quarantine(each.identity, after(now, min(each.left_ns, QUARANTINE_NS)))


def _was_accepted(event: AttemptEnded) -> bool:
    """Whether the engine had accepted the request that failed."""
    return event.ending is AttemptEnding.SILENT or event.fault is Fault.ANSWER


def _meanwhile(attempt: Attempt, event: AttemptEnded, now: Instant) -> Instant:
    """The time since which an endpoint must have served others for a failure to be attributed to one of them.

    For a silence, it is the middle. An engine that hangs stops serving all its streams at the same moment, which is the
    beginning of their silence. If an endpoint still serves others in the later half, it does not hang.
    """
    if event.ending is AttemptEnding.SILENT:
        return Instant((attempt.heard_at + now) // 2 + 1)
    return Instant(now - SERVED_NS_MAX)


def _may_be_the_requests(attempt: Attempt, event: AttemptEnded, now: Instant) -> bool:
    """Whether the failure is remembered, for comparison with one of the same request at another endpoint."""
    if event.ending is not AttemptEnding.SILENT:
        return event.fault is Fault.ANSWER
    served_others = attempt.endpoint.service.requests.other_than(attempt.ticket.identity)
    return event.fault is not Fault.LIMIT and served_others >= _meanwhile(attempt, event, now)


def _among_others(attempt: Attempt, since: Instant) -> FaultOrigin:
    """Whether failures are confined to one tenant or one model among several that the endpoint serves."""
    service = attempt.endpoint.service
    if service.alone_tenant and service.tenants.other_than(attempt.ticket.tenant) >= since:
        return FaultOrigin.TENANT
    if service.alone_model and service.models.other_than(attempt.model) >= since:
        return FaultOrigin.MODEL
    return FaultOrigin.ENDPOINT


def _serves_other_requests(endpoint: EndpointRecord, ticket: Ticket, since: Instant) -> bool:
    """Whether it has served others since then, and has failed none of them since its last success."""
    service = endpoint.service
    return service.fails_only(ticket) and service.requests.other_than(ticket.identity) >= since


def _members_agree(endpoint: EndpointRecord, ticket: Ticket, now: Instant) -> bool:
    """Whether most members of a cell that tried the endpoint recently failed; always true without a cell."""
    return not ticket.gateway or endpoint.service.members.failed(ticket.gateway, now, SERVED_NS_MAX)
