"""Tests for a member: following a scheduler, reports, limits and islands."""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import AttemptsProgressed, PolicyChanged
from headgate.hosts.cell.member.commands import MemberCommand, ModeChanged, PolicyAgreed
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.protocol.link import Outbound
from headgate.hosts.cell.protocol.messages import (
    Echo,
    EndpointRemoved,
    EndpointUpdate,
    Epoch,
    FinishedAttempt,
    FromMember,
    FromScheduler,
    Grant,
    GrantDeclined,
    MemberLeaving,
    NewRequest,
    QueuedRequest,
    ReportDone,
    RunningAttempt,
    SchedulerEntry,
    SchedulerHead,
    SettledRequest,
    Share,
    SnapshotCoverage,
    SnapshotId,
)
from headgate.hosts.cell.protocol.validation import TEXTS_MAX
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.timing import CellBounds
from headgate.model.outcome import Outcome
from headgate.model.ticket import PROMPT_BYTES_MAX, PROMPTS_MAX, Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from testing.builders import (
    aborted,
    an_endpoint,
    at,
    client_disconnected,
    completed,
    dispatch,
    duration,
    engine_rejected,
    failed,
    first_token,
    grace_over,
    leaving,
    progressed,
    timed_out,
)
from tests.hosts.cell.builders import FIRST, POLICY, SECOND_EPOCH, a_member, a_ticket


class Scheduler:
    """Scheduler that sends a test's messages to a member."""

    def __init__(self, member: Member, epoch: Epoch = FIRST) -> None:
        self.member = member
        self.epoch = epoch
        self.out: Outbound[FromScheduler] = Outbound(1, resend_ns=duration(1))
        self.session = 0
        self.taken = 0
        self.heard: list[FromMember] = []

    def listen(self, now: Instant) -> list[FromMember]:
        """Receives and returns the member's messages since the last call."""
        said: list[FromMember] = []
        for entry in self.member.outgoing(now):
            head = entry.head
            if head.session != self.session:
                self.session, self.taken = head.session, head.session_first_serial - 1
                self.out = Outbound(1, resend_ns=duration(1))
            for serial, (_, each) in enumerate(entry.messages, head.first_serial):
                if serial == self.taken + 1:
                    self.taken = serial
                    said.append(each)
        self.heard += said
        return said

    def say(
        self,
        now: Instant,
        *messages: FromScheduler,
        epoch: Epoch | None = None,
        stamp: Instant | None = None,
        echo: bool = True,
        session: int | None = None,
        wanted: int = 0,
        lay: Duration | None = None,
        policy_hash: str = "first",
        judged: int | None = None,
    ) -> list[MemberCommand]:
        for each in messages:
            self.out.push(each, now)
        first, items = self.out.pop_unsent(100, now)
        given_back = Echo(now if stamp is None else stamp, lay or duration(0)) if echo else None
        head = SchedulerHead(
            epoch or self.epoch,
            self.member.incarnation,
            self.session if session is None else session,
            wanted,
            first,
            self.taken,
            now,
            given_back,
            policy_hash,
            decided_serial=judged,
        )
        return self.member.receive(SchedulerEntry(head, items), now)


def granted(name: str, *, attempt: int = 1, hedge: bool = False) -> Grant:
    return Grant(replace(dispatch(name, attempt=attempt), hedge=hedge), duration(1), SnapshotId(1, 1))


def following(*, bounds: CellBounds | None = None, share: Share | None = None) -> tuple[Member, Scheduler]:
    """Returns a member that has reported to a scheduler, and the scheduler."""
    member = a_member(bounds=bounds, share=share)
    scheduler = Scheduler(member)
    scheduler.say(at(0), echo=False)
    scheduler.listen(at(0))
    assert [type(each) for each in scheduler.say(at(0))] == [ModeChanged]
    return member, scheduler


def with_one_running() -> tuple[Member, Scheduler]:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))
    assert [type(each) for each in scheduler.say(at(0), granted("r1"))] == [Dispatch]
    return member, scheduler


def endings(orders: list[MemberCommand]) -> list[Outcome]:
    return [order.outcome for order in orders if isinstance(order, End)]


# Following


def test_request_is_reported_to_the_scheduler_and_started_on_its_grant() -> None:
    member, scheduler = following()

    assert member.open(a_ticket("r1"), at(0)) == []
    assert scheduler.listen(at(0)) == [NewRequest(replace(a_ticket("r1"), gateway="g1"))]
    assert scheduler.say(at(0), granted("r1")) == [dispatch("r1")]


def test_events_are_sent_in_order_and_progress_is_merged() -> None:
    member, scheduler = with_one_running()

    member.handle(first_token("r1"), at(0.1))
    member.handle(progressed("r1"), at(0.2))
    member.handle(progressed("r1"), at(0.3))
    assert scheduler.listen(at(0.3)) == [first_token("r1"), replace_tokens(16)]


def test_merged_progress_is_late_if_any_part_is_late() -> None:
    member, scheduler = with_one_running()
    member.handle(replace(progressed("r1"), late=True), at(0.2))
    member.handle(progressed("r1"), at(0.3))
    [late] = scheduler.listen(at(0.3))
    member.handle(progressed("r1"), at(0.4))
    [on_time] = scheduler.listen(at(0.4))

    assert isinstance(late, AttemptsProgressed)
    assert isinstance(on_time, AttemptsProgressed)
    assert (late.late, on_time.late) == (True, False)


def replace_tokens(tokens: int) -> FromMember:
    event = progressed("r1")
    return replace(event, attempts=(replace(event.attempts[0], tokens=tokens),))


def test_completed_request_ends_immediately_and_is_reported() -> None:
    member, scheduler = with_one_running()

    orders = member.handle(completed("r1"), at(1))

    assert endings(orders) == [Outcome.COMPLETED]
    assert scheduler.listen(at(1)) == [FinishedAttempt(completed("r1"), request_over=True)]
    assert member.held == 0


def test_request_rejected_by_the_engine_ends_immediately() -> None:
    member, _ = with_one_running()

    assert endings(member.handle(engine_rejected("r1"), at(1))) == [Outcome.ENGINE_REJECTED]


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (failed("r1"), Outcome.ENGINE_ERROR),
        (timed_out("r1"), Outcome.ENGINE_TIMEOUT),
        (aborted("r1"), Outcome.ENGINE_TIMEOUT),
    ],
)
def test_failure_after_the_first_token_ends_the_request_immediately(event, outcome: Outcome) -> None:
    member, _ = with_one_running()
    member.handle(first_token("r1"), at(0.5))

    assert endings(member.handle(event, at(1))) == [outcome]


def test_failure_that_reports_the_first_token_ends_the_request_with_one_message() -> None:
    member, scheduler = with_one_running()
    event = replace(failed("r1"), first_token=True)

    assert endings(member.handle(event, at(1))) == [Outcome.ENGINE_ERROR]
    assert scheduler.listen(at(1)) == [FinishedAttempt(event, request_over=True)]


def test_failure_before_the_first_token_is_left_to_the_scheduler() -> None:
    member, scheduler = with_one_running()

    assert member.handle(failed("r1"), at(1)) == []
    assert scheduler.listen(at(1)) == [FinishedAttempt(failed("r1"), request_over=False)]
    assert scheduler.say(at(1), granted("r1", attempt=2)) == [dispatch("r1", attempt=2)]


def test_failure_after_an_undelivered_first_token_is_left_to_the_scheduler() -> None:
    member, scheduler = with_one_running()
    undelivered = first_token("r1", delivered=False)
    member.handle(undelivered, at(0.5))

    assert member.handle(failed("r1"), at(1)) == []
    assert scheduler.listen(at(1)) == [undelivered, FinishedAttempt(failed("r1"), request_over=False)]
    assert scheduler.say(at(1), granted("r1", attempt=2)) == [dispatch("r1", attempt=2)]


def test_end_sent_by_the_scheduler_is_applied_exactly_once() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))
    end = End(RequestId("r1"), Outcome.QUEUE_TIMEOUT, None, 0, duration(1), None, "why")

    assert scheduler.say(at(1), end, end) == [end]
    assert member.handle(client_disconnected("r1"), at(1)) == []


def test_end_does_not_wait_for_an_attempt_being_aborted() -> None:
    member, scheduler = with_one_running()
    end = End(RequestId("r1"), Outcome.DEADLINE_EXCEEDED, None, 1, duration(1), None, "why")
    stop = Abort(RequestId("r1"), 1, EndpointId("e1"), "why")

    assert scheduler.say(at(1), stop, end) == [stop, end]
    assert member.held == 1
    assert member.handle(aborted("r1"), at(1.1)) == []
    assert member.held == 0
    assert scheduler.listen(at(1.1)) == [FinishedAttempt(aborted("r1"), request_over=True)]


def test_client_disconnect_aborts_and_ends_the_request_immediately() -> None:
    member, scheduler = with_one_running()

    orders = member.handle(client_disconnected("r1"), at(1))

    assert [type(each) for each in orders] == [Abort, End]
    assert endings(orders) == [Outcome.CANCELLED]
    assert scheduler.listen(at(1)) == [client_disconnected("r1")]


def test_draining_member_evicts_running_requests_and_rejects_queued_ones_then_leaves() -> None:
    member, scheduler = with_one_running()
    member.open(a_ticket("r2"), at(0))

    assert endings(member.handle(grace_over("r1"), at(1))) == [Outcome.EVICTED]
    assert endings(member.handle(grace_over("r2"), at(1))) == [Outcome.DRAINING]
    member.handle(aborted("r1"), at(1))
    member.leave(at(1))
    assert scheduler.listen(at(1))[-1] == MemberLeaving()
    assert not member.has_left
    scheduler.say(at(1))
    assert member.has_left
    assert member.next_wakeup() > at(100)


def test_leaving_member_also_notifies_the_next_scheduler() -> None:
    member, scheduler = following()
    member.leave(at(0.1))
    scheduler.listen(at(0.1))
    later = Scheduler(member, SECOND_EPOCH)
    later.say(at(0.2))

    assert later.listen(at(0.2)) == [ReportDone(), MemberLeaving()]
    later.say(at(0.2))
    assert member.has_left


def test_member_without_a_scheduler_leaves_immediately() -> None:
    alone, island = a_member(), a_member()
    island.tick(at(2))
    for member in (alone, island):
        assert not member.has_left
        member.leave(at(3))
        assert member.has_left


def test_leaving_member_has_left_once_its_scheduler_is_lost() -> None:
    member, scheduler = following()
    member.leave(at(0.1))
    scheduler.listen(at(0.1))
    member.tick(at(0.9))
    assert not member.has_left
    member.tick(at(2))

    assert member.has_left


def test_member_with_open_requests_cannot_leave() -> None:
    member, _ = with_one_running()

    with pytest.raises(AssertionError, match="must not leave while it holds 1 requests"):
        member.leave(at(1))


# Policy changes


def test_staged_policy_is_applied_when_the_scheduler_applies_it() -> None:
    member, scheduler = following()
    assert member.stage("second", at(0.1)) == []
    [entry] = member.outgoing(at(0.1))
    assert (entry.head.policy_hash, entry.head.staged_hash) == ("first", "second")

    assert scheduler.say(at(0.2), policy_hash="first") == []
    assert scheduler.say(at(0.3), policy_hash="second") == [PolicyAgreed("second")]
    # The agreement is reported only once.
    assert scheduler.say(at(0.3), policy_hash="second") == []
    member.handle(PolicyChanged(POLICY, "second"), at(0.4))
    [entry] = member.outgoing(at(0.4))
    assert (entry.head.policy_hash, entry.head.staged_hash) == ("second", "")


def test_policy_already_applied_by_the_scheduler_is_applied_immediately() -> None:
    member, scheduler = following()
    scheduler.say(at(0.1), policy_hash="second")

    assert member.stage("second", at(0.2)) == [PolicyAgreed("second")]


def test_member_without_a_scheduler_applies_its_staged_policy() -> None:
    member = a_member()
    assert member.stage("second", at(0.1)) == []
    assert [type(each) for each in member.tick(at(2))] == [ModeChanged, PolicyAgreed]

    assert member.stage("third", at(3)) == [PolicyAgreed("third")]
    # The policy in force is not agreed on again.
    assert member.stage("first", at(3)) == []


def test_policy_from_a_former_scheduler_is_ignored() -> None:
    member, scheduler = following()
    scheduler.say(at(0.1), policy_hash="second")
    Scheduler(member, SECOND_EPOCH).say(at(0.2), policy_hash="first")

    assert member.stage("second", at(0.3)) == []


# Status


def test_member_summary_shows_its_own_requests_and_endpoints() -> None:
    member, _ = with_one_running()
    member.open(a_ticket("r2", service_class="batch"), at(1))
    member.open(a_ticket("r3", service_class="of nobody"), at(1))
    member.handle(failed("r1"), at(1))
    summary = member.summary()

    assert summary.policy_hash == "first"
    assert summary.queued == {"interactive": 1, "batch": 1}
    assert summary.requests == 3
    [endpoint] = summary.endpoints
    assert (endpoint.id, endpoint.state, endpoint.in_flight, endpoint.in_flight_max) == ("e1", "ready", 0, 4)


def test_island_summary_shows_its_own_scheduler_state() -> None:
    member, _ = with_one_running()
    member.tick(at(2))
    [endpoint] = member.summary().endpoints

    assert (endpoint.in_flight, endpoint.in_flight_max) == (1, 2)


def test_first_of_two_attempts_to_complete_aborts_the_other() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))

    orders = member.handle(completed("r1", attempt=2), at(1))

    assert [type(each) for each in orders] == [Abort, End]
    assert member.handle(aborted("r1", attempt=1), at(1)) == []
    assert member.held == 0


def test_request_completes_if_one_of_two_attempts_fails() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))

    assert member.handle(failed("r1", attempt=1), at(0.5)) == []
    assert endings(member.handle(completed("r1", attempt=2), at(1))) == [Outcome.COMPLETED]


# Declined grants


def test_grant_that_may_be_too_old_is_declined() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    # The echo returns a timestamp from 1.2 s ago and reports that the scheduler did not hold it.
    assert scheduler.say(at(1.2), granted("r1"), stamp=at(0)) == []
    [declined] = scheduler.listen(at(1.2))
    assert isinstance(declined, GrantDeclined)
    assert (declined.request_over, declined.attempt, declined.waited_ns) == (False, 1, duration(1.2))


def test_holding_time_at_the_scheduler_is_excluded_from_grant_age() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert scheduler.say(at(1.2), granted("r1"), stamp=at(0), lay=duration(1.1)) == [dispatch("r1")]


def test_grant_for_an_ended_request_is_declined() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))
    member.handle(client_disconnected("r1"), at(0.1))

    assert scheduler.say(at(0.1), granted("r1")) == []
    assert scheduler.listen(at(0.1))[-1] == GrantDeclined(
        RequestId("r1"), 1, True, duration(0), "the request has ended"
    )


def test_second_attempt_is_declined_unless_it_is_a_hedge() -> None:
    _, scheduler = with_one_running()

    assert scheduler.say(at(0.1), granted("r1", attempt=2)) == []
    assert isinstance(scheduler.listen(at(0.1))[-1], GrantDeclined)


def test_hedge_is_declined_after_the_first_token() -> None:
    member, scheduler = with_one_running()
    member.handle(first_token("r1"), at(0.1))

    assert scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True)) == []


# Epochs


def test_other_scheduler_with_the_same_epoch_number_is_ignored() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert scheduler.say(at(0), granted("r1"), epoch=Epoch(1, "other")) == []
    assert member.followed_epoch == FIRST


def test_lower_epoch_is_ignored_and_receives_the_higher_epoch() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    newer = Scheduler(member, Epoch(5, "five"))
    newer.say(at(0), echo=False)
    newer.listen(at(0))

    assert scheduler.say(at(0.01), granted("r1")) == []
    [entry] = member.outgoing(at(0.01))
    assert entry.head.followed_epoch == Epoch(5, "five")


def test_report_of_all_held_requests_is_sent_to_a_higher_epoch() -> None:
    member, scheduler = with_one_running()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    scheduler.say(at(0.1))  # r2 is acknowledged, so it has been admitted.
    member.open(a_ticket("r3"), at(0.2))
    member.handle(first_token("r1"), at(0.3))
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(1), echo=False)

    runs, waits, arrives, done = newer.listen(at(1))

    assert isinstance(runs, RunningAttempt)
    assert (runs.report.attempt, runs.report.first_token, runs.report.age_ns) == (1, True, duration(1))
    assert (runs.dispatch_snapshot, runs.arrival_serial) == (SnapshotId(1, 1), 2)
    assert isinstance(waits, QueuedRequest)
    assert (waits.report.waited_ns, waits.report.attempts, waits.arrival_serial) == (duration(0.9), 0, 3)
    assert arrives == NewRequest(replace(a_ticket("r3"), gateway="g1"), duration(0.8))
    assert done == ReportDone()


def reported_to_a_newer_scheduler(member: Member) -> list[type[FromMember]]:
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(1), echo=False)
    return [type(each) for each in newer.listen(at(1))]


def test_request_is_reported_as_an_arrival_if_a_lost_entry_may_have_rejected_it() -> None:
    member, scheduler = following()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    # An entry with one message is lost. The next entry acknowledges the arrival.
    scheduler.out.push(SnapshotCoverage(0), at(0.1))
    scheduler.out.pop_unsent(100, at(0.1))
    scheduler.say(at(0.2))

    assert reported_to_a_newer_scheduler(member) == [NewRequest, ReportDone]


@pytest.mark.parametrize(("judged", "reported"), [(0, NewRequest), (2, QueuedRequest), (None, QueuedRequest)])
def test_acknowledged_request_is_treated_as_admitted_only_if_it_was_decided(
    judged: int | None, reported: type[FromMember]
) -> None:
    member, scheduler = following()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    assert scheduler.taken == 2
    scheduler.say(at(0.2), judged=judged)

    assert reported_to_a_newer_scheduler(member) == [reported, ReportDone]


def test_member_repeats_its_report_when_the_scheduler_requests_it() -> None:
    _, scheduler = with_one_running()
    scheduler.listen(at(0.1))

    scheduler.say(at(0.1), session=0, wanted=scheduler.session)

    assert [type(each) for each in scheduler.listen(at(0.1))] == [RunningAttempt, ReportDone]


def test_member_raises_its_incarnation_if_the_scheduler_has_seen_a_later_one() -> None:
    member, scheduler = following()
    head = SchedulerHead(FIRST, 9, 0, 0, 1, 0, at(0), None)
    member.receive(SchedulerEntry(head), at(0.1))

    assert member.incarnation > 9
    assert scheduler.listen(at(0.1)) == [ReportDone()]


def test_two_processes_raising_their_incarnations_get_different_ones() -> None:
    members = [Member("g1", incarnation, at(0), bounds=CellBounds(), share=Share(0, 1)) for incarnation in (1, 2)]
    head = SchedulerHead(FIRST, 5_000_000_000_003, 0, 0, 1, 0, at(0), None)
    for member in members:
        member.receive(SchedulerEntry(head), at(0.1))
    first, second = (member.incarnation for member in members)

    assert first != second
    assert min(first, second) > head.incarnation


# Ends that no snapshot includes


def test_end_is_kept_until_a_snapshot_covers_it() -> None:
    member, scheduler = with_one_running()
    member.handle(completed("r1", tokens=7), at(1))
    scheduler.listen(at(1))
    last = scheduler.taken

    scheduler.say(at(1), SnapshotCoverage(last - 1))
    assert member.unsettled == 1
    scheduler.say(at(1), SnapshotCoverage(last))
    assert member.unsettled == 0


def test_end_not_covered_by_a_snapshot_is_reported_to_the_next_scheduler() -> None:
    member, scheduler = with_one_running()
    member.handle(completed("r1", tokens=7), at(1))
    scheduler.listen(at(1))
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(2), echo=False)

    settled, done = newer.listen(at(2))

    assert isinstance(settled, SettledRequest)
    assert (settled.report.completed, settled.serial, settled.arrival_serial) == (True, scheduler.taken, 2)
    assert settled.report.usage is not None
    assert done == ReportDone()


def test_number_of_uncovered_ends_is_limited() -> None:
    member, scheduler = following(bounds=CellBounds(unsettled_max=2))
    for name in ("r1", "r2", "r3"):
        member.open(a_ticket(name), at(0))
        scheduler.listen(at(0))
        scheduler.say(at(0), granted(name))
        member.handle(completed(name), at(1))

    assert member.unsettled == 2


# Limits


def test_new_requests_are_rejected_while_the_window_is_full() -> None:
    member, scheduler = following(bounds=CellBounds(unacknowledged_max=2))
    for name in ("r1", "r2"):
        assert member.open(a_ticket(name), at(0)) == []

    [end] = member.open(a_ticket("r3"), at(0))

    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (
        Outcome.QUEUE_FULL,
        "the scheduler has not acknowledged 2 messages (limit 2); retry in 1 s",
    )
    scheduler.listen(at(0))
    scheduler.say(at(0))
    assert member.open(a_ticket("r4"), at(0)) == []


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (a_ticket("r1", model="m" * (TEXTS_MAX + 1)), "names and texts exceed 131072 characters"),
        (a_ticket("r1", prompt_bytes=PROMPT_BYTES_MAX + 1), "prompt size of 2147483649 bytes is out of range"),
        (replace(a_ticket("r1"), prompts=PROMPTS_MAX + 1), "prompt count 16777217 is out of range"),
    ],
    ids=["model", "prompt", "prompts"],
)
def test_member_rejects_a_request_the_scheduler_would_consider_invalid(ticket: Ticket, why: str) -> None:
    member, scheduler = following()

    [end] = member.open(ticket, at(0))

    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (
        Outcome.INVALID_REQUEST,
        f"the cell does not accept this request: {why}; correct it",
    )
    assert member.held == 0
    assert NewRequest not in {type(each) for each in scheduler.listen(at(0))}


def test_number_of_held_requests_is_limited() -> None:
    member, _ = following(bounds=CellBounds(held_max=1))
    member.open(a_ticket("r1"), at(0))

    assert endings(member.open(a_ticket("r2"), at(0))) == [Outcome.QUEUE_FULL]


def test_member_sends_one_entry_of_limited_size_at_a_time() -> None:
    member, _ = following(bounds=CellBounds(entry_messages_max=2))
    for number in range(5):
        member.open(a_ticket(f"r{number}"), at(0))

    entries = [member.outgoing(at(0)) for _ in range(4) if member.next_wakeup() <= at(0)]

    assert [[len(entry.messages) for entry in each] for each in entries] == [[2], [2], [1]]


def test_idle_member_sends_only_at_heartbeats() -> None:
    member, _ = following()
    member.outgoing(at(0))

    assert member.outgoing(at(0.14)) == []
    assert member.next_wakeup() == at(0.15)
    assert len(member.outgoing(at(0.15))) == 1


# Islands


def test_member_becomes_an_island_when_the_scheduler_is_silent() -> None:
    member, scheduler = following(share=Share(0, 2))
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert member.tick(at(0.94)) == []
    orders = member.tick(at(0.95))

    assert [type(each) for each in orders] == [ModeChanged, Dispatch]
    assert member.mode is MemberMode.ISLAND
    assert member.island_share == Share(0, 2)


def test_member_becomes_an_island_if_the_scheduler_does_not_receive_its_entries() -> None:
    member, scheduler = following()
    for tenth in range(1, 14):
        # The scheduler keeps sending, but the last entry that it received from the member is getting older.
        scheduler.say(at(tenth / 10), stamp=at(0), lay=duration(tenth / 10))
        member.tick(at(tenth / 10))
        assert member.mode is MemberMode.FOLLOWING
    for tenth in range(14, 21):
        scheduler.say(at(tenth / 10), stamp=at(0), lay=duration(tenth / 10))
        member.tick(at(tenth / 10))

    assert member.mode is MemberMode.ISLAND


def test_island_uses_only_its_share() -> None:
    member = a_member(share=Share(0, 2))
    member.tick(at(2))

    begun = [order for number in range(6) for order in member.open(a_ticket(f"r{number}"), at(2))]

    assert len([each for each in begun if isinstance(each, Dispatch)]) == 2


def test_earlier_attempts_occupy_slots_on_an_island() -> None:
    member, _ = with_one_running()
    member.open(a_ticket("r2"), at(0))
    member.open(a_ticket("r3"), at(0))

    orders = member.tick(at(1.4))

    assert [order.request_id for order in orders if isinstance(order, Dispatch)] == ["r2"]
    assert [o.request_id for o in member.handle(completed("r1"), at(2)) if isinstance(o, Dispatch)] == ["r3"]


def test_island_retries_failures_according_to_the_policy() -> None:
    member, _ = with_one_running()
    member.tick(at(1.4))

    [again] = member.handle(failed("r1"), at(2))
    assert isinstance(again, Dispatch)
    assert again.attempt == 2
    member.handle(failed("r1", attempt=2), at(3))
    assert endings(member.handle(failed("r1", attempt=3), at(4))) == [Outcome.ENGINE_ERROR]
    assert member.held == 0


def test_island_applies_deadlines_policy_changes_and_endpoint_changes() -> None:
    member = a_member(share=Share(0, 1))
    member.tick(at(2))
    member.open(a_ticket("r1", complete_within=1), at(2))
    assert endings(member.tick(at(3.1))) == [Outcome.DEADLINE_EXCEEDED]
    member.handle(PolicyChanged(replace(POLICY, models=()), "second"), at(4))

    assert endings(member.open(a_ticket("r2"), at(4))) == [Outcome.MODEL_NOT_FOUND]
    member.handle(leaving("e1"), at(4))
    assert not member.endpoints.by_id


def test_island_returns_when_a_scheduler_has_received_its_entry() -> None:
    member, scheduler = with_one_running()
    member.tick(at(1.4))
    member.open(a_ticket("r2"), at(1.5))
    member.handle(completed("r1"), at(1.6))

    # The echoed timestamp predates the island, so the scheduler may not know about the island yet.
    assert scheduler.say(at(1.7), stamp=at(1.2)) == []
    orders = scheduler.say(at(1.8), stamp=at(1.7))

    assert [type(each) for each in orders] == [ModeChanged]
    assert member.mode is MemberMode.FOLLOWING
    settled, runs, done = scheduler.listen(at(1.8))
    assert isinstance(settled, SettledRequest)
    assert isinstance(runs, RunningAttempt)
    assert (runs.report.ticket.request_id, runs.dispatch_snapshot, runs.arrival_serial) == ("r2", None, 0)
    assert done == ReportDone()


def test_island_binds_to_a_new_epoch_before_it_returns() -> None:
    member, _ = following()
    member.tick(at(1.4))
    newer = Scheduler(member, SECOND_EPOCH)

    newer.say(at(2), echo=False)

    assert (member.followed_epoch, member.mode) == (SECOND_EPOCH, MemberMode.ISLAND)
    assert newer.listen(at(2)) == []


def test_island_does_not_send_progress() -> None:
    member, scheduler = with_one_running()
    member.tick(at(1.4))
    member.handle(first_token("r1"), at(1.5))
    member.handle(progressed("r1"), at(1.5))

    assert scheduler.listen(at(1.5)) == []


# Other scheduler messages


def test_member_learns_its_share_and_endpoints_from_the_scheduler() -> None:
    member, scheduler = following()

    scheduler.say(at(0), Share(1, 3), EndpointUpdate(an_endpoint("e2"), ready=True), EndpointRemoved(EndpointId("e1")))

    assert member.share == Share(1, 3)
    assert list(member.endpoints.by_id) == ["e2"]
    assert member.endpoints.is_ready(EndpointId("e2"))


def test_events_and_aborts_for_unknown_requests_are_ignored() -> None:
    member, scheduler = following()

    for event in (first_token("r9"), completed("r9"), client_disconnected("r9"), progressed("r9")):
        assert member.handle(event, at(0)) == []
    assert scheduler.say(at(0), Abort(RequestId("r9"), 1, EndpointId("e1"), "why")) == []
    assert scheduler.listen(at(0)) == []


def test_member_reports_the_count_and_age_of_unacknowledged_messages() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))

    assert (member.unacknowledged, member.unacknowledged_ns(at(1))) == (1, duration(1))
    scheduler.listen(at(1))
    scheduler.say(at(1))
    assert (member.unacknowledged, member.unacknowledged_ns(at(1))) == (0, 0)


def test_settled_report_separates_the_end_of_the_request_from_its_last_attempt() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))
    member.handle(completed("r1", attempt=2), at(1))
    scheduler.listen(at(1))
    ended = scheduler.taken
    member.handle(aborted("r1", attempt=1), at(1.2))
    scheduler.listen(at(1.2))
    assert scheduler.taken > ended

    scheduler.say(at(1.3), epoch=SECOND_EPOCH)
    [settled] = [each for each in scheduler.listen(at(1.4)) if isinstance(each, SettledRequest)]
    assert (settled.end_serial, settled.serial) == (ended, ended + 1)
