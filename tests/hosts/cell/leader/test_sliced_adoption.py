"""Tests for schedulers that adopt reports in slices, with messages and faults in between."""

import pytest

from headgate.core.events import EndpointMetricsReported
from headgate.hosts.cell.protocol.messages import Snapshot
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence
from headgate.hosts.cell.timing import CellBounds
from headgate.model.units import EndpointId, Instant
from testing.builders import at, completed, first_token, joined, leaving, readied
from tests.hosts.cell.builders import SECOND_EPOCH, Cell, a_cell, a_leader, a_member, a_ticket

PLACES = 4


def a_snapshot(cell: Cell, now: Instant) -> Snapshot:
    snapshot = cell.leader.take_snapshot(now)
    assert snapshot is not None
    return snapshot


def a_takeover(*, steps_max: int = 1) -> Cell:
    """Return a cell of two members with four running and two waiting requests, and a new scheduler with all reports.

    The scheduler has taken its first steps.
    """
    cell = a_cell("g1", "g2", places=PLACES)
    for number in range(6):
        cell.open(f"g{number % 2 + 1}", a_ticket(f"r{number}"), at(1))
        cell.talk(at(1))
    for number in range(PLACES):
        cell.members[f"g{number % 2 + 1}"].handle(first_token(f"r{number}"), at(1.1))
    cell.talk(at(1.1))
    snapshot = a_snapshot(cell, at(1.1))
    bounds = CellBounds(adoption_steps_max=steps_max)
    cell.leader = a_leader(SECOND_EPOCH, places=PLACES, snapshot=snapshot, now=at(1.2), bounds=bounds)
    cell.talk(at(1.2))
    return cell


def finish(cell: Cell, now: Instant) -> int:
    """Continue until all reports are adopted. Return the number of slices."""
    slices = 0
    while cell.leader.gathering:
        assert cell.leader.next_wakeup() <= now, "the scheduler does not ask for its next slice"
        cell.leader.tick(now)
        slices += 1
        assert slices < 1_000
    return slices


def begun(cell: Cell) -> list[str]:
    return sorted(order.request_id for name in cell.members for order in cell.begun(name))


def in_flight(cell: Cell) -> int:
    return sum(each.in_flight for each in cell.leader.summary().endpoints)


def test_nothing_is_granted_until_all_reports_are_adopted() -> None:
    cell = a_takeover()
    assert cell.leader.gathering

    slices = finish(cell, at(1.25))
    cell.talk(at(1.25))

    assert slices > PLACES
    assert (in_flight(cell), begun(cell)) == (PLACES, ["r0", "r1", "r2", "r3"])


def test_whole_adoption_fits_into_one_slice_by_default() -> None:
    assert not a_takeover(steps_max=CellBounds().adoption_steps_max).leader.gathering


def test_messages_during_the_adoption_are_handled_after_it() -> None:
    cell = a_takeover()
    cell.orders["g1"] += cell.members["g1"].handle(completed("r0"), at(1.21))
    cell.open("g2", a_ticket("new"), at(1.21))
    cell.talk(at(1.21), rounds=1)
    assert cell.leader.gathering

    finish(cell, at(1.25))
    cell.talk(at(1.25))

    assert in_flight(cell) == PLACES
    assert begun(cell) == ["r0", "r1", "r2", "r3", "r4"]
    cell.orders["g2"] += cell.members["g2"].handle(completed("r1"), at(1.3))
    cell.orders["g1"] += cell.members["g1"].handle(completed("r2"), at(1.3))
    cell.talk(at(1.3))
    assert begun(cell) == ["new", "r0", "r1", "r2", "r3", "r4", "r5"]


def test_heads_of_entries_are_answered_during_the_adoption() -> None:
    cell = a_takeover()
    cell.talk(at(1.4), rounds=1)
    assert cell.leader.gathering

    answered = {name: entry.head for name, entry in cell.leader.outgoing(at(1.6))}

    assert {name: head.echo is not None for name, head in answered.items()} == {"g1": True, "g2": True}
    # Arrivals are not decided yet.
    assert {head.decided_serial for head in answered.values()} == {0}


def test_restarted_session_keeps_its_attempts_until_the_next_report() -> None:
    cell = a_takeover()
    cell.members["g1"].reject_entry(None, at(1.21))
    for entry in cell.members["g1"].outgoing(at(1.21)):
        cell.leader.receive(entry, at(1.21))
    assert cell.leader.gathering

    finish(cell, at(1.25))

    assert in_flight(cell) == PLACES
    cell.talk(at(1.3))
    cell.talk(at(1.35))
    assert (in_flight(cell), begun(cell)) == (PLACES, ["r0", "r1", "r2", "r3"])
    for number, name in enumerate(("r0", "r2")):
        cell.orders["g1"] += cell.members["g1"].handle(completed(name), at(1.4 + number / 10))
        cell.talk(at(1.4 + number / 10))
    assert begun(cell) == ["r0", "r1", "r2", "r3", "r4", "r5"]


@pytest.mark.parametrize("slices", range(0, 16, 3))
def test_restarted_process_loses_its_attempts_at_any_point_of_the_adoption(slices: int) -> None:
    cell = a_takeover()
    for _ in range(slices):
        cell.leader.tick(at(1.21))
    reborn = a_member("g1")
    reborn.incarnation = 2
    cell.members["g1"] = reborn
    cell.talk(at(1.22), rounds=1)

    finish(cell, at(1.25))
    for tenth in range(13, 125):
        cell.talk(at(tenth / 10), rounds=2)

    # Whatever was adopted of the old process is gone after `lost_after_ns`.
    assert [request for member, request, _, _ in cell.leader.assigned_attempts() if member == "g1"] == []
    assert in_flight(cell) == len(cell.leader.assigned_attempts())


def test_member_that_may_be_an_island_is_absent_before_the_first_decision() -> None:
    cell = a_takeover()
    cell.heard["g1"] = False

    # The adoption takes so long that g1 may have become an island.
    finish(cell, at(2.5))

    assert cell.leader.presences()["g1"] is MemberPresence.ABSENT
    assert cell.leader.presences()["g2"] is MemberPresence.ABSENT
    assert in_flight(cell) == PLACES
    assert [order.request_id for order in cell.begun("g1")] == ["r0", "r2"]


def test_endpoints_that_change_during_the_adoption_are_up_to_date_after_it() -> None:
    cell = a_takeover()
    for event in (
        joined("e2", places=1),
        readied("e2"),
        EndpointMetricsReported(EndpointId("e2"), 0, 0, 0, None),
    ):
        cell.leader.handle(event, at(1.21))

    finish(cell, at(1.25))
    cell.talk(at(1.25))
    assert (in_flight(cell), begun(cell)) == (PLACES + 1, ["r0", "r1", "r2", "r3", "r4"])

    other = a_takeover()
    other.leader.handle(leaving("e1"), at(1.21))
    finish(other, at(1.25))
    other.talk(at(1.25))
    assert begun(other) == ["r0", "r1", "r2", "r3"]


def a_late_return(*, steps_max: int = 1) -> Cell:
    """Return a cell in which g1 was absent, has started one more attempt as an island, and has just reported again.

    The scheduler has taken the first step of the adoption.
    """
    cell = a_cell("g1", "g2", places=PLACES, bounds=CellBounds(adoption_steps_max=steps_max))
    for number in range(2):
        cell.open("g1", a_ticket(f"r{number}"), at(1))
        cell.talk(at(1))
    cell.heard["g1"] = False
    cell.pass_time(1.1, 2.5)
    assert cell.members["g1"].mode is MemberMode.ISLAND
    cell.orders["g1"] += cell.members["g1"].handle(completed("r0"), at(2.5))
    cell.open("g1", a_ticket("r2"), at(2.5))
    cell.heard["g1"] = True
    for hundredth in range(255, 300):
        cell.talk(at(hundredth / 100), rounds=1)
        if cell.leader._start.is_active:
            return cell
    raise AssertionError("the scheduler does not adopt the report")


def finish_late(cell: Cell, now: Instant) -> int:
    """Continue until the report is adopted. Return the number of slices."""
    slices = 0
    while cell.leader._start.is_active:
        assert cell.leader.next_wakeup() <= now, "the scheduler does not ask for its next slice"
        cell.leader.tick(now)
        slices += 1
        assert slices < 1_000
    return slices


def test_report_of_a_returning_member_is_adopted_in_slices() -> None:
    cell = a_late_return()
    assert not cell.leader.gathering
    assert not cell.leader.has_reported("g1")

    assert finish_late(cell, at(3)) > 3

    assert cell.leader.has_reported("g1")
    assert sorted(request for _, request, _, _ in cell.leader.assigned_attempts()) == ["r1", "r2"]
    assert in_flight(cell) == 2


def test_no_slot_of_a_returning_member_is_assigned_before_its_report_is_adopted() -> None:
    cell = a_late_return()
    for number in range(3, 7):
        cell.open("g2", a_ticket(f"r{number}"), at(3))
    cell.talk(at(3), rounds=1)
    assert cell.leader._start.is_active
    assert cell.begun("g2") == []

    finish_late(cell, at(3))
    cell.talk(at(3))

    assert [order.request_id for order in cell.begun("g2")] == ["r3", "r4"]
    assert in_flight(cell) == PLACES


def test_no_snapshot_is_taken_while_a_report_is_being_adopted() -> None:
    cell = a_late_return()
    assert cell.leader.take_snapshot(at(10)) is None
    assert cell.leader.final_snapshot(at(10)) is None

    finish_late(cell, at(10))

    assert cell.leader.take_snapshot(at(10)) is not None


def test_members_that_return_during_an_adoption_are_adopted_after_it() -> None:
    cell = a_late_return()
    reborn = a_member("g2")
    reborn.incarnation = 2
    cell.members["g2"] = reborn
    for hundredth in range(300, 340):
        cell.talk(at(hundredth / 100), rounds=1)

    finish_late(cell, at(3.4))

    assert {name: cell.leader.has_reported(name) for name in cell.leader.presences()} == {"g1": True, "g2": True}
