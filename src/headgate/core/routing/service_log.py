"""Which tenants, models and requests has an endpoint served recently, and which fail there?

A failure can be judged only if it is known whether the endpoint serves other tenants, models or requests. The two names
of each kind that were served last are enough: at least one of them differs from any given name.

A successor does not receive this log. Seconds of traffic rebuild it; until then failures count against the endpoint, as
they would without it.
"""

from typing import Final

from headgate.model.ticket import Ticket
from headgate.model.units import Duration, Instant, ModelName

MEMBERS_MAX: Final = 64
"""The largest number of cell members that are remembered; the one with the oldest attempt is dropped."""
_LONG_AGO = Instant(-(2**62))


class LastServed:
    """The two names that were served last, each with its time."""

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
        """The last time at which another name was served."""
        return self._before_at if name == self._name else self._at


class MembersServed:
    """The members of a cell that an endpoint serves, and those that it does not."""

    __slots__ = ("_members_max", "_tried", "unserved")

    def __init__(self, *, members_max: int = MEMBERS_MAX) -> None:
        self._members_max = members_max
        self._tried: dict[str, tuple[Instant, bool]] = {}
        """The time of each member's last attempt, and whether it was served."""
        self.unserved: dict[str, None] = {}
        """Members whose failures do not count, since the others are served."""

    def served(self, member: str, now: Instant) -> None:
        if self.unserved:
            self.unserved.pop(member, None)
        self._note(member, now, served=True)

    def is_unserved(self, member: str) -> bool:
        return member in self.unserved

    def failed(self, member: str, now: Instant, within_ns: Duration) -> bool:
        """Records a failure; returns whether the endpoint fails for most members that tried it within this time."""
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
        """Whether all failures since the last success are of one request, whatever their cause."""

    def served(self, ticket: Ticket, model: ModelName, now: Instant) -> None:
        """Records that part of an answer to this request has come."""
        self.tenants.note(ticket.tenant, now)
        self.models.note(model, now)
        self.requests.note(ticket.identity, now)
        if ticket.gateway:
            self.members.served(ticket.gateway, now)

    def succeeded(self) -> None:
        """Ends the failures in a row."""
        self._tenant = self._model = self._identity = ""
        self.alone_tenant = self.alone_model = self.alone_request = True

    def failed(self, ticket: Ticket, model: ModelName) -> None:
        self.alone_tenant = self.alone_tenant and self._tenant in ("", ticket.tenant)
        self.alone_model = self.alone_model and self._model in ("", model)
        self._tenant, self._model = ticket.tenant, model

    def let_down(self, ticket: Ticket) -> None:
        """Records a failed attempt; failures of the gateway itself are not recorded."""
        self.alone_request = self.alone_request and self._identity in ("", ticket.identity)
        self._identity = ticket.identity

    def fails_only(self, ticket: Ticket) -> bool:
        """Whether no other request has failed since the last success."""
        return self.alone_request and self._identity in ("", ticket.identity)
