"""Does a gateway own its requests, whoever decides about them?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import PolicyChanged, Progressed
from headgate.hosts.cell.member.member import Member
from headgate.hosts.cell.member.orders import ModeChanged, Order, PolicyAgreed
from headgate.hosts.cell.protocol.link import Outbound
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    Covered,
    Declined,
    Echo,
    Ended,
    EndpointGone,
    EndpointTold,
    Epoch,
    FromMember,
    FromScheduler,
    Granted,
    Leaves,
    ReportDone,
    Runs,
    SchedulerEntry,
    SchedulerHead,
    Settled,
    Share,
    Snapshots,
    Waits,
)
from headgate.hosts.cell.protocol.validation import BYTES_MAX, PROMPTS_MAX, TEXTS_MAX
from headgate.hosts.cell.protocol.views import Mode
from headgate.hosts.cell.timing import Bounds
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import Duration, EndpointId, Instant, RequestId
from testing.builders import (
    aborted,
    an_endpoint,
    at,
    client_left,
    completed,
    dispatch,
    failed,
    fell_silent,
    first_token,
    grace_over,
    lasting,
    leaving,
    progressed,
    refused,
)
from tests.hosts.cell.builders import FIRST, POLICY, SECOND_EPOCH, a_member, a_ticket


class Scheduler:
    """One that says to a member whatever a test wants it to."""

    def __init__(self, member: Member, epoch: Epoch = FIRST) -> None:
        self.member = member
        self.epoch = epoch
        self.out: Outbound[FromScheduler] = Outbound(1, resend_ns=lasting(1))
        self.session = 0
        self.taken = 0
        self.heard: list[FromMember] = []

    def listen(self, now: Instant) -> list[FromMember]:
        """What the member has said since it was last listened to, and takes it in."""
        said: list[FromMember] = []
        for entry in self.member.outgoing(now):
            head = entry.head
            if head.session != self.session:
                self.session, self.taken = head.session, head.base - 1
                self.out = Outbound(1, resend_ns=lasting(1))
            for serial, (_, each) in enumerate(entry.messages, head.first):
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
    ) -> list[Order]:
        for each in messages:
            self.out.push(each, now)
        first, items = self.out.take(100, now)
        given_back = Echo(now if stamp is None else stamp, lay or lasting(0)) if echo else None
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
            judged=judged,
        )
        return self.member.receive(SchedulerEntry(head, items), now)


def granted(name: str, *, attempt: int = 1, hedge: bool = False) -> Granted:
    return Granted(replace(dispatch(name, attempt=attempt), hedge=hedge), lasting(1), Snapshots(1, 1))


def following(*, bounds: Bounds | None = None, share: Share | None = None) -> tuple[Member, Scheduler]:
    """A member that has reported to a scheduler."""
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


def endings(orders: list[Order]) -> list[Outcome]:
    return [order.outcome for order in orders if isinstance(order, End)]


# Following


def test_a_request_is_told_to_the_scheduler_and_begun_on_its_order() -> None:
    member, scheduler = following()

    assert member.open(a_ticket("r1"), at(0)) == []
    assert scheduler.listen(at(0)) == [Arrived(replace(a_ticket("r1"), gateway="g1"))]
    assert scheduler.say(at(0), granted("r1")) == [dispatch("r1")]


def test_what_happens_is_told_in_order_and_progress_together() -> None:
    member, scheduler = with_one_running()

    member.tell(first_token("r1"), at(0.1))
    member.tell(progressed("r1"), at(0.2))
    member.tell(progressed("r1"), at(0.3))
    assert scheduler.listen(at(0.3)) == [first_token("r1"), replace_tokens(16)]


def test_progress_is_late_if_any_of_its_reports_was() -> None:
    member, scheduler = with_one_running()
    member.tell(replace(progressed("r1"), late=True), at(0.2))
    member.tell(progressed("r1"), at(0.3))
    [late] = scheduler.listen(at(0.3))
    member.tell(progressed("r1"), at(0.4))
    [on_time] = scheduler.listen(at(0.4))

    assert isinstance(late, Progressed)
    assert isinstance(on_time, Progressed)
    assert (late.late, on_time.late) == (True, False)


def replace_tokens(tokens: int) -> FromMember:
    event = progressed("r1")
    return replace(event, attempts=(replace(event.attempts[0], tokens=tokens),))


def test_a_whole_answer_ends_at_once_and_the_scheduler_is_told() -> None:
    member, scheduler = with_one_running()

    orders = member.tell(completed("r1"), at(1))

    assert endings(orders) == [Outcome.COMPLETED]
    assert scheduler.listen(at(1)) == [Ended(completed("r1"), over=True)]
    assert member.held == 0


def test_what_the_engine_refuses_ends_at_once() -> None:
    member, _ = with_one_running()

    assert endings(member.tell(refused("r1"), at(1))) == [Outcome.ENGINE_REFUSED]


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (failed("r1"), Outcome.ENGINE_FAILED),
        (fell_silent("r1"), Outcome.ENGINE_SILENT),
        (aborted("r1"), Outcome.ENGINE_SILENT),
    ],
)
def test_after_the_first_token_a_failure_ends_it_without_anybody_being_asked(event, outcome: Outcome) -> None:
    member, _ = with_one_running()
    member.tell(first_token("r1"), at(0.5))

    assert endings(member.tell(event, at(1))) == [outcome]


def test_before_the_first_token_the_scheduler_says_what_becomes_of_a_failure() -> None:
    member, scheduler = with_one_running()

    assert member.tell(failed("r1"), at(1)) == []
    assert scheduler.listen(at(1)) == [Ended(failed("r1"), over=False)]
    assert scheduler.say(at(1), granted("r1", attempt=2)) == [dispatch("r1", attempt=2)]


def test_a_failure_after_an_undelivered_first_token_is_left_to_the_scheduler() -> None:
    member, scheduler = with_one_running()
    undelivered = first_token("r1", delivered=False)
    member.tell(undelivered, at(0.5))

    assert member.tell(failed("r1"), at(1)) == []
    assert scheduler.listen(at(1)) == [undelivered, Ended(failed("r1"), over=False)]
    assert scheduler.say(at(1), granted("r1", attempt=2)) == [dispatch("r1", attempt=2)]


def test_an_end_that_the_scheduler_orders_is_told_once() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))
    end = End(RequestId("r1"), Outcome.EXPIRED, None, 0, lasting(1), None, "why")

    assert scheduler.say(at(1), end, end) == [end]
    assert member.tell(client_left("r1"), at(1)) == []


def test_an_end_while_an_attempt_is_stopped_waits_for_nothing() -> None:
    member, scheduler = with_one_running()
    end = End(RequestId("r1"), Outcome.TOO_LATE, None, 1, lasting(1), None, "why")
    stop = Abort(RequestId("r1"), 1, EndpointId("e1"), "why")

    assert scheduler.say(at(1), stop, end) == [stop, end]
    assert member.held == 1
    assert member.tell(aborted("r1"), at(1.1)) == []
    assert member.held == 0
    assert scheduler.listen(at(1.1)) == [Ended(aborted("r1"), over=True)]


def test_a_caller_who_leaves_is_not_waited_for() -> None:
    member, scheduler = with_one_running()

    orders = member.tell(client_left("r1"), at(1))

    assert [type(each) for each in orders] == [Abort, End]
    assert endings(orders) == [Outcome.CANCELLED]
    assert scheduler.listen(at(1)) == [client_left("r1")]


def test_a_process_that_leaves_says_so_to_who_waits_and_to_who_runs() -> None:
    member, scheduler = with_one_running()
    member.open(a_ticket("r2"), at(0))

    assert endings(member.tell(grace_over("r1"), at(1))) == [Outcome.EVICTED]
    assert endings(member.tell(grace_over("r2"), at(1))) == [Outcome.DRAINING]
    member.tell(aborted("r1"), at(1))
    member.leave(at(1))
    assert scheduler.listen(at(1))[-1] == Leaves()
    assert not member.left
    scheduler.say(at(1))
    assert member.left
    assert member.next_wakeup() > at(100)


def test_one_who_leaves_tells_the_next_scheduler_too() -> None:
    member, scheduler = following()
    member.leave(at(0.1))
    scheduler.listen(at(0.1))
    later = Scheduler(member, SECOND_EPOCH)
    later.say(at(0.2))

    assert later.listen(at(0.2)) == [ReportDone(), Leaves()]
    later.say(at(0.2))
    assert member.left


def test_one_who_leaves_where_nobody_is_has_left() -> None:
    alone, island = a_member(), a_member()
    island.tick(at(2))
    for member in (alone, island):
        assert not member.left
        member.leave(at(3))
        assert member.left


def test_one_whose_scheduler_dies_while_it_leaves_has_left() -> None:
    member, scheduler = following()
    member.leave(at(0.1))
    scheduler.listen(at(0.1))
    member.tick(at(0.9))
    assert not member.left
    member.tick(at(2))

    assert member.left


def test_one_who_holds_a_request_cannot_leave() -> None:
    member, _ = with_one_running()

    with pytest.raises(AssertionError, match="leaves with 1 requests; end them first"):
        member.leave(at(1))


# A change of rules


def test_rules_that_were_read_are_gone_by_when_the_scheduler_does() -> None:
    member, scheduler = following()
    assert member.stage("second", at(0.1)) == []
    [entry] = member.outgoing(at(0.1))
    assert (entry.head.policy_hash, entry.head.staged) == ("first", "second")

    assert scheduler.say(at(0.2), policy_hash="first") == []
    assert scheduler.say(at(0.3), policy_hash="second") == [PolicyAgreed("second")]
    # It is said once.
    assert scheduler.say(at(0.3), policy_hash="second") == []
    member.tell(PolicyChanged(POLICY, "second"), at(0.4))
    [entry] = member.outgoing(at(0.4))
    assert (entry.head.policy_hash, entry.head.staged) == ("second", "")


def test_rules_that_are_read_later_than_by_the_scheduler_are_gone_by_at_once() -> None:
    member, scheduler = following()
    scheduler.say(at(0.1), policy_hash="second")

    assert member.stage("second", at(0.2)) == [PolicyAgreed("second")]


def test_a_member_that_has_no_scheduler_goes_by_what_it_has_read() -> None:
    member = a_member()
    assert member.stage("second", at(0.1)) == []
    assert [type(each) for each in member.tick(at(2))] == [ModeChanged, PolicyAgreed]

    assert member.stage("third", at(3)) == [PolicyAgreed("third")]
    # What is in force is nothing new.
    assert member.stage("first", at(3)) == []


def test_what_a_scheduler_that_is_over_went_by_says_nothing() -> None:
    member, scheduler = following()
    scheduler.say(at(0.1), policy_hash="second")
    Scheduler(member, SECOND_EPOCH).say(at(0.2), policy_hash="first")

    assert member.stage("second", at(0.3)) == []


# For those who look


def test_a_member_shows_what_it_knows_by_itself() -> None:
    member, _ = with_one_running()
    member.open(a_ticket("r2", service_class="batch"), at(1))
    member.open(a_ticket("r3", service_class="of nobody"), at(1))
    member.tell(failed("r1"), at(1))
    summary = member.summary()

    assert summary.policy_hash == "first"
    assert summary.queued == {"interactive": 1, "batch": 1}
    assert summary.requests == 3
    [endpoint] = summary.endpoints
    assert (endpoint.id, endpoint.state, endpoint.in_flight, endpoint.in_flight_max) == ("e1", "ready", 0, 4)


def test_an_island_shows_what_its_own_scheduler_knows() -> None:
    member, _ = with_one_running()
    member.tick(at(2))
    [endpoint] = member.summary().endpoints

    assert (endpoint.in_flight, endpoint.in_flight_max) == (1, 2)


def test_the_first_of_two_attempts_to_be_whole_stops_the_other() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))

    orders = member.tell(completed("r1", attempt=2), at(1))

    assert [type(each) for each in orders] == [Abort, End]
    assert member.tell(aborted("r1", attempt=1), at(1)) == []
    assert member.held == 0


def test_of_two_attempts_one_may_fail() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))

    assert member.tell(failed("r1", attempt=1), at(0.5)) == []
    assert endings(member.tell(completed("r1", attempt=2), at(1))) == [Outcome.COMPLETED]


# Grants that are not begun


def test_a_grant_that_may_be_too_old_is_declined() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    # It gives back a stamp of 1.2 s ago, and says nothing of having kept it for a while.
    assert scheduler.say(at(1.2), granted("r1"), stamp=at(0)) == []
    [declined] = scheduler.listen(at(1.2))
    assert isinstance(declined, Declined)
    assert (declined.over, declined.attempt, declined.waited_ns) == (False, 1, lasting(1.2))


def test_a_grant_that_lay_at_the_scheduler_before_it_was_made_is_not_old() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert scheduler.say(at(1.2), granted("r1"), stamp=at(0), lay=lasting(1.1)) == [dispatch("r1")]


def test_a_grant_for_a_request_that_has_ended_is_declined() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))
    member.tell(client_left("r1"), at(0.1))

    assert scheduler.say(at(0.1), granted("r1")) == []
    assert scheduler.listen(at(0.1))[-1] == Declined(RequestId("r1"), 1, True, lasting(0), "the request has ended")


def test_a_second_attempt_that_nobody_called_a_hedge_is_declined() -> None:
    _, scheduler = with_one_running()

    assert scheduler.say(at(0.1), granted("r1", attempt=2)) == []
    assert isinstance(scheduler.listen(at(0.1))[-1], Declined)


def test_once_an_attempt_has_begun_to_answer_no_other_is_begun() -> None:
    member, scheduler = with_one_running()
    member.tell(first_token("r1"), at(0.1))

    assert scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True)) == []


# Epochs


def test_another_scheduler_of_the_same_number_is_not_listened_to() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert scheduler.say(at(0), granted("r1"), epoch=Epoch(1, "other")) == []
    assert member.bound == FIRST


def test_a_lower_epoch_is_not_listened_to_and_told_so() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))
    newer = Scheduler(member, Epoch(5, "five"))
    newer.say(at(0), echo=False)
    newer.listen(at(0))

    assert scheduler.say(at(0.01), granted("r1")) == []
    [entry] = member.outgoing(at(0.01))
    assert entry.head.bound == Epoch(5, "five")


def test_a_higher_epoch_is_told_all_that_is_held() -> None:
    member, scheduler = with_one_running()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    scheduler.say(at(0.1))  # r2 is acknowledged: it has been let in.
    member.open(a_ticket("r3"), at(0.2))
    member.tell(first_token("r1"), at(0.3))
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(1), echo=False)

    runs, waits, arrives, done = newer.listen(at(1))

    assert isinstance(runs, Runs)
    assert (runs.report.attempt, runs.report.first_token, runs.report.age_ns) == (1, True, lasting(1))
    assert (runs.sent, runs.arrived) == (Snapshots(1, 1), 2)
    assert isinstance(waits, Waits)
    assert (waits.report.waited_ns, waits.report.attempts, waits.arrived) == (lasting(0.9), 0, 3)
    assert arrives == Arrived(replace(a_ticket("r3"), gateway="g1"), lasting(0.8))
    assert done == ReportDone()


def reported_to_a_newer_scheduler(member: Member) -> list[type[FromMember]]:
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(1), echo=False)
    return [type(each) for each in newer.listen(at(1))]


def test_request_is_an_arrival_again_if_a_lost_entry_may_have_refused_it() -> None:
    member, scheduler = following()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    # An entry with one message is lost; the next entry acknowledges the arrival.
    scheduler.out.push(Covered(0), at(0.1))
    scheduler.out.take(100, at(0.1))
    scheduler.say(at(0.2))

    assert reported_to_a_newer_scheduler(member) == [Arrived, ReportDone]


@pytest.mark.parametrize(("judged", "reported"), [(0, Arrived), (2, Waits), (None, Waits)])
def test_acknowledged_request_counts_as_let_in_only_if_it_was_judged(
    judged: int | None, reported: type[FromMember]
) -> None:
    member, scheduler = following()
    member.open(a_ticket("r2"), at(0.1))
    scheduler.listen(at(0.1))
    assert scheduler.taken == 2
    scheduler.say(at(0.2), judged=judged)

    assert reported_to_a_newer_scheduler(member) == [reported, ReportDone]


def test_what_a_new_scheduler_asks_to_be_told_again_is_told_again() -> None:
    _, scheduler = with_one_running()
    scheduler.listen(at(0.1))

    scheduler.say(at(0.1), session=0, wanted=scheduler.session)

    assert [type(each) for each in scheduler.listen(at(0.1))] == [Runs, ReportDone]


def test_a_life_that_the_scheduler_takes_for_an_earlier_one_becomes_the_later() -> None:
    member, scheduler = following()
    head = SchedulerHead(FIRST, 9, 0, 0, 1, 0, at(0), None)
    member.receive(SchedulerEntry(head), at(0.1))

    assert member.incarnation > 9
    assert scheduler.listen(at(0.1)) == [ReportDone()]


def test_two_processes_that_become_later_than_a_third_have_different_incarnations() -> None:
    members = [Member("g1", incarnation, at(0), bounds=Bounds(), share=Share(0, 1)) for incarnation in (1, 2)]
    head = SchedulerHead(FIRST, 5_000_000_000_003, 0, 0, 1, 0, at(0), None)
    for member in members:
        member.receive(SchedulerEntry(head), at(0.1))
    first, second = (member.incarnation for member in members)

    assert first != second
    assert min(first, second) > head.incarnation


# Ends that no snapshot has


def test_an_end_is_kept_until_a_snapshot_covers_it() -> None:
    member, scheduler = with_one_running()
    member.tell(completed("r1", tokens=7), at(1))
    scheduler.listen(at(1))
    last = scheduler.taken

    scheduler.say(at(1), Covered(last - 1))
    assert member.unsettled == 1
    scheduler.say(at(1), Covered(last))
    assert member.unsettled == 0


def test_an_end_that_no_snapshot_covers_is_told_to_the_next_scheduler() -> None:
    member, scheduler = with_one_running()
    member.tell(completed("r1", tokens=7), at(1))
    scheduler.listen(at(1))
    newer = Scheduler(member, SECOND_EPOCH)
    newer.say(at(2), echo=False)

    settled, done = newer.listen(at(2))

    assert isinstance(settled, Settled)
    assert (settled.report.completed, settled.serial, settled.arrived) == (True, scheduler.taken, 2)
    assert settled.report.usage is not None
    assert done == ReportDone()


def test_of_ends_that_nobody_covers_only_so_many_are_kept() -> None:
    member, scheduler = following(bounds=Bounds(unsettled=2))
    for name in ("r1", "r2", "r3"):
        member.open(a_ticket(name), at(0))
        scheduler.listen(at(0))
        scheduler.say(at(0), granted(name))
        member.tell(completed(name), at(1))

    assert member.unsettled == 2


# Bounds


def test_with_a_full_window_new_requests_are_told_to_slow_down() -> None:
    member, scheduler = following(bounds=Bounds(window=2))
    for name in ("r1", "r2"):
        assert member.open(a_ticket(name), at(0)) == []

    [end] = member.open(a_ticket("r3"), at(0))

    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (
        Outcome.QUEUE_FULL,
        "the scheduler has yet to answer 2 of 2 messages (queue_full); wait 1 s",
    )
    scheduler.listen(at(0))
    scheduler.say(at(0))
    assert member.open(a_ticket("r4"), at(0)) == []


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (a_ticket("r1", model="m" * (TEXTS_MAX + 1)), "names and texts of more than 131072 characters"),
        (a_ticket("r1", prompt_bytes=BYTES_MAX + 1), "a prompt of 2147483649 bytes"),
        (replace(a_ticket("r1"), prompts=PROMPTS_MAX + 1), "a request of 16777217 prompts"),
    ],
    ids=["model", "prompt", "prompts"],
)
def test_member_rejects_a_request_that_the_scheduler_would_find_implausible(ticket: Ticket, why: str) -> None:
    member, scheduler = following()

    [end] = member.open(ticket, at(0))

    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (
        Outcome.INVALID,
        f"the cell does not accept this request: {why} (invalid); correct it",
    )
    assert member.held == 0
    assert Arrived not in {type(each) for each in scheduler.listen(at(0))}


def test_a_gateway_holds_only_so_many() -> None:
    member, _ = following(bounds=Bounds(held=1))
    member.open(a_ticket("r1"), at(0))

    assert endings(member.open(a_ticket("r2"), at(0))) == [Outcome.QUEUE_FULL]


def test_an_entry_has_only_so_many_messages() -> None:
    member, _ = following(bounds=Bounds(entry_messages=2))
    for number in range(5):
        member.open(a_ticket(f"r{number}"), at(0))

    assert [len(entry.messages) for entry in member.outgoing(at(0))] == [2, 2, 1]


def test_a_member_says_something_at_every_beat_and_nothing_between() -> None:
    member, _ = following()
    member.outgoing(at(0))

    assert member.outgoing(at(0.14)) == []
    assert member.next_wakeup() == at(0.15)
    assert len(member.outgoing(at(0.15))) == 1


# Islands


def test_a_member_that_hears_no_scheduler_decides_by_itself() -> None:
    member, scheduler = following(share=Share(0, 2))
    member.open(a_ticket("r1"), at(0))
    scheduler.listen(at(0))

    assert member.tick(at(0.94)) == []
    orders = member.tick(at(0.95))

    assert [type(each) for each in orders] == [ModeChanged, Dispatch]
    assert member.mode is Mode.ISLAND
    assert member.island_share == Share(0, 2)


def test_a_scheduler_that_does_not_hear_is_not_heard() -> None:
    member, scheduler = following()
    for tenth in range(1, 14):
        # It talks on, but the last that it has heard of us becomes ever older.
        scheduler.say(at(tenth / 10), stamp=at(0), lay=lasting(tenth / 10))
        member.tick(at(tenth / 10))
        assert member.mode is Mode.FOLLOWING
    for tenth in range(14, 21):
        scheduler.say(at(tenth / 10), stamp=at(0), lay=lasting(tenth / 10))
        member.tick(at(tenth / 10))

    assert member.mode is Mode.ISLAND


def test_an_island_has_no_more_than_its_share() -> None:
    member = a_member(share=Share(0, 2))
    member.tick(at(2))

    begun = [order for number in range(6) for order in member.open(a_ticket(f"r{number}"), at(2))]

    assert len([each for each in begun if isinstance(each, Dispatch)]) == 2


def test_what_was_begun_before_takes_up_places_of_an_island() -> None:
    member, _ = with_one_running()
    member.open(a_ticket("r2"), at(0))
    member.open(a_ticket("r3"), at(0))

    orders = member.tick(at(1.4))

    assert [order.request_id for order in orders if isinstance(order, Dispatch)] == ["r2"]
    assert [o.request_id for o in member.tell(completed("r1"), at(2)) if isinstance(o, Dispatch)] == ["r3"]


def test_an_island_retries_and_gives_up_by_the_policy() -> None:
    member, _ = with_one_running()
    member.tick(at(1.4))

    [again] = member.tell(failed("r1"), at(2))
    assert isinstance(again, Dispatch)
    assert again.attempt == 2
    member.tell(failed("r1", attempt=2), at(3))
    assert endings(member.tell(failed("r1", attempt=3), at(4))) == [Outcome.ENGINE_FAILED]
    assert member.held == 0


def test_an_island_is_told_of_its_time_its_endpoints_and_its_rules() -> None:
    member = a_member(share=Share(0, 1))
    member.tick(at(2))
    member.open(a_ticket("r1", complete_within=1), at(2))
    assert endings(member.tick(at(3.1))) == [Outcome.TOO_LATE]
    member.tell(PolicyChanged(replace(POLICY, models=()), "second"), at(4))

    assert endings(member.open(a_ticket("r2"), at(4))) == [Outcome.MODEL_NOT_FOUND]
    member.tell(leaving("e1"), at(4))
    assert not member.endpoints.by_id


def test_an_island_returns_when_a_scheduler_shows_that_it_hears_it() -> None:
    member, scheduler = with_one_running()
    member.tick(at(1.4))
    member.open(a_ticket("r2"), at(1.5))
    member.tell(completed("r1"), at(1.6))

    # What it gives back was said before: it may not know yet that we decide by ourselves.
    assert scheduler.say(at(1.7), stamp=at(1.2)) == []
    orders = scheduler.say(at(1.8), stamp=at(1.7))

    assert [type(each) for each in orders] == [ModeChanged]
    assert member.mode is Mode.FOLLOWING
    settled, runs, done = scheduler.listen(at(1.8))
    assert isinstance(settled, Settled)
    assert isinstance(runs, Runs)
    assert (runs.report.ticket.request_id, runs.sent, runs.arrived) == ("r2", None, 0)
    assert done == ReportDone()


def test_an_island_binds_itself_to_a_new_epoch_before_it_returns() -> None:
    member, _ = following()
    member.tick(at(1.4))
    newer = Scheduler(member, SECOND_EPOCH)

    newer.say(at(2), echo=False)

    assert (member.bound, member.mode) == (SECOND_EPOCH, Mode.ISLAND)
    assert newer.listen(at(2)) == []


def test_progress_on_an_island_is_its_own_affair() -> None:
    member, scheduler = with_one_running()
    member.tick(at(1.4))
    member.tell(first_token("r1"), at(1.5))
    member.tell(progressed("r1"), at(1.5))

    assert scheduler.listen(at(1.5)) == []


# What the scheduler tells beside


def test_a_member_learns_its_share_and_the_endpoints() -> None:
    member, scheduler = following()

    scheduler.say(at(0), Share(1, 3), EndpointTold(an_endpoint("e2"), ready=True), EndpointGone(EndpointId("e1")))

    assert member.share == Share(1, 3)
    assert list(member.endpoints.by_id) == ["e2"]
    assert member.endpoints.ready(EndpointId("e2"))


def test_what_is_told_of_nothing_that_is_held_is_passed_over() -> None:
    member, scheduler = following()

    for event in (first_token("r9"), completed("r9"), client_left("r9"), progressed("r9")):
        assert member.tell(event, at(0)) == []
    assert scheduler.say(at(0), Abort(RequestId("r9"), 1, EndpointId("e1"), "why")) == []
    assert scheduler.listen(at(0)) == []


def test_how_long_the_scheduler_has_left_a_message_without_an_answer_is_known() -> None:
    member, scheduler = following()
    member.open(a_ticket("r1"), at(0))

    assert (member.unacknowledged, member.unacknowledged_ns(at(1))) == (1, lasting(1))
    scheduler.listen(at(1))
    scheduler.say(at(1))
    assert (member.unacknowledged, member.unacknowledged_ns(at(1))) == (0, 0)


def test_a_whole_answer_is_known_to_have_ended_before_the_attempt_beside_it() -> None:
    member, scheduler = with_one_running()
    scheduler.say(at(0.1), granted("r1", attempt=2, hedge=True))
    member.tell(completed("r1", attempt=2), at(1))
    scheduler.listen(at(1))
    ended = scheduler.taken
    member.tell(aborted("r1", attempt=1), at(1.2))
    scheduler.listen(at(1.2))
    assert scheduler.taken > ended

    scheduler.say(at(1.3), epoch=SECOND_EPOCH)
    [settled] = [each for each in scheduler.listen(at(1.4)) if isinstance(each, Settled)]
    assert (settled.ended, settled.serial) == (ended, ended + 1)
