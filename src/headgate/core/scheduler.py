"""What is to be done about what just happened?

The scheduler is a function of what happened. A host brings it events and the time; it answers
with commands. It has no clock, no I/O, no randomness and no log of its own, so the same events
at the same times always give the same commands, in whichever host it runs.

Theory of operation. A request is either queued or in flight, and ends exactly once. It is
bound to an endpoint only when that endpoint has room (late binding), so that as long as it
waits its order can still change. Three promises hold after every event:

- no endpoint has headroom while the head of a line that it could take waits, unless a band is
  held at its floor;
- nothing is queued that has waited too long or whose answer could no longer begin in time, and
  nothing whose caller's deadline has passed is still queued or in flight;
- every place taken at an endpoint belongs to an attempt that the host has not yet reported
  as ended. A place outlives its request where the request ended first.

Where no endpoint takes work and one is started when it is asked for, a request may be held meanwhile (`queues/holds`):
it waits by other bounds of length and time, and is a queued request as any other in all else.

All sharing is in predicted engine time, trued up by what engines report: what a request takes
is measured at its arrival (`measure`), charged when it is sent and settled when it has ended
(`attempts`).

What is not ideal: what does not fit holds up those behind it in its line, and a large request
may be passed by small ones of others until its time is over.

The methods stand in the order of a request's life; the policy comes last.
"""

from typing import assert_never

from headgate.core.admission.budgets import Budgets
from headgate.core.admission.feasibility import unreachable
from headgate.core.admission.gate import (
    Admitted,
    Refusal,
    again,
    drain,
    duplicate,
    expected_wait,
    instead,
    judge,
    late,
    no_hold,
    no_place,
    no_retry,
    over_budget,
    over_limit,
    servable,
    startable,
)
from headgate.core.admission.limits import TenantLimits
from headgate.core.admission.retry_after import bounded
from headgate.core.adoption import Arrears, running_again, waiting_again
from headgate.core.alarms import Agenda
from headgate.core.attempts import Attempts
from headgate.core.bills import bills_of
from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    BudgetsTold,
    Event,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    Progressed,
    Report,
    RequestArrived,
    RequestReported,
    RequestSettled,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.hedging import Hedging, second_endpoint
from headgate.core.measure import measure
from headgate.core.memory import Memory
from headgate.core.open_requests import OpenRequests
from headgate.core.orders import Orders
from headgate.core.overload import Overload
from headgate.core.prediction import Predictions
from headgate.core.queues.queue import Queue, why_expired
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import choose, why
from headgate.core.routing.reserves import closed_bands
from headgate.core.rules import Rules
from headgate.core.state import Attempt, Request
from headgate.core.summary import Summary, Waiting
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName, RequestId, TenantId, seconds

_LOST = (Outcome.QUEUE_FULL, Outcome.UNREACHABLE)
"""How those are refused who could not be served in time."""


class Scheduler:
    def __init__(self, *, counted_by: int = 1) -> None:
        """`counted_by` is how many schedulers share the endpoints, and so the time of each."""
        self._rules = Rules(Policy(), policy_hash="")
        self._agenda = Agenda()
        self._requests = OpenRequests(self._agenda)
        self._fleet = Fleet(self._rules, counted_by=counted_by)
        self._overload = Overload(self._rules)
        self._queue = Queue(self._rules, self._fleet, self._overload, self._agenda)
        self._predictions = Predictions()
        self._attempts = Attempts(self._rules, self._fleet, self._queue.backlog, self._predictions, self._agenda)
        self._retry_budget = RetryBudget(self._rules.policy.retry)
        self._hedging = Hedging(self._agenda)
        self._limits = TenantLimits()
        self._budgets = Budgets(self._rules)
        self._orders = Orders(self._agenda)
        self._held: tuple[ClassName, ...] = ()
        """Classes of which operators have ordered that nothing is sent."""
        self._sequence = 0
        self._now = Instant(0)

    def handle(self, event: Event, now: Instant) -> list[Command]:
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        out: list[Command] = []
        if due := self._agenda.ring(now):
            self._expire(now, out)
            self._miss_deadlines(event, now, out)
            self._attempts.prefilled(now)
            if self._orders.end_due(now):
                self._follow_orders(now)
        self._overload.tick(self._fleet, self._queue.floors, now)
        match event:
            case RequestArrived(ticket):
                self._arrive(ticket, now, out)
            case FirstToken(request_id, attempt):
                self._first_token(request_id, attempt, now, out)
            case Progressed():
                self._attempts.progressed(event, now)
            case AttemptEnded():
                self._attempt_ended(event, now, out)
            case RequestWithdrawn(request_id, cause):
                self._withdraw(request_id, cause, now, out)
            case TimerFired():
                pass
            case _:
                self._told(event, now, out)
        self._watch_endpoints(now, out)
        if self._queue.holds.starts:
            self._queue.release(now)
        self._dispatch(now, out)
        if due:
            self._hedge_silent(now, out)
        self._overload.watch(now)
        if self._budgets.news:
            out += self._budgets.take_news(now)
        return out

    def _told(self, event: FleetEvent | PolicyChanged | BudgetsTold | Report, now: Instant, out: list[Command]) -> None:
        """What is not about one request of ours."""
        match event:
            case PolicyChanged(policy, policy_hash):
                self._change_policy(policy, policy_hash, now, out)
            case AttemptReported():
                self._attempt_reported(event, now, out)
            case RequestReported():
                self._request_reported(event, now, out)
            case RequestSettled():
                self._arrears().of_settled(event, now)
            case BudgetsTold():
                self._budgets.told(event)
            case _:
                _note(self._fleet.told(event, now), out)

    def next_wakeup(self) -> Instant | None:
        """When the host must call again, if nothing happens before."""
        soonest = self._agenda.next()
        for other in (self._fleet.agenda.next(), self._overload.next_wakeup()):
            if other is not None and (soonest is None or other < soonest):
                soonest = other
        return soonest

    # Arrival

    def _arrive(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        assert ticket.request_id not in self._requests.by_id, f"request {ticket.request_id} arrived twice"
        verdict = judge(ticket, self._rules)
        if isinstance(verdict, Admitted):
            self._sequence += 1
            request = Request(ticket, verdict.service_class, verdict.pools, sequence=self._sequence, now=now)
            self._move(request, verdict)
            refusal = self._refusal(request, now)
            if refusal is None:
                self._requests.add(request)
                self._limits.take(ticket, request.prompt_tokens, request.output_tokens, now)
                self._budgets.reserve(request)
                self._queue.enter(request, now, out)
                return
            if refusal.outcome in _LOST:
                self._overload.lost(request)
            verdict = refusal
        out.append(self._refused(ticket, verdict, now))

    def _refused(
        self,
        ticket: Ticket,
        why: Refusal,
        now: Instant,
        *,
        attempts: int = 0,
        waited_ns: Duration = Duration(0),
        held_ns: Duration = Duration(0),
    ) -> End:
        name = why.service_class.name if why.service_class else None
        wait, left = bounded(why.retry_after_ns, why.outcome), self._limits.left(ticket.tenant, now)
        return End(ticket.request_id, why.outcome, name, attempts, waited_ns, wait, why.reason, left, held_ns)

    def _move(self, request: Request, admitted: Admitted) -> None:
        """Gives it this class and these pools, less what the ladder takes from it there."""
        request.service_class, request.pools, request.model = admitted.service_class, admitted.pools, admitted.model
        request.fell_back = admitted.model != request.ticket.model
        measure(request, self._predictions, self._fleet, self._rules)
        self._overload.degrade(request, self._fleet, level_min=self._budgets.level(request))
        if request.level:
            measure(request, self._predictions, self._fleet, self._rules)
        if self._budgets.economise(request, self._fleet, self._now):
            measure(request, self._predictions, self._fleet, self._rules)
        request.kind = (request.pools, request.service_class.band, request.long)
        self._budgets.move(request, self._now)

    def _refusal(self, request: Request, now: Instant) -> Refusal | None:
        """Why a request that the policy allows does not come in at this moment."""
        return (
            late(request, now)
            or duplicate(self._requests.first_of_key(request.ticket), request)
            or self._unserved(request, now)
            or over_limit(request, self._limits, now)
            or self._overload.refusal(request, self._queue.backlog, self._fleet, self._retry_budget, now)
            or (self._no_time_or_place(request, now) if request.hold is None else None)
            or over_budget(request, self._budgets, now)
            or no_retry(request, self._queue.backlog, self._retry_budget, now)
        )

    def _no_time_or_place(self, request: Request, now: Instant) -> Refusal | None:
        return no_place(request, self._fleet, self._queue.backlog, self._retry_budget, now) or unreachable(
            request, self._queue.patience(request, now), self._queue.backlog, self._fleet, self._rules
        )

    def _unserved(self, request: Request, now: Instant) -> Refusal | None:
        """Whether neither its own pools nor, inside the budget, those of a model that it falls back to can serve it.

        It may be that it is to be held until one of its own can.
        """
        if self._fleet.live(request.pools):
            return None
        other = instead(request.ticket, self._rules.classes[request.service_class.name], self._fleet, self._rules)
        if other is not None and self._retry_budget.take_for_pool(other.pools[0], now):
            self._move(request, other)
            return None
        holds, rules = self._queue.holds, self._rules
        if (pool := startable(request.service_class, request.pools, self._fleet, rules)) is None:
            return servable(request.service_class, request.pools, self._fleet, rules, holds=holds, now=now)
        refusal = no_hold(request, pool, self._queue.backlog, self._fleet, rules, holds=holds, now=now)
        if refusal is None:
            request.hold = pool
        return refusal

    # Queue

    def _expire(self, now: Instant, out: list[Command]) -> None:
        for request_id in self._queue.expiries.take():
            request = self._requests.by_id[request_id]
            self._queue.remove(request, now)
            if self._fleet.live(request.pools):
                self._give_up(request, now, out)
            elif not self._goes_elsewhere(request, now, out):
                reason = f"no endpoint of pool {', '.join(request.pools)} became ready in {seconds(request.waited_ns)}"
                wait = expected_wait(request.pools, self._fleet, self._rules, self._queue.holds, now)
                self._end(request, Outcome.NO_ENDPOINTS, reason, out, wait)

    def _goes_elsewhere(self, request: Request, now: Instant, out: list[Command]) -> bool:
        """Whether others take work than the cheap pools it has waited for. It goes there at once, or not at all."""
        verdict = judge(self._rules.without_gone_names(request.ticket), self._rules)
        if isinstance(verdict, Refusal) or request.fell_back or not self._budgets.thrifty(request):
            return False
        self._move(request, verdict)
        if live := self._fleet.live(request.pools) > 0:
            request.hold = None
            self._queue.enter(request, now, out)
        return live

    def _give_up(self, request: Request, now: Instant, out: list[Command]) -> None:
        """It has waited for as long as its class allows, or is worth."""
        self._overload.lost(request)
        wait = drain(request, self._queue.backlog, self._retry_budget, now)
        self._end(request, Outcome.EXPIRED, why_expired(request), out, wait)

    def _miss_deadlines(self, event: Event, now: Instant, out: list[Command]) -> None:
        """Ends those whose callers want no answer any more, wherever they are.

        An attempt that is told to have ended at this moment is looked at first: its caller may
        have the whole answer already. An attempt that is stopped says nothing about its endpoint.
        """
        for request_id in self._requests.deadlines.take():
            request = self._requests.by_id[request_id]
            if request.running is None:
                self._queue.remove(request, now)
                self._too_late(request, f'while it waited in class "{request.service_class.name}"', out)
            elif not (isinstance(event, AttemptEnded) and request.goes_by(event.request_id, event.attempt)):
                self._abort_all(request, "the caller's deadline has passed", out)
                self._too_late(request, f"while attempt {request.attempt} was running", out)

    def _too_late(self, request: Request, how: str, out: list[Command]) -> None:
        assert request.deadline is not None
        self._end(request, Outcome.TOO_LATE, request.deadline.missed(how), out)

    # Dispatch

    def _dispatch(self, now: Instant, out: list[Command]) -> None:
        """Fills every endpoint that has room, looking only at the pools where something changed.

        A place is given to whoever is first at its own pool, so that bands and turns hold at each
        pool by itself. A request that may use several pools goes to the least loaded endpoint
        because the pools are visited in that order.
        """
        changed = self._fleet.changed
        while changed:
            if not self._queue.backlog.length:
                changed.clear()
            elif (pool := self._fleet.roomiest()) is not None and not self._give_place(pool, now, out):
                del changed[pool]

    def _give_place(self, pool: PoolName, now: Instant, out: list[Command]) -> bool:
        def start(request: Request) -> int | None:
            if request.service_class.name in self._held:
                return None
            endpoint = choose(request, (pool,), self._fleet)
            return None if endpoint is None else self._start(request, endpoint, now, out)

        classes = self._rules.policy.classes
        closed = closed_bands(self._fleet.pools[pool], classes, self._queue.backlog.of_class)
        return self._queue.backlog.offer(pool, start, closed)

    def _start(self, request: Request, endpoint: EndpointRecord, now: Instant, out: list[Command]) -> int:
        """Sends it; what its tenant is charged."""
        ticket = request.ticket
        self._queue.leave(request, now)
        self._overload.went(request)
        if not request.attempt and not request.fell_back:
            client_retry = ticket.client_retries > 0
            self._retry_budget.first_attempt(ticket.tenant, endpoint.pool, now, client_retry=client_retry)
        request.running = self._send(request, endpoint, now, out)
        if request.attempt < self._rules.policy.retry.attempts_max:
            self._hedging.watch(request, endpoint.pool, now)
        return request.running.charged

    def _send(
        self, request: Request, endpoint: EndpointRecord, now: Instant, out: list[Command], *, hedge: bool = False
    ) -> Attempt:
        ticket, service_class = request.ticket, request.service_class
        attempt = self._attempts.open(request, endpoint, now)
        out.append(
            Dispatch(
                ticket.request_id,
                request.attempt,
                endpoint.id,
                endpoint.pool,
                service_class.name,
                request.waited_ns,
                service_class.first_token_ns_max,
                service_class.idle_ns_max,
                service_class.total_ns_max,
                service_class.caps,
                why(endpoint, attempt.reservation),
                level=request.level,
                hedge=hedge,
                limits=self._limits.left(ticket.tenant, now),
                model=None if request.model == ticket.model else request.model,
                held_ns=request.held_ns,
            )
        )
        return attempt

    # A second attempt while the first is silent

    def _hedge_silent(self, now: Instant, out: list[Command]) -> None:
        """Asks a second endpoint for those whose first has been silent for unusually long.

        It goes where there is room after all who wait have been served. Where it cannot be sent
        it is looked at again after as long.
        """
        for request_id in self._hedging.silent.take():
            request = self._requests.by_id[request_id]
            assert request.running is not None, f"request {request_id} is watched but does not run"
            overload, budget = self._overload, self._retry_budget
            endpoint = second_endpoint(request, overload=overload, fleet=self._fleet, budget=budget, now=now)
            if endpoint is None:
                self._hedging.watch(request, request.running.endpoint.pool, now)
            else:
                request.hedge = hedge = self._send(request, endpoint, now, out, hedge=True)
                self._queue.backlog.settle(hedge.band, endpoint.pool, hedge.account, hedge.charged)

    def _speaks(self, request: Request, attempt: Attempt, now: Instant, out: list[Command]) -> None:
        """This attempt answers the request; the other one, if there are two, is let go."""
        if (other := self._hedging.spoke(request, attempt, now)) is not None:
            self._abort(request, other, f"attempt {attempt.number} was the first to answer", out)

    def _goes_on(
        self, request: Request, attempt: Attempt, event: AttemptEnded, now: Instant, out: list[Command]
    ) -> bool:
        """Whether the request goes on without this attempt, because of another one that is under way."""
        if request.hedge is None:
            self._hedging.unwatch(request)
            return False
        other = request.beside(attempt)
        if other is None or event.ending in (AttemptEnding.COMPLETED, AttemptEnding.REFUSED):
            self._speaks(request, attempt, now, out)
            return False
        request.running, request.hedge = other, None
        if request.deadline is not None and request.deadline.passed(now):
            self._abort(request, other, "the caller's deadline has passed", out)
            self._too_late(request, f"while attempt {other.number} was running", out)
        return True

    # While it runs

    def _first_token(self, request_id: RequestId, number: int, now: Instant, out: list[Command]) -> None:
        attempt = self._attempts.get(request_id, number)
        if attempt is None:
            return
        _note(self._fleet.succeeded(attempt.endpoint, now), out)
        request = self._requests.by_id.get(request_id)
        if request is not None and not attempt.let_go and not request.first_token:
            self._hedging.learn(request, attempt.endpoint.pool, Duration(now - attempt.heard_at))
            self._speaks(request, attempt, now, out)
            self._requests.began(request)
        self._attempts.began(attempt, now)

    def _withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        request = self._requests.by_id.get(request_id)
        if request is None:
            return
        if request.running is not None:
            self._abort_all(request, cause.value, out)
        else:
            self._queue.remove(request, now)
        if cause is WithdrawalCause.CLIENT_LEFT:
            self._end(request, Outcome.CANCELLED, "the client left", out)
        else:
            outcome = Outcome.DRAINING if request.running is None else Outcome.EVICTED
            self._end(request, outcome, "this process is leaving and its grace time is over", out, SECOND)

    def _watch_endpoints(self, now: Instant, out: list[Command]) -> None:
        self._fleet.call_back(now)
        if not self._fleet.agenda.ring(now):
            return
        self._fleet.return_due(now)
        stalled = self._fleet.stalled(now)
        if not stalled:
            return
        for endpoint in stalled.values():
            out += self._fleet.eject_stalled(endpoint, now)
        for (request_id, _), attempt in self._attempts.by_number.items():
            request = self._requests.by_id.get(request_id)
            if attempt.stream and attempt.endpoint.id in stalled and request is not None and not attempt.let_go:
                self._abort(request, attempt, "its endpoint shows no sign of life", out)

    def _abort_all(self, request: Request, reason: str, out: list[Command]) -> None:
        for attempt in request.in_flight():
            self._abort(request, attempt, reason, out)

    def _abort(self, request: Request, attempt: Attempt, reason: str, out: list[Command]) -> None:
        out.append(Abort(request.ticket.request_id, attempt.number, attempt.endpoint.id, reason))

    # The end

    def _attempt_ended(self, event: AttemptEnded, now: Instant, out: list[Command]) -> None:
        attempt = self._attempts.get(event.request_id, event.attempt)
        if attempt is None:
            return
        if not attempt.let_go:
            out += self._fleet.attempt_ended(attempt.endpoint, event, now)
        request = self._requests.by_id.get(event.request_id)
        tokens = self._attempts.ended(attempt, request, event, now)
        if not attempt.let_go:
            self._limits.attempt_ended(event.request_id, tokens, now)
        if request is None or attempt.let_go or self._goes_on(request, attempt, event, now, out):
            return
        request.running = None
        match event.ending:
            case AttemptEnding.COMPLETED:
                self._end(request, Outcome.COMPLETED, "", out)
            case AttemptEnding.REFUSED:
                self._end(request, Outcome.ENGINE_REFUSED, event.detail, out)
            case AttemptEnding.FAILED:
                self._retry(request, attempt, event.detail, now, out, silent=False)
            case AttemptEnding.SILENT:
                self._retry(request, attempt, event.detail, now, out, silent=True)
            case AttemptEnding.ABORTED:
                # A request that outlives an abort was aborted because its endpoint stalled.
                self._retry(request, attempt, "its endpoint showed no sign of life", now, out, silent=True)
            case _:
                assert_never(event.ending)

    def _retry(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, silent: bool
    ) -> None:
        """Puts it back at the head of its tenant, for another endpoint to try.

        Only as long as its caller still waits for it, nothing has reached the caller, the present
        policy has a place for it, and the budgets agree.
        """
        outcome = Outcome.ENGINE_SILENT if silent else Outcome.ENGINE_FAILED
        attempts_max = self._rules.policy.retry.attempts_max
        verdict = again(request, self._fleet, self._rules, holds=self._queue.holds, now=now)
        if request.deadline is not None and request.deadline.passed(now):
            self._too_late(request, f"when attempt {request.attempt} ended: {detail}", out)
        elif request.first_token:
            self._end(request, outcome, f"after the first token: {detail}", out, SECOND)
        elif request.attempt >= attempts_max:
            self._end(request, outcome, f"attempt {request.attempt} of {attempts_max}: {detail}", out, SECOND)
        elif isinstance(verdict, Refusal):
            self._end(request, verdict.outcome, f"{verdict.reason} (after: {detail})", out, verdict.retry_after_ns)
        elif not self._retry_budget.take_again(attempt, verdict.pools, now, after_silence=silent):
            self._end(request, outcome, f"not tried again, the retry budget is used up: {detail}", out, SECOND)
        else:
            request.avoid = attempt.endpoint
            self._move(request, verdict)
            request.hold = self._queue.hold_again(request, now)
            self._queue.enter(request, now, out)

    def _end(
        self, request: Request, outcome: Outcome, reason: str, out: list[Command], retry_after: Duration | None = None
    ) -> None:
        self._requests.remove(request)
        self._hedging.unwatch(request)
        request_id, name, wait = request.ticket.request_id, request.service_class.name, bounded(retry_after, outcome)
        self._limits.request_ended(request_id, self._now, in_flight=request.running is not None)
        # With an answer that is whole they have been told already.
        left = None if outcome is Outcome.COMPLETED else self._limits.left(request.ticket.tenant, self._now)
        attempts, waited_ns, held_ns = request.attempt, request.waited_ns, request.held_ns
        bills = bills_of(request, outcome, self._attempts, self._rules, self._now)
        reserved = self._budgets.settle(request, bills)
        out.append(End(request_id, outcome, name, attempts, waited_ns, wait, reason, left, held_ns, bills, reserved))

    # Policy

    def _change_policy(self, policy: Policy, policy_hash: str, now: Instant, out: list[Command]) -> None:
        """Takes the new policy at once.

        What waits is judged anew, in the order of arrival: a request whose tenant or model has
        gone is refused for that reason, one whose class has gone is classified again, and one
        whose pools have gone moves to those that serve its model. It keeps the time by which
        it must be served, and its caller's deadlines. What is in flight runs to its end under the
        limits it was sent with.
        """
        self._rules = Rules(policy, policy_hash)
        self._retry_budget.change_rules(policy)
        self._hedging.change_policy(policy)
        self._orders.change(policy.orders, now)
        self._fleet.change_rules(self._rules, now)
        self._queue.change_rules(self._rules)
        self._attempts.change_rules(self._rules, self._queue.backlog)
        waiting = [request for request in self._requests.by_id.values() if request.running is None]
        self._overload.change_rules(self._rules, waiting)
        self._budgets.change_rules(self._rules)
        self._follow_orders(now)
        for request in sorted(waiting, key=lambda each: each.sequence):
            if request.fell_back:
                verdict = again(request, self._fleet, self._rules, holds=self._queue.holds, now=now)
            else:
                verdict = judge(self._rules.without_gone_names(request.ticket), self._rules)
            if isinstance(verdict, Refusal):
                self._queue.leave(request, now)
                self._end(request, verdict.outcome, verdict.reason, out, verdict.retry_after_ns)
            elif request.hold is None:
                self._move(request, verdict)
                self._queue.push(request)
            else:
                held = self._queue.holds.remove(request)
                self._move(request, verdict)
                self._queue.hold_anew(request, now, held=held)
                self._queue.push(request)

    def _follow_orders(self, now: Instant) -> None:
        """Goes by the orders that are in force from here on, and by the limits of the policy beside them."""
        orders, tenants = self._orders, self._rules.policy.tenants
        open_requests = (each.ticket for each in self._requests.by_id.values())
        self._limits.change_rules(orders.throttled(tenants), open_requests, now)
        self._fleet.drain(orders.drained())
        self._overload.pin(orders.pinned(), self._fleet, self._queue.floors)
        self._held = self._queue.backlog.apart = orders.held()
        # Who was held may go where there is room already.
        self._fleet.changed.update(dict.fromkeys(self._fleet.pools))

    # From one scheduler to the next

    def counters(self, now: Instant) -> Counters:
        """What a successor must know that nobody else can tell it."""
        return self._memory().counters(now)

    def restore(self, counters: Counters, now: Instant, *, told_ns_ago: Duration = Duration(0)) -> None:
        """Goes on from what a predecessor has counted and learned, at least so long ago.

        What its policy does not name any more is left out.
        """
        assert self._rules.hash, "restore() before the policy was told: nothing in the counters has a meaning yet"
        assert not self._requests.by_id, "restore() with requests open: it would count them twice"
        assert not self._attempts.by_number, "restore() with attempts open: it would count them twice"
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        self._memory().restore(counters, self._rules.policy, then=Instant(now - told_ns_ago), now=now)

    def _memory(self) -> Memory:
        learned = (self._limits, self._retry_budget, self._predictions, self._hedging, self._overload)
        return Memory(self._queue, *learned, self._fleet, self._budgets)

    def _request_reported(self, event: RequestReported, now: Instant, out: list[Command]) -> None:
        """Lets a request wait on that another scheduler let in."""
        ticket = event.ticket
        assert ticket.request_id not in self._requests.by_id, f"request {ticket.request_id} was reported twice"
        verdict = judge(self._rules.without_gone_names(ticket), self._rules)
        if isinstance(verdict, Refusal):
            waited, held = event.waited_ns, event.held_ns
            end = self._refused(ticket, verdict, now, attempts=event.attempts, waited_ns=waited, held_ns=held)
            out.append(end)
            return
        self._sequence += 1
        request = waiting_again(event, verdict, sequence=self._sequence, now=now)
        self._move(request, verdict)
        self._requests.add(request)
        if event.failed_at is not None:
            request.avoid = self._fleet.endpoints.get(event.failed_at)
        arrears = self._arrears()
        arrears.of_request(request, event, now)
        arrears.of_retries(request, event.counted, now)
        if request.deadline is not None and request.deadline.passed(now):
            self._too_late(request, f'while it waited in class "{request.service_class.name}"', out)
            return
        if not self._fleet.live(request.pools):
            self._wait_elsewhere(request, now)
        self._overload.stand(request, self._queue.backlog, self._fleet)
        if request.hold is None and not self._queue.patience(request, now):
            self._give_up(request, now, out)
        else:
            self._queue.enter(request, now, out)

    def _wait_elsewhere(self, request: Request, now: Instant) -> None:
        """Nobody that it was meant for takes work: it falls back, or is held, however many are held already.

        An endpoint that has joined may be just about to be said to be ready: who was not held waits for it.
        """
        other = instead(request.ticket, self._rules.classes[request.service_class.name], self._fleet, self._rules)
        if other is not None and self._retry_budget.take_for_pool(other.pools[0], now):
            self._move(request, other)
        elif request.held_ns or not self._fleet.warming(request.pools):
            request.hold = startable(request.service_class, request.pools, self._fleet, self._rules)
            if request.hold is not None:
                self._queue.holds.expect(request.pools)

    def _attempt_reported(self, event: AttemptReported, now: Instant, out: list[Command]) -> None:
        """Books the place of an attempt that another scheduler sent, and goes on with its request."""
        ticket = event.ticket
        assert self._attempts.get(ticket.request_id, event.attempt) is None, f"attempt {event.attempt} was told twice"
        request = self._requests.by_id.get(ticket.request_id)
        if known := request is not None:
            assert request.running is not None, f"request {ticket.request_id} was reported to wait and to run"
        else:
            self._sequence += 1
            request = running_again(event, self._rules, sequence=self._sequence, now=now)
            measure(request, self._predictions, self._fleet, self._rules)
        endpoint = self._fleet.adopt(event.endpoint_id, event.pool, now)
        attempt = self._attempts.adopt(request, endpoint, event, now)
        arrears = self._arrears()
        arrears.of_attempt(request, attempt, event, now)
        if event.let_go:
            return
        if not known:
            arrears.of_request(request, event, now)
        if event.over:
            self._limits.request_ended(ticket.request_id, now, in_flight=True)
        else:
            self._run_on(request, attempt, event, now, out)

    def _run_on(
        self, request: Request, attempt: Attempt, event: AttemptReported, now: Instant, out: list[Command]
    ) -> None:
        """The request runs where this attempt is, or as well where it is."""
        known, attempts_max = request.running is not None, self._rules.policy.retry.attempts_max
        if not known:
            self._requests.add(request)
            request.running = attempt
        else:
            self._hedging.unwatch(request)
            request.running, request.hedge = (request.running, attempt) if event.hedge else (attempt, request.running)
        if attempt.began and not request.first_token:
            self._speaks(request, attempt, now, out)
            self._requests.began(request)
        elif request.first_token and (other := request.beside(attempt)) is not None:
            self._speaks(request, other, now, out)
        if request.deadline is not None and request.deadline.passed(now):
            self._abort_all(request, "the caller's deadline has passed", out)
            self._too_late(request, f"while attempt {request.attempt} was running", out)
        elif not (known or event.hedge or request.first_token or attempt.number >= attempts_max):
            self._hedging.watch(request, attempt.endpoint.pool, Instant(now - event.age_ns))

    def _arrears(self) -> Arrears:
        backlog, predictions = self._queue.backlog, self._predictions
        return Arrears(self._rules, self._limits, self._retry_budget, backlog, predictions, budgets=self._budgets)

    # For those who look

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How each endpoint has spent its time since this was last asked; no decision goes by it."""
        return self._fleet.take_times(now)

    def limits_left(self, tenant: TenantId, now: Instant) -> LimitsLeft | None:
        """What a tenant has left of its rates; None where it has none."""
        return self._limits.left(tenant, now)

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        """Where every budget stands; of a tenant, those of its path."""
        return self._budgets.left(now, tenant)

    def summary(self) -> Summary:
        backlog = self._queue.backlog
        return Summary(
            policy_hash=self._rules.hash,
            queued={each.name: backlog.in_class(each.name) for each in self._rules.policy.classes},
            requests=len(self._requests.by_id),
            endpoints=tuple(each.seen() for each in self._fleet.endpoints.values()),
            given_up=tuple(self._overload.given_up()),
            prefix_hashes=tuple(
                (name, size) for name, each in self._fleet.pools.items() if (size := each.prefixes.size)
            ),
            waiting=tuple(Waiting(*where, work) for where, work in backlog.work.by_pools_and_band().items()),
            held=dict(backlog.held),
            queued_tenants=backlog.by_tenant(),
        )


def _note(command: Command | None, out: list[Command]) -> None:
    if command is not None:
        out.append(command)
