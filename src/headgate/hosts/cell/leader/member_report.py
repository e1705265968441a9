"""Compares a member's report with the known state.

A report lists all requests that the member holds. It may confirm or contradict the assignment table. Requests that it
does not list have ended. It may also list requests that the counters in the initial snapshot cover only in part. The
serials and snapshot ids that the member keeps for a request show which part.

A report that contradicts itself or lists another member's request is rejected (`fencing`).
"""

from collections.abc import Iterator, Mapping

from headgate.core.events import CountedUpTo, RequestSettled
from headgate.hosts.cell.leader.peers import AssignedRequest, Peer
from headgate.hosts.cell.protocol.messages import NewRequest, QueuedRequest, RunningAttempt, SettledRequest, SnapshotId
from headgate.model.units import Instant, RequestId


class MemberReport:
    """Report of one member, grouped by message type. Each message has its creation time."""

    __slots__ = ("arrived", "last_serial", "peer", "queued", "running", "session", "settled")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.session = peer.session
        self.last_serial = peer.inbound.last_received - len(peer.backlog)
        """Serial of the last message of the report."""
        self.running: list[tuple[Instant, RunningAttempt]] = []
        self.queued: list[tuple[Instant, QueuedRequest]] = []
        self.arrived: list[tuple[Instant, NewRequest]] = []
        self.settled: list[tuple[Instant, SettledRequest]] = []
        for _, at, said in peer.report:
            match said:
                case RunningAttempt():
                    self.running.append((at, said))
                case QueuedRequest():
                    self.queued.append((at, said))
                case NewRequest():
                    self.arrived.append((at, said))
                case SettledRequest():
                    self.settled.append((at, said))
                case _:
                    # The scheduler rejects all other messages until the report is complete.
                    pass

    @property
    def is_current(self) -> bool:
        """Returns whether the member has neither left nor started another session since the report."""
        return self.peer.adopting and self.peer.session == self.session

    def request_ids(self) -> Iterator[RequestId]:
        """Yields the id of each request in the report. A request that is listed more than once is yielded each time."""
        for _, running in self.running:
            yield running.report.ticket.request_id
        for _, queued in self.queued:
            yield queued.report.ticket.request_id
        for _, settled in self.settled:
            yield settled.report.ticket.request_id
        for _, arrival in self.arrived:
            yield arrival.ticket.request_id

    def problem(self, known: Mapping[RequestId, AssignedRequest], claimed: Mapping[RequestId, str]) -> str | None:
        """Returns how the report contradicts itself or other members' requests, or None if it does not.

        `known` is the assignment table. `claimed` contains requests from other members' reports, with the members.
        """
        attempts: set[tuple[RequestId, int]] = set()
        over: dict[RequestId, bool] = {}
        for _, said in self.running:
            told = said.report
            request_id = told.ticket.request_id
            if (request_id, told.attempt) in attempts:
                return f"reports attempt {told.attempt} of request {request_id} twice"
            if over.setdefault(request_id, told.request_ended) is not told.request_ended:
                return f"reports request {request_id} as open and as ended"
            attempts.add((request_id, told.attempt))
        alone = [
            *(queued.report.ticket for _, queued in self.queued),
            *(settled.report.ticket for _, settled in self.settled),
            *(arrival.ticket for _, arrival in self.arrived),
        ]
        for ticket in alone:
            if ticket.request_id in over:
                return f"reports request {ticket.request_id} in two states"
            over[ticket.request_id] = False
        for request_id in over:
            booked = known.get(request_id)
            owner = claimed.get(request_id) if booked is None else booked.peer.name
            if owner not in (None, self.peer.name):
                return f'reports request {request_id} of member "{owner}"'
        return None

    def unchanged(self) -> dict[RequestId, None]:
        """Returns the requests whose report matches the assignment table."""
        running: dict[RequestId, list[int]] = {}
        for _, said in self.running:
            if not said.report.request_ended:
                running.setdefault(said.report.ticket.request_id, []).append(said.report.attempt)
        waiting = {said.report.ticket.request_id: None for _, said in self.queued}
        waiting |= {said.ticket.request_id: None for _, said in self.arrived}
        same: dict[RequestId, None] = {}
        for request_id, booked in self.peer.requests.items():
            numbers = sorted(running.get(request_id, ()))
            if not booked.over and sorted(booked.attempts) == numbers and (numbers or request_id in waiting):
                same[request_id] = None
        return same

    def unbilled(self) -> dict[RequestId, None]:
        """Returns ended requests that the tenant pays for and whose cost is unknown."""
        running = {
            said.report.ticket.request_id: None
            for _, said in self.running
            if said.report.request_ended and said.cost is None
        }
        return running | {name: None for name, settled in self.settled_by_id().items() if settled.cost is None}

    def settled_by_id(self) -> dict[RequestId, RequestSettled]:
        return {said.report.ticket.request_id: said.report for _, said in self.settled}


def counted_part(
    peer: Peer,
    arrival_serial: int,
    dispatch_snapshot: SnapshotId | None,
    report_serial: int,
    *,
    epoch: int,
    start_snapshot: SnapshotId | None,
) -> CountedUpTo:
    """Returns how much of one of this member's requests is included in this epoch's counters."""
    if not 0 < arrival_serial <= peer.counted_serial:
        return CountedUpTo.NOTHING
    if 0 < report_serial <= peer.counted_serial:
        return CountedUpTo.SENT
    if dispatch_snapshot is None:
        return CountedUpTo.ARRIVAL
    before = (
        start_snapshot is not None
        and dispatch_snapshot.epoch == start_snapshot.epoch
        and dispatch_snapshot.number <= start_snapshot.number
    )
    return CountedUpTo.SENT if before or dispatch_snapshot.epoch == epoch else CountedUpTo.ARRIVAL
