"""Builders for the cell tests.

A `Cell` consists of members and one scheduler without a network. They exchange encoded entries when a test calls
`talk`.
"""

from collections.abc import Mapping
from typing import Any

from headgate.core.commands import Dispatch, End
from headgate.core.events import EndpointJoined, EndpointReady, PolicyChanged
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.commands import MemberCommand, ModeChanged
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.codec import decode_member_entry, decode_scheduler_entry, encode_entry
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import VERSION, Epoch, MemberEntry, SchedulerEntry, Share, Snapshot
from headgate.hosts.cell.timing import CellBounds, Timing
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant
from testing.builders import a_policy, an_endpoint, arrived, at

FIRST = Epoch(1, "one")
SECOND_EPOCH = Epoch(2, "two")
POLICY = a_policy()


def a_ticket(name: str, **more: Any) -> Ticket:
    return arrived(name, **more).ticket


def a_member(
    name: str = "g1", *, bounds: CellBounds | None = None, share: Share | None = None, version: int = VERSION
) -> Member:
    member = Member(name, 1, at(0), bounds=bounds or CellBounds(), share=share or Share(0, 2), version=version)
    member.handle(PolicyChanged(POLICY, "first"), at(0))
    member.handle(EndpointJoined(an_endpoint(places=4)), at(0))
    member.handle(EndpointReady(EndpointId("e1")), at(0))
    return member


def a_leader(
    epoch: Epoch = FIRST,
    *,
    places: int = 4,
    snapshot: Snapshot | None = None,
    now: Instant | None = None,
    version: int = VERSION,
    bounds: CellBounds | None = None,
    **timing: Duration,
) -> Leader:
    endpoints = KnownEndpoints()
    endpoints.apply_event(EndpointJoined(an_endpoint(places=places)))
    endpoints.apply_event(EndpointReady(EndpointId("e1")))
    rules = PolicyChanged(POLICY, "first")
    began, limits = at(0) if now is None else now, bounds or CellBounds()
    return Leader(epoch, rules, endpoints, snapshot, began, timing=Timing(**timing), bounds=limits, version=version)


class Cell:
    """Members, their scheduler, and the orders that each member has received."""

    def __init__(self, leader: Leader, *members: Member, versions: Mapping[str, int] | None = None) -> None:
        """`versions` contains the protocol versions of members that run another version. "" is the scheduler."""
        self.leader, self.versions = leader, versions or {}
        self.members = {member.name: member for member in members}
        self.orders: dict[str, list[MemberCommand]] = {name: [] for name in self.members}
        self.heard = dict.fromkeys(self.members, True)
        """Whether each member is connected to the scheduler."""

    def open(self, name: str, ticket: Ticket, now: Instant) -> None:
        self.orders[name] += self.members[name].open(ticket, now)

    def talk(self, now: Instant, *, rounds: int = 4) -> None:
        """Runs all due work and exchanges entries between the scheduler and the connected members."""
        for _ in range(rounds):
            for name, member in self.members.items():
                self.orders[name] += member.tick(now)
                for entry in member.outgoing(now):
                    if self.heard[name]:
                        self.leader.receive(as_sent(entry, self._version("")), now)
            self.leader.tick(now)
            for name, entry in self.leader.outgoing(now):
                if name in self.members and self.heard[name]:
                    self.orders[name] += self.members[name].receive(as_heard(entry, self._version(name)), now)

    def _version(self, name: str) -> int:
        return self.versions.get(name, VERSION)

    def pass_time(self, start: float, end: float, *, step: float = 0.1) -> None:
        """Calls `talk` every `step` seconds from `start` to `end`."""
        moment = start
        while moment <= end:
            self.talk(at(moment), rounds=2)
            moment += step

    def begun(self, name: str) -> list[Dispatch]:
        return [order for order in self.orders[name] if isinstance(order, Dispatch)]

    def ended(self, name: str) -> list[End]:
        return [order for order in self.orders[name] if isinstance(order, End)]

    def modes(self, name: str) -> list[str]:
        return [order.mode.value for order in self.orders[name] if isinstance(order, ModeChanged)]


def a_cell(*names: str, places: int = 4, bounds: CellBounds | None = None, **timing: Duration) -> Cell:
    """Returns a cell whose scheduler has adopted all members' reports."""
    members = [a_member(name, share=Share(rank, len(names))) for rank, name in enumerate(names or ("g1", "g2"))]
    cell = Cell(a_leader(places=places, bounds=bounds, **timing), *members)
    for moment in (0, 0.5, 0.7):
        cell.talk(at(moment))
    return cell


def as_sent(entry: MemberEntry, version: int = VERSION) -> MemberEntry:
    (written,) = encode_entry(entry)
    return decode_member_entry(written, version=version)


def as_heard(entry: SchedulerEntry, version: int = VERSION) -> SchedulerEntry:
    (written,) = encode_entry(entry)
    return decode_scheduler_entry(written, version=version)
