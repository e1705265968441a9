"""Which requests and attempts does the scheduler of a cell know, whose are they, and who is told what it decides?

One `Scheduler` decides about the requests of all members. The book says whose each of them is, so that an order reaches
the member that has to carry it out, and which attempts have a place. A request leaves the book when it is over for its
member and nothing of it is under way.
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
from headgate.hosts.cell.leader.peers import Booked, Peer, Place
from headgate.hosts.cell.protocol.deadlines import with_less_time
from headgate.hosts.cell.protocol.messages import Arrived, FromScheduler, Granted, Snapshots
from headgate.model.units import Duration, EndpointId, Instant, PoolName, RequestId
from headgate.ports.observer import Observer


def stopped(request_id: RequestId, attempt: int, why: str) -> AttemptEnded:
    return AttemptEnded(request_id, attempt, AttemptEnding.ABORTED, why)


class Book:
    def __init__(self, epoch: int, *, start_within_ns: Duration, observers: tuple[Observer, ...]) -> None:
        self.scheduler = Scheduler()
        self.observers = observers
        self.requests: dict[RequestId, Booked] = {}
        self.next_snapshot = Snapshots(epoch, 1)
        """The first that knows of what is decided at the moment."""
        self.ghosts: dict[EndpointId, PoolName] = {}
        """Endpoints known only from reports of members, with their reported pools."""
        self.to_tell: dict[str, Peer] = {}
        """Those to whom something is to be said before the next beat."""
        self._start_within_ns = start_within_ns
        self.unsaid: list[tuple[Peer, End]] = []
        """What members that have yet to be taken in are to hear as soon as they are."""
        self._undone: list[AttemptEnded] = []
        """Grants that nobody is there to begin."""

    # What is in it

    def enter(self, booked: Booked) -> Booked:
        request_id = booked.ticket.request_id
        self.requests[request_id] = booked.peer.requests[request_id] = booked
        return booked

    def place(self, request_id: RequestId, attempt: int) -> Place | None:
        booked = self.requests.get(request_id)
        return None if booked is None else booked.attempts.get(attempt)

    def has(self, request_id: RequestId, attempt: int) -> bool:
        return self.place(request_id, attempt) is not None

    def all(self) -> Iterator[tuple[str, RequestId, int, EndpointId]]:
        """Every attempt that has a place: whose it is, and where."""
        for request_id, booked in self.requests.items():
            for number, place in booked.attempts.items():
                yield booked.peer.name, request_id, number, place.endpoint_id

    def arrive(self, peer: Peer, said: Arrived, at: Instant, now: Instant) -> None:
        """A request has come to a member that no scheduler has answered for."""
        ticket = said.ticket
        if ticket.request_id not in self.requests:
            self.enter(Booked(ticket, peer, Instant(at - said.waited_ns)))
            passed_ns = Duration(said.waited_ns + max(0, now - at))
            self.handle(RequestArrived(with_less_time(ticket, passed_ns)), now)

    def withdraw(self, booked: Booked, now: Instant, cause: WithdrawalCause = WithdrawalCause.GRACE_OVER) -> None:
        """Takes a request from the scheduler whose member goes on with it by itself, or has ended it."""
        booked.over = True
        self.handle(RequestWithdrawn(booked.ticket.request_id, cause), now)
        self.strike_if_done(booked)

    def say_the_unsaid(self, now: Instant) -> None:
        for peer, end in self.unsaid:
            self.say(peer, end, now)
        self.unsaid.clear()

    def strike_if_done(self, booked: Booked) -> None:
        request_id = booked.ticket.request_id
        if booked.over and not booked.attempts and self.requests.get(request_id) is booked:
            del self.requests[request_id]
            del booked.peer.requests[request_id]

    # What is decided

    def handle(self, event: Event, now: Instant) -> None:
        commands = self.scheduler.handle(event, now)
        for observer in self.observers:
            observer.saw(event, commands, now)
        for command in commands:
            self._perform(command, now)
        while self._undone:
            undone = self._undone.pop()
            self.handle(RequestWithdrawn(undone.request_id, WithdrawalCause.GRACE_OVER), now)
            self.handle(undone, now)

    def _perform(self, command: Command, now: Instant) -> None:
        match command:
            case Dispatch():
                self._grant(command, now)
            case Abort():
                booked = self.requests.get(command.request_id)
                if booked is not None and not booked.over:
                    self.say(booked.peer, command, now)
            case End():
                booked = self.requests.get(command.request_id)
                if booked is not None:
                    if booked.ended_there and not booked.peer.talks:
                        self.unsaid.append((booked.peer, command))
                    elif booked.ended_there or not booked.over:
                        self.say(booked.peer, command, now)
                    booked.over, booked.ended_there = True, False
                    self.strike_if_done(booked)
            case Hold() | Eject() | Readmit() | BudgetCrossed():
                pass

    def _grant(self, order: Dispatch, now: Instant) -> None:
        booked = self.requests.get(order.request_id)
        if booked is None or booked.over or not booked.peer.talks:
            self._undone.append(stopped(order.request_id, order.attempt, "nobody is there to begin it"))
            if booked is not None:
                booked.over = True
            return
        booked.attempts[order.attempt] = Place(order.endpoint_id, now)
        self.say(booked.peer, Granted(order, self._start_within_ns, self.next_snapshot), now)

    def say(self, peer: Peer, said: FromScheduler, now: Instant) -> None:
        if peer.talks:
            peer.outbound.push(said, now)
            self.to_tell[peer.name] = peer
