"""Assignment table: the requests and attempts known to the scheduler of a cell, and their members.

One `Scheduler` makes the decisions for all members' requests. The table records which member holds each request, so
that a command reaches the member that has to carry it out, and which attempts have a slot. A request is removed when it
is over for its member and no attempt is running.
"""

from collections.abc import Iterator

from headgate.core.commands import Abort, BudgetCrossed, Command, Dispatch, Eject, End, Hold, Readmit
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    Event,
    RequestArrived,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.peers import AssignedRequest, AttemptPlacement, Peer
from headgate.hosts.cell.protocol.compatibility import is_readable
from headgate.hosts.cell.protocol.deadlines import with_elapsed
from headgate.hosts.cell.protocol.messages import FromScheduler, Grant, NewRequest, SnapshotId
from headgate.hosts.cell.timing import Timing
from headgate.model.units import Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.observer import Observer


def aborted_attempt(request_id: RequestId, attempt: int, reason: str) -> AttemptEnded:
    return AttemptEnded(request_id, attempt, AttemptEnding.ABORTED, reason)


class AssignmentTable:
    def __init__(self, epoch: int, *, timing: Timing, observers: tuple[Observer, ...]) -> None:
        self.scheduler = Scheduler()
        self.observers = observers
        self.requests: dict[RequestId, AssignedRequest] = {}
        self.next_snapshot = SnapshotId(epoch, 1)
        """First snapshot that will include the current decisions."""
        self.unknown_endpoints: dict[EndpointId, PoolName] = {}
        """Endpoints known only from members' reports, with their reported pools."""
        self.peers_to_notify: dict[str, Peer] = {}
        """Members that need an entry before the next heartbeat."""
        self._timing = timing
        self.deferred_ends: list[tuple[Peer, End]] = []
        """`End` commands to send to members as soon as their reports are adopted."""
        self._undeliverable: list[AttemptEnded] = []
        """Grants that no member can carry out."""

    # Contents

    def add(self, booked: AssignedRequest) -> AssignedRequest:
        request_id = booked.ticket.request_id
        self.requests[request_id] = booked.peer.requests[request_id] = booked
        return booked

    def placement(self, request_id: RequestId, attempt: int) -> AttemptPlacement | None:
        booked = self.requests.get(request_id)
        return None if booked is None else booked.attempts.get(attempt)

    def has(self, request_id: RequestId, attempt: int) -> bool:
        return self.placement(request_id, attempt) is not None

    def attempts(self) -> Iterator[tuple[str, RequestId, int, EndpointId]]:
        """Yields every attempt that occupies a slot, as (member, request, attempt number, endpoint)."""
        for request_id, booked in self.requests.items():
            for number, place in booked.attempts.items():
                yield booked.peer.name, request_id, number, place.endpoint_id

    def add_arrival(self, peer: Peer, arrival: NewRequest, at: Instant, now: Instant) -> None:
        """Adds a new request from a member."""
        ticket = arrival.ticket
        if ticket.request_id not in self.requests:
            self.add(AssignedRequest(ticket, peer, Instant(at - arrival.waited_ns)))
            passed_ns = Duration(arrival.waited_ns + max(0, now - at))
            self.handle(RequestArrived(with_elapsed(ticket, passed_ns)), now)

    def withdraw(
        self, booked: AssignedRequest, now: Instant, cause: WithdrawalCause = WithdrawalCause.SHUTDOWN
    ) -> None:
        """Withdraws a request from the scheduler because its member decides on it or has ended it."""
        booked.over = True
        self.handle(RequestWithdrawn(booked.ticket.request_id, cause), now)
        self.remove_if_done(booked)

    def send_deferred_ends(self, now: Instant) -> None:
        for peer, end in self.deferred_ends:
            self.send(peer, end, now)
        self.deferred_ends.clear()

    def remove_if_done(self, booked: AssignedRequest) -> None:
        request_id = booked.ticket.request_id
        if booked.over and not booked.attempts and self.requests.get(request_id) is booked:
            del self.requests[request_id]
            del booked.peer.requests[request_id]

    # Decisions

    def handle(self, event: Event, now: Instant) -> None:
        commands = self.scheduler.handle(event, now)
        for observer in self.observers:
            observer.observe(event, commands, now)
        for command in commands:
            self._perform(command, now)
        while self._undeliverable:
            undone = self._undeliverable.pop()
            self.handle(RequestWithdrawn(undone.request_id, WithdrawalCause.SHUTDOWN), now)
            self.handle(undone, now)

    def _perform(self, command: Command, now: Instant) -> None:
        match command:
            case Dispatch():
                self._grant(command, now)
            case Abort():
                booked = self.requests.get(command.request_id)
                if booked is not None and not booked.over:
                    self.send(booked.peer, command, now)
            case End():
                booked = self.requests.get(command.request_id)
                if booked is not None:
                    if booked.ended_by_member and not booked.peer.is_connected:
                        self.deferred_ends.append((booked.peer, command))
                    elif booked.ended_by_member:
                        # Only the bills are new to the member.
                        self._send_bills(booked.peer, command, now)
                    elif not booked.over:
                        self.send(booked.peer, command, now)
                    booked.over, booked.ended_by_member = True, False
                    self.remove_if_done(booked)
            case Hold() | Eject() | Readmit() | BudgetCrossed():
                pass

    def _grant(self, dispatch: Dispatch, now: Instant) -> None:
        booked = self.requests.get(dispatch.request_id)
        if booked is None or booked.over or not booked.peer.is_connected:
            self._undeliverable.append(
                aborted_attempt(dispatch.request_id, dispatch.attempt, "no connected member can start it")
            )
            if booked is not None:
                booked.over = True
            return
        booked.attempts[dispatch.attempt] = AttemptPlacement(dispatch.endpoint_id, now)
        self.send(booked.peer, Grant(dispatch, self._timing.start_within_ns, self.next_snapshot), now)

    def send(self, peer: Peer, message: FromScheduler, now: Instant) -> None:
        if peer.is_connected and is_readable(message, peer.version):
            peer.outbound.push(message, now)
            self.peers_to_notify[peer.name] = peer

    def _send_bills(self, peer: Peer, end: End, now: Instant) -> None:
        if peer.is_connected:
            peer.outbound.push(end, now)
            peer.send_within(self._timing.ack_ns, now)
