"""How does the scheduler treat a member that sends invalid reports?"""

from dataclasses import replace

import pytest

from headgate.core.counters import Counters, LengthsCounter, LimitCounter, PromptCounter
from headgate.core.events import AttemptReported
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.leader.snapshots import restore
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    Echo,
    FromMember,
    Leaves,
    MemberEntry,
    MemberHead,
    MemberNoted,
    ReportDone,
    Runs,
    Share,
    Snapshot,
    Snapshots,
    Waits,
)
from headgate.hosts.cell.protocol.validation import MEMBERS_MAX
from headgate.hosts.cell.protocol.views import Mode, Standing
from headgate.model.caps import Caps
from headgate.model.units import ClassName, Duration, EndpointId, Instant, PoolName, TenantId
from testing.builders import an_endpoint, at, completed, first_token, joined, lasting, progressed
from tests.hosts.cell.builders import FIRST, a_cell, a_leader, a_member, a_ticket

TICKET = a_ticket("r1")


class Liar:
    """A member that sends the messages of a test and records the scheduler's last reply."""

    def __init__(self, leader: Leader, name: str = "liar", incarnation: int = 1) -> None:
        self.leader, self.name, self.incarnation = leader, name, incarnation
        self.session, self.serial, self.base = 0, 1, 1
        self.wanted = 0
        self.answered = False

    def say(self, now: Instant, *messages: FromMember, anew: bool = False, age: float = 0) -> None:
        if anew:
            self.session += 1
            self.base = self.serial
        head = MemberHead(
            self.name,
            self.incarnation,
            FIRST,
            False,
            self.session,
            self.base,
            self.serial,
            self.serial,
            0,
            now,
            Echo(now, Duration(0)),
            Share(0, 1),
        )
        self.leader.receive(MemberEntry(head, tuple((lasting(age), each) for each in messages)), now)
        self.serial += len(messages)
        self.hear(now)

    def hear(self, now: Instant) -> None:
        self.leader.tick(now)
        for name, entry in self.leader.outgoing(now):
            if name == self.name:
                self.wanted, self.answered = entry.head.wanted, entry.head.echo is not None


def runs(name: str, attempt: int = 1, *, endpoint: str = "e1", pool: str = "p", over: bool = False) -> Runs:
    report = AttemptReported(
        a_ticket(name),
        attempt,
        EndpointId(endpoint),
        lasting(1),
        False,
        0,
        lasting(0),
        PoolName(pool),
        ClassName("interactive"),
        Caps(),
        over=over,
    )
    return Runs(report, 0, None, 0)


def waits(name: str) -> Waits:
    member = a_member()
    member.open(a_ticket(name), at(0))
    return Waits(member._holdings.requests[a_ticket(name).request_id].waits(at(0)).report, 0)


def a_liar() -> Liar:
    liar = Liar(a_leader())
    liar.say(at(0), ReportDone(), anew=True)
    liar.say(at(0.3))
    assert liar.leader.standings() == {"liar": Standing.PRESENT}
    return liar


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ([runs("r1"), runs("r1")], "attempt 1 of request r1 twice"),
        ([runs("r1"), waits("r1")], "request r1 in two states"),
        ([waits("r1"), Arrived(a_ticket("r1"))], "request r1 in two states"),
        ([runs("r1"), runs("r1", 2, over=True)], "request r1 as open and as ended"),
        ([runs("r1", pool="elsewhere")], 'endpoint e1 in pool "elsewhere"'),
        ([first_token("r1")], "FirstToken within its report"),
        ([Leaves()], "Leaves within its report"),
    ],
    ids=repr,
)
def test_scheduler_requests_a_new_report_if_a_report_contradicts_itself(report: list[FromMember], why: str) -> None:
    liar = a_liar()
    liar.say(at(1), *report, ReportDone(), anew=True)
    liar.say(at(1))

    assert liar.leader.standings() == {"liar": Standing.ABSENT}
    assert (liar.wanted, liar.answered) == (2, True)
    (complaint,) = liar.leader.trust.take_complaints()
    assert why in complaint
    assert complaint.startswith('member "liar"')
    assert liar.leader.trust.take_complaints() == []


@pytest.mark.parametrize("said", [runs("r1"), waits("r1"), ReportDone()], ids=repr)
def test_scheduler_rejects_report_messages_after_the_report_is_done(said: FromMember) -> None:
    liar = a_liar()
    liar.say(at(1), said)

    assert liar.leader.standings() == {"liar": Standing.ABSENT}
    assert liar.wanted == 1


def test_scheduler_adopts_a_correct_report_after_a_rejected_one() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1"), runs("r1"), ReportDone(), anew=True)
    liar.say(at(1), runs("r1"), ReportDone(), anew=True)

    assert liar.leader.standings() == {"liar": Standing.PRESENT}
    assert [each[:3] for each in liar.leader.booked()] == [("liar", "r1", 1)]


def test_member_with_repeated_invalid_reports_is_fenced_temporarily() -> None:
    liar = a_liar()
    for _ in range(3):
        liar.say(at(1), runs("r1"), runs("r1"), ReportDone(), anew=True)

    assert not liar.answered
    liar.say(at(2), runs("r1"), ReportDone(), anew=True)
    assert liar.leader.standings() == {"liar": Standing.ABSENT}
    assert "fenced" in liar.leader.trust.take_complaints()[-1]
    liar.say(at(11.1), runs("r1"), ReportDone(), anew=True)
    liar.say(at(11.1))
    assert liar.answered
    assert liar.leader.standings() == {"liar": Standing.PRESENT}


def test_old_rejections_do_not_count_towards_fencing() -> None:
    liar = a_liar()
    for moment in (1, 12, 23, 34):
        liar.say(at(moment), runs("r1"), runs("r1"), ReportDone(), anew=True)

        assert liar.answered


def test_scheduler_ignores_events_about_requests_of_another_member() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    other = cell.members["g2"]
    for event in (first_token("r1"), progressed("r1")):
        other._conversation.say(event, at(1.1))
    cell.talk(at(1.1))

    assert [each[:3] for each in cell.leader.booked()] == [("g1", "r1", 1)]
    assert not cell.leader._book.requests[a_ticket("r1").request_id].attempts[1].begun


def test_first_of_two_members_keeps_a_request_that_both_claim() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    liar = Liar(cell.leader)
    liar.say(at(1.1), runs("r1"), ReportDone(), anew=True)
    liar.say(at(1.1))

    assert [each[:3] for each in cell.leader.booked()] == [("g1", "r1", 1)]
    assert cell.leader.standings()["liar"] is Standing.ABSENT
    assert 'which member "g1" holds' in cell.leader.trust.take_complaints()[0]


def test_new_scheduler_accepts_the_first_of_two_reports_that_claim_one_request() -> None:
    noted = tuple(MemberNoted(name, 1, 0, Share(rank, 2)) for rank, name in enumerate(("a", "b")))
    leader = a_leader(snapshot=Snapshot(Snapshots(0, 1), Counters(), noted))
    first, second = Liar(leader, "a"), Liar(leader, "b")
    first.say(at(0), runs("r1"), ReportDone(), anew=True)
    second.say(at(0), runs("r1"), runs("r2"), ReportDone(), anew=True)

    assert [each[:3] for each in leader.booked()] == [("a", "r1", 1)]
    assert leader.standings() == {"a": Standing.PRESENT, "b": Standing.ABSENT}


def test_member_replaced_by_a_false_incarnation_keeps_its_requests() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    twin = Liar(cell.leader, "g1", incarnation=7)
    twin.say(at(1.1), ReportDone(), anew=True)
    cell.talk(at(1.2))

    assert cell.members["g1"].incarnation > 7
    assert [each[:3] for each in cell.leader.booked()] == [("g1", "r1", 1)]
    cell.orders["g1"] += cell.members["g1"].tell(completed("r1"), at(1.3))
    cell.talk(at(1.3))
    assert (cell.leader.booked(), cell.leader.summary().requests) == ([], 0)


def test_entry_with_impossible_values_ends_its_session() -> None:
    liar = a_liar()
    head = MemberHead("liar", 1, FIRST, False, 1, 1, 2, 2, 0, at(1), Echo(at(1), Duration(0)), Share(0, 1))
    for told in (replace(head, incarnation=9), replace(head, bound=None)):
        liar.leader.refuse(told, "who knows", at(1))
    assert liar.leader.standings() == {"liar": Standing.PRESENT}

    liar.leader.refuse(head, "why", at(1))
    liar.leader.refuse(head, "the same entry, sent again", at(1.1))
    liar.hear(at(1.1))
    assert (liar.leader.standings(), liar.wanted) == ({"liar": Standing.ABSENT}, 1)
    assert len(liar.leader.trust.take_complaints()) == 1


def test_scheduler_requests_a_new_report_after_an_impossible_entry_during_recovery() -> None:
    leader = a_leader()
    liar = Liar(leader)
    liar.say(at(0), anew=True)
    leader.refuse(
        MemberHead("liar", 1, FIRST, False, 2, 1, 1, 1, 0, at(0), Echo(at(0), Duration(0)), Share(0, 1)), "why", at(0)
    )
    liar.hear(at(0.1))

    assert liar.wanted == 2


def test_endpoint_that_joins_in_another_pool_than_reported_is_accepted() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1", endpoint="e9", pool="elsewhere"), ReportDone(), anew=True)
    liar.say(at(1))
    assert [each[3] for each in liar.leader.booked()] == ["e9"]

    liar.leader.tell(joined("e9"), at(1.1))
    assert liar.leader.booked() == []
    assert liar.leader.standings() == {"liar": Standing.ABSENT}
    assert [each.pool for each in liar.leader.summary().endpoints if each.id == "e9"] == [an_endpoint().pool]


def test_endpoint_that_joins_in_the_reported_pool_keeps_its_attempts() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1", endpoint="e9", pool=an_endpoint().pool), ReportDone(), anew=True)
    liar.leader.tell(joined("e9"), at(1.1))

    assert [each[3] for each in liar.leader.booked()] == ["e9"]


def test_scheduler_ignores_messages_after_a_member_has_left() -> None:
    liar = a_liar()
    liar.say(at(1), Leaves(), Arrived(a_ticket("r1")))

    assert (liar.leader.standings(), liar.leader.summary().requests) == ({}, 0)


@pytest.mark.parametrize(
    "counters",
    [
        Counters(limits=(LimitCounter(TenantId("acme"), -1, 0, Duration(0)),)),
        Counters(lengths=(LengthsCounter(TICKET.tenant, TICKET.model, ((100_000, 1, 1),)),)),
        Counters(prompts=(PromptCounter(TICKET.model, 5_000, 1 << 61, TICKET.tenant),)),
    ],
    ids=repr,
)
def test_scheduler_does_not_use_an_implausible_snapshot(counters: Counters) -> None:
    noted = (MemberNoted("liar", 1, 9, Share(0, 1)),)
    leader = a_leader(snapshot=Snapshot(Snapshots(0, 1), counters, noted))
    liar = Liar(leader)
    liar.say(at(0), ReportDone(), anew=True)

    assert leader.standings() == {"liar": Standing.PRESENT}
    assert leader.blank
    assert "snapshot of epoch 0 is not used" in leader.trust.take_complaints()[0]


def test_member_becomes_an_island_after_repeated_invalid_scheduler_entries() -> None:
    cell = a_cell("g1")
    member = cell.members["g1"]
    for _ in range(3):
        cell.talk(at(1))
        cell.leader.tick(at(1.2))
        (entry,) = [entry for _, entry in cell.leader.outgoing(at(1.2))]
        member.refuse(replace(entry.head, session=member._conversation.session), at(1.2))
    cell.pass_time(1.3, 3)

    assert member.mode is Mode.ISLAND
    cell.pass_time(3.1, 13)
    assert member.mode is Mode.FOLLOWING


def test_member_keeps_its_session_after_an_invalid_entry_for_another_incarnation() -> None:
    cell = a_cell("g1")
    member = cell.members["g1"]
    session = member._conversation.session
    cell.leader.tick(at(1))
    (entry,) = [entry for _, entry in cell.leader.outgoing(at(1))]
    member.refuse(replace(entry.head, incarnation=99), at(1))

    assert member._conversation.session == session


def test_cell_accepts_a_bounded_number_of_members() -> None:
    leader = a_leader()
    for number in range(MEMBERS_MAX + 4):
        head = MemberHead(f"m{number}", 1, None, False, 1, 1, 1, 1, 0, at(0), None, Share(0, 1))
        leader.receive(MemberEntry(head), at(0))

    assert len(leader.standings()) == MEMBERS_MAX


def test_snapshot_that_the_scheduler_cannot_apply_is_skipped() -> None:
    book = Book(1, start_within_ns=lasting(1), observers=())
    before = book.scheduler
    problem = restore(Snapshot(Snapshots(0, 1), Counters(), ()), book, at(1), told_ns_ago=lasting(0))

    assert problem is not None
    assert "before the policy was told" in problem
    assert book.scheduler is not before


def test_member_with_unwritable_entries_reports_again_and_is_fenced_the_third_time() -> None:
    liar = a_liar()
    trust = liar.leader.trust
    for _ in range(3):
        # Of several entries sent at once only the first counts.
        trust.drop_session("liar", "a number", at(1))
        trust.drop_session("liar", "a number", at(1))
        liar.hear(at(1))
        assert (liar.wanted, liar.leader.standings()) == (liar.session, {"liar": Standing.ABSENT})
        liar.say(at(1), ReportDone(), anew=True)
        liar.say(at(1))
    trust.drop_session("nobody", "a number", at(1))

    complaints = trust.take_complaints()
    assert ["fenced" in each for each in complaints] == [False, False, True]
    assert "cannot be written: a number" in complaints[0]
    assert not liar.answered
