"""Tests for a node as a member, a candidate and the scheduler."""

from collections.abc import Sequence
from itertools import count

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import EndpointJoined, EndpointReady, Event, PolicyChanged
from headgate.hosts.cell.member.commands import PolicyAgreed
from headgate.hosts.cell.node import Node
from headgate.hosts.cell.protocol.lease import claim_lease
from headgate.hosts.cell.protocol.messages import (
    Epoch,
    Lease,
    MemberEntry,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    SnapshotId,
)
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence, MemberView
from headgate.model.units import EndpointId, Instant
from headgate.ports.observer import Observer
from testing.builders import an_endpoint, at, completed
from tests.hosts.cell.builders import POLICY, a_member, a_ticket


class Store:
    """Store that responds immediately."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.snapshot: Snapshot | None = None

    def serve(self, node: Node, now: Instant, *, answers: bool = True) -> list[MemberEntry]:
        """Transports outgoing data for a cell's only node. The node's entries return to the node itself."""
        going = node.outgoing(now)
        for entry in going.inbox:
            node.from_member(entry, now)
        for _, entry in going.outboxes:
            node.from_scheduler(entry, now)
        if going.claim is not None and answers:
            self.lease = claim_lease(self.lease, going.claim, now)
            node.handle_lease(going.claim, self.lease, now)
        if going.snapshot is not None and answers:
            self.snapshot = going.snapshot
            node.handle_stored_snapshot(going.snapshot.at, going.snapshot.at, now)
        if going.read_snapshot and answers:
            node.handle_read_snapshot(self.snapshot, now)
        return going.inbox


def a_node(*, candidate: bool = True, observers: Sequence[Observer] = ()) -> Node:
    numbers = count(1)
    node = Node("g1", 1, at(0), lambda: f"id{next(numbers)}", candidate=candidate, observers=observers)
    node.handle(PolicyChanged(POLICY, "first"), at(0))
    node.handle(EndpointJoined(an_endpoint(places=2)), at(0))
    node.handle(EndpointReady(EndpointId("e1")), at(0))
    return node


def run(node: Node, store: Store, start: float, end: float, *, answers: bool = True) -> None:
    moment = start
    while moment <= end:
        node.tick(at(moment))
        store.serve(node, at(moment), answers=answers)
        moment += 0.05


def test_single_process_elects_itself_and_serves() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)

    assert node.is_leader
    node.open(a_ticket("r1"), at(1.1))
    run(node, store, 1.1, 1.3)
    assert node.leader is not None
    assert [each[1] for each in node.leader.assigned_attempts()] == ["r1"]


def test_scheduler_stops_deciding_when_its_lease_expires() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    run(node, store, 1.05, 1.4, answers=False)
    assert node.is_leader

    node.tick(at(1.65))

    assert not node.is_leader


def test_scheduler_steps_down_when_it_sees_a_higher_epoch() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    head = SchedulerHead(Epoch(9, "other"), 0, 0, 0, 1, 0, at(1), None)
    node.from_scheduler(SchedulerEntry(head), at(1))

    assert not node.is_leader
    run(node, store, 1.05, 2)
    assert node.leader is not None
    assert node.leader.epoch.number == 10


@pytest.mark.parametrize("kept", [1, 7])
def test_scheduler_claims_a_higher_epoch_after_the_store_rejected_its_snapshot(kept: int) -> None:
    """If the store has lost the lease, a stored snapshot with the same epoch number belongs to another scheduler."""
    node, store = a_node(), Store()
    run(node, store, 0, 1)

    node.handle_stored_snapshot(SnapshotId(1, 5), SnapshotId(kept, 9), at(1))

    assert not node.is_leader
    run(node, store, 1.05, 2)
    assert node.leader is not None
    assert node.leader.epoch.number == kept + 1


def test_non_candidate_process_ignores_a_rejected_snapshot() -> None:
    node = a_node(candidate=False)
    node.handle_stored_snapshot(SnapshotId(1, 5), SnapshotId(7, 1), at(1))

    assert not node.is_leader


def test_successor_starts_from_the_newest_snapshot_it_has_read() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    written = store.snapshot
    assert written is not None
    assert written.at.number > 1
    standby = a_node()
    standby.handle_read_snapshot(written, at(3))
    standby.handle_read_snapshot(None, at(3.1))

    lost = Store()
    run(standby, lost, 3.2, 3.4)

    assert standby.leader is not None
    assert not standby.leader.started_without_snapshot


def test_new_scheduler_starts_from_the_snapshot_it_waited_for() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    successor = a_node()
    store.lease = Lease(Epoch(1, "of another process"), at(3))
    for moment in (4, 4.05):
        claim = successor.outgoing(at(moment)).claim
        assert claim is not None
        store.lease = claim_lease(store.lease, claim, at(moment))
        successor.handle_lease(claim, store.lease, at(moment))
    assert store.lease == Lease(Epoch(2, "id2"), at(4.65))
    assert successor.leader is None

    successor.handle_read_snapshot(store.snapshot, at(4.06))

    assert successor.leader is not None
    assert not successor.leader.started_without_snapshot


def test_reelected_scheduler_uses_its_local_snapshot_if_the_store_lost_its_copy() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 3)
    run(node, store, 3.05, 3.9, answers=False)
    assert not node.is_leader

    run(node, Store(), 4, 4.5)

    assert node.leader is not None
    assert not node.leader.started_without_snapshot


def test_new_scheduler_starts_without_state_if_the_snapshot_read_times_out() -> None:
    node = a_node()
    claim = node.outgoing(at(0)).claim
    assert claim is not None
    node.handle_lease(claim, claim_lease(None, claim, at(0)), at(0))
    assert node.leader is None
    node.tick(at(0.21))

    assert node.leader is not None
    assert node.leader.started_without_snapshot


def test_non_candidate_process_claims_no_lease() -> None:
    node = a_node(candidate=False)
    going = node.outgoing(at(0))

    assert (going.claim, going.read_snapshot) == (None, False)
    assert len(going.inbox) == 1
    assert node.next_wakeup(at(0)) == at(0.15)


# Leaving


def test_scheduler_stepping_down_releases_its_lease_once_and_claims_no_other() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.step_down(at(1.1))

    assert not node.is_leader
    assert node.next_wakeup(at(1.1)) == at(1.1)
    going = node.outgoing(at(1.1))
    assert (going.release, going.claim, going.read_snapshot) == (Epoch(1, "id1"), None, False)
    assert going.snapshot is not None
    assert store.snapshot is not None
    # The final snapshot is newer than the last one written.
    assert going.snapshot.at.number == store.snapshot.at.number + 1
    going = node.outgoing(at(1.2))
    assert (going.release, going.snapshot, going.claim) == (None, None, None)
    node.step_down(at(1.3))
    assert node.outgoing(at(1.3)).release is None


def test_scheduler_that_hands_over_releases_its_lease_and_claims_again_after_the_pause() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)

    assert node.step_down(at(1.1), until=at(4))
    assert not node.is_leader
    going = node.outgoing(at(1.1))
    assert (going.release, going.claim) == (Epoch(1, "id1"), None)
    assert going.snapshot is not None
    assert node.outgoing(at(3.9)).claim is None
    store.lease = None
    run(node, store, 4, 5)
    assert node.view(at(5)).epoch == Epoch(2, "id2")
    assert node.is_leader


def test_lease_renewed_while_handing_over_is_released_again() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    claim = node.outgoing(at(1.3)).claim
    assert claim is not None
    node.step_down(at(1.31), until=at(4))
    assert node.outgoing(at(1.31)).release == claim.epoch
    node.handle_lease(claim, Lease(claim.epoch, at(1.9)), at(1.32))

    assert not node.is_leader
    assert node.outgoing(at(1.32)).release == claim.epoch


def test_process_that_is_not_the_scheduler_cannot_hand_over() -> None:
    assert not a_node().step_down(at(0), until=at(4))
    assert not a_node(candidate=False).step_down(at(0), until=at(4))


def test_lease_granted_after_stepping_down_is_released() -> None:
    node = a_node()
    claim = node.outgoing(at(0)).claim
    assert claim is not None
    node.step_down(at(0.1))
    assert node.outgoing(at(0.1)).release is None
    node.handle_lease(claim, claim_lease(None, claim, at(0)), at(0.2))

    assert not node.is_leader
    assert node.outgoing(at(0.2)).release == claim.epoch
    node.handle_lease(claim, Lease(Epoch(7, "another"), at(1)), at(0.3))
    assert node.outgoing(at(0.3)).release is None


def test_single_process_leaves_after_releasing_its_lease() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.leave(at(1.1))
    assert not node.has_left
    run(node, store, 1.1, 2.2)

    assert node.has_left


# Policy changes


def test_scheduler_applies_a_policy_when_all_members_have_read_it() -> None:
    node, store = a_node(), Store()
    assert node.stage("second", at(0)) == []
    run(node, store, 0, 0.1)
    assert node.tick(at(0.1)) == []
    run(node, store, 0.15, 1)
    # The message from its own member has arrived through the store.
    assert node.view(at(1)).members == {"g1": MemberView(MemberPresence.PRESENT, "first", "second", 1)}

    assert node.stage("third", at(1)) == []
    store.serve(node, at(1))
    assert node.next_wakeup(at(1)) == at(1)
    assert node.tick(at(1)) == [PolicyAgreed("third")]
    assert node.tick(at(1)) == []
    node.handle(PolicyChanged(POLICY, "third"), at(1))
    assert node.next_wakeup(at(1.01)) > at(1.01) or node.outgoing(at(1.01)).inbox
    assert node.stage("third", at(1.1)) == []
    assert node.view(at(1.1)).staged_hash == ""


def test_scheduler_without_members_applies_a_policy_immediately() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    assert node.leader is not None
    node.leader._roster.peers.clear()

    assert node.stage("second", at(1)) == [PolicyAgreed("second")]


def test_scheduler_applies_a_policy_after_a_timeout_if_a_member_has_not_read_it() -> None:
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


# Status


def test_view_shows_mode_epoch_and_members() -> None:
    node, store = a_node(), Store()
    view = node.view(at(0))
    assert (view.mode, view.epoch, view.is_leader, view.share, view.members) == (
        MemberMode.SEEKING,
        None,
        False,
        Share(0, 1),
        {},
    )
    node.open(a_ticket("r1"), at(0))
    assert node.summary().requests == 1
    run(node, store, 0, 1)
    view = node.view(at(1))

    assert (view.mode, view.epoch, view.is_leader) == (MemberMode.FOLLOWING, Epoch(1, "id1"), True)
    assert (view.unacknowledged, view.held_requests, view.unsettled_requests) == (0, 1, 0)
    assert [each.in_flight for each in node.summary().endpoints] == [1]
    run(node, store, 1.05, 3, answers=False)
    view = node.view(at(3))
    assert (view.mode, view.is_leader, view.members) == (MemberMode.ISLAND, False, {})


def test_observer_sees_scheduler_decisions_but_not_island_decisions() -> None:
    seen: list[str] = []

    class Watcher:
        def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
            seen.extend(command.request_id for command in commands if isinstance(command, Dispatch))

    node, store = a_node(observers=[Watcher()]), Store()
    node.open(a_ticket("r1"), at(0))
    node.tick(at(2))
    assert node.view(at(2)).mode is MemberMode.ISLAND
    assert seen == []
    run(node, store, 2, 3)
    node.open(a_ticket("r2"), at(3))
    run(node, store, 3, 3.2)

    assert seen == ["r2"]


def test_node_losing_its_name_sends_nothing_and_finishes_its_requests_as_an_island() -> None:
    node, store = a_node(), Store()
    for moment in (0, 0.25, 0.5):
        node.tick(at(moment))
        store.serve(node, at(moment))
    assert node.is_leader
    node.open(a_ticket("r1"), at(0.6))
    node.lose_name(at(0.6))

    assert not node.is_leader
    going = node.outgoing(at(0.6))
    assert (going.inbox, going.outboxes, going.claim, going.release is None) == ([], [], None, False)
    head = SchedulerHead(Epoch(9, "nine"), 1, 1, 0, 1, 0, at(0.6), None)
    assert node.from_scheduler(SchedulerEntry(head), at(0.7)) == []
    orders = node.tick(at(3))
    assert node.view(at(3)).mode is MemberMode.ISLAND
    assert [order.request_id for order in orders if isinstance(order, Dispatch)] == ["r1"]
    assert node.outgoing(at(3.1)).inbox == []
    node.handle(completed("r1"), at(3.2))
    node.leave(at(3.3))
    assert node.has_left
