"""What does a member remember of a request that it holds?

A gateway owns its requests: it has the caller's connection, and the body. So it remembers enough of each to tell a
scheduler that has never heard of it: how long it has been here and has waited, which attempts are under way and how far
they are, and what of all that an earlier scheduler has counted.
"""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptReported, Counted, RequestReported, RequestSettled
from headgate.hosts.cell.protocol.deadlines import with_less_time
from headgate.hosts.cell.protocol.messages import Runs, Settled, Snapshots, Waits
from headgate.model.money import NanoUsd
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from headgate.model.usage import Usage


class OpenAttempt:
    """One try at one endpoint, from the order to its end."""

    __slots__ = ("first_token", "order", "request", "sent", "started_at", "tokens", "told")

    def __init__(self, order: Dispatch, request: "HeldRequest", sent: Snapshots | None, now: Instant) -> None:
        self.order = order
        self.request = request
        self.sent = sent
        """The first snapshot that knows of it; None where an island sent it."""
        self.told = 0
        """The serial with which it was reported last."""
        self.started_at = now
        self.first_token = False
        self.tokens = 0


class HeldRequest:
    """One request, from its arrival until it has ended and nothing of it is under way."""

    __slots__ = (
        "accepted",
        "arrived",
        "attempts",
        "completed",
        "cost",
        "ended",
        "failed_at",
        "held_ns",
        "last",
        "opened_at",
        "over",
        "pays",
        "queued_at",
        "running",
        "spoken",
        "ticket",
        "usage",
        "waited_ns",
    )

    def __init__(self, ticket: Ticket, now: Instant) -> None:
        self.ticket = ticket
        self.opened_at = self.queued_at = now
        self.waited_ns = Duration(0)
        """In the queue, up to when it was queued last."""
        self.held_ns = Duration(0)
        self.accepted = False
        """Whether a scheduler or an island has let it in."""
        self.arrived = 0
        """The serial that told of its arrival; 0 where no scheduler was told."""
        self.attempts = 0
        """How many were begun."""
        self.running: dict[int, OpenAttempt] = {}
        self.spoken: int | None = None
        """The attempt that has begun to answer: from there on nothing is retried."""
        self.failed_at: EndpointId | None = None
        self.last: OpenAttempt | None = None
        self.usage: Usage | None = None
        self.completed = False
        self.cost: NanoUsd | None = None
        """What its tenant pays, once somebody has told."""
        self.ended = 0
        """The serial that told of its end; 0 as long as it has not ended, or no scheduler was told."""
        self.over = False
        self.pays = False
        """Whether its tenant pays for it, by how it ended here."""

    @property
    def id(self) -> RequestId:
        return self.ticket.request_id

    def waited(self, now: Instant) -> Duration:
        """In the queue so far, over all attempts."""
        return self.waited_ns if self.running else Duration(self.waited_ns + now - self.queued_at)

    def ticket_left(self, now: Instant) -> Ticket:
        """Its ticket, with what is left of its deadlines."""
        return with_less_time(self.ticket, Duration(now - self.opened_at))

    def begin(self, order: Dispatch, sent: Snapshots | None, now: Instant) -> OpenAttempt:
        self.waited_ns = self.waited(now)
        self.held_ns = order.held_ns
        self.accepted = True
        self.attempts = max(self.attempts, order.attempt)
        self.last = self.running[order.attempt] = attempt = OpenAttempt(order, self, sent, now)
        return attempt

    # What it tells a scheduler that does not know it

    def waits(self, now: Instant) -> Waits:
        report = RequestReported(
            self.ticket,
            self.waited(now),
            self.attempts,
            age_ns=Duration(now - self.opened_at),
            held_ns=self.held_ns,
            failed_at=self.failed_at,
        )
        return Waits(report, self.arrived)

    def runs(self, attempt: OpenAttempt, now: Instant) -> Runs:
        order = attempt.order
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
            over=self.over,
            let_go=self.spoken is not None and self.spoken != order.attempt,
        )
        cost = self._cost() if self.over else NanoUsd(0)
        return Runs(report, self.arrived, attempt.sent, attempt.told, self.ended, cost)

    def _cost(self) -> NanoUsd | None:
        """What its tenant pays; None where it does and nobody has told how much."""
        return NanoUsd(0) if self.cost is None and not self.pays else self.cost

    def settled(self, serial: int, now: Instant) -> Settled:
        order = self.last.order if self.last is not None else None
        report = RequestSettled(
            self.ticket,
            self.attempts,
            pool=order.pool if order is not None else None,
            service_class=order.service_class if order is not None else None,
            usage=self.usage,
            completed=self.completed,
            model=order.model if order is not None else None,
            age_ns=Duration(now - self.opened_at),
            counted=Counted.NOTHING,
            cost=self._cost(),
        )
        sent = self.last.sent if self.last is not None else None
        return Settled(report, serial, self.arrived, sent, self.ended)


class Holdings:
    """All requests that a member holds, and the ends of requests that no confirmed snapshot covers."""

    __slots__ = ("_covered", "_unsettled_max", "requests", "unsettled")

    def __init__(self, *, unsettled_max: int) -> None:
        self.requests: dict[RequestId, HeldRequest] = {}
        self.unsettled: dict[RequestId, Settled] = {}
        self._unsettled_max = unsettled_max
        self._covered = 0
        """The serial up to which a written snapshot knows everything."""

    def attempt(self, request_id: RequestId, number: int) -> OpenAttempt | None:
        """An attempt that is under way."""
        request = self.requests.get(request_id)
        return None if request is None else request.running.get(number)

    def release(self, request: HeldRequest, serial: int, now: Instant) -> None:
        """Drop a request that has ended with nothing under way; its end is kept until a snapshot covers it.

        `serial` is that of the message that told of the end.
        """
        if not request.over or request.running or self.requests.pop(request.id, None) is None:
            return
        # An attempt may end after a snapshot has covered the message that told of the request's end.
        is_covered = 0 < serial <= self._covered
        if request.accepted and request.arrived and not is_covered:
            self.unsettled[request.id] = request.settled(serial, now)
            if len(self.unsettled) > self._unsettled_max:
                del self.unsettled[next(iter(self.unsettled))]

    def note_cost(self, request_id: RequestId, cost: NanoUsd) -> None:
        """Keep what a request has cost, for a scheduler that does not know."""
        request, settled = self.requests.get(request_id), self.unsettled.get(request_id)
        if request is not None:
            request.cost = cost
        elif settled is not None:
            self.unsettled[request_id] = replace(settled, report=replace(settled.report, cost=cost))

    def cover(self, serial: int) -> None:
        """A written snapshot knows everything up to this serial."""
        self._covered = max(self._covered, serial)
        covered = [name for name, settled in self.unsettled.items() if settled.serial <= serial]
        for name in covered:
            del self.unsettled[name]
