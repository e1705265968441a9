"""Which requests have not ended, by when do their callers want them, and which key did they come with?

What a deadline or an Idempotency-Key costs falls on those that have one, and it goes with the
request: nothing is kept here for longer than the request is open.
"""

from headgate.core.alarms import Agenda, Alarms
from headgate.core.state import Request
from headgate.model.ticket import Ticket
from headgate.model.units import RequestId, TenantId


class OpenRequests:
    __slots__ = ("_keys", "by_id", "deadlines", "sequence")

    def __init__(self, agenda: Agenda) -> None:
        self.by_id: dict[RequestId, Request] = {}
        self.deadlines: Alarms[RequestId] = Alarms(agenda)
        self.sequence = 0
        """The number of the last request that was let in, refused for want of room, or taken over."""
        self._keys: dict[tuple[TenantId, str], RequestId] = {}

    def add(self, request: Request) -> None:
        ticket = request.ticket
        self.by_id[ticket.request_id] = request
        if ticket.idempotency_key is not None:
            self._keys[ticket.tenant, ticket.idempotency_key] = ticket.request_id
        if request.deadline is not None:
            self.deadlines.set(ticket.request_id, request.deadline.at)

    def remove(self, request: Request) -> None:
        ticket = request.ticket
        del self.by_id[ticket.request_id]
        # Two that came with one key are open where each was let in by a scheduler that did not know of the other.
        if ticket.idempotency_key is not None and self.first_of_key(ticket) == ticket.request_id:
            del self._keys[ticket.tenant, ticket.idempotency_key]
        if request.deadline is not None:
            self.deadlines.clear(ticket.request_id)

    # Keys

    def first_of_key(self, ticket: Ticket) -> RequestId | None:
        """The open request of this tenant that came with the same Idempotency-Key."""
        key = ticket.idempotency_key
        return None if key is None else self._keys.get((ticket.tenant, key))

    # Deadlines

    def began(self, request: Request) -> None:
        """Its first token is out: of its caller's deadlines only that of the whole answer counts from here on."""
        request.first_token = True
        if request.deadline is request.deadline_of_whole:
            return
        request.deadline = request.deadline_of_whole
        if request.deadline is None:
            self.deadlines.clear(request.ticket.request_id)
        else:
            self.deadlines.set(request.ticket.request_id, request.deadline.at)
