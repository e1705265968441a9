"""Tests for how the scheduler handles invalid reports, messages and snapshots."""

from dataclasses import replace

import pytest

from headgate.core.counters import Counters, LengthsCounter, LimitCounter, PromptCounter
from headgate.core.events import AttemptReported
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.leader.snapshots import restore
from headgate.hosts.cell.protocol.messages import (
    Echo,
    FromMember,
    MemberEntry,
    MemberEntryState,
    MemberHead,
    MemberLeaving,
    NewRequest,
    QueuedRequest,
    ReportDone,
    RunningAttempt,
    Share,
    Snapshot,
    SnapshotId,
)
from headgate.hosts.cell.protocol.validation import MEMBERS_MAX
from headgate.hosts.cell.protocol.views import MemberMode, MemberPresence
from headgate.hosts.cell.timing import Timing
from headgate.model.caps import Caps
from headgate.model.units import ClassName, Duration, EndpointId, Instant, PoolName, TenantId
from testing.builders import an_endpoint, at, completed, duration, first_token, joined, progressed
from tests.hosts.cell.builders import FIRST, a_cell, a_leader, a_member, a_ticket

TICKET = a_ticket("r1")


class Liar:
    """Member that sends a test's messages and records the scheduler's last reply."""

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
        self.leader.receive(MemberEntry(head, tuple((duration(age), each) for each in messages)), now)
        self.serial += len(messages)
        self.hear(now)

    def hear(self, now: Instant) -> None:
        self.leader.tick(now)
        for name, entry in self.leader.outgoing(now):
            if name == self.name:
                self.wanted, self.answered = entry.head.rejected_session, entry.head.echo is not None


def runs(name: str, attempt: int = 1, *, endpoint: str = "e1", pool: str = "p", over: bool = False) -> RunningAttempt:
    report = AttemptReported(
        a_ticket(name),
        attempt,
        EndpointId(endpoint),
        duration(1),
        False,
        0,
        duration(0),
        PoolName(pool),
        ClassName("interactive"),
        Caps(),
        request_ended=over,
    )
    return RunningAttempt(report, 0, None, 0)


def waits(name: str) -> QueuedRequest:
    member = a_member()
    member.open(a_ticket(name), at(0))
    return QueuedRequest(member._held.requests[a_ticket(name).request_id].queued_report(at(0)).report, 0)


def a_liar() -> Liar:
    liar = Liar(a_leader())
    liar.say(at(0), ReportDone(), anew=True)
    liar.say(at(0.3))
    assert liar.leader.presences() == {"liar": MemberPresence.PRESENT}
    return liar


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ([runs("r1"), runs("r1")], "attempt 1 of request r1 twice"),
        ([runs("r1"), waits("r1")], "request r1 in two states"),
        ([waits("r1"), NewRequest(a_ticket("r1"))], "request r1 in two states"),
        ([runs("r1"), runs("r1", 2, over=True)], "request r1 as open and as ended"),
        ([runs("r1", pool="elsewhere")], 'endpoint e1 in pool "elsewhere"'),
        ([first_token("r1")], "FirstToken before its report was complete"),
        ([MemberLeaving()], "MemberLeaving before its report was complete"),
    ],
    ids=repr,
)
def test_scheduler_requests_a_new_report_if_a_report_contradicts_itself(report: list[FromMember], why: str) -> None:
    liar = a_liar()
    liar.say(at(1), *report, ReportDone(), anew=True)
    liar.say(at(1))

    assert liar.leader.presences() == {"liar": MemberPresence.ABSENT}
    assert (liar.wanted, liar.answered) == (2, True)
    (complaint,) = liar.leader.fencing.pop_rejections()
    assert why in complaint
    assert complaint.startswith('member "liar"')
    assert liar.leader.fencing.pop_rejections() == []


@pytest.mark.parametrize("said", [runs("r1"), waits("r1"), ReportDone()], ids=repr)
def test_scheduler_rejects_report_messages_after_the_report_has_ended(said: FromMember) -> None:
    liar = a_liar()
    liar.say(at(1), said)

    assert liar.leader.presences() == {"liar": MemberPresence.ABSENT}
    assert liar.wanted == 1


def test_scheduler_adopts_a_correct_report_after_a_rejected_one() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1"), runs("r1"), ReportDone(), anew=True)
    liar.say(at(1), runs("r1"), ReportDone(), anew=True)

    assert liar.leader.presences() == {"liar": MemberPresence.PRESENT}
    assert [each[:3] for each in liar.leader.assigned_attempts()] == [("liar", "r1", 1)]


def test_member_with_repeated_invalid_reports_is_fenced_temporarily() -> None:
    liar = a_liar()
    for _ in range(3):
        liar.say(at(1), runs("r1"), runs("r1"), ReportDone(), anew=True)

    assert not liar.answered
    liar.say(at(2), runs("r1"), ReportDone(), anew=True)
    assert liar.leader.presences() == {"liar": MemberPresence.ABSENT}
    assert "fenced" in liar.leader.fencing.pop_rejections()[-1]
    liar.say(at(11.1), runs("r1"), ReportDone(), anew=True)
    liar.say(at(11.1))
    assert liar.answered
    assert liar.leader.presences() == {"liar": MemberPresence.PRESENT}


def test_old_rejections_do_not_count_towards_fencing() -> None:
    liar = a_liar()
    for moment in (1, 12, 23, 34):
        liar.say(at(moment), runs("r1"), runs("r1"), ReportDone(), anew=True)

        assert liar.answered


def test_scheduler_ignores_events_about_another_members_requests() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    other = cell.members["g2"]
    for event in (first_token("r1"), progressed("r1")):
        other._connection.send(event, at(1.1))
    cell.talk(at(1.1))

    assert [each[:3] for each in cell.leader.assigned_attempts()] == [("g1", "r1", 1)]
    assert not cell.leader._assignments.requests[a_ticket("r1").request_id].attempts[1].started


def test_first_of_two_members_keeps_a_request_that_both_claim() -> None:
    cell = a_cell("g1", "g2")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    liar = Liar(cell.leader)
    liar.say(at(1.1), runs("r1"), ReportDone(), anew=True)
    liar.say(at(1.1))

    assert [each[:3] for each in cell.leader.assigned_attempts()] == [("g1", "r1", 1)]
    assert cell.leader.presences()["liar"] is MemberPresence.ABSENT
    assert 'of member "g1"' in cell.leader.fencing.pop_rejections()[0]


def test_new_scheduler_accepts_the_first_of_two_reports_claiming_the_same_request() -> None:
    noted = tuple(MemberEntryState(name, 1, 0, Share(rank, 2)) for rank, name in enumerate(("a", "b")))
    leader = a_leader(snapshot=Snapshot(SnapshotId(0, 1), Counters(), noted))
    first, second = Liar(leader, "a"), Liar(leader, "b")
    first.say(at(0), runs("r1"), ReportDone(), anew=True)
    second.say(at(0), runs("r1"), runs("r2"), ReportDone(), anew=True)

    assert [each[:3] for each in leader.assigned_attempts()] == [("a", "r1", 1)]
    assert leader.presences() == {"a": MemberPresence.PRESENT, "b": MemberPresence.ABSENT}


def test_member_replaced_by_a_false_incarnation_keeps_its_requests() -> None:
    cell = a_cell("g1")
    cell.open("g1", a_ticket("r1"), at(1))
    cell.talk(at(1))
    twin = Liar(cell.leader, "g1", incarnation=7)
    twin.say(at(1.1), ReportDone(), anew=True)
    cell.talk(at(1.2))

    assert cell.members["g1"].incarnation > 7
    assert [each[:3] for each in cell.leader.assigned_attempts()] == [("g1", "r1", 1)]
    cell.orders["g1"] += cell.members["g1"].handle(completed("r1"), at(1.3))
    cell.talk(at(1.3))
    assert (cell.leader.assigned_attempts(), cell.leader.summary().requests) == ([], 0)


def test_entry_with_invalid_values_ends_its_session() -> None:
    liar = a_liar()
    head = MemberHead("liar", 1, FIRST, False, 1, 1, 2, 2, 0, at(1), Echo(at(1), Duration(0)), Share(0, 1))
    for told in (replace(head, incarnation=9), replace(head, followed_epoch=None)):
        liar.leader.reject_entry(told, "who knows", at(1))
    assert liar.leader.presences() == {"liar": MemberPresence.PRESENT}

    liar.leader.reject_entry(head, "why", at(1))
    liar.leader.reject_entry(head, "the same entry, sent again", at(1.1))
    liar.hear(at(1.1))
    assert (liar.leader.presences(), liar.wanted) == ({"liar": MemberPresence.ABSENT}, 1)
    assert len(liar.leader.fencing.pop_rejections()) == 1


def test_scheduler_requests_a_new_report_after_an_invalid_entry_during_recovery() -> None:
    leader = a_leader()
    liar = Liar(leader)
    liar.say(at(0), anew=True)
    leader.reject_entry(
        MemberHead("liar", 1, FIRST, False, 2, 1, 1, 1, 0, at(0), Echo(at(0), Duration(0)), Share(0, 1)), "why", at(0)
    )
    liar.hear(at(0.1))

    assert liar.wanted == 2


def test_joining_endpoint_overrides_the_pool_reported_by_a_member() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1", endpoint="e9", pool="elsewhere"), ReportDone(), anew=True)
    liar.say(at(1))
    assert [each[3] for each in liar.leader.assigned_attempts()] == ["e9"]

    liar.leader.handle(joined("e9"), at(1.1))
    assert liar.leader.assigned_attempts() == []
    assert liar.leader.presences() == {"liar": MemberPresence.ABSENT}
    assert [each.pool for each in liar.leader.summary().endpoints if each.id == "e9"] == [an_endpoint().pool]


def test_joining_endpoint_keeps_its_attempts_if_the_reported_pool_matches() -> None:
    liar = a_liar()
    liar.say(at(1), runs("r1", endpoint="e9", pool=an_endpoint().pool), ReportDone(), anew=True)
    liar.leader.handle(joined("e9"), at(1.1))

    assert [each[3] for each in liar.leader.assigned_attempts()] == ["e9"]


def test_scheduler_ignores_messages_after_a_member_has_left() -> None:
    liar = a_liar()
    liar.say(at(1), MemberLeaving(), NewRequest(a_ticket("r1")))

    assert (liar.leader.presences(), liar.leader.summary().requests) == ({}, 0)


@pytest.mark.parametrize(
    "counters",
    [
        Counters(limits=(LimitCounter(TenantId("acme"), -1, 0, Duration(0)),)),
        Counters(lengths=(LengthsCounter(TICKET.tenant, TICKET.model, ((100_000, 1, 1),)),)),
        Counters(prompts=(PromptCounter(TICKET.model, 5_000, 1 << 61, TICKET.tenant),)),
    ],
    ids=repr,
)
def test_scheduler_does_not_use_an_invalid_snapshot(counters: Counters) -> None:
    noted = (MemberEntryState("liar", 1, 9, Share(0, 1)),)
    leader = a_leader(snapshot=Snapshot(SnapshotId(0, 1), counters, noted))
    liar = Liar(leader)
    liar.say(at(0), ReportDone(), anew=True)

    assert leader.presences() == {"liar": MemberPresence.PRESENT}
    assert leader.started_without_snapshot
    assert "cannot use the snapshot of epoch 0" in leader.fencing.pop_rejections()[0]


def test_member_becomes_an_island_after_repeated_invalid_scheduler_entries() -> None:
    cell = a_cell("g1")
    member = cell.members["g1"]
    for _ in range(3):
        cell.talk(at(1))
        cell.leader.tick(at(1.2))
        (entry,) = [entry for _, entry in cell.leader.outgoing(at(1.2))]
        member.reject_entry(replace(entry.head, session=member._connection.session), at(1.2))
    cell.pass_time(1.3, 3)

    assert member.mode is MemberMode.ISLAND
    cell.pass_time(3.1, 13)
    assert member.mode is MemberMode.FOLLOWING


def test_member_keeps_its_session_after_an_invalid_entry_for_another_incarnation() -> None:
    cell = a_cell("g1")
    member = cell.members["g1"]
    session = member._connection.session
    cell.leader.tick(at(1))
    (entry,) = [entry for _, entry in cell.leader.outgoing(at(1))]
    member.reject_entry(replace(entry.head, incarnation=99), at(1))

    assert member._connection.session == session


def test_scheduler_limits_the_number_of_members() -> None:
    leader = a_leader()
    for number in range(MEMBERS_MAX + 4):
        head = MemberHead(f"m{number}", 1, None, False, 1, 1, 1, 1, 0, at(0), None, Share(0, 1))
        leader.receive(MemberEntry(head), at(0))

    assert len(leader.presences()) == MEMBERS_MAX


def test_snapshot_that_cannot_be_applied_is_skipped() -> None:
    book = AssignmentTable(1, timing=Timing(), observers=())
    before = book.scheduler
    problem = restore(Snapshot(SnapshotId(0, 1), Counters(), ()), book, at(1), snapshot_age_ns=duration(0))

    assert problem is not None
    assert "before a policy was set" in problem
    assert book.scheduler is not before


def test_member_with_unencodable_entries_is_fenced_the_third_time() -> None:
    liar = a_liar()
    trust = liar.leader.fencing
    for _ in range(3):
        # Only the first of several entries dropped at the same time counts.
        trust.drop_session("liar", "a number", at(1))
        trust.drop_session("liar", "a number", at(1))
        liar.hear(at(1))
        assert (liar.wanted, liar.leader.presences()) == (liar.session, {"liar": MemberPresence.ABSENT})
        liar.say(at(1), ReportDone(), anew=True)
        liar.say(at(1))
    trust.drop_session("nobody", "a number", at(1))

    complaints = trust.pop_rejections()
    assert ["fenced" in each for each in complaints] == [False, False, True]
    assert "cannot be encoded: a number" in complaints[0]
    assert not liar.answered
