"""What does one scheduler for many gateways do when one of them dies, is silent or comes back?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch
from headgate.core.counters import Counters
from headgate.core.events import Counted, EndpointMeasured, PolicyChanged
from headgate.core.routing.learning import REPORTS
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.reports import counted
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.messages import Epoch, MemberNoted, Share, Snapshot, Snapshots
from headgate.hosts.cell.protocol.views import MemberView, Mode, Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.outcome import Outcome
from headgate.model.units import EndpointId, Instant, RequestId
from testing.builders import (
    aborted,
    an_endpoint,
    at,
    client_left,
    completed,
    failed,
    first_token,
    joined,
    lasting,
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


# Deciding


def test_one_queue_serves_all_members() -> None:
    cell = a_cell("g1", "g2", places=1)
    cell.open("g1", a_ticket("b", service_class="batch"), at(1))
    cell.open("g1", a_ticket("b2", service_class="batch"), at(1))
    cell.talk(at(1))
    cell.open("g2", a_ticket("i"), at(1.1))
    cell.talk(at(1.1))

    assert (names(cell.begun("g1")), names(cell.begun("g2"))) == (["b"], [])
    cell.orders["g1"] += cell.members["g1"].tell(completed("b"), at(1.2))
    cell.talk(at(1.2))

    # The interactive one of another gateway goes before the batch that came first.
    assert (names(cell.begun("g1")), names(cell.begun("g2"))) == (["b"], ["i"])


def test_a_life_from_arrival_to_end_leaves_nothing_behind() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    for event in (first_token("r1"), progressed("r1"), completed("r1", tokens=5)):
        cell.orders["g1"] += cell.members["g1"].tell(event, at(1.1))
        cell.talk(at(1.1))

    assert [end.outcome for end in cell.ended("g1")] == [Outcome.COMPLETED]
    assert (cell.leader.booked(), cell.leader.summary().requests, in_flight(cell.leader)) == ([], 0, 0)


@pytest.mark.parametrize("late", [False, True])
def test_scheduler_learns_no_speed_from_a_member_that_is_late(*, late: bool) -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].tell(first_token("r1"), at(1.1))
    cell.talk(at(1.1))
    for number in range(1, 4 * REPORTS):
        moment = at(1.1 + number / 5)
        cell.members["g1"].tell(replace(progressed("r1"), late=late), moment)
        cell.talk(moment)

    [endpoint] = cell.leader.summary().endpoints
    assert (endpoint.decode_percent == 100) is late


def test_a_failure_is_tried_again_by_the_scheduler() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].tell(failed("r1"), at(1.1))
    cell.talk(at(1.1))

    assert [each.attempt for each in cell.begun("g1")] == [1, 2]


def test_a_refusal_reaches_the_member_that_asked() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g2", a_ticket("r1", model="unheard of"), at(1))
    cell.talk(at(1))

    assert [end.outcome for end in cell.ended("g2")] == [Outcome.MODEL_NOT_FOUND]
    assert cell.ended("g1") == []
    assert cell.leader.booked() == []


def test_what_a_caller_leaves_is_taken_back() -> None:
    cell = a_cell("g1", places=1)
    for name in ("r1", "r2"):
        cell.open("g1", a_ticket(name), at(1))
    cell.talk(at(1))
    cell.orders["g1"] += cell.members["g1"].tell(client_left("r1"), at(1.1))
    cell.orders["g1"] += cell.members["g1"].tell(aborted("r1"), at(1.2))
    cell.talk(at(1.2))

    assert names(cell.begun("g1")) == ["r1", "r2"]


def test_a_declined_grant_waits_on_and_uses_up_no_attempt() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    for entry in cell.members["g1"].outgoing(at(1)):
        cell.leader.receive(entry, at(1))
    [(_, late)] = cell.leader.outgoing(at(1))
    assert cell.members["g1"].receive(late, at(2.2)) == []  # 1.2 s on its way.
    cell.talk(at(2.2))

    assert [each.attempt for each in cell.begun("g1")] == [1]
    assert [each[2] for each in cell.leader.booked()] == [1]


def test_a_deadline_counts_from_when_the_request_came_not_from_when_the_scheduler_heard() -> None:
    cell = a_cell("g1", places=1)
    cell.open("g1", a_ticket("first"), at(1))
    cell.talk(at(1))
    cell.heard["g1"] = False
    cell.open("g1", a_ticket("hurried", complete_within=1), at(1.1))
    cell.heard["g1"] = True
    cell.talk(at(1.9))
    cell.talk(at(2.1))

    assert [(end.request_id, end.outcome) for end in cell.ended("g1")] == [("hurried", Outcome.TOO_LATE)]


# Succession


def test_a_new_scheduler_goes_on_with_all_that_members_hold() -> None:
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
    cell.orders[owner] += cell.members[owner].tell(completed(running), at(2.5))
    cell.talk(at(2.5))
    assert sorted(names(cell.begun("g1")) + names(cell.begun("g2"))) == ["r1", "r2", "r3"]


def test_nothing_is_granted_before_those_who_are_known_have_reported() -> None:
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

    # The bound has passed. What g2 may take by itself stays free.
    assert names(cell.begun("g1")) == ["r1"]
    assert cell.leader.standings() == {"g1": Standing.PRESENT, "g2": Standing.ABSENT}
    assert places(cell.leader) == 2


def a_snapshot(cell: Cell, now: Instant) -> Snapshot:
    snapshot = cell.leader.take_snapshot(now)
    assert snapshot is not None
    return snapshot


def test_a_new_scheduler_that_knows_everybody_begins_when_all_have_reported() -> None:
    old = a_cell("g1", "g2")
    cell = Cell(a_leader(SECOND_EPOCH, snapshot=a_snapshot(old, at(1)), now=at(1.2)), *old.members.values())
    cell.talk(at(1.21))

    assert not cell.leader.gathering


def a_cell_after_one_request() -> Cell:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g1"].tell(completed("r1"), at(1.5))
    cell.talk(at(1.5))
    return cell


def test_a_snapshot_covers_what_members_need_not_tell_again() -> None:
    cell = a_cell_after_one_request()
    assert cell.members["g1"].unsettled == 1

    for second in (2, 3, 4):
        assert cell.members["g1"].unsettled == 1
        cell.leader.snapshot_written(a_snapshot(cell, at(second)).at, at(second))
        cell.pass_time(second + 0.1, second + 0.9)

    # The third one is written: by then every candidate has read the first.
    assert cell.members["g1"].unsettled == 0


def test_snapshots_that_follow_each_other_quickly_for_new_shares_cover_nothing_early() -> None:
    cell = a_cell_after_one_request()
    for moment in (2, 2.2, 2.4, 2.6):
        cell.leader._roster.unsaved = True
        cell.leader.snapshot_written(a_snapshot(cell, at(moment)).at, at(moment))
        cell.pass_time(moment, moment + 0.1)
        assert cell.members["g1"].unsettled == 1

    cell.pass_time(2.8, 4.6)
    cell.leader.snapshot_written(a_snapshot(cell, at(4.7)).at, at(4.7))
    cell.pass_time(4.7, 4.9)

    assert cell.members["g1"].unsettled == 0


def test_snapshots_for_new_shares_keep_a_distance() -> None:
    cell = a_cell("g1")
    a_snapshot(cell, at(1))
    cell.leader._roster.unsaved = True

    assert cell.leader.take_snapshot(at(1.05)) is None
    assert cell.leader.next_wakeup() <= at(1.1)
    assert cell.leader.take_snapshot(at(1.1)) is not None


def test_a_snapshot_that_was_not_written_covers_nothing() -> None:
    cell = a_cell_after_one_request()
    for second in (2, 3, 4):
        a_snapshot(cell, at(second))
        cell.leader.snapshot_written(Snapshots(7, second), at(second))
        cell.pass_time(second + 0.1, second + 0.9)

    assert cell.members["g1"].unsettled == 1
    assert cell.leader.take_snapshot(at(4.9)) is None


def test_what_the_counters_know_of_a_request_follows_from_its_marks() -> None:
    peer = Peer("g1", 1, at(0), timing=Timing())
    peer.known = 10
    began_with = Snapshots(3, 5)

    def known(arrived: int, sent: Snapshots | None = None, told: int = 0) -> Counted:
        return counted(peer, arrived, sent, told, epoch=4, began_with=began_with)

    assert known(0) is known(11) is Counted.NOTHING
    assert known(10) is known(10, Snapshots(3, 6)) is known(10, Snapshots(2, 1)) is Counted.ARRIVAL
    assert known(10, Snapshots(3, 5)) is known(10, Snapshots(4, 1)) is known(10, None, 9) is Counted.SENT
    assert counted(peer, 10, Snapshots(3, 1), 0, epoch=4, began_with=None) is Counted.ARRIVAL


# Absence


def test_a_silent_members_share_and_work_are_kept() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)

    assert cell.leader.standings()["g2"] is Standing.ABSENT
    # Two of four places are its own, of which it has one.
    assert (in_flight(cell.leader), places(cell.leader)) == (1, 3)
    assert cell.members["g2"].mode is Mode.ISLAND
    assert cell.members["g1"].mode is Mode.FOLLOWING


def test_nobody_is_an_island_before_its_scheduler_keeps_its_share() -> None:
    cell = a_cell("g1", "g2")
    cell.heard["g2"] = False
    for hundredth in range(50, 300):
        cell.talk(at(hundredth / 100), rounds=1)
        if cell.members["g2"].mode is Mode.ISLAND:
            break

    assert cell.leader.standings()["g2"] is Standing.ABSENT


def test_what_a_silent_member_has_waiting_is_its_own_affair() -> None:
    cell = a_cell("g1", "g2", places=1)
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.open("g2", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)

    assert [each[1] for each in cell.leader.booked()] == ["r1"]
    assert cell.leader.summary().requests == 1


def test_a_member_that_comes_back_is_taken_as_it_reports() -> None:
    cell = a_cell("g1", "g2", places=4)
    for name in ("r1", "r2"):
        cell.open("g2", a_ticket(name), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 2.6)
    cell.orders["g2"] += cell.members["g2"].tell(completed("r1", tokens=3), at(2.7))
    cell.open("g2", a_ticket("r3"), at(2.7))
    cell.heard["g2"] = True
    cell.pass_time(2.8, 3.4)

    assert cell.modes("g2") == ["following", "island", "following"]
    assert cell.leader.standings()["g2"] is Standing.PRESENT
    assert sorted(each[1] for each in cell.leader.booked()) == ["r2", "r3"]
    assert (in_flight(cell.leader), places(cell.leader)) == (2, 4)


def test_after_the_bound_nothing_is_kept_for_a_silent_member() -> None:
    cell = a_cell("g1", "g2", places=4, lost_ns=lasting(3))
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 6)

    assert cell.leader.standings() == {"g1": Standing.PRESENT}
    assert (in_flight(cell.leader), places(cell.leader)) == (0, 4)


def test_one_that_is_forgotten_can_come_back() -> None:
    cell = a_cell("g1", "g2", lost_ns=lasting(2))
    cell.heard["g2"] = False
    cell.pass_time(1, 6)
    cell.heard["g2"] = True
    cell.pass_time(6.1, 7)

    assert cell.leader.standings() == {"g1": Standing.PRESENT, "g2": Standing.PRESENT}
    assert cell.members["g2"].mode is Mode.FOLLOWING


def test_one_whom_only_the_scheduler_took_for_gone_is_asked_to_report_again() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    # The scheduler was paused, and looks at its watch before it looks at what has come meanwhile.
    cell.leader.tick(at(2.5))
    assert cell.leader.standings()["g1"] is Standing.ABSENT
    cell.members["g1"]._conversation.heard_at = at(2.4)
    cell.talk(at(2.5))

    assert cell.leader.standings()["g1"] is Standing.PRESENT
    assert [each[1] for each in cell.leader.booked()] == ["r1"]
    assert cell.modes("g1") == ["following"]


def test_a_process_that_starts_again_takes_the_place_of_its_former_life() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.members["g2"] = Member("g2", 2, at(1.5), share=Share(1, 2))
    cell.talk(at(1.5))

    # What it had is still at the engine; all else is free.
    assert (in_flight(cell.leader), places(cell.leader)) == (1, 4)
    assert cell.leader.standings()["g2"] is Standing.PRESENT
    cell.pass_time(1.6, 13)
    assert in_flight(cell.leader) == 0


def test_what_engines_show_to_be_gone_is_given_up_before_the_bound() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.open("g1", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.members["g1"].tell(first_token("r2"), at(1.1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 3)
    cell.leader.tell(EndpointMeasured(EndpointId("e1"), 1, 0), at(3))
    assert in_flight(cell.leader) == 2
    cell.pass_time(3.1, 4.3)

    assert [each[1] for each in cell.leader.booked()] == ["r2"]


def test_what_engines_still_have_is_not_given_up() -> None:
    cell = a_cell("g1", "g2", places=4)
    cell.open("g2", a_ticket("r1"), at(1))
    cell.open("g1", a_ticket("r2"), at(1))
    cell.talk(at(1))
    cell.members["g1"].tell(first_token("r2"), at(1.1))
    cell.heard["g2"] = False
    cell.pass_time(1.1, 3)
    cell.leader.tell(EndpointMeasured(EndpointId("e1"), 2, 0), at(3))
    cell.pass_time(3.1, 4.3)

    assert sorted(each[1] for each in cell.leader.booked()) == ["r1", "r2"]


def test_a_member_that_leaves_is_forgotten_at_once() -> None:
    cell = a_cell("g1", "g2")
    cell.members["g2"].leave(at(1))
    for entry in cell.members.pop("g2").outgoing(at(1)):
        cell.leader.receive(entry, at(1))

    assert list(cell.leader.standings()) == ["g1"]


def test_a_member_that_leaves_hears_that_it_was_heard() -> None:
    cell = a_cell("g1", "g2")
    leaving_one = cell.members["g2"]
    leaving_one.leave(at(1))
    for entry in leaving_one.outgoing(at(1)):
        cell.leader.receive(entry, at(1))
    assert [name for name, _ in cell.leader.outgoing(at(1))].count("g2") == 1
    assert not leaving_one.left

    # The answer was lost, and what was said is said again.
    cell.pass_time(1.1, 1.4)

    assert leaving_one.left
    assert leaving_one.outgoing(at(2)) == []
    assert list(cell.leader.standings()) == ["g1"]


def test_one_who_comes_again_after_it_has_left_is_a_member() -> None:
    cell = a_cell("g1", "g2")
    cell.members["g2"].leave(at(1))
    cell.talk(at(1))
    cell.members["g2"] = again = a_member("g2")
    again.incarnation = 2
    cell.pass_time(1.1, 1.3)

    assert cell.leader.standings() == {"g1": Standing.PRESENT, "g2": Standing.PRESENT}


def test_so_many_that_have_left_are_remembered() -> None:
    cell = a_cell("g1")
    for number in range(70):
        cell.leader._roster.see_off(Peer(f"x{number}", 1, at(1), timing=Timing()))

    assert len(cell.leader._roster.left) == 64


def test_a_member_that_acknowledges_nothing_is_written_to_no_more_than_the_window() -> None:
    cell = a_cell("g1", "g2")
    cell.leader._absence._bounds = type(cell.leader._absence._bounds)(window=3)
    for number in range(6):
        cell.leader.tell(joined(f"x{number}"), at(1))
    cell.leader.tick(at(1.3))

    assert set(cell.leader.standings().values()) == {Standing.ABSENT}
    cell.leader._absence._bounds = type(cell.leader._absence._bounds)()
    cell.talk(at(1.4))
    assert set(cell.leader.standings().values()) == {Standing.PRESENT}


# Which arrivals were judged


def test_scheduler_that_gathers_reports_has_judged_nothing() -> None:
    cell = Cell(a_leader(), a_member("g1"))
    cell.open("g1", a_ticket("r1"), at(0))
    heads: list[tuple[bool, bool]] = []
    for moment in (at(0), at(0.05), at(0.5)):
        cell.talk(moment, rounds=2)
        # An entry outside the beat, so that there is one to look at.
        cell.leader._book.to_tell["g1"] = cell.leader._roster.peers["g1"]
        heads += ((cell.leader.gathering, bool(entry.head.judged)) for _, entry in cell.leader.outgoing(moment))

    assert (True, False) in heads
    assert (False, True) in heads
    assert (True, True) not in heads


def test_only_the_last_of_several_entries_says_which_arrivals_were_judged() -> None:
    cell = a_cell("g1")
    for number in range(300):
        cell.leader.tell(joined(f"x{number}"), at(1))

    judged = [entry.head.judged for _, entry in cell.leader.outgoing(at(1))]

    assert len(judged) == 2
    assert judged[0] == 0
    assert judged[1]


# Shares, endpoints and rules


def let_g3_join(cell: Cell) -> None:
    cell.members["g3"] = a_member("g3", share=Share(0, 1))
    cell.orders["g3"], cell.heard["g3"] = [], True


def test_every_member_is_told_its_share_and_told_anew_when_one_comes() -> None:
    cell = a_cell("g1", "g2")
    assert [member.share for member in cell.members.values()] == [Share(0, 2), Share(1, 2)]
    let_g3_join(cell)
    cell.pass_time(1, 1.5)
    assert [member.share for member in cell.members.values()] == [Share(0, 2), Share(1, 2), Share(0, 1)]

    cell.leader.snapshot_written(a_snapshot(cell, at(1.6)).at, at(1.6))
    cell.pass_time(1.6, 2)

    assert [member.share for member in cell.members.values()] == [Share(0, 3), Share(1, 3), Share(2, 3)]


def test_a_snapshot_is_taken_as_soon_as_a_share_is_dealt() -> None:
    cell = a_cell("g1", "g2")
    a_snapshot(cell, at(1))
    assert cell.leader.take_snapshot(at(1.1)) is None
    let_g3_join(cell)
    cell.pass_time(1.1, 1.3)

    assert cell.leader.next_wakeup() <= at(1.3)
    noted = {each.member: each for each in a_snapshot(cell, at(1.3)).members}
    assert (noted["g1"].share, noted["g1"].earlier) == (Share(0, 3), (Share(0, 2),))
    assert (noted["g2"].share, noted["g2"].earlier) == (Share(1, 3), (Share(1, 2),))
    assert cell.leader.take_snapshot(at(1.31)) is None


def test_a_share_whose_snapshot_was_not_written_is_told_after_the_next() -> None:
    cell = a_cell("g1", "g2")
    let_g3_join(cell)
    cell.pass_time(1, 1.5)
    a_snapshot(cell, at(1.5))
    cell.leader.snapshot_written(a_snapshot(cell, at(3)).at, at(3))
    cell.pass_time(3, 3.4)

    assert [member.share for member in cell.members.values()] == [Share(0, 3), Share(1, 3), Share(2, 3)]


def test_a_member_that_was_away_is_told_the_share_that_was_dealt_before() -> None:
    cell = a_cell("g1", "g2")
    let_g3_join(cell)
    cell.pass_time(1, 1.2)
    dealt = a_snapshot(cell, at(1.2))
    cell.heard["g2"] = False
    cell.pass_time(1.3, 3)
    cell.leader.snapshot_written(dealt.at, at(3))
    cell.heard["g2"] = True
    cell.pass_time(3.1, 4)
    assert cell.members["g2"].share == Share(1, 2)

    cell.leader.snapshot_written(a_snapshot(cell, at(4)).at, at(4))
    cell.pass_time(4.1, 4.5)

    assert cell.members["g2"].share == Share(1, 3)


def test_a_successor_keeps_the_largest_share_that_a_silent_member_may_have() -> None:
    noted = (MemberNoted("g2", 1, 0, Share(2, 3), (Share(1, 3),)),)
    snapshot = Snapshot(Snapshots(1, 1), Counters(), noted)
    cell = Cell(a_leader(SECOND_EPOCH, snapshot=snapshot, places=2), a_member("g1"))
    cell.pass_time(0, 2)

    # Of two places the third share has none, but the second has one.
    [endpoint] = cell.leader.summary().endpoints
    assert endpoint.in_flight_max == 1


def test_what_one_process_sees_of_an_endpoint_all_members_know() -> None:
    cell = a_cell("g1", "g2")
    for event in (joined("e2", places=3), readied("e2"), leaving("e1")):
        cell.leader.tell(event, at(1))
    cell.talk(at(1))

    for member in cell.members.values():
        assert list(member.endpoints.by_id) == ["e2"]
        assert member.endpoints.ready(EndpointId("e2"))
    assert member.endpoints.by_id[EndpointId("e2")] == an_endpoint("e2", places=3)


def test_members_and_scheduler_may_have_policies_one_version_apart() -> None:
    cell = a_cell("g1", "g2")
    cell.leader.tell(PolicyChanged(POLICY, "second"), at(1))
    cell.members["g1"].tell(PolicyChanged(POLICY, "second"), at(1))
    cell.open("g2", a_ticket("r1"), at(1))
    cell.talk(at(1.2))

    assert {name: each.policy_hash for name, each in cell.leader.members().items()} == {"g1": "second", "g2": "first"}
    assert names(cell.begun("g2")) == ["r1"]


def test_all_are_ready_for_rules_when_all_who_answer_have_read_them() -> None:
    cell = a_cell("g1", "g2", "g3")
    cell.heard["g3"] = False
    cell.members["g1"].stage("second", at(1))
    cell.members["g2"].tell(PolicyChanged(POLICY, "second"), at(1))
    cell.talk(at(1))
    assert not cell.leader.all_are_ready_for("second")

    cell.pass_time(1.1, 2.5)

    assert cell.leader.standings()["g3"] is Standing.ABSENT
    assert cell.leader.all_are_ready_for("second")
    assert not cell.leader.all_are_ready_for("third")
    assert cell.leader.members()["g1"] == MemberView(Standing.PRESENT, "first", "second", 1)


def test_nobody_is_ready_for_rules_of_a_scheduler_that_gathers() -> None:
    assert not a_leader().all_are_ready_for("second")


def test_an_entry_of_a_life_that_is_over_changes_nothing() -> None:
    cell = a_cell("g1")
    [late] = Member("g1", 0, at(0)).outgoing(at(0))
    cell.leader.receive(late, at(1))

    assert cell.leader.standings() == {"g1": Standing.PRESENT}


def test_one_who_follows_another_is_called_but_not_listened_to() -> None:
    cell = a_cell("g1")
    stranger = a_member("g9")
    stranger._conversation.bound = Epoch(0, "former")
    [entry] = stranger.outgoing(at(1))
    cell.leader.receive(entry, at(1))

    assert cell.leader.standings()["g9"] is Standing.ABSENT
    assert "g9" in dict(cell.leader.outgoing(at(1)))


def test_a_request_that_nobody_has_heard_of_is_no_trouble() -> None:
    cell = a_cell("g1")
    cell.members["g1"]._conversation.say(client_left("unknown"), at(1))
    cell.members["g1"]._conversation.say(first_token("unknown"), at(1))
    cell.talk(at(1))

    assert cell.leader.booked() == []
    assert cell.members["g1"].unacknowledged == 0
    assert RequestId("unknown") not in cell.leader._book.requests
