"""Service log: the tenants, models and requests that an endpoint recently served, and those that failed there.

To find the cause of a failure, the scheduler checks whether the endpoint still serves other tenants, models or
requests. The last two names of each kind are enough, because at least one of them differs from any given name.

A successor does not receive this log, but a few seconds of traffic rebuild it. Until then, failures count against the
endpoint.
"""

from typing import Final

from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName

MEMBERS_MAX: Final = 64
"""Maximum number of cell members in the log. When it is exceeded, the member with the oldest attempt is dropped."""
_LONG_AGO = Instant(-(2**62))


class LastServed:
    """The last two distinct names that were served, each with its time."""

    __slots__ = ("_before", "_before_at", "at", "name")

    def __init__(self) -> None:
        self.name = self._before = ""
        """The last name and the last other name."""
        self.at = self._before_at = _LONG_AGO

    def record(self, name: str, now: Instant) -> None:
        if name != self.name:
            self._before, self._before_at = self.name, self.at
            self.name = name
        self.at = now

    def other_than(self, name: str) -> Instant:
        """Returns the last time at which another name was served."""
        return self._before_at if name == self.name else self.at


class MembersServed:
    """Cell members that an endpoint serves, and those that it does not."""

    __slots__ = ("_members_max", "_tried", "unserved")

    def __init__(self, *, members_max: int = MEMBERS_MAX) -> None:
        self._members_max = members_max
        self._tried: dict[str, tuple[Instant, bool]] = {}
        """Time of each member's last attempt, and whether it was served."""
        self.unserved: dict[str, None] = {}
        """Ordered set of members whose failures do not count against the endpoint, because others are served."""

    def record_served(self, member: str, now: Instant) -> None:
        if self.unserved:
            self.unserved.pop(member, None)
        self._note(member, now, served=True)

    def is_unserved(self, member: str) -> bool:
        return member in self.unserved

    def record_failure(self, member: str, now: Instant, within_ns: Duration) -> bool:
        """Records a failure. Returns whether most members that tried the endpoint within `within_ns` failed."""
        self._note(member, now, served=False)
        recent = [served for at, served in self._tried.values() if now - at <= within_ns]
        agreed = 2 * recent.count(False) > len(recent)
        if agreed:
            self.unserved.clear()
        else:
            self.unserved[member] = None
        return agreed

    def _note(self, member: str, now: Instant, *, served: bool) -> None:
        if member not in self._tried and len(self._tried) >= self._members_max:
            oldest = min(self._tried, key=lambda each: self._tried[each][0])
            del self._tried[oldest]
            self.unserved.pop(oldest, None)
        self._tried[member] = (now, served)


class ServiceLog:
    """Recent successes and failures of one endpoint."""

    __slots__ = (
        "_identity",
        "_model",
        "_tenant",
        "completed",
        "has_failures",
        "members",
        "models",
        "requests",
        "single_model",
        "single_request",
        "single_tenant",
        "tenants",
    )

    def __init__(self) -> None:
        self.completed = 0
        """Number of completed attempts."""
        self.members = MembersServed()
        self.tenants, self.models, self.requests = LastServed(), LastServed(), LastServed()
        self.has_failures = False
        """Whether an attempt has failed since the last success."""
        self._tenant = self._model = self._identity = ""
        self.single_tenant = self.single_model = True
        """Whether all failures since the last success belong to one tenant, and to one model."""
        self.single_request = True
        """Whether all failures since the last success belong to one request, regardless of their cause."""

    def record_served(self, ticket: Ticket, model: ModelName, now: Instant) -> None:
        """Records that the endpoint has returned part of the response to this request."""
        tenants, models = self.tenants, self.models
        # Usually the last names, so that only their time changes. The calls take much longer.
        if ticket.tenant == tenants.name and model == models.name:
            tenants.at = models.at = now
        else:
            tenants.record(ticket.tenant, now)
            models.record(model, now)
        self.requests.record(ticket.fingerprint or ticket.request_id, now)
        if ticket.gateway:
            self.members.record_served(ticket.gateway, now)

    def record_success(self) -> None:
        """Records a success, which ends the series of failures."""
        self.has_failures = False
        self._tenant = self._model = self._identity = ""
        self.single_tenant = self.single_model = self.single_request = True

    def record_failure(self, ticket: Ticket, model: ModelName) -> None:
        self.has_failures = True
        self.single_tenant = self.single_tenant and self._tenant in ("", ticket.tenant)
        self.single_model = self.single_model and self._model in ("", model)
        self._tenant, self._model = ticket.tenant, model

    def record_failed_request(self, ticket: Ticket) -> None:
        """Records a failed attempt. Must not be called for failures that the gateway caused."""
        self.has_failures = True
        self.single_request = self.single_request and self._identity in ("", ticket.identity)
        self._identity = ticket.identity

    def fails_only(self, ticket: Ticket) -> bool:
        """Whether no other request has failed since the last success."""
        return self.single_request and self._identity in ("", ticket.identity)
