"""Tests for bills and endpoint times in a cell."""

from collections.abc import Sequence
from dataclasses import replace

from headgate.core.commands import Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import AttemptEnded, Event, RequestArrived, TimerFired
from headgate.hosts.cell.billed_ends import BILL_WAIT_NS_MAX, PENDING_ENDS_MAX, BilledEnds
from headgate.hosts.cell.member.commands import BillsReceived
from headgate.hosts.cell.protocol.codec import decode_member_entry, decode_scheduler_entry, encode_entry
from headgate.hosts.cell.protocol.messages import (
    Epoch,
    FinishedAttempt,
    MemberEntry,
    MemberEntryState,
    NewRequest,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    SnapshotId,
)
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.model.money import Bill, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName, Duration, Instant, RequestId, after
from headgate.model.usage import Usage, UsageSource
from testing.builders import aborted, at, client_disconnected, completed, duration, first_token
from tests.hosts.cell.builders import SECOND_EPOCH, Cell, a_cell, a_leader, a_member, a_ticket
from tests.hosts.cell.test_node import Store, a_node, run

BILL = Bill(1, BillCause.ANSWER, *[Duration(each) for each in (1, 2, 3)], *[NanoUsd(each) for each in (4, 5, 6)])


def with_one_running(*names: str) -> Cell:
    cell = a_cell(*names)
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.orders["g1"] += cell.members["g1"].handle(first_token("r1"), at(1.1))
    cell.talk(at(1.1))
    return cell


def tell(cell: Cell, event: AttemptEnded | object, seconds: float) -> None:
    cell.orders["g1"] += cell.members["g1"].handle(event, at(seconds))  # type: ignore[arg-type]
    cell.talk(at(seconds))


def billed(cell: Cell, name: str = "g1") -> list[tuple[str, BillCause]]:
    return [
        (each.request_id, bill.cause)
        for each in cell.orders[name]
        if isinstance(each, BillsReceived)
        for bill in each.bills
    ]


# Request bills


def test_member_receives_the_bill_for_a_request_it_ended() -> None:
    cell = with_one_running("g1")
    tell(cell, completed("r1", tokens=5), 1.5)

    assert [(each.outcome, each.bills) for each in cell.ended("g1")] == [(Outcome.COMPLETED, ())]
    assert billed(cell) == [("r1", BillCause.ANSWER)]
    [order] = [each for each in cell.orders["g1"] if isinstance(each, BillsReceived)]
    assert sum((each.input_ns + each.output_ns + each.overhead_ns) for each in order.bills) == duration(0.5)


def test_cancelled_request_is_billed_once_and_its_remaining_engine_time_is_late() -> None:
    cell = with_one_running("g1")
    tell(cell, client_disconnected("r1"), 1.5)
    tell(cell, aborted("r1"), 1.75)

    assert billed(cell) == [("r1", BillCause.CLIENT_DISCONNECTED)]
    [times] = cell.leader.collect_endpoint_times(at(1.75))
    assert (times.billed_ns, times.abort_lag_ns) == (duration(0.5), duration(0.25))
    assert cell.leader.assigned_attempts() == []


def test_end_decided_by_the_scheduler_contains_its_bills() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1", complete_within=2), at(1))
    cell.talk(at(1))
    cell.talk(at(3.1))

    [end] = cell.ended("g1")
    assert (end.outcome, [each.cause for each in end.bills]) == (
        Outcome.DEADLINE_EXCEEDED,
        [BillCause.DEADLINE_EXCEEDED],
    )
    assert billed(cell) == []


def test_island_bills_a_request_immediately_in_proportion_to_its_share() -> None:
    member = a_member(share=Share(0, 2))
    member.tick(at(5))
    assert member.mode is MemberMode.ISLAND
    assert [type(each) for each in member.open(a_ticket("r1"), at(6))] == [Dispatch]

    end, bills = member.handle(completed("r1"), at(8))

    assert isinstance(end, End)
    assert isinstance(bills, BillsReceived)
    assert sum(each.input_ns + each.output_ns + each.overhead_ns for each in bills.bills) == SECOND
    [times] = member.collect_endpoint_times(at(9))
    assert (times.total_ns, times.billed_ns, times.idle_ns) == (duration(2), SECOND, SECOND)


def test_bills_and_usage_round_trip() -> None:
    end = End(
        RequestId("r1"), Outcome.COMPLETED, ClassName("c"), 1, duration(1), None, "", bills=(BILL,), reserved=NanoUsd(9)
    )
    head = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
    from_scheduler = SchedulerEntry(head, ((Duration(0), end),))
    usage = Usage(5, 4, 3, UsageSource.ENGINE, reasoning_tokens=2)
    ticket = replace(a_ticket("r1"), metadata=(("unit", "u-1"),))
    [last] = a_member().outgoing(at(9))
    messages = (NewRequest(ticket), FinishedAttempt(replace(completed("r1"), usage=usage), request_over=True))
    from_member = MemberEntry(last.head, tuple((Duration(0), each) for each in messages))

    assert [decode_scheduler_entry(each) for each in encode_entry(from_scheduler)] == [from_scheduler]
    assert [decode_member_entry(each) for each in encode_entry(from_member)] == [from_member]


# Endpoint times


def test_process_reports_endpoint_times_only_while_it_decides() -> None:
    node, store = a_node(), Store()
    assert node.collect_endpoint_times(at(0)) == ()
    run(node, store, 0, 1)
    [times] = node.collect_endpoint_times(at(1.1))
    assert times.total_ns == times.idle_ns > 0

    node.step_down(at(1.2))
    [times] = node.collect_endpoint_times(at(4))
    assert times.total_ns == duration(0.1)
    assert node.collect_endpoint_times(at(5)) == ()


def test_endpoint_times_end_with_the_last_known_lease() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.collect_endpoint_times(at(1.1))
    assert node.is_leader
    run(node, store, 1.1, 1.4, answers=False)

    [times] = node.collect_endpoint_times(at(5))

    assert not node.is_leader
    assert 0 < times.total_ns == times.idle_ns < duration(0.3), "times count until the lease was last known to be valid"


def test_endpoint_times_from_several_terms_are_merged_per_endpoint() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.collect_endpoint_times(at(1))
    run(node, store, 1.05, 9)
    run(node, store, 9.05, 14, answers=False)
    assert node.member.mode is MemberMode.ISLAND
    # The process becomes the scheduler again, then steps down before the times are collected.
    run(node, store, 14.05, 18)
    assert node.is_leader
    node.step_down(at(18.1))

    [times] = node.collect_endpoint_times(at(19))
    assert duration(15) < times.total_ns == times.idle_ns <= duration(17.1)


def test_uncollected_island_times_are_merged_per_endpoint() -> None:
    cell, moment = a_cell("g1", "g2"), 0.6
    for _ in range(3):
        cell.heard["g2"] = False
        cell.pass_time(moment, moment + 3)
        cell.heard["g2"] = True
        cell.pass_time(moment + 3.1, moment + 5)
        moment += 5.1

    assert cell.modes("g2").count("island") == 3
    [times] = cell.members["g2"].collect_endpoint_times(at(moment))
    assert times.total_ns > 0


def test_island_times_are_reported_after_the_island_has_returned() -> None:
    cell = a_cell("g1", "g2")
    cell.heard["g2"] = False
    cell.pass_time(0.6, 4)
    member = cell.members["g2"]
    assert member.mode is MemberMode.ISLAND
    cell.heard["g2"] = True
    cell.pass_time(4.1, 5)

    assert member.mode is MemberMode.FOLLOWING
    [times] = member.collect_endpoint_times(at(5))
    assert 0 < times.total_ns < duration(2)
    assert member.collect_endpoint_times(at(6)) == ()


def test_scheduler_reserves_the_share_in_use_and_the_assigned_share() -> None:
    noted = (MemberEntryState("g1", 1, 0, Share(0, 8)),)
    leader = a_leader(SECOND_EPOCH, places=8, snapshot=Snapshot(SnapshotId(1, 1), Counters(), noted))
    member = a_member("g1", share=Share(0, 1))
    for entry in member.outgoing(at(0.1)):
        leader.receive(entry, at(0.1))
    leader.tick(at(9))

    # The member may use all eight slots.
    assert [each.in_flight_max for each in leader.summary().endpoints] == [0]


# Billing observers


class Books:
    def __init__(self) -> None:
        self.seen: list[tuple[Event, list[Command], Instant]] = []

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.seen.append((event, list(commands), now))

    def ends(self) -> list[tuple[str, int, Instant]]:
        """Returns the request ID, the number of bills and the time of each observed end."""
        return [
            (each.request_id, len(each.bills), now)
            for _, told, now in self.seen
            for each in told
            if isinstance(each, End)
        ]


def an_end(name: str = "r1", *, attempts: int = 1) -> End:
    return End(RequestId(name), Outcome.COMPLETED, None, attempts, Duration(0), None, "")


def test_end_is_observed_with_its_bills_and_its_original_time() -> None:
    books = Books()
    ends = BilledEnds([books])
    ended = completed("r1")
    ends.observe(ended, [an_end()], [], at(1))
    assert books.seen == [(ended, [], at(1))]

    ends.observe(None, [], [BillsReceived(RequestId("r1"), (BILL,), NanoUsd(7))], at(2))
    assert books.seen[1:] == [(TimerFired(), [replace(an_end(), bills=(BILL,), reserved=NanoUsd(7))], at(1))]


def test_end_with_bills_or_without_attempts_is_observed_immediately() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.observe(None, [an_end("never sent", attempts=0), replace(an_end("billed"), bills=(BILL,))], [], at(1))
    ends.observe(None, [], [BillsReceived(RequestId("unknown"), (BILL,), NanoUsd(0))], at(2))

    assert books.ends() == [("never sent", 0, at(1)), ("billed", 1, at(1))]
    assert len(books.seen) == 1


def test_end_is_reported_after_a_timeout_or_on_close_if_its_bills_are_missing() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.observe(None, [an_end("old")], [], at(1))
    ends.observe(RequestArrived(a_ticket("r2")), [an_end("new")], [], after(at(1), BILL_WAIT_NS_MAX))
    assert books.ends() == [("old", 0, at(1))]

    ends.close()
    assert books.ends()[1:] == [("new", 0, after(at(1), BILL_WAIT_NS_MAX))]


def test_oldest_ends_are_observed_early_above_the_limit() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.observe(None, [an_end(f"r{number}") for number in range(PENDING_ENDS_MAX + 2)], [], at(1))

    assert [each[0] for each in books.ends()] == ["r0", "r1"]


def test_ends_are_kept_only_if_there_are_observers() -> None:
    ends = BilledEnds([])
    ends.observe(None, [an_end()], [], at(1))

    assert ends._pending == {}
