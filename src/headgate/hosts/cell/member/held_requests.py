"""State that a member keeps for each request it holds.

A gateway owns its requests: it has the client connection and the body. It keeps enough state to report each request to
a new scheduler: its age and queue time, its running attempts and their progress, and how much of that an earlier
scheduler has counted.
"""

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptReported, AttemptsProgressed, CountedUpTo, RequestReported, RequestSettled
from headgate.hosts.cell.protocol.deadlines import with_elapsed
from headgate.hosts.cell.protocol.messages import QueuedRequest, RunningAttempt, SettledRequest, SnapshotId
from headgate.model.money import NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from headgate.model.usage import Usage


class HeldAttempt:
    """One attempt, from dispatch until it ends."""

    __slots__ = (
        "dispatch",
        "dispatch_snapshot",
        "first_token",
        "has_progress",
        "late",
        "report_serial",
        "reported_tokens",
        "request",
        "started_at",
        "tokens",
    )

    def __init__(self, order: Dispatch, request: "HeldRequest", sent: SnapshotId | None, now: Instant) -> None:
        self.dispatch = order
        self.request = request
        self.dispatch_snapshot = sent
        """First snapshot that includes the dispatch. None if an island sent the attempt."""
        self.report_serial = 0
        """Serial of the last message that reported this attempt."""
        self.started_at = now
        self.first_token = False
        self.tokens = self.reported_tokens = 0
        self.has_progress = False
        """Whether there is unreported progress. It may be without tokens if the client blocks the stream."""
        self.late = False
        """Whether any of the unreported tokens were counted late by this process."""

    def mark_reported(self) -> None:
        self.reported_tokens = self.tokens
        self.has_progress = self.late = False


class HeldRequest:
    """One request, from arrival until it has ended and has no running attempts."""

    __slots__ = (
        "admitted",
        "arrival_serial",
        "attempts",
        "completed",
        "cost",
        "end_serial",
        "failed_endpoint_id",
        "held_ns",
        "last_attempt",
        "opened_at",
        "over",
        "queued_at",
        "responding_attempt",
        "running",
        "tenant_pays",
        "ticket",
        "usage",
        "waited_ns",
    )

    def __init__(self, ticket: Ticket, now: Instant) -> None:
        self.ticket = ticket
        self.opened_at = self.queued_at = now
        self.waited_ns = Duration(0)
        """Queue time accumulated before the request was last queued."""
        self.held_ns = Duration(0)
        self.admitted = False
        """Whether a scheduler or an island has admitted the request."""
        self.arrival_serial = 0
        """Serial of the message that reported the arrival. 0 if no scheduler was informed."""
        self.attempts = 0
        """Number of attempts started."""
        self.running: dict[int, HeldAttempt] = {}
        self.responding_attempt: int | None = None
        """Attempt that has started to respond. After that the request is not retried."""
        self.failed_endpoint_id: EndpointId | None = None
        self.last_attempt: HeldAttempt | None = None
        self.usage: Usage | None = None
        self.completed = False
        self.cost: NanoUsd | None = None
        """Cost that the tenant pays, once known."""
        self.end_serial = 0
        """Serial of the message that reported the end. 0 if the request is open or no scheduler was informed."""
        self.over = False
        self.tenant_pays = False
        """Whether the tenant pays, according to the outcome decided by the member."""

    @property
    def id(self) -> RequestId:
        return self.ticket.request_id

    def waited(self, now: Instant) -> Duration:
        """Returns the time spent in the queue so far, over all attempts."""
        return self.waited_ns if self.running else Duration(self.waited_ns + now - self.queued_at)

    def remaining_ticket(self, now: Instant) -> Ticket:
        """Returns the ticket with the remaining deadlines."""
        return with_elapsed(self.ticket, Duration(now - self.opened_at))

    def start_attempt(self, order: Dispatch, sent: SnapshotId | None, now: Instant) -> HeldAttempt:
        self.waited_ns = self.waited(now)
        self.held_ns = order.held_ns
        self.admitted = True
        self.attempts = max(self.attempts, order.attempt)
        self.last_attempt = self.running[order.attempt] = attempt = HeldAttempt(order, self, sent, now)
        return attempt

    # Reports to a new scheduler

    def queued_report(self, now: Instant) -> QueuedRequest:
        report = RequestReported(
            self.ticket,
            self.waited(now),
            self.attempts,
            age_ns=Duration(now - self.opened_at),
            held_ns=self.held_ns,
            failed_at=self.failed_endpoint_id,
            route="" if self.last_attempt is None else self.last_attempt.dispatch.route,
        )
        return QueuedRequest(report, self.arrival_serial)

    def running_report(self, attempt: HeldAttempt, now: Instant) -> RunningAttempt:
        order = attempt.dispatch
        report = AttemptReported(
            self.ticket,
            order.attempt,
            order.endpoint_id,
            Duration(now - attempt.started_at),
            attempt.first_token,
            attempt.tokens,
            self.waited_ns,
            order.pool,
            order.service_class,
            order.caps,
            level=order.level,
            hedge=order.hedge,
            model=order.model,
            held_ns=order.held_ns,
            request_age_ns=Duration(now - self.opened_at),
            request_ended=self.over,
            superseded=self.responding_attempt is not None and self.responding_attempt != order.attempt,
            route=order.route,
        )
        attempt.mark_reported()
        cost = self._cost() if self.over else NanoUsd(0)
        return RunningAttempt(
            report, self.arrival_serial, attempt.dispatch_snapshot, attempt.report_serial, self.end_serial, cost
        )

    def _cost(self) -> NanoUsd | None:
        """Returns the cost that the tenant pays. None if the tenant pays and the cost is unknown."""
        return NanoUsd(0) if self.cost is None and not self.tenant_pays else self.cost

    def settled_report(self, serial: int, now: Instant) -> SettledRequest:
        order = self.last_attempt.dispatch if self.last_attempt is not None else None
        report = RequestSettled(
            self.ticket,
            self.attempts,
            pool=order.pool if order is not None else None,
            service_class=order.service_class if order is not None else None,
            usage=self.usage,
            completed=self.completed,
            model=order.model if order is not None else None,
            age_ns=Duration(now - self.opened_at),
            counted=CountedUpTo.NOTHING,
            cost=self._cost(),
        )
        sent = self.last_attempt.dispatch_snapshot if self.last_attempt is not None else None
        return SettledRequest(report, serial, self.arrival_serial, sent, self.end_serial)


class UnsettledRequest:
    """An ended request whose result no confirmed snapshot includes."""

    __slots__ = ("_ended_at", "request", "serial")

    def __init__(self, request: HeldRequest, serial: int, now: Instant) -> None:
        self.request = request
        self.serial = serial
        """Serial of the message that reported the result. 0 if no scheduler was informed."""
        self._ended_at = now

    def report(self) -> SettledRequest:
        return self.request.settled_report(self.serial, self._ended_at)


class HeldRequests:
    """Requests that a member holds, and results that no confirmed snapshot includes."""

    __slots__ = ("_covered", "_unsettled_max", "requests", "unsettled")

    def __init__(self, *, unsettled_max: int) -> None:
        self.requests: dict[RequestId, HeldRequest] = {}
        self.unsettled: dict[RequestId, UnsettledRequest] = {}
        self._unsettled_max = unsettled_max
        self._covered = 0
        """Serial up to which all messages are included in a stored snapshot."""

    def attempt(self, request_id: RequestId, number: int) -> HeldAttempt | None:
        """Returns a running attempt."""
        request = self.requests.get(request_id)
        return None if request is None else request.running.get(number)

    def add_progress(self, event: AttemptsProgressed) -> None:
        for each in event.attempts:
            attempt = self.attempt(each.request_id, each.attempt)
            if attempt is not None:
                attempt.tokens += each.tokens
                attempt.has_progress = True
                if event.late:
                    attempt.late = True

    def unreported_attempts(self) -> list[HeldAttempt]:
        """Returns the running attempts with unreported progress."""
        return [
            attempt
            for request in self.requests.values()
            for attempt in request.running.values()
            if attempt.has_progress
        ]

    def release(self, request: HeldRequest, serial: int, now: Instant) -> None:
        """Drops a request that has ended without running attempts. Its result is kept until a snapshot includes it.

        `serial` is that of the message that reported the end.
        """
        if not request.over or request.running or self.requests.pop(request.id, None) is None:
            return
        # An attempt may end after a snapshot has included the message that reported its request as ended.
        is_covered = 0 < serial <= self._covered
        if request.admitted and request.arrival_serial and not is_covered:
            self.unsettled[request.id] = UnsettledRequest(request, serial, now)
            if len(self.unsettled) > self._unsettled_max:
                del self.unsettled[next(iter(self.unsettled))]

    def record_cost(self, request_id: RequestId, cost: NanoUsd) -> None:
        """Stores the cost of a request, for a scheduler that does not know it."""
        request = self.requests.get(request_id)
        if request is None and (unsettled := self.unsettled.get(request_id)) is not None:
            request = unsettled.request
        if request is not None:
            request.cost = cost

    def mark_covered(self, serial: int) -> None:
        """Drops results that a stored snapshot includes, up to this serial."""
        self._covered = max(self._covered, serial)
        covered = [name for name, each in self.unsettled.items() if each.serial <= serial]
        for name in covered:
            del self.unsettled[name]
