"""Who is to blame for a failed attempt: the endpoint, the request, its tenant, its model, or this gateway?

Only failures of the endpoint eject it. What the adapter saw decides first: connections that are refused or reset are
always the endpoint's, and what this process could not do is the gateway's. A failure after the engine has accepted the
request is judged by what the endpoint does for others:

- If the same request has failed at another endpoint too, both have served other requests within the last seconds, and
  no other request has failed at either since its last success, it is the request's. An engine that has died fails
  others as well, and convicts none of them. The request is not tried again, and is quarantined: as long as that lasts,
  whoever sends the same body as the same tenant is refused without asking an engine.
- If all failures since the endpoint's last success are of one tenant, and it has served other tenants within the last
  seconds, it is the tenant's. The same holds for models.
- Otherwise it is the endpoint's.

A stream without a token for too long is judged by the same rules, with one stricter condition: the endpoint must have
served the others in the later half of the silence. An engine that hangs serves no request from then on, so its silent
streams are the endpoint's, and eject it as quickly as any other failure.

An answer that is too long for the limit of its class (`total_max`) is the request's, without a quarantine; unless the
engine, which used to tell of itself, has fallen silent: then it may hang.

In a cell a failure that would be the endpoint's counts only if most members agree that have tried it within the last
seconds. Otherwise it is the member's own, and the member is shown as one that the endpoint does not serve.

A failure that was put down to a tenant or a model is counted against its endpoint after all as soon as the same request
is answered elsewhere: then nothing was wrong with the request. The same holds for what the gateway could not do, since
it may lack a port or an address for one endpoint only; unless it has failed alike at most endpoints within the last
seconds. In a cell the members must agree on that, too.

Which requests are suspected is not told to a successor: it takes two failures to find that out again. Which are
quarantined is.
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
"""Two failures of the same request are compared if they are no further apart."""
QUARANTINE_NS: Final = Duration(MINUTE)
REQUESTS_MAX: Final = 1_024
"""Requests that are suspected, and as many that are quarantined. The oldest make room."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Way = tuple[str, EndpointId]
"""A gateway (empty without a cell) and an endpoint."""


class _Suspect(NamedTuple):
    """Where a request failed last, after it had been accepted."""

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
        """When each gateway last could not ask an endpoint for want of its own resources; the earliest first."""
        self._quarantined: dict[str, Instant] = {}
        """Requests by their identity, each with the end of its quarantine; the earliest first."""

    def quarantined(self, ticket: Ticket, now: Instant) -> Duration | None:
        """How long a request is still quarantined; None if it is not."""
        if not self._quarantined or (until := self._quarantined.get(ticket.identity)) is None or until <= now:
            return None
        return Duration(until - now)

    def count(self, now: Instant) -> int:
        """How many are quarantined."""
        return sum(until > now for until in self._quarantined.values())

    def answered(self, ticket: Ticket) -> None:
        """A request was answered whole, so nothing is wrong with it."""
        if self._suspects:
            self._suspects.pop(ticket.identity, None)
        if self._quarantined:
            self._quarantined.pop(ticket.identity, None)

    def judge(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        """Who is to blame for an attempt that failed or fell silent at its endpoint.

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
        """Whether a failure counts that was put down to another, now that the request was answered elsewhere.

        A gateway that could not ask most of these endpoints of late is to blame for all of that.
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
        # A silence is compared by its beginning: otherwise limits of a minute and more would never be compared.
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

    # From one scheduler to the next

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
    """The moment since which an endpoint must have served others, so that a failure may be put down to one of them.

    Of a silence it is the middle. An engine that hangs stops serving all its streams at the same moment, which is the
    beginning of their silence; at one that still serves in the later half, something else is wrong.
    """
    if event.ending is AttemptEnding.SILENT:
        return Instant((attempt.heard_at + now) // 2 + 1)
    return Instant(now - SERVED_NS_MAX)


def _may_be_the_requests(attempt: Attempt, event: AttemptEnded, now: Instant) -> bool:
    """Whether the failure is remembered, to be compared with one of the same request at another endpoint."""
    if event.ending is not AttemptEnding.SILENT:
        return event.fault is Fault.ANSWER
    served_others = attempt.endpoint.service.requests.other_than(attempt.ticket.identity)
    return event.fault is not Fault.LIMIT and served_others >= _meanwhile(attempt, event, now)


def _among_others(attempt: Attempt, since: Instant) -> FaultOrigin:
    """Whether failures are confined to one tenant or one model of several that the endpoint serves."""
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
    """Whether most members of a cell that have tried the endpoint of late failed; without a cell there is no doubt."""
    return not ticket.gateway or endpoint.service.members.failed(ticket.gateway, now, SERVED_NS_MAX)
