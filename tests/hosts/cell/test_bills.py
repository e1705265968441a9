"""How do a cell's gateways come to know what their requests cost, and how endpoints spend their time?"""

from collections.abc import Sequence
from dataclasses import replace

from headgate.core.commands import Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import AttemptEnded, Event, RequestArrived, TimerFired
from headgate.hosts.cell.billed_ends import KEPT_MAX, WAIT_NS_MAX, BilledEnds
from headgate.hosts.cell.member.orders import Billed
from headgate.hosts.cell.protocol.codec import encoded, member_entry, scheduler_entry
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    Ended,
    Epoch,
    MemberEntry,
    MemberNoted,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    Snapshots,
)
from headgate.hosts.cell.protocol.views import Mode
from headgate.model.money import Bill, Cause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName, Duration, Instant, RequestId, after
from headgate.model.usage import Usage, UsageSource
from testing.builders import aborted, at, client_left, completed, first_token, lasting
from tests.hosts.cell.builders import SECOND_EPOCH, Cell, a_cell, a_leader, a_member, a_ticket
from tests.hosts.cell.test_node import Store, a_node, run

BILL = Bill(1, Cause.ANSWER, *[Duration(each) for each in (1, 2, 3)], *[NanoUsd(each) for each in (4, 5, 6)])


def with_one_running(*names: str) -> Cell:
    cell = a_cell(*names)
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    cell.orders["g1"] += cell.members["g1"].tell(first_token("r1"), at(1.1))
    cell.talk(at(1.1))
    return cell


def tell(cell: Cell, event: AttemptEnded | object, seconds: float) -> None:
    cell.orders["g1"] += cell.members["g1"].tell(event, at(seconds))  # type: ignore[arg-type]
    cell.talk(at(seconds))


def billed(cell: Cell, name: str = "g1") -> list[tuple[str, Cause]]:
    return [
        (each.request_id, bill.cause) for each in cell.orders[name] if isinstance(each, Billed) for bill in each.bills
    ]


# What a request cost


def test_a_gateway_that_has_ended_a_request_by_itself_hears_what_it_cost() -> None:
    cell = with_one_running("g1")
    tell(cell, completed("r1", tokens=5), 1.5)

    assert [(each.outcome, each.bills) for each in cell.ended("g1")] == [(Outcome.COMPLETED, ())]
    assert billed(cell) == [("r1", Cause.ANSWER)]
    [order] = [each for each in cell.orders["g1"] if isinstance(each, Billed)]
    assert sum((each.input_ns + each.output_ns + each.overhead_ns) for each in order.bills) == lasting(0.5)


def test_a_caller_who_left_is_billed_once_and_its_attempt_is_late() -> None:
    cell = with_one_running("g1")
    tell(cell, client_left("r1"), 1.5)
    tell(cell, aborted("r1"), 1.75)

    assert billed(cell) == [("r1", Cause.CLIENT_LEFT)]
    [times] = cell.leader.take_endpoint_times(at(1.75))
    assert (times.billed_ns, times.late_ns) == (lasting(0.5), lasting(0.25))
    assert cell.leader.booked() == []


def test_what_a_scheduler_ends_says_itself_what_it_cost() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1", complete_within=2), at(1))
    cell.talk(at(1))
    cell.talk(at(3.1))

    [end] = cell.ended("g1")
    assert (end.outcome, [each.cause for each in end.bills]) == (Outcome.TOO_LATE, [Cause.EXPIRED])
    assert billed(cell) == []


def test_an_island_tells_at_once_what_a_request_cost_by_its_share_of_the_time() -> None:
    member = a_member(share=Share(0, 2))
    member.tick(at(5))
    assert member.mode is Mode.ISLAND
    assert [type(each) for each in member.open(a_ticket("r1"), at(6))] == [Dispatch]

    end, bills = member.tell(completed("r1"), at(8))

    assert isinstance(end, End)
    assert isinstance(bills, Billed)
    assert sum(each.input_ns + each.output_ns + each.overhead_ns for each in bills.bills) == SECOND
    [times] = member.take_endpoint_times(at(9))
    assert (times.whole_ns, times.billed_ns, times.idle_ns) == (lasting(2), SECOND, SECOND)


def test_bills_and_all_that_is_counted_by_come_through_the_store() -> None:
    end = End(
        RequestId("r1"), Outcome.COMPLETED, ClassName("c"), 1, lasting(1), None, "", bills=(BILL,), reserved=NanoUsd(9)
    )
    head = SchedulerHead(Epoch(1, "one"), 5, 2, 1, 4, 6, at(1), None, "h")
    from_scheduler = SchedulerEntry(head, ((Duration(0), end),))
    usage = Usage(5, 4, 3, UsageSource.ENGINE, reasoning_tokens=2)
    ticket = replace(a_ticket("r1"), metadata=(("unit", "u-1"),))
    [last] = a_member().outgoing(at(9))
    messages = (Arrived(ticket), Ended(replace(completed("r1"), usage=usage), over=True))
    from_member = MemberEntry(last.head, tuple((Duration(0), each) for each in messages))

    assert [scheduler_entry(each) for each in encoded(from_scheduler)] == [from_scheduler]
    assert [member_entry(each) for each in encoded(from_member)] == [from_member]


# How endpoints spend their time


def test_a_process_tells_of_endpoints_only_while_it_decides() -> None:
    node, store = a_node(), Store()
    assert node.take_endpoint_times(at(0)) == ()
    run(node, store, 0, 1)
    [times] = node.take_endpoint_times(at(1.1))
    assert times.whole_ns == times.idle_ns > 0

    node.resign(at(1.2))
    [times] = node.take_endpoint_times(at(4))
    assert times.whole_ns == lasting(0.1)
    assert node.take_endpoint_times(at(5)) == ()


def test_a_scheduler_whose_lease_is_over_tells_of_what_it_knew() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.take_endpoint_times(at(1.1))
    assert node.leads
    run(node, store, 1.1, 1.4, answers=False)

    [times] = node.take_endpoint_times(at(5))

    assert not node.leads
    assert 0 < times.whole_ns == times.idle_ns < lasting(0.3), "up to when it was the scheduler for sure"


def test_of_what_a_process_counted_in_several_parts_each_endpoint_is_told_of_once() -> None:
    node, store = a_node(), Store()
    run(node, store, 0, 1)
    node.take_endpoint_times(at(1))
    run(node, store, 1.05, 9)
    run(node, store, 9.05, 14, answers=False)
    assert node.member.mode is Mode.ISLAND
    # It is the scheduler again, and resigns, before anybody has asked.
    run(node, store, 14.05, 18)
    assert node.leads
    node.resign(at(18.1))

    [times] = node.take_endpoint_times(at(19))
    assert lasting(15) < times.whole_ns == times.idle_ns <= lasting(17.1)


def test_what_nobody_asks_an_island_for_does_not_grow() -> None:
    cell, moment = a_cell("g1", "g2"), 0.6
    for _ in range(3):
        cell.heard["g2"] = False
        cell.pass_time(moment, moment + 3)
        cell.heard["g2"] = True
        cell.pass_time(moment + 3.1, moment + 5)
        moment += 5.1

    assert cell.modes("g2").count("island") == 3
    [times] = cell.members["g2"].take_endpoint_times(at(moment))
    assert times.whole_ns > 0


def test_what_an_island_counted_is_told_after_it_has_returned() -> None:
    cell = a_cell("g1", "g2")
    cell.heard["g2"] = False
    cell.pass_time(0.6, 4)
    member = cell.members["g2"]
    assert member.mode is Mode.ISLAND
    cell.heard["g2"] = True
    cell.pass_time(4.1, 5)

    assert member.mode is Mode.FOLLOWING
    [times] = member.take_endpoint_times(at(5))
    assert 0 < times.whole_ns < lasting(2)
    assert member.take_endpoint_times(at(6)) == ()


def test_a_scheduler_keeps_the_share_that_a_member_has_beside_the_one_that_it_was_told_of() -> None:
    noted = (MemberNoted("g1", 1, 0, Share(0, 8)),)
    leader = a_leader(SECOND_EPOCH, places=8, snapshot=Snapshot(Snapshots(1, 1), Counters(), noted))
    member = a_member("g1", share=Share(0, 1))
    for entry in member.outgoing(at(0.1)):
        leader.receive(entry, at(0.1))
    leader.tick(at(9))

    # All eight places may be its own.
    assert [each.in_flight_max for each in leader.summary().endpoints] == [0]


# Who keeps books


class Books:
    def __init__(self) -> None:
        self.seen: list[tuple[Event, list[Command], Instant]] = []

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.seen.append((event, list(commands), now))

    def ends(self) -> list[tuple[str, int, Instant]]:
        """Each with how many bills it had, and when it was said to be."""
        return [
            (each.request_id, len(each.bills), now)
            for _, told, now in self.seen
            for each in told
            if isinstance(each, End)
        ]


def an_end(name: str = "r1", *, attempts: int = 1) -> End:
    return End(RequestId(name), Outcome.COMPLETED, None, attempts, Duration(0), None, "")


def test_an_end_is_told_with_its_bills_and_with_its_own_moment() -> None:
    books = Books()
    ends = BilledEnds([books])
    ended = completed("r1")
    ends.saw(ended, [an_end()], [], at(1))
    assert books.seen == [(ended, [], at(1))]

    ends.saw(None, [], [Billed(RequestId("r1"), (BILL,), NanoUsd(7))], at(2))
    assert books.seen[1:] == [(TimerFired(), [replace(an_end(), bills=(BILL,), reserved=NanoUsd(7))], at(1))]


def test_an_end_that_has_its_bills_or_needs_none_is_told_at_once() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.saw(None, [an_end("never sent", attempts=0), replace(an_end("billed"), bills=(BILL,))], [], at(1))
    ends.saw(None, [], [Billed(RequestId("unknown"), (BILL,), NanoUsd(0))], at(2))

    assert books.ends() == [("never sent", 0, at(1)), ("billed", 1, at(1))]
    assert len(books.seen) == 1


def test_an_end_whose_bills_do_not_come_is_told_after_a_while_or_when_no_more_can_come() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.saw(None, [an_end("old")], [], at(1))
    ends.saw(RequestArrived(a_ticket("r2")), [an_end("new")], [], after(at(1), WAIT_NS_MAX))
    assert books.ends() == [("old", 0, at(1))]

    ends.close()
    assert books.ends()[1:] == [("new", 0, after(at(1), WAIT_NS_MAX))]


def test_so_many_ends_are_kept_and_no_more() -> None:
    books = Books()
    ends = BilledEnds([books])
    ends.saw(None, [an_end(f"r{number}") for number in range(KEPT_MAX + 2)], [], at(1))

    assert [each[0] for each in books.ends()] == ["r0", "r1"]


def test_where_nobody_keeps_books_nothing_is_kept() -> None:
    ends = BilledEnds([])
    ends.saw(None, [an_end()], [], at(1))

    assert ends._kept == {}
