"""Whom has an endpoint served of late, and whose requests fail there?

To judge a failure it must be known whether the endpoint serves anybody else. Of each kind of name (tenant, model,
request) the two that were served last are enough for that: of whomever is asked, one of them is another.

Nothing of this is told to a successor. It is made anew by the traffic of seconds; until then failures count against the
endpoint, as they would without it.
"""

from typing import Final

from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName

MEMBERS_MAX: Final = 64
"""Members of a cell that are remembered; the one that has not tried for longest makes room."""
_LONG_AGO = Instant(-(2**62))


class LastServed:
    """The two names that were served last, each with the moment."""

    __slots__ = ("_at", "_before", "_before_at", "_name")

    def __init__(self) -> None:
        self._name = self._before = ""
        self._at = self._before_at = _LONG_AGO

    def note(self, name: str, now: Instant) -> None:
        if name != self._name:
            self._before, self._before_at = self._name, self._at
            self._name = name
        self._at = now

    def other_than(self, name: str) -> Instant:
        """When another name than this was served last."""
        return self._before_at if name == self._name else self._at


class MembersServed:
    """Which members of a cell are served by an endpoint, and which are not."""

    __slots__ = ("_members_max", "_tried", "unserved")

    def __init__(self, *, members_max: int = MEMBERS_MAX) -> None:
        self._members_max = members_max
        self._tried: dict[str, tuple[Instant, bool]] = {}
        """When each of them last tried, and whether it was served."""
        self.unserved: dict[str, None] = {}
        """Those whose failures do not count, since the others are served."""

    def served(self, member: str, now: Instant) -> None:
        if self.unserved:
            self.unserved.pop(member, None)
        self._note(member, now, served=True)

    def is_unserved(self, member: str) -> bool:
        return member in self.unserved

    def failed(self, member: str, now: Instant, within_ns: Duration) -> bool:
        """Notes a failure; whether most who tried within this time agree that the endpoint fails."""
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
    """The recent service of one endpoint."""

    __slots__ = (
        "_identity",
        "_model",
        "_tenant",
        "alone_model",
        "alone_request",
        "alone_tenant",
        "members",
        "models",
        "requests",
        "tenants",
    )

    def __init__(self) -> None:
        self.members = MembersServed()
        self.tenants, self.models, self.requests = LastServed(), LastServed(), LastServed()
        self._tenant = self._model = self._identity = ""
        self.alone_tenant = self.alone_model = True
        """Whether all failures since the last success are of one tenant, and of one model."""
        self.alone_request = True
        """The same of one request, whatever went wrong."""

    def served(self, ticket: Ticket, model: ModelName, now: Instant) -> None:
        """Part of an answer to this request has come."""
        self.tenants.note(ticket.tenant, now)
        self.models.note(model, now)
        self.requests.note(ticket.identity, now)
        if ticket.gateway:
            self.members.served(ticket.gateway, now)

    def succeeded(self) -> None:
        """The failures in a row are over."""
        self._tenant = self._model = self._identity = ""
        self.alone_tenant = self.alone_model = self.alone_request = True

    def failed(self, ticket: Ticket, model: ModelName) -> None:
        self.alone_tenant = self.alone_tenant and self._tenant in ("", ticket.tenant)
        self.alone_model = self.alone_model and self._model in ("", model)
        self._tenant, self._model = ticket.tenant, model

    def let_down(self, ticket: Ticket) -> None:
        """An attempt failed, for whatever reason but the gateway's own."""
        self.alone_request = self.alone_request and self._identity in ("", ticket.identity)
        self._identity = ticket.identity

    def fails_only(self, ticket: Ticket) -> bool:
        """Whether no other request has failed since the last success."""
        return self.alone_request and self._identity in ("", ticket.identity)
