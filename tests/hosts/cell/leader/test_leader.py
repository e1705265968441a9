"""Tests for the cell's scheduler: decisions, succession, absent members, shares and policies."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import CountedUpTo, EndpointMetricsReported, PolicyChanged
from headgate.core.routing.speed_estimator import REPORTS_PER_EQUATION
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.leader.member_report import counted_part
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.messages import Epoch, Grant, MemberEntryState, Share, Snapshot, SnapshotId
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence, MemberView
from headgate.hosts.cell.timing import Timing
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.units import EndpointId, Instant, RequestId
from testing.builders import (
    aborted,
    an_endpoint,
    at,
    client_disconnected,
    completed,
    duration,
    failed,
    first_token,
    joined,
    leaving,
    progressed,
    readied,
)
from tests.hosts.cell.builders import POLICY, SECOND_EPOCH, Cell, a_cell, a_leader, a_member, a_ticket


def in_flight(leader: Leader, name: str = "e1") -> int:
    return next(each.in_flight for each in leader.summary().endpoints if each.id == name)


def places(leader: Leader, name: str = "e1") -> int:
    return next(each.in_flight_max for each in leader.summary().endpoints if each.id == name)


def names(dispatches: list[Dispatch]) -> list[str]:
    return [each.request_id for each in dispatches]


# Decisions


def test_scheduler_orders_all_members_requests_in_one_queue() -> None:
    cell = a_cell("g1", "g2", places=1)
    cell.open("g1", a_ticket("b", service_class="batch"), at(1))
    cell.open("g1", a_ticket("b2", service_class="batch"), at(1))
    cell.talk(at(1))
    cell.open("g2", a_ticket("i"), at(1.1))
    cell.talk(at(1.1))

    assert (names(cell.begun("g1")), names(cell.begun("g2"))) == (["b"], [])
    cell.orders["g1"] += cell.members["g1"].handle(completed("b"), at(1.2))
    cell.talk(at(1.2))

    # The other gateway's interactive request goes before the older batch request.
    assert (names(cell.begun("g1")), names(cell.begun("g2"))) == (["b"], ["i"])


def test_completed_request_leaves_no_state() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    for event in (first_token("r1"), progressed("r1"), completed("r1", tokens=5)):
        cell.orders["g1"] += cell.members["g1"].handle(event, at(1.1))
        cell.talk(at(1.1))

    assert [end.outcome for end in cell.ended("g1")] == [Outcome.COMPLETED]
    assert (cell.leader.assigned_attempts(), cell.leader.summary().requests, in_flight(cell.leader)) == ([], 0, 0)


@pytest.mark.parametrize("late", [False, True])
def test_scheduler_does_not_learn_speed_from_late_progress(*, late: bool) -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].handle(first_token("r1"), at(1.1))
    cell.talk(at(1.1))
    for number in range(1, 4 * REPORTS_PER_EQUATION):
        moment = at(1.1 + number / 5)
        cell.members["g1"].handle(replace(progressed("r1"), late=late), moment)
        cell.talk(moment)

    [endpoint] = cell.leader.summary().endpoints
    assert (endpoint.decode_percent == 100) is late


def test_scheduler_retries_a_failed_attempt() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].handle(failed("r1"), at(1.1))
    cell.talk(at(1.1))

    assert [each.attempt for each in cell.begun("g1")] == [1, 2]


def test_rejection_is_sent_only_to_the_member_holding_the_request() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g2", a_ticket("r1", model="unheard of"), at(1))
    cell.talk(at(1))

    assert [end.outcome for end in cell.ended("g2")] == [Outcome.MODEL_NOT_FOUND]
    assert cell.ended("g1") == []
    assert cell.leader.assigned_attempts() == []


def test_cancelled_request_frees_its_slot() -> None:
    cell = a_cell("g1", places=1)
    for name in ("r1", "r2"):
        cell.open("g1", a_ticket(name), at(1))
    cell.talk(at(1))
    cell.orders["g1"] += cell.members["g1"].handle(client_disconnected("r1"), at(1.1))
    cell.orders["g1"] += cell.members["g1"].handle(aborted("r1"), at(1.2))
    cell.talk(at(1.2))

    assert names(cell.begun("g1")) == ["r1", "r2"]


def test_declined_grant_is_requeued_without_using_an_attempt() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    for entry in cell.members["g1"].outgoing(at(1)):
        cell.leader.receive(entry, at(1))
    [(_, late)] = cell.leader.outgoing(at(1))
    assert cell.members["g1"].receive(late, at(2.2)) == []  # The entry took 1.2 s to arrive.
    cell.talk(at(2.2))

    assert [each.attempt for each in cell.begun("g1")] == [1]
    assert [each[2] for each in cell.leader.assigned_attempts()] == [1]


def test_deadline_is_measured_from_arrival_at_the_member() -> None:
    cell = a_cell("g1", places=1)
    cell.open("g1", a_ticket("first"), at(1))
    cell.talk(at(1))
    cell.heard["g1"] = False
    cell.open("g1", a_ticket("hurried", complete_within=1), at(1.1))
    cell.heard["g1"] = True
    cell.talk(at(1.9))
    cell.talk(at(2.1))

    assert [(end.request_id, end.outcome) for end in cell.ended("g1")] == [("hurried", Outcome.DEADLINE_EXCEEDED)]


# Succession


def test_new_scheduler_adopts_all_its_members_requests() -> None:
    cell = a_cell("g1", "g2", places=2)
    for name in ("r1", "r3"):
        cell.open("g1", a_ticket(name), at(1))
    cell.open("g2", a_ticket("r2"), at(1))
    cell.talk(at(1))
    before = {name: names(cell.begun(name)) for name in cell.members}
    cell.leader = a_leader(SECOND_EPOCH, places=2, now=at(1.5))
    cell.talk(at(1.5))
    cell.talk(at(1.75))

    assert not cell.leader.gathering
    assert in_flight(cell.leader) == 2
    assert {name: names(cell.begun(name)) for name in cell.members} == before
    running = before["g1"][0] if before["g1"] else before["g2"][0]
    owner = "g1" if before["g1"] else "g2"
    cell.orders[owner] += cell.members[owner].handle(completed(running), at(2.5))
    cell.talk(at(2.5))
    assert sorted(names(cell.begun("g1")) + names(cell.begun("g2"))) == ["r1", "r2", "r3"]


def test_new_scheduler_waits_for_reports_from_known_members_before_granting() -> None:
    snapshot = a_snapshot(a_cell("g1", "g2"), at(0.6))
    members = [a_member("g1"), a_member("g2")]
    cell = Cell(a_leader(SECOND_EPOCH, snapshot=snapshot, now=at(0.7)), *members)
    cell.heard["g2"] = False
    cell.open("g1", a_ticket("r1"), at(0.7))
    cell.talk(at(0.7))
    assert cell.leader.gathering
    cell.talk(at(0.95))
    assert cell.begun("g1") == []

    cell.talk(at(1.05))

    # The wait has timed out. The share that g2 may use as an island remains reserved.
    assert names(cell.begun("g1")) == ["r1"]
    assert cell.leader.presences() == {"g1": MemberPresence.PRESENT, "g2": MemberPresence.ABSENT}
    assert places(cell.leader) == 2


def a_snapshot(cell: Cell, now: Instant) -> Snapshot:
    snapshot = cell.leader.take_snapshot(now)
    assert snapshot is not None
    return snapshot


def test_new_scheduler_starts_when_all_known_members_have_reported() -> None:
    old = a_cell("g1", "g2")
    cell = Cell(a_leader(SECOND_EPOCH, snapshot=a_snapshot(old, at(1)), now=at(1.2)), *old.members.values())
    cell.talk(at(1.21))

    assert not cell.leader.gathering


def a_cell_after_one_request() -> Cell:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].handle(completed("r1"), at(1.5))
    cell.talk(at(1.5))
    return cell


def test_end_is_covered_when_the_third_snapshot_is_written() -> None:
    cell = a_cell_after_one_request()
    assert cell.members["g1"].unsettled == 1

    for second in (2, 3, 4):
        assert cell.members["g1"].unsettled == 1
        cell.leader.snapshot_stored(a_snapshot(cell, at(second)).at, at(second))
        cell.pass_time(second + 0.1, second + 0.9)

    # By the time the third snapshot is written, every candidate has read the first.
    assert cell.members["g1"].unsettled == 0


def test_extra_snapshots_for_new_shares_do_not_advance_coverage() -> None:
    cell = a_cell_after_one_request()
    for moment in (2, 2.2, 2.4, 2.6):
        cell.leader._roster.has_unsaved_shares = True
        cell.leader.snapshot_stored(a_snapshot(cell, at(moment)).at, at(moment))
        cell.pass_time(moment, moment + 0.1)
        assert cell.members["g1"].unsettled == 1

    cell.pass_time(2.8, 4.6)
    cell.leader.snapshot_stored(a_snapshot(cell, at(4.7)).at, at(4.7))
    cell.pass_time(4.7, 4.9)

    assert cell.members["g1"].unsettled == 0


def test_snapshots_for_new_shares_keep_a_minimum_interval() -> None:
    cell = a_cell("g1")
    a_snapshot(cell, at(1))
    cell.leader._roster.has_unsaved_shares = True

    assert cell.leader.take_snapshot(at(1.05)) is None
    assert cell.leader.next_wakeup() <= at(1.1)
    assert cell.leader.take_snapshot(at(1.1)) is not None


def test_unwritten_snapshot_covers_nothing() -> None:
    cell = a_cell_after_one_request()
    for second in (2, 3, 4):
        a_snapshot(cell, at(second))
        cell.leader.snapshot_stored(SnapshotId(7, second), at(second))
        cell.pass_time(second + 0.1, second + 0.9)

    assert cell.members["g1"].unsettled == 1
    assert cell.leader.take_snapshot(at(4.9)) is None


def test_counted_stage_follows_from_serials_and_snapshot_ids() -> None:
    peer = Peer("g1", 1, at(0), timing=Timing())
    peer.counted_serial = 10
    began_with = SnapshotId(3, 5)

    def known(arrived: int, sent: SnapshotId | None = None, told: int = 0) -> CountedUpTo:
        return counted_part(peer, arrived, sent, told, epoch=4, start_snapshot=began_with)

    assert known(0) is known(11) is CountedUpTo.NOTHING
    assert known(10) is known(10, SnapshotId(3, 6)) is known(10, SnapshotId(2, 1)) is CountedUpTo.ARRIVAL
    assert known(10, SnapshotId(3, 5)) is known(10, SnapshotId(4, 1)) is known(10, None, 9) is CountedUpTo.SENT
    assert counted_part(peer, 10, SnapshotId(3, 1), 0, epoch=4, start_snapshot=None) is CountedUpTo.ARRIVAL


# Absent members


def test_scheduler_reserves_a_silent_members_share_and_slots() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)

    assert cell.leader.presences()["g2"] is MemberPresence.ABSENT
    # The member's share is two of four slots, and it uses one of them.
    assert (in_flight(cell.leader), places(cell.leader)) == (1, 3)
    assert cell.members["g2"].mode is MemberMode.ISLAND
    assert cell.members["g1"].mode is MemberMode.FOLLOWING


def test_member_becomes_an_island_only_after_its_share_is_reserved() -> None:
    cell = a_cell("g1", "g2")
    cell.heard["g2"] = False
    for hundredth in range(50, 300):
        cell.talk(at(hundredth / 100), rounds=1)
        if cell.members["g2"].mode is MemberMode.ISLAND:
            break

    assert cell.leader.presences()["g2"] is MemberPresence.ABSENT


def test_scheduler_drops_a_silent_members_queued_requests() -> None:
    cell = a_cell("g1", "g2", places=1)
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.open("g2", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)

    assert [each[1] for each in cell.leader.assigned_attempts()] == ["r1"]
    assert cell.leader.summary().requests == 1


def test_returning_member_is_adopted_with_its_report() -> None:
    cell = a_cell("g1", "g2", places=4)
    for name in ("r1", "r2"):
        cell.open("g2", a_ticket(name), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)
    cell.orders["g2"] += cell.members["g2"].handle(completed("r1", tokens=3), at(2.7))
    cell.open("g2", a_ticket("r3"), at(2.7))
    cell.heard["g2"] = True
    cell.pass_time(2.8, 3.4)

    assert cell.modes("g2") == ["following", "island", "following"]
    assert cell.leader.presences()["g2"] is MemberPresence.PRESENT
    assert sorted(each[1] for each in cell.leader.assigned_attempts()) == ["r2", "r3"]
    assert (in_flight(cell.leader), places(cell.leader)) == (2, 4)


def test_reservation_for_a_silent_member_ends_after_the_timeout() -> None:
    cell = a_cell("g1", "g2", places=4, lost_after_ns=duration(3))
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 6)

    assert cell.leader.presences() == {"g1": MemberPresence.PRESENT}
    assert (in_flight(cell.leader), places(cell.leader)) == (0, 4)


def test_removed_member_can_rejoin() -> None:
    cell = a_cell("g1", "g2", lost_after_ns=duration(2))
    cell.heard["g2"] = False
    cell.pass_time(1, 6)
    cell.heard["g2"] = True
    cell.pass_time(6.1, 7)

    assert cell.leader.presences() == {"g1": MemberPresence.PRESENT, "g2": MemberPresence.PRESENT}
    assert cell.members["g2"].mode is MemberMode.FOLLOWING


def test_member_marked_absent_by_a_paused_scheduler_reports_again() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    # The scheduler was paused and checks for silent members before it reads the entries that have arrived.
    cell.leader.tick(at(2.5))
    assert cell.leader.presences()["g1"] is MemberPresence.ABSENT
    cell.members["g1"]._connection.answered_at = at(2.4)
    cell.talk(at(2.5))

    assert cell.leader.presences()["g1"] is MemberPresence.PRESENT
    assert [each[1] for each in cell.leader.assigned_attempts()] == ["r1"]
    assert cell.modes("g1") == ["following"]


def test_restarted_process_replaces_its_previous_incarnation() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g2"] = Member("g2", 2, at(1.5), share=Share(1, 2))
    cell.talk(at(1.5))

    # The old attempt is still running on the engine. All other slots are free.
    assert (in_flight(cell.leader), places(cell.leader)) == (1, 4)
    assert cell.leader.presences()["g2"] is MemberPresence.PRESENT
    cell.pass_time(1.6, 13)
    assert in_flight(cell.leader) == 0


def test_attempt_missing_from_engine_metrics_is_released_early() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.open("g1", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.members["g1"].handle(first_token("r2"), at(1.1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 3)
    cell.leader.handle(EndpointMetricsReported(EndpointId("e1"), 1, 0), at(3))
    assert in_flight(cell.leader) == 2
    cell.pass_time(3.1, 4.3)

    assert [each[1] for each in cell.leader.assigned_attempts()] == ["r2"]


def test_attempt_still_on_the_engine_is_not_released() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.open("g1", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.members["g1"].handle(first_token("r2"), at(1.1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 3)
    cell.leader.handle(EndpointMetricsReported(EndpointId("e1"), 2, 0), at(3))
    cell.pass_time(3.1, 4.3)

    assert sorted(each[1] for each in cell.leader.assigned_attempts()) == ["r1", "r2"]


def test_leaving_member_is_removed_immediately() -> None:
    cell = a_cell("g1", "g2")
    cell.members["g2"].leave(at(1))
    for entry in cell.members.pop("g2").outgoing(at(1)):
        cell.leader.receive(entry, at(1))

    assert list(cell.leader.presences()) == ["g1"]


def test_leaving_member_receives_an_acknowledgement() -> None:
    cell = a_cell("g1", "g2")
    leaving_one = cell.members["g2"]
    leaving_one.leave(at(1))
    for entry in leaving_one.outgoing(at(1)):
        cell.leader.receive(entry, at(1))
    assert [name for name, _ in cell.leader.outgoing(at(1))].count("g2") == 1
    assert not leaving_one.has_left

    # The acknowledgement was lost, so the message is resent.
    cell.pass_time(1.1, 1.4)

    assert leaving_one.has_left
    assert leaving_one.outgoing(at(2)) == []
    assert list(cell.leader.presences()) == ["g1"]


def test_member_can_rejoin_after_leaving() -> None:
    cell = a_cell("g1", "g2")
    cell.members["g2"].leave(at(1))
    cell.talk(at(1))
    cell.members["g2"] = again = a_member("g2")
    again.incarnation = 2
    cell.pass_time(1.1, 1.3)

    assert cell.leader.presences() == {"g1": MemberPresence.PRESENT, "g2": MemberPresence.PRESENT}


def test_number_of_remembered_departures_is_limited() -> None:
    cell = a_cell("g1")
    for number in range(70):
        cell.leader._roster.record_departure(Peer(f"x{number}", 1, at(1), timing=Timing()))

    assert len(cell.leader._roster.departed) == 64


def test_member_acknowledging_nothing_becomes_absent_when_its_window_is_full() -> None:
    cell = a_cell("g1", "g2")
    cell.leader._absence._bounds = type(cell.leader._absence._bounds)(unacknowledged_max=3)
    for number in range(6):
        cell.leader.handle(joined(f"x{number}"), at(1))
    cell.leader.tick(at(1.3))

    assert set(cell.leader.presences().values()) == {MemberPresence.ABSENT}
    cell.leader._absence._bounds = type(cell.leader._absence._bounds)()
    cell.talk(at(1.4))
    assert set(cell.leader.presences().values()) == {MemberPresence.PRESENT}


# Decided arrivals


def test_scheduler_reports_no_decided_arrivals_while_gathering() -> None:
    cell = Cell(a_leader(), a_member("g1"))
    cell.open("g1", a_ticket("r1"), at(0))
    heads: list[tuple[bool, bool]] = []
    for moment in (at(0), at(0.05), at(0.5)):
        cell.talk(moment, rounds=2)
        # Forces an entry outside the heartbeat.
        cell.leader._assignments.peers_to_notify["g1"] = cell.leader._roster.peers["g1"]
        heads += ((cell.leader.gathering, bool(entry.head.decided_serial)) for _, entry in cell.leader.outgoing(moment))

    assert (True, False) in heads
    assert (False, True) in heads
    assert (True, True) not in heads


def test_only_the_last_of_several_entries_reports_decided_arrivals() -> None:
    cell = a_cell("g1")
    for number in range(300):
        cell.leader.handle(joined(f"x{number}"), at(1))

    judged = [entry.head.decided_serial for _, entry in cell.leader.outgoing(at(1))]

    assert len(judged) == 2
    assert judged[0] == 0
    assert judged[1]


# Shares, endpoints and policies


def let_g3_join(cell: Cell) -> None:
    cell.members["g3"] = a_member("g3", share=Share(0, 1))
    cell.orders["g3"], cell.heard["g3"] = [], True


def test_members_receive_new_shares_when_a_member_joins() -> None:
    cell = a_cell("g1", "g2")
    assert [member.share for member in cell.members.values()] == [Share(0, 2), Share(1, 2)]
    let_g3_join(cell)
    cell.pass_time(1, 1.5)
    assert [member.share for member in cell.members.values()] == [Share(0, 2), Share(1, 2), Share(0, 1)]

    cell.leader.snapshot_stored(a_snapshot(cell, at(1.6)).at, at(1.6))
    cell.pass_time(1.6, 2)

    assert [member.share for member in cell.members.values()] == [Share(0, 3), Share(1, 3), Share(2, 3)]


def test_snapshot_is_due_when_shares_are_assigned() -> None:
    cell = a_cell("g1", "g2")
    a_snapshot(cell, at(1))
    assert cell.leader.take_snapshot(at(1.1)) is None
    let_g3_join(cell)
    cell.pass_time(1.1, 1.3)

    assert cell.leader.next_wakeup() <= at(1.3)
    noted = {each.member: each for each in a_snapshot(cell, at(1.3)).members}
    assert (noted["g1"].share, noted["g1"].earlier_shares) == (Share(0, 3), (Share(0, 2),))
    assert (noted["g2"].share, noted["g2"].earlier_shares) == (Share(1, 3), (Share(1, 2),))
    assert cell.leader.take_snapshot(at(1.31)) is None


def test_share_is_sent_after_the_next_written_snapshot() -> None:
    cell = a_cell("g1", "g2")
    let_g3_join(cell)
    cell.pass_time(1, 1.5)
    a_snapshot(cell, at(1.5))
    cell.leader.snapshot_stored(a_snapshot(cell, at(3)).at, at(3))
    cell.pass_time(3, 3.4)

    assert [member.share for member in cell.members.values()] == [Share(0, 3), Share(1, 3), Share(2, 3)]


def test_returning_member_receives_its_assigned_share_after_the_next_snapshot() -> None:
    cell = a_cell("g1", "g2")
    let_g3_join(cell)
    cell.pass_time(1, 1.2)
    dealt = a_snapshot(cell, at(1.2))
    cell.heard["g2"] = False
    cell.pass_time(1.3, 3)
    cell.leader.snapshot_stored(dealt.at, at(3))
    cell.heard["g2"] = True
    cell.pass_time(3.1, 4)
    assert cell.members["g2"].share == Share(1, 2)

    cell.leader.snapshot_stored(a_snapshot(cell, at(4)).at, at(4))
    cell.pass_time(4.1, 4.5)

    assert cell.members["g2"].share == Share(1, 3)


def test_successor_reserves_the_largest_possible_share_for_a_silent_member() -> None:
    noted = (MemberEntryState("g2", 1, 0, Share(2, 3), (Share(1, 3),)),)
    snapshot = Snapshot(SnapshotId(1, 1), Counters(), noted)
    cell = Cell(a_leader(SECOND_EPOCH, snapshot=snapshot, places=2), a_member("g1"))
    cell.pass_time(0, 2)

    # With two slots, the third share has none and the second has one.
    [endpoint] = cell.leader.summary().endpoints
    assert endpoint.in_flight_max == 1


def test_endpoint_changes_are_sent_to_all_members() -> None:
    cell = a_cell("g1", "g2")
    for event in (joined("e2", places=3), readied("e2"), leaving("e1")):
        cell.leader.handle(event, at(1))
    cell.talk(at(1))

    for member in cell.members.values():
        assert list(member.endpoints.by_id) == ["e2"]
        assert member.endpoints.is_ready(EndpointId("e2"))
    assert member.endpoints.by_id[EndpointId("e2")] == an_endpoint("e2", places=3)


def test_member_with_an_older_policy_is_served() -> None:
    cell = a_cell("g1", "g2")
    cell.leader.handle(PolicyChanged(POLICY, "second"), at(1))
    cell.members["g1"].handle(PolicyChanged(POLICY, "second"), at(1))
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1.2))

    assert {name: each.policy_hash for name, each in cell.leader.members().items()} == {"g1": "second", "g2": "first"}
    assert names(cell.begun("g2")) == ["r1"]


def test_policy_is_ready_when_all_present_members_have_read_it() -> None:
    cell = a_cell("g1", "g2", "g3")
    cell.heard["g3"] = False
    cell.members["g1"].stage("second", at(1))
    cell.members["g2"].handle(PolicyChanged(POLICY, "second"), at(1))
    cell.talk(at(1))
    assert not cell.leader.all_have_policy("second")

    cell.pass_time(1.1, 2.5)

    assert cell.leader.presences()["g3"] is MemberPresence.ABSENT
    assert cell.leader.all_have_policy("second")
    assert not cell.leader.all_have_policy("third")
    assert cell.leader.members()["g1"] == MemberView(MemberPresence.PRESENT, "first", "second", 1)


def test_policy_is_not_ready_while_the_scheduler_is_gathering() -> None:
    assert not a_leader().all_have_policy("second")


def test_entry_from_an_earlier_incarnation_is_ignored() -> None:
    cell = a_cell("g1")
    [late] = Member("g1", 0, at(0)).outgoing(at(0))
    cell.leader.receive(late, at(1))

    assert cell.leader.presences() == {"g1": MemberPresence.PRESENT}


def test_member_following_another_scheduler_is_contacted_but_stays_absent() -> None:
    cell = a_cell("g1")
    stranger = a_member("g9")
    stranger._connection.followed_epoch = Epoch(0, "former")
    [entry] = stranger.outgoing(at(1))
    cell.leader.receive(entry, at(1))

    assert cell.leader.presences()["g9"] is MemberPresence.ABSENT
    assert "g9" in dict(cell.leader.outgoing(at(1)))


def test_events_for_an_unknown_request_are_ignored() -> None:
    cell = a_cell("g1")
    cell.members["g1"]._connection.send(client_disconnected("unknown"), at(1))
    cell.members["g1"]._connection.send(first_token("unknown"), at(1))
    cell.talk(at(1))

    assert cell.leader.assigned_attempts() == []
    assert cell.members["g1"].unacknowledged == 0
    assert RequestId("unknown") not in cell.leader._assignments.requests


def test_first_member_that_returns_is_not_limited_by_its_own_reserved_share() -> None:
    cell = a_cell("g1")
    limits = Limits(requests_per_minute=600)
    limited = replace(POLICY, tenants=tuple(replace(tenant, limits=limits) for tenant in POLICY.tenants))
    cell.leader.handle(PolicyChanged(limited, "limited"), at(1))
    # The scheduler was paused. The member has not become an island, so its new request is undecided.
    cell.leader.tick(at(2.5))
    assert cell.leader.presences()["g1"] is MemberPresence.ABSENT
    cell.members["g1"]._connection.answered_at = at(2.4)
    cell.open("g1", a_ticket("r1"), at(2.5))
    cell.talk(at(2.5))

    assert cell.ended("g1") == []
    assert names(cell.begun("g1")) == ["r1"]


def test_acknowledgements_wait_for_other_messages() -> None:
    cell = a_cell("g1")
    member, leader = cell.members["g1"], cell.leader
    cell.talk(at(1))
    cell.open("g1", a_ticket("r1"), at(1.001))
    [arrival] = member.outgoing(at(1.001))
    leader.receive(arrival, at(1.001))
    [(_, grant)] = leader.outgoing(at(1.001))
    assert [type(each) for _, each in grant.messages] == [Grant]
    member.receive(grant, at(1.001))

    assert member.outgoing(at(1.002)) == []
    assert member.next_wakeup() == at(1.021)
    [acknowledgement] = member.outgoing(at(1.021))
    assert acknowledgement.head.received_serial == grant.head.first_serial

    member.handle(first_token("r1"), at(1.03))
    assert member.next_wakeup() == at(1.05)
    [first] = member.outgoing(at(1.05))
    leader.receive(first, at(1.05))
    assert leader.outgoing(at(1.06)) == []
    assert leader.next_wakeup() == at(1.07)
    [(_, answer)] = leader.outgoing(at(1.07))
    assert answer.head.received_serial == first.head.first_serial


def test_bills_wait_for_other_messages() -> None:
    cell = a_cell("g1")
    member, leader = cell.members["g1"], cell.leader
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.talk(at(1.1))
    member.handle(completed("r1"), at(1.101))
    [ended] = member.outgoing(at(1.101))
    leader.receive(ended, at(1.101))

    assert leader.outgoing(at(1.101)) == []
    [(_, bills)] = leader.outgoing(at(1.121))
    assert [(type(each), each.request_id) for _, each in bills.messages if isinstance(each, End)] == [(End, "r1")]
