"""Is one process a gateway, a candidate, and the scheduler while it is elected?"""

from collections.abc import Sequence
from itertools import count

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, EndpointReadied, Event, PolicyChanged
from headgate.hosts.cell.member.orders import PolicyAgreed
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.lease import claimed
from headgate.hosts.cell.protocol.messages import (
    Epoch,
    Lease,
    MemberEntry,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    Snapshots,
)
from headgate.hosts.cell.protocol.views import MemberView, Mode, Standing
from headgate.model.units import EndpointId, Instant
from headgate.ports.observer import Observer
from testing.builders import an_endpoint, at, completed
from tests.hosts.cell.builders import POLICY, a_member, a_ticket


class Store:
    """One that answers at once."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.snapshot: Snapshot | None = None

    def serve(self, node: Node, now: Instant, *, answers: bool = True) -> list[MemberEntry]:
        """Carries what the node has for others: entries come back to itself, it is alone."""
        going = node.outgoing(now)
        for entry in going.inbox:
            node.from_member(entry, now)
        for _, entry in going.outboxes:
            node.from_scheduler(entry, now)
        if going.claim is not None and answers:
            self.lease = claimed(self.lease, going.claim, now)
            node.lease_answered(going.claim, self.lease, now)
        if going.write is not None and answers:
            self.snapshot = going.write
            node.snapshot_kept(going.write.at, going.write.at, now)
        if going.read and answers:
            node.snapshot_read(self.snapshot, now)
        return going.inbox


def a_node(*, candidate: bool = True, observers: Sequence[Observer] = ()) -> Node:
    numbers = count(1)
    node = Node("g1", 1, at(0), lambda: f"id{next(numbers)}", candidate=candidate, observers=observers)
    node.tell(PolicyChanged(POLICY, "first"), at(0))
    node.tell(EndpointJoined(an_endpoint(places=2)), at(0))
    node.tell(EndpointReadied(EndpointId("e1")), at(0))
    return node


def run(node: Node, store: Store, start: float, end: float, *, answers: bool = True) -> None:
    moment = start
    while moment <= end:
        node.tick(at(moment))
        store.serve(node, at(moment), answers=answers)
        moment += 0.05


def test_a_process_alone_elects_itself_and_serves() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)

    assert node.leads
    node.open(a_ticket("r1"), at(1.1))
    run(node, store, 1.1, 1.3)
    assert node.leader is not None
    assert [each[1] for each in node.leader.booked()] == ["r1"]


def test_a_scheduler_whose_lease_is_over_decides_nothing_more() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    run(node, store, 1.05, 1.4, answers=False)
    assert node.leads

    node.tick(at(1.65))

    assert not node.leads


def test_a_scheduler_that_hears_of_a_higher_epoch_is_one_no_more() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    head = SchedulerHead(Epoch(9, "other"), 0, 0, 0, 1, 0, at(1), None)
    node.from_scheduler(SchedulerEntry(head), at(1))

    assert not node.leads
    run(node, store, 1.05, 2)
    assert node.leader is not None
    assert node.leader.epoch.number == 10


@pytest.mark.parametrize("kept", [1, 7])
def test_scheduler_claims_a_higher_epoch_after_the_store_refused_its_snapshot(kept: int) -> None:
    """A snapshot with the same epoch number belongs to another scheduler; the store lost the lease in between."""
    node, store = a_node(), Store()
    run(node, store, 0, 1)

    node.snapshot_kept(Snapshots(1, 5), Snapshots(kept, 9), at(1))

    assert not node.leads
    run(node, store, 1.05, 2)
    assert node.leader is not None
    assert node.leader.epoch.number == kept + 1


def test_process_that_is_not_a_candidate_ignores_a_refused_snapshot() -> None:
    node = a_node(candidate=False)
    node.snapshot_kept(Snapshots(1, 5), Snapshots(7, 1), at(1))

    assert not node.leads


def test_a_successor_begins_with_the_newest_snapshot_that_it_has_seen() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    written = store.snapshot
    assert written is not None
    assert written.at.number > 1
    standby = a_node()
    standby.snapshot_read(written, at(3))
    standby.snapshot_read(None, at(3.1))

    lost = Store()
    run(standby, lost, 3.2, 3.4)

    assert standby.leader is not None
    assert not standby.leader.blank


def test_new_scheduler_begins_with_the_snapshot_whose_reading_it_has_waited_for() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    successor = a_node()
    store.lease = Lease(Epoch(1, "of another process"), at(3))
    for moment in (4, 4.05):
        claim = successor.outgoing(at(moment)).claim
        assert claim is not None
        store.lease = claimed(store.lease, claim, at(moment))
        successor.lease_answered(claim, store.lease, at(moment))
    assert store.lease == Lease(Epoch(2, "id2"), at(4.65))
    assert successor.leader is None

    successor.snapshot_read(store.snapshot, at(4.06))

    assert successor.leader is not None
    assert not successor.leader.blank


def test_scheduler_that_is_elected_again_begins_with_its_own_last_snapshot_if_the_store_lost_it() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    run(node, store, 3.05, 3.9, answers=False)
    assert not node.leads

    run(node, Store(), 4, 4.5)

    assert node.leader is not None
    assert not node.leader.blank


def test_a_store_that_does_not_give_the_snapshot_is_not_waited_for_long() -> None:
    node = a_node()
    claim = node.outgoing(at(0)).claim
    assert claim is not None
    node.lease_answered(claim, claimed(None, claim, at(0)), at(0))
    assert node.leader is None
    node.tick(at(0.21))

    assert node.leader is not None
    assert node.leader.blank


def test_one_who_is_no_candidate_asks_for_no_lease() -> None:
    node = a_node(candidate=False)
    going = node.outgoing(at(0))

    assert (going.claim, going.read) == (None, False)
    assert len(going.inbox) == 1
    assert node.next_wakeup(at(0)) == at(0.15)


# Going


def test_a_scheduler_that_resigns_gives_up_its_lease_once_and_asks_for_no_other() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.resign(at(1.1))

    assert not node.leads
    assert node.next_wakeup(at(1.1)) == at(1.1)
    going = node.outgoing(at(1.1))
    assert (going.release, going.claim, going.read) == (Epoch(1, "id1"), None, False)
    assert going.write is not None
    assert store.snapshot is not None
    # What it leaves is newer than what it wrote last.
    assert going.write.at.number == store.snapshot.at.number + 1
    going = node.outgoing(at(1.2))
    assert (going.release, going.write, going.claim) == (None, None, None)
    node.resign(at(1.3))
    assert node.outgoing(at(1.3)).release is None


def test_a_lease_that_was_asked_for_before_one_resigned_is_given_up_when_it_comes() -> None:
    node = a_node()
    claim = node.outgoing(at(0)).claim
    assert claim is not None
    node.resign(at(0.1))
    assert node.outgoing(at(0.1)).release is None
    node.lease_answered(claim, claimed(None, claim, at(0)), at(0.2))

    assert not node.leads
    assert node.outgoing(at(0.2)).release == claim.epoch
    node.lease_answered(claim, Lease(Epoch(7, "another"), at(1)), at(0.3))
    assert node.outgoing(at(0.3)).release is None


def test_a_process_has_left_when_its_lease_is_given_up_and_nobody_is_to_be_told() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.leave(at(1.1))
    assert not node.left
    run(node, store, 1.1, 2.2)

    assert node.left


# A change of rules


def test_the_scheduler_goes_by_new_rules_when_all_have_read_them() -> None:
    node, store = a_node(), Store()
    assert node.stage("second", at(0)) == []
    run(node, store, 0, 0.1)
    assert node.tick(at(0.1)) == []
    run(node, store, 0.15, 1)
    # Its own member's word has come by way of the store.
    assert node.view(at(1)).members == {"g1": MemberView(Standing.PRESENT, "first", "second", 1)}

    assert node.stage("third", at(1)) == []
    store.serve(node, at(1))
    assert node.next_wakeup(at(1)) == at(1)
    assert node.tick(at(1)) == [PolicyAgreed("third")]
    assert node.tick(at(1)) == []
    node.tell(PolicyChanged(POLICY, "third"), at(1))
    assert node.next_wakeup(at(1.01)) > at(1.01) or node.outgoing(at(1.01)).inbox
    assert node.stage("third", at(1.1)) == []
    assert node.view(at(1.1)).staged == ""


def test_a_scheduler_alone_goes_by_new_rules_at_once() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    assert node.leader is not None
    node.leader._roster.peers.clear()

    assert node.stage("second", at(1)) == [PolicyAgreed("second")]


def test_who_has_not_read_the_rules_for_long_is_not_waited_for() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    other = a_member("g2")
    orders: list[object] = []
    moment = 1.0
    while moment < 33 and not orders:
        if moment == 2:
            node.stage("second", at(2))
        for entry in other.outgoing(at(moment)):
            node.from_member(entry, at(moment))
        for name, entry in node.leader.outgoing(at(moment)) if node.leader is not None else ():
            (other.receive if name == "g2" else node.from_scheduler)(entry, at(moment))
        store.serve(node, at(moment))
        orders += node.tick(at(moment))
        moment = round(moment + 0.05, 2)

    assert orders == [PolicyAgreed("second")]
    assert 31.9 < moment < 32.2


# For those who look


def test_a_process_shows_what_it_is() -> None:
    node, store = a_node(), Store()
    view = node.view(at(0))
    assert (view.mode, view.epoch, view.leads, view.share, view.members) == (Mode.SEEKING, None, False, Share(0, 1), {})
    node.open(a_ticket("r1"), at(0))
    assert node.summary().requests == 1
    run(node, store, 0, 1)
    view = node.view(at(1))

    assert (view.mode, view.epoch, view.leads) == (Mode.FOLLOWING, Epoch(1, "id1"), True)
    assert (view.unacknowledged, view.held, view.unsettled) == (0, 1, 0)
    assert [each.in_flight for each in node.summary().endpoints] == [1]
    run(node, store, 1.05, 3, answers=False)
    view = node.view(at(3))
    assert (view.mode, view.leads, view.members) == (Mode.ISLAND, False, {})


def test_an_observer_sees_what_the_scheduler_decides_and_not_what_an_island_does() -> None:
    seen: list[str] = []

    class Watcher:
        def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
            seen.extend(command.request_id for command in commands if isinstance(command, Dispatch))

    node, store = a_node(observers=[Watcher()]), Store()
    node.open(a_ticket("r1"), at(0))
    node.tick(at(2))
    assert node.view(at(2)).mode is Mode.ISLAND
    assert seen == []
    run(node, store, 2, 3)
    node.open(a_ticket("r2"), at(3))
    run(node, store, 3, 3.2)

    assert seen == ["r2"]


def test_node_that_loses_its_name_sends_nothing_more_and_finishes_its_requests_as_an_island() -> None:
    node, store = a_node(), Store()
    for moment in (0, 0.25, 0.5):
        node.tick(at(moment))
        store.serve(node, at(moment))
    assert node.leads
    node.open(a_ticket("r1"), at(0.6))
    node.lose_name(at(0.6))

    assert not node.leads
    going = node.outgoing(at(0.6))
    assert (going.inbox, going.outboxes, going.claim, going.release is None) == ([], [], None, False)
    head = SchedulerHead(Epoch(9, "nine"), 1, 1, 0, 1, 0, at(0.6), None)
    assert node.from_scheduler(SchedulerEntry(head), at(0.7)) == []
    orders = node.tick(at(3))
    assert node.view(at(3)).mode is Mode.ISLAND
    assert [order.request_id for order in orders if isinstance(order, Dispatch)] == ["r1"]
    assert node.outgoing(at(3.1)).inbox == []
    node.tell(completed("r1"), at(3.2))
    node.leave(at(3.3))
    assert node.left
