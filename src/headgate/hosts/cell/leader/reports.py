"""Compares the report of a member with what is known of it already.

A report names all requests that the member holds. It may confirm or contradict the book; requests that it does not name
have ended. It may also name requests that are partly in the counters of the snapshot with which this scheduler started:
the serials and snapshots that the member has kept with a request show which part.

A report that contradicts itself or names a request of another member is rejected (`trust`).
"""

from collections.abc import Callable, Iterator

from headgate.core.events import Counted, RequestSettled
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.protocol.messages import Arrived, Runs, Settled, Snapshots, Waits
from headgate.model.units import Instant, RequestId


class Report:
    """What one member has reported, by kinds; each with the moment at which it was said."""

    __slots__ = ("arrived", "peer", "runs", "settled", "waits")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.runs: list[tuple[Instant, Runs]] = []
        self.waits: list[tuple[Instant, Waits]] = []
        self.arrived: list[tuple[Instant, Arrived]] = []
        self.settled: list[tuple[Instant, Settled]] = []
        for _, at, said in peer.report:
            match said:
                case Runs():
                    self.runs.append((at, said))
                case Waits():
                    self.waits.append((at, said))
                case Arrived():
                    self.arrived.append((at, said))
                case Settled():
                    self.settled.append((at, said))
                case _:
                    # The leader rejects all other messages before the report is complete.
                    pass

    def named(self) -> Iterator[RequestId]:
        """The id of each request in the report, repeated if it is named repeatedly."""
        for _, said in (*self.runs, *self.waits, *self.settled):
            yield said.report.ticket.request_id
        for _, said in self.arrived:
            yield said.ticket.request_id

    def problem(self, owner: Callable[[RequestId], str | None]) -> str | None:
        """Why the report contradicts itself or other members' requests; `owner` returns the holder of a request."""
        attempts: set[tuple[RequestId, int]] = set()
        over: dict[RequestId, bool] = {}
        for _, said in self.runs:
            told = said.report
            request_id = told.ticket.request_id
            if (request_id, told.attempt) in attempts:
                return f"reports attempt {told.attempt} of request {request_id} twice"
            if over.setdefault(request_id, told.over) is not told.over:
                return f"reports request {request_id} as open and as ended"
            attempts.add((request_id, told.attempt))
        alone = [
            *(said.report.ticket for _, said in (*self.waits, *self.settled)),
            *(a.ticket for _, a in self.arrived),
        ]
        for ticket in alone:
            if ticket.request_id in over:
                return f"reports request {ticket.request_id} in two states"
            over[ticket.request_id] = False
        for request_id in over:
            if owner(request_id) not in (None, self.peer.name):
                return f'reports request {request_id}, which member "{owner(request_id)}" holds'
        return None

    def unchanged(self) -> dict[RequestId, None]:
        """Requests of which it says just what is in the book."""
        running: dict[RequestId, list[int]] = {}
        for _, said in self.runs:
            if not said.report.over:
                running.setdefault(said.report.ticket.request_id, []).append(said.report.attempt)
        waiting = {said.report.ticket.request_id: None for _, said in self.waits}
        waiting |= {said.ticket.request_id: None for _, said in self.arrived}
        same: dict[RequestId, None] = {}
        for request_id, booked in self.peer.requests.items():
            numbers = sorted(running.get(request_id, ()))
            if not booked.over and sorted(booked.attempts) == numbers and (numbers or request_id in waiting):
                same[request_id] = None
        return same

    def unbilled(self) -> dict[RequestId, None]:
        """Requests that have ended, and whose tenants pay what nobody has told."""
        running = {
            said.report.ticket.request_id: None for _, said in self.runs if said.report.over and said.cost is None
        }
        return running | {name: None for name, settled in self.ends().items() if settled.cost is None}

    def ends(self) -> dict[RequestId, RequestSettled]:
        return {said.report.ticket.request_id: said.report for _, said in self.settled}


def counted(
    peer: Peer, arrived: int, sent: Snapshots | None, told: int, *, epoch: int, began_with: Snapshots | None
) -> Counted:
    """What the counters of this epoch, which began with a snapshot, know of a request of this member's."""
    if not 0 < arrived <= peer.known:
        return Counted.NOTHING
    if 0 < told <= peer.known:
        return Counted.SENT
    if sent is None:
        return Counted.ARRIVAL
    before = began_with is not None and sent.epoch == began_with.epoch and sent.number <= began_with.number
    return Counted.SENT if before or sent.epoch == epoch else Counted.ARRIVAL
