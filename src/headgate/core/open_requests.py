"""Open requests with their deadlines and idempotency keys.

Deadlines and Idempotency-Keys add no overhead to requests that do not have them. Nothing is kept after a request ends.
"""

from headgate.core.request_state import Request
from headgate.core.timers import TimerHeap, Timers
from headgate.model.ticket import Ticket
from headgate.model.units import RequestId, TenantId


class OpenRequests:
    __slots__ = ("_idempotency_keys", "by_id", "deadline_timers", "sequence")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self.by_id: dict[RequestId, Request] = {}
        self.deadline_timers: Timers[RequestId] = Timers(timer_heap)
        self.sequence = 0
        """Sequence number of the last request that was admitted, rejected for lack of queue space, or adopted."""
        self._idempotency_keys: dict[tuple[TenantId, str], RequestId] = {}

    def add(self, request: Request) -> None:
        ticket = request.ticket
        self.by_id[ticket.request_id] = request
        if ticket.idempotency_key is not None:
            self._idempotency_keys[ticket.tenant, ticket.idempotency_key] = ticket.request_id
        if request.deadline is not None:
            self.deadline_timers.set(ticket.request_id, request.deadline.at)

    def remove(self, request: Request) -> None:
        ticket = request.ticket
        del self.by_id[ticket.request_id]
        # Two requests can be open with the same key if two isolated schedulers admitted them.
        if ticket.idempotency_key is not None and self.open_with_key(ticket) == ticket.request_id:
            del self._idempotency_keys[ticket.tenant, ticket.idempotency_key]
        if request.deadline is not None:
            self.deadline_timers.clear(ticket.request_id)

    # Idempotency keys

    def open_with_key(self, ticket: Ticket) -> RequestId | None:
        """Returns the tenant's open request with the same Idempotency-Key."""
        key = ticket.idempotency_key
        return None if key is None else self._idempotency_keys.get((ticket.tenant, key))

    # Deadlines

    def record_first_token(self, request: Request) -> None:
        """Records the first token. From now on only the deadline for the complete response applies."""
        request.first_token = True
        if request.deadline is request.completion_deadline:
            return
        request.deadline = request.completion_deadline
        if request.deadline is None:
            self.deadline_timers.clear(request.ticket.request_id)
        else:
            self.deadline_timers.set(request.ticket.request_id, request.deadline.at)
