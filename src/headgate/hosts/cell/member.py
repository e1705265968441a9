"""What does a gateway do in a cell, and what does it remember so that nothing is lost when another part dies?

Theory of operation. A gateway owns its requests. The scheduler decides about them, but whether one is open, waits or
runs is known here, and only here an end is told to its caller, once. A member is in one of three modes:

- *seeking*: it follows no scheduler that answers, and has not waited for one long enough. What comes in waits.
- *following*: a scheduler answers. What happens here is told to it, and its orders are carried out.
- *island*: no scheduler has answered for `island_after_ns`. The member decides by itself, over its share (`island`).

It follows the highest epoch it has heard of, and of two with one number the first. Whatever another says is not looked
at; but in all that it writes it says whom it follows, so the other finds out. When it binds itself to an epoch, returns
from being an island, or is asked to, it begins a *session*: it reports all that it holds and then tells the news.

A scheduler counts as heard only where it answers: an entry is a sign of life if it gives back a stamp of ours that is
not older than `answer_ns_max`. From the stamp, and from how long it lay at the scheduler, follows how old a grant is at
most. One that may be older than it allows, or is for a request that has ended, is declined and never begun.

What needs no decision is not waited for: a whole answer, a refusal by the engine, a failure after the first token and a
caller who leaves end a request at once. The scheduler hears of it, and answers with what it cost (`Billed`); other
orders for what has ended are passed over.

What is not ideal: a request whose acceptance was not acknowledged before its scheduler died is told to the next one as
an arrival, and may be refused by the policy.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from headgate.core.admission.budgets import paid_by_tenant
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.engine_time import together
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    BudgetsTold,
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.rules import Rules
from headgate.core.summary import Summary
from headgate.hosts.cell.endpoints import KnownEndpoints
from headgate.hosts.cell.held import HeldRequest, OpenAttempt
from headgate.hosts.cell.island import Island
from headgate.hosts.cell.link import Inbound, Outbound, Stamps, age_at_most
from headgate.hosts.cell.messages import (
    Arrived,
    Covered,
    Declined,
    Ended,
    EndpointGone,
    EndpointTold,
    Epoch,
    FromMember,
    FromScheduler,
    Granted,
    Leaves,
    MemberEntry,
    MemberHead,
    ReportDone,
    SchedulerEntry,
    Settled,
    Share,
    Snapshots,
)
from headgate.hosts.cell.timing import USUAL_BOUNDS, USUAL_TIMING, Bounds, Timing
from headgate.hosts.cell.views import Mode, summary_of
from headgate.model.message import message
from headgate.model.money import Bill, EndpointTime, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant, RequestId, after, seconds

_SILENT = (AttemptEnding.SILENT, AttemptEnding.ABORTED)
_DECIDED_BY_ENGINE = (AttemptEnding.COMPLETED, AttemptEnding.REFUSED)
_PAID = (Outcome.COMPLETED, Outcome.ENGINE_REFUSED, Outcome.CANCELLED)
"""What the tenant pays, of all ends that are ours to decide."""
_ALONE = Share(0, 1)
_GONE_NS = Duration(3_600 * SECOND)
"""One that has left has nothing to do."""


@message
class ModeChanged:
    """Whom this process goes by from here on. An island looks at the engines itself."""

    mode: Mode
    reason: str


@message
class PolicyAgreed:
    """The rules of this hash, which this process has said that it has read, are to be gone by from here on."""

    hash: str


@message
class Billed:
    """What a request has cost that this member had ended by itself."""

    request_id: RequestId
    bills: tuple[Bill, ...]
    reserved: NanoUsd


Order = Dispatch | Abort | End | Billed | ModeChanged | PolicyAgreed
"""What is to be done here: by the line of a request, or by the host."""

MemberEvent = FirstToken | Progressed | AttemptEnded | RequestWithdrawn | FleetEvent | PolicyChanged | BudgetsTold


class Member:
    def __init__(
        self,
        name: str,
        incarnation: int,
        now: Instant,
        *,
        timing: Timing = USUAL_TIMING,
        bounds: Bounds = USUAL_BOUNDS,
        share: Share = _ALONE,
        serves: bool = True,
    ) -> None:
        """`share` is what it takes by itself before a scheduler has said what its share is.

        A process that `serves` nobody holds no requests, and needs no share.
        """
        self.name = name
        self.incarnation = incarnation
        self.mode = Mode.SEEKING
        self.bound: Epoch | None = None
        self.share = share
        self._serves = serves
        self.endpoints = KnownEndpoints()
        self._timing = timing
        self._bounds = bounds
        self._policy = Policy()
        self._policy_hash = ""
        self._budgets: BudgetsTold | None = None
        """What was said last of what is spent."""
        self.staged = ""
        """Rules that this process has read and does not go by."""
        self._staged_at = now
        self._agreed = False
        """Whether it was said that it is to go by them."""
        self._told_hash = ""
        """What the scheduler that we follow goes by, as it said last."""
        self._requests: dict[RequestId, HeldRequest] = {}
        self._unanswered: deque[tuple[int, HeldRequest]] = deque()
        """Those whose arrival nobody has acknowledged, by its serial."""
        self._unsettled: dict[RequestId, Settled] = {}
        self._progress: dict[tuple[RequestId, int], int] = {}
        """Tokens that the scheduler has yet to be told of."""
        self._island: Island | None = None
        self._untaken: tuple[EndpointTime, ...] = ()
        """Of the last island, what nobody has asked for."""
        self._island_since = now
        self._session = 0
        self._outbound: Outbound[FromMember] = Outbound(1, resend_ns=timing.resend_ns)
        self._inbound: Inbound[FromScheduler] = Inbound(1)
        self._stamps = Stamps()
        self._heard_at = now
        """When a scheduler last showed that it hears us."""
        self._said_at = Instant(now - timing.beat_ns)
        self._answered = False
        """Whether the scheduler has answered in this session."""
        self._urgent = True
        """Whether something is to be said before the next beat."""
        self._leaves: int | None = None
        """The serial with which we said that we go; 0 where nobody was there to be told."""

    # What happens here

    def open(self, ticket: Ticket, now: Instant) -> list[Order]:
        """A request has come."""
        assert ticket.request_id not in self._requests, f"request {ticket.request_id} arrived twice"
        if (full := self._full()) is not None:
            reason = f"{full} (queue_full); wait 1 s"
            return [End(ticket.request_id, Outcome.QUEUE_FULL, None, 0, Duration(0), SECOND, reason)]
        request = self._requests[ticket.request_id] = HeldRequest(ticket, now)
        if self._island is not None:
            request.accepted = True
            return self._carry_out(self._island.handle(RequestArrived(ticket), now), now)
        if self.bound is not None:
            self._tell_arrival(request, now)
        return []

    def tell(self, event: MemberEvent, now: Instant) -> list[Order]:
        """Something has happened to a request of ours, to an endpoint, or to the rules."""
        out: list[Order] = []
        match event:
            case FirstToken():
                self._first_token(event, now, out)
            case Progressed():
                self._progressed(event, now, out)
            case AttemptEnded():
                self._attempt_ended(event, now, out)
            case RequestWithdrawn():
                self._withdrawn(event, now, out)
            case PolicyChanged(policy, policy_hash):
                self._policy, self._policy_hash = policy, policy_hash
                self._urgent = True
                if self.staged == policy_hash:
                    self.staged = ""
                if self._island is not None:
                    out += self._carry_out(self._island.change_policy(policy, policy_hash, now), now)
            case BudgetsTold():
                self._budgets = event
                if self._island is not None:
                    out += self._carry_out(self._island.handle(event, now), now)
            case EndpointJoined() | EndpointReadied() | EndpointUnreadied() | EndpointMeasured() | EndpointLeaving():
                self.endpoints.note(event)
                if self._island is not None:
                    out += self._carry_out(self._island.of_fleet(event, now), now)
        return out

    def tick(self, now: Instant) -> list[Order]:
        """Time has passed."""
        if self._island is None:
            if now >= self._alone_from():
                return self._become_island(now)
        else:
            wakeup = self._island.next_wakeup()
            if wakeup is not None and wakeup <= now:
                return self._carry_out(self._island.handle(TimerFired(), now), now)
        return []

    def leave(self, now: Instant) -> None:
        """This process holds nothing any more and will not speak again, once this has been heard."""
        assert not self._requests, f"{self.name} leaves with {len(self._requests)} requests; end them first"
        told = self.bound is not None and self._island is None
        self._leaves = self._outbound.push(Leaves(), now) if told else 0

    @property
    def left(self) -> bool:
        """Whether that has been heard, or nobody is there to hear it."""
        return self._leaves is not None and (self._leaves < self._outbound.first or self._island is not None)

    # A change of rules

    def stage(self, policy_hash: str, now: Instant) -> list[Order]:
        """This process has read rules, and is ready to go by them when all are."""
        self.staged = "" if policy_hash == self._policy_hash else policy_hash
        self._staged_at, self._agreed, self._urgent = now, False, True
        if self._island is not None or self.staged == self._told_hash:
            return self.agree()
        return []

    def agree(self) -> list[Order]:
        """It is time to go by what was read; that is said once."""
        if not self.staged or self._agreed:
            return []
        self._agreed = True
        return [PolicyAgreed(self.staged)]

    def waits_for_rules(self) -> Instant | None:
        """Since when this process has read rules that nobody has told it to go by."""
        return self._staged_at if self.staged and not self._agreed else None

    def next_wakeup(self) -> Instant:
        """When `tick` and `outgoing` are to be called again, if nothing happens before."""
        if self.left:
            return after(self._said_at, _GONE_NS)
        if self._urgent or self._outbound.unsent:
            return self._said_at
        soonest = after(self._said_at, self._timing.beat_ns)
        again = self._outbound.resend_at()
        own = self._alone_from() if self._island is None else self._island.next_wakeup()
        for other in (again, own):
            if other is not None and other < soonest:
                soonest = other
        return soonest

    @property
    def held(self) -> int:
        """Requests that have not ended, and those that have with something of them under way."""
        return len(self._requests)

    @property
    def island_share(self) -> Share | None:
        """The part of everything that this member decides about by itself; None where it does not."""
        return None if self._island is None else self._island.share

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    def unsettled_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._unsettled)

    @property
    def unacknowledged(self) -> int:
        return len(self._outbound)

    def unacknowledged_ns(self, now: Instant) -> Duration:
        """How long the scheduler has left the oldest of these without an answer."""
        return self._outbound.oldest_ns(now)

    def _full(self) -> str | None:
        if len(self._requests) >= self._bounds.held:
            return f"this gateway holds {len(self._requests)} of {self._bounds.held} requests"
        waiting = max(len(self._outbound), len(self._unanswered))
        if self._island is None and waiting >= self._bounds.window:
            return f"the scheduler has yet to acknowledge {waiting} of {self._bounds.window} messages"
        return None

    def _tell_arrival(self, request: HeldRequest, now: Instant) -> None:
        request.arrived = self._outbound.push(Arrived(request.ticket, Duration(now - request.opened_at)), now)
        self._unanswered.append((request.arrived, request))

    # A request's life

    def _first_token(self, event: FirstToken, now: Instant, out: list[Order]) -> None:
        request = self._requests.get(event.request_id)
        attempt = request.running.get(event.attempt) if request is not None else None
        if request is None or attempt is None:
            return
        attempt.first_token = True
        if request.spoken is None:
            request.spoken = event.attempt
        self._decide(event, now, out)

    def _progressed(self, event: Progressed, now: Instant, out: list[Order]) -> None:
        for each in event.attempts:
            request = self._requests.get(each.request_id)
            attempt = request.running.get(each.attempt) if request is not None else None
            if attempt is not None:
                attempt.tokens += each.tokens
                if self._island is None:
                    key = (each.request_id, each.attempt)
                    self._progress[key] = self._progress.get(key, 0) + each.tokens
        if self._island is not None:
            out += self._carry_out(self._island.handle(event, now), now)

    def _attempt_ended(self, event: AttemptEnded, now: Instant, out: list[Order]) -> None:
        request = self._requests.get(event.request_id)
        attempt = request.running.pop(event.attempt, None) if request is not None else None
        if request is None or attempt is None:
            return
        self._progress.pop((event.request_id, event.attempt), None)
        ended_before = request.over
        if not ended_before:
            request.usage = event.usage
            self._judge_end(request, attempt, event, now, out)
        self._decide(Ended(event, over=request.over), now, out)
        if request.over and not ended_before:
            request.ended = self._told_with()
        self._forget_if_over(request, now)

    def _judge_end(
        self, request: HeldRequest, attempt: OpenAttempt, event: AttemptEnded, now: Instant, out: list[Order]
    ) -> None:
        """Ends the request where nobody has to be asked how; otherwise it waits for what is decided."""
        if event.ending is AttemptEnding.COMPLETED:
            request.completed = True
            self._end(request, attempt, Outcome.COMPLETED, "", out)
        elif event.ending is AttemptEnding.REFUSED:
            self._end(request, attempt, Outcome.ENGINE_REFUSED, event.detail, out)
        elif request.spoken == event.attempt or (request.spoken is not None and not request.running):
            outcome = Outcome.ENGINE_SILENT if event.ending in _SILENT else Outcome.ENGINE_FAILED
            self._end(request, attempt, outcome, f"after the first token: {event.detail}", out, retry_after_ns=SECOND)
        elif not request.running:
            request.queued_at = now
            request.failed_at = attempt.order.endpoint_id

    def _withdrawn(self, event: RequestWithdrawn, now: Instant, out: list[Order]) -> None:
        request = self._requests.get(event.request_id)
        if request is None or request.over:
            return
        left = event.cause is WithdrawalCause.CLIENT_LEFT
        if left:
            outcome, reason = Outcome.CANCELLED, "the client left"
        else:
            outcome = Outcome.EVICTED if request.running else Outcome.DRAINING
            reason = "this process is leaving and its grace time is over"
        waited = request.waited(now)
        wait = None if left else SECOND
        self._end(request, request.last, outcome, reason, out, retry_after_ns=wait, waited=waited)
        self._decide(event, now, out)
        request.ended = self._told_with()
        self._forget_if_over(request, now)

    def _told_with(self) -> int:
        """The serial with which a scheduler was told of what has just happened; 0 where none was."""
        return 0 if self._island is not None else self._outbound.next - 1

    def _end(
        self,
        request: HeldRequest,
        attempt: OpenAttempt | None,
        outcome: Outcome,
        reason: str,
        out: list[Order],
        *,
        retry_after_ns: Duration | None = None,
        waited: Duration | None = None,
    ) -> None:
        """Ends a request by our own word, and stops what of it is under way."""
        request.over, request.pays = True, outcome in _PAID
        why = reason or "another attempt has answered"
        running = [attempt.order for attempt in request.running.values()]
        out += [Abort(request.id, order.attempt, order.endpoint_id, why) for order in running]
        name = None if attempt is None else attempt.order.service_class
        waited = request.waited_ns if waited is None else waited
        out.append(
            End(request.id, outcome, name, request.attempts, waited, retry_after_ns, reason, held_ns=request.held_ns)
        )

    def _forget_if_over(self, request: HeldRequest, now: Instant) -> None:
        """Once it has ended and nothing of it is under way; its end is kept until a snapshot has it."""
        if not request.over or request.running or self._requests.pop(request.id, None) is None:
            return
        if request.accepted and request.arrived:
            self._unsettled[request.id] = request.settled(self._told_with(), now)
            if len(self._unsettled) > self._bounds.unsettled:
                del self._unsettled[next(iter(self._unsettled))]

    def _decide(self, event: FirstToken | Ended | RequestWithdrawn, now: Instant, out: list[Order]) -> None:
        """Brings it before whoever decides: our own scheduler, or the one that we follow."""
        if self._island is not None:
            told: Event = event.event if isinstance(event, Ended) else event
            out += self._carry_out(self._island.handle(told, now), now)
        elif self.bound is not None:
            self._outbound.push(event, now)

    # Orders

    def _carry_out(self, orders: Iterable[Dispatch | Abort | End], now: Instant) -> list[Order]:
        """What our own scheduler orders. It is told at once of what is not begun."""
        out: list[Order] = []
        for order in orders:
            if isinstance(order, Dispatch) and (why := self._why_not(order)) is not None:
                assert self._island is not None
                ended = AttemptEnded(order.request_id, order.attempt, AttemptEnding.ABORTED, why)
                out += self._carry_out(self._island.handle(ended, now), now)
            else:
                self._obey(order, None, now, out)
        return out

    def _obey(self, order: Dispatch | Abort | End, sent: Snapshots | None, now: Instant, out: list[Order]) -> None:
        request = self._requests.get(order.request_id)
        if isinstance(order, End) and order.bills:
            self._note_cost(order, request)
            if request is None or request.over:
                out.append(Billed(order.request_id, order.bills, order.reserved))
                return
        if request is None:
            return
        match order:
            case Dispatch():
                request.begin(order, sent, now)
                out.append(order)
            case Abort():
                if order.attempt in request.running:
                    out.append(order)
            case End():
                if not request.over:
                    request.over = True
                    out.append(order)
                    if request.attempts:
                        self._forget_if_over(request, now)
                    elif not request.running:
                        # It has taken nothing that would have to be settled.
                        del self._requests[request.id]

    def _note_cost(self, end: End, request: HeldRequest | None) -> None:
        """Keeps what a request has cost, for a scheduler that does not know."""
        cost, settled = paid_by_tenant(end.bills), self._unsettled.get(end.request_id)
        if request is not None:
            request.cost = cost
        elif settled is not None:
            self._unsettled[end.request_id] = replace(settled, report=replace(settled.report, cost=cost))

    def _why_not(self, order: Dispatch) -> str | None:
        """Why an attempt cannot begin; None where it can."""
        request = self._requests.get(order.request_id)
        if request is None or request.over:
            return "the request has ended"
        if order.attempt in request.running or (request.running and not order.hedge):
            return "an attempt of the request is under way"
        return "an attempt has begun to answer" if request.spoken is not None else None

    # What the scheduler says

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[Order]:
        out: list[Order] = []
        head = entry.head
        if not self._binds(head.epoch, now):
            return out
        self._told_hash = head.policy_hash
        if self.staged == self._told_hash:
            out += self.agree()
        if head.incarnation > self.incarnation:
            self._outlive(head.incarnation, now)
        if head.incarnation != self.incarnation or head.echo is None:
            return out
        if now - head.echo.stamp <= self._timing.answer_ns_max:
            # Only what we go by is given back: the scheduler concludes from it that we are no island.
            self._stamps.heard(head.stamp, now)
            self._heard_at = now
            if not self._answered:
                # It waits to know that we hear it before it goes by our report.
                self._answered = self._urgent = True
            if self._island is not None:
                if head.echo.stamp >= self._island_since:
                    self._return(now, out)
                return out
            self._follow(out)
        if self._island is None and head.session == self._session:
            age_ns = age_at_most(head.echo, now, drift_percent=self._timing.drift_percent)
            for _, lay_ns, each in self._inbound.take(head.first, entry.messages):
                self._take_in(each, Duration(age_ns + lay_ns), now, out)
                self._urgent = True
            self._acknowledged(head.taken, now)
        elif self._island is None and head.wanted >= self._session:
            self._report(now)
        return out

    def _binds(self, epoch: Epoch, now: Instant) -> bool:
        """Whether this is the epoch that we follow, from here on if it is a higher one."""
        if epoch == self.bound:
            return True
        if self.bound is not None and epoch.number <= self.bound.number:
            self._urgent = True
            return False
        self.bound, self._stamps, self._told_hash = epoch, Stamps(), ""
        if self._island is None:
            self._report(now)
        self._urgent = True
        return True

    def _outlive(self, incarnation: int, now: Instant) -> None:
        """The clock of this machine was put back between two lives of this process: this is the later one."""
        self.incarnation = incarnation + 1
        if self._island is None:
            self._report(now)

    def _follow(self, out: list[Order]) -> None:
        if self.mode is not Mode.FOLLOWING:
            self.mode = Mode.FOLLOWING
            number = self.bound.number if self.bound is not None else 0
            out.append(ModeChanged(self.mode, f"the scheduler of epoch {number} answers"))

    def _acknowledged(self, serial: int, now: Instant) -> None:
        self._outbound.acknowledged(serial, now)
        while self._unanswered and self._unanswered[0][0] <= serial:
            self._unanswered.popleft()[1].accepted = True

    def _take_in(self, said: FromScheduler, age_ns: Duration, now: Instant, out: list[Order]) -> None:
        match said:
            case Granted():
                self._granted(said, age_ns, now, out)
            case Abort() | End():
                self._obey(said, None, now, out)
            case EndpointTold() | EndpointGone():
                self.endpoints.told(said)
            case Share():
                self.share = said
            case Covered(serial):
                covered = [name for name, each in self._unsettled.items() if each.serial <= serial]
                for name in covered:
                    del self._unsettled[name]

    def _granted(self, granted: Granted, age_ns: Duration, now: Instant, out: list[Order]) -> None:
        order, why = granted.order, self._why_not(granted.order)
        if why is None and age_ns > granted.start_within_ns:
            why = f"the grant may be {seconds(age_ns)} old, of {seconds(granted.start_within_ns)} allowed"
        if why is None:
            self._obey(order, granted.sent, now, out)
            return
        request = self._requests.get(order.request_id)
        over = request is None or request.over
        waited = Duration(0) if request is None else request.waited(now)
        if request is not None and not over:
            request.accepted = True
        self._outbound.push(Declined(order.request_id, order.attempt, over, waited, why), now)

    # Sessions

    def _report(self, now: Instant) -> None:
        """Begins a session with all that this member holds, the oldest first."""
        self._session += 1
        self._answered = False
        self._outbound = Outbound(self._outbound.next, resend_ns=self._timing.resend_ns)
        self._inbound = Inbound(1)
        self._unanswered.clear()
        self._progress.clear()
        push = self._outbound.push
        for name, settled in self._unsettled.items():
            if settled.serial:
                push(settled, now)
            else:
                self._unsettled[name] = replace(settled, serial=self._outbound.next)
                push(self._unsettled[name], now)
        for request in self._requests.values():
            for attempt in request.running.values():
                attempt.told, runs = self._outbound.next, request.runs(attempt, now)
                push(runs, now)
                if request.over and not request.ended:
                    request.ended = attempt.told
            if request.running or request.over:
                continue
            if request.accepted:
                push(request.waits(now), now)
            else:
                self._tell_arrival(request, now)
        push(ReportDone(), now)
        if self._leaves is not None:
            self._leaves = push(Leaves(), now)

    def _alone_from(self) -> Instant:
        return after(self._heard_at, self._timing.island_after_ns)

    def _become_island(self, now: Instant) -> list[Order]:
        self.mode, self._island_since, self._urgent = Mode.ISLAND, now, True
        self._island = Island(self.share)
        # Nobody is there to be told; what counts is told anew when somebody is.
        self._outbound = Outbound(self._outbound.next, resend_ns=self._timing.resend_ns)
        self._unanswered.clear()
        self._progress.clear()
        silence, share = seconds(Duration(now - self._heard_at)), self.share
        out: list[Order] = [ModeChanged(self.mode, f"no scheduler for {silence}; share {share.rank + 1} of {share.of}")]
        held = tuple(self._requests.values())
        if self._budgets is not None:
            self._island.handle(self._budgets, now)
        orders = self._island.begin(self._policy, self._policy_hash, self.endpoints, held, now)
        return out + self._carry_out(orders, now) + self.agree()

    def _return(self, now: Instant, out: list[Order]) -> None:
        """A scheduler answers again: it decides from here on about all that is held here."""
        self._untaken = together(self.take_endpoint_times(now))
        self._island = None
        self._follow(out)
        self._report(now)

    # What is to be sent

    def outgoing(self, now: Instant) -> list[MemberEntry]:
        """Entries for the inbox; none where nothing is to be said yet."""
        if self.left:
            return []
        if self._island is None and self._progress and len(self._outbound) < self._bounds.window:
            progress = tuple(AttemptProgress(*key, tokens) for key, tokens in self._progress.items())
            self._progress.clear()
            self._outbound.push(Progressed(progress), now)
        entries: list[MemberEntry] = []
        beat = self._urgent or now >= after(self._said_at, self._timing.beat_ns)
        while True:
            first, messages = self._outbound.take(self._bounds.entry_messages, now)
            if not messages and not beat:
                return entries
            beat = self._urgent = False
            self._said_at = now
            entries.append(MemberEntry(self._head(first, now), messages))

    def _head(self, first: int, now: Instant) -> MemberHead:
        return MemberHead(
            self.name,
            self.incarnation,
            self.bound,
            self._island is not None,
            self._session,
            self._outbound.base,
            self._outbound.first,
            first,
            self._inbound.taken,
            now,
            self._stamps.echo(now),
            self.share if self._island is None else self._island.share,
            self._policy_hash,
            self._serves,
            staged=self.staged,
        )

    # For those who look

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How the endpoints have spent our part of their time, where we decide by ourselves."""
        untaken, self._untaken = self._untaken, ()
        return untaken if self._island is None else untaken + self._island.take_endpoint_times(now)

    def summary(self) -> Summary:
        if self._island is not None:
            return self._island.summary()
        known = self.endpoints.all()
        return summary_of(Rules(self._policy, self._policy_hash), self._requests.values(), known)
