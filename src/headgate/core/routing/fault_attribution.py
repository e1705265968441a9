"""Attributes failed attempts to the endpoint, the request, its tenant, its model, the gateway or a cell member.

Only failures that the endpoint caused eject it. The adapter's observation is considered first: refused and reset
connections are always the endpoint's fault, and operations that failed in this process are the gateway's. A failure
after the engine accepted the request is attributed according to how the endpoint serves other requests:

- The request is at fault if it has also failed on another endpoint, both endpoints have recently served other requests,
  and no other request has failed on either endpoint since that endpoint's last success. An engine that has crashed
  causes other requests to fail as well, so none of them is at fault. A request at fault is not retried. It is
  quarantined: until the quarantine ends, the same body from the same tenant is rejected without contacting an engine.
- The tenant is at fault if all failures since the endpoint's last success belong to one tenant and the endpoint has
  recently served other tenants. The same rule applies to models.
- Otherwise the endpoint is at fault.

"Recently" means within `SERVED_NS_MAX`.

The same rules apply to a stream that has produced no token for too long, with a stricter condition: the endpoint must
have served other requests in the second half of the silence. An engine that hangs serves no requests from then on, so
its silent streams are the endpoint's fault and eject it as quickly as any other failure.

If a response exceeds its class's timeout (`attempt_timeout`), the request is at fault but is not quarantined.
Exception: if the engine has stopped reporting metrics, it may be hanging, so the endpoint is at fault.

In a cell, a failure counts against the endpoint only if most members that recently tried the endpoint also failed.
Otherwise, the member is at fault and is listed as one that the endpoint does not serve.

If a failure was attributed to a tenant or a model and the same request then succeeds elsewhere, the failure counts
against the endpoint after all, because the request was valid. The same applies to gateway failures, because the gateway
may lack a port or an address for one endpoint only. They are not counted against the endpoint if the gateway has
recently failed on most endpoints. In a cell, the members must agree here too.

A request that a hosted provider rejected because of a rate limit is no failure of the endpoint, which gets no requests
until the limit is reset (`provider_quota`).

A successor receives the quarantined requests but not the suspects, because two failures identify a suspect again.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

from headgate.core.counters import QuarantineCounter
from headgate.core.events import AttemptEnded, AttemptEnding
from headgate.core.request_state import Attempt
from headgate.core.routing.endpoints import EndpointRecord
from headgate.model.endpoint import EndpointState
from headgate.model.fault import Fault, FaultOrigin
from headgate.model.ticket import Ticket
from headgate.model.units import MINUTE, SECOND, Duration, EndpointId, Instant, after

SERVED_NS_MAX: Final = Duration(10 * SECOND)
"""An endpoint counts as serving other requests if it has served one within this time."""
SUSPECT_NS_MAX: Final = Duration(MINUTE)
"""Maximum time between two failures of the same request that are compared."""
QUARANTINE_NS: Final = Duration(MINUTE)
REQUESTS_MAX: Final = 1_024
"""Maximum number of suspected requests, and of quarantined requests. When it is exceeded, the oldest are dropped."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MemberEndpoint = tuple[str, EndpointId]
"""Gateway (empty without a cell) and endpoint."""


class _Suspect(NamedTuple):
    """Last failure of a request that an engine had accepted."""

    endpoint: EndpointRecord
    at: Instant
    counted: bool
    """Whether the failure was counted against the endpoint."""


class FaultAttribution:
    __slots__ = ("_quarantined", "_requests_max", "_suspects", "_unreached")

    def __init__(self, *, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._suspects: dict[str, _Suspect] = {}
        self._unreached: dict[_MemberEndpoint, Instant] = {}
        """Last time at which each gateway lacked the resources to connect to an endpoint, earliest first."""
        self._quarantined: dict[str, Instant] = {}
        """End of each quarantine by request identity, earliest first."""

    def quarantine_ns_left(self, ticket: Ticket, now: Instant) -> Duration | None:
        """Returns the remaining quarantine time of a request, or None if it is not quarantined."""
        if not self._quarantined or (until := self._quarantined.get(ticket.identity)) is None or until <= now:
            return None
        return Duration(until - now)

    def quarantined_count(self, now: Instant) -> int:
        """Returns the number of quarantined requests."""
        return sum(until > now for until in self._quarantined.values())

    def clear(self, ticket: Ticket) -> None:
        """Clears a request that has proved to be valid by completing."""
        if self._suspects:
            self._suspects.pop(ticket.identity, None)
        if self._quarantined:
            self._quarantined.pop(ticket.identity, None)

    def attribute(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        """Returns the origin of a failed or silent attempt."""
        if event.limits is not None and event.limits.blocked_ns:
            return FaultOrigin.RATE_LIMIT
        endpoint, ticket = attempt.endpoint, attempt.ticket
        origin = self._attribute(attempt, event, now)
        if origin is FaultOrigin.ENDPOINT and not _members_agree(endpoint, ticket, now):
            origin = FaultOrigin.MEMBER
        if origin is not FaultOrigin.REQUEST and _is_suspect(attempt, event, now):
            self._suspect(endpoint, ticket, now, counted=origin is FaultOrigin.ENDPOINT)
        return origin

    def is_endpoint_fault(
        self,
        endpoint: EndpointRecord,
        ticket: Ticket,
        origin: FaultOrigin,
        now: Instant,
        *,
        endpoints: Iterable[EndpointRecord],
    ) -> bool:
        """Whether a failure counts against the endpoint, now that the request has succeeded elsewhere.

        A gateway that recently could not connect to most of the endpoints in `endpoints` is itself at fault.
        """
        if origin is not FaultOrigin.GATEWAY:
            return True
        since = now - SERVED_NS_MAX
        unreached = sum(by == ticket.gateway and at >= since for (by, _), at in self._unreached.items())
        could_be_asked = sum(each.state is not EndpointState.WARMING and not each.leaving for each in endpoints)
        return 2 * unreached <= could_be_asked and _members_agree(endpoint, ticket, now)

    def _attribute(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        endpoint, ticket = attempt.endpoint, attempt.ticket
        if event.fault is Fault.GATEWAY:
            self._note_unreached(endpoint, ticket, now)
            return FaultOrigin.GATEWAY
        if event.fault is Fault.TIME_LIMIT:
            return FaultOrigin.ENDPOINT if endpoint.metrics_stale else FaultOrigin.REQUEST
        if self.quarantine_ns_left(ticket, now) is None:
            endpoint.service_log.record_failed_request(ticket)
        accepted = _was_accepted(event)
        if not (accepted or event.fault is Fault.UNAVAILABLE):
            return FaultOrigin.ENDPOINT
        if self.quarantine_ns_left(ticket, now) is not None:
            return FaultOrigin.REQUEST
        endpoint.service_log.record_failure(ticket, attempt.model)
        if accepted and self._is_poison(attempt, event, now):
            return FaultOrigin.REQUEST
        return _confined_origin(attempt, _evidence_since(attempt, event, now))

    def _is_poison(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> bool:
        """Whether the request has failed on two endpoints that both serve other requests without failures.

        If so, quarantines the request and reverts a failure that was counted against the first endpoint.
        """
        endpoint, ticket, since = attempt.endpoint, attempt.ticket, _evidence_since(attempt, event, now)
        suspect = self._suspects.get(ticket.identity)
        # Silent attempts are compared by the start of the silence. Otherwise, attempts with timeouts of a minute or
        # more would never match.
        began = attempt.last_progress_at if event.ending is AttemptEnding.TIMEOUT else now
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

    # Handover between schedulers

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
    return event.ending is AttemptEnding.TIMEOUT or event.fault is Fault.RESPONSE


def _evidence_since(attempt: Attempt, event: AttemptEnded, now: Instant) -> Instant:
    """Returns the time since which the endpoint must have served other requests for this one to be at fault.

    For a silent stream this is the middle of the silence. An engine that hangs stops all its streams at the same time,
    which is when the silence starts. If the endpoint still serves others in the second half, it is not hanging.
    """
    if event.ending is AttemptEnding.TIMEOUT:
        return Instant((attempt.last_progress_at + now) // 2 + 1)
    return Instant(now - SERVED_NS_MAX)


def _is_suspect(attempt: Attempt, event: AttemptEnded, now: Instant) -> bool:
    """Whether to remember the failure, to compare it with a failure of the same request on another endpoint."""
    if event.ending is not AttemptEnding.TIMEOUT:
        return event.fault is Fault.RESPONSE
    served_others = attempt.endpoint.service_log.requests.other_than(attempt.ticket.identity)
    return event.fault is not Fault.TIME_LIMIT and served_others >= _evidence_since(attempt, event, now)


def _confined_origin(attempt: Attempt, since: Instant) -> FaultOrigin:
    """Returns the tenant or model as origin if failures are confined to it and the endpoint serves others."""
    service = attempt.endpoint.service_log
    if service.single_tenant and service.tenants.other_than(attempt.ticket.tenant) >= since:
        return FaultOrigin.TENANT
    if service.single_model and service.models.other_than(attempt.model) >= since:
        return FaultOrigin.MODEL
    return FaultOrigin.ENDPOINT


def _serves_other_requests(endpoint: EndpointRecord, ticket: Ticket, since: Instant) -> bool:
    """Whether the endpoint has served other requests since then and none of them has failed since its last success."""
    service = endpoint.service_log
    return service.fails_only(ticket) and service.requests.other_than(ticket.identity) >= since


def _members_agree(endpoint: EndpointRecord, ticket: Ticket, now: Instant) -> bool:
    """Whether most cell members that recently tried the endpoint failed. Always true outside a cell."""
    return not ticket.gateway or endpoint.service_log.members.record_failure(ticket.gateway, now, SERVED_NS_MAX)
