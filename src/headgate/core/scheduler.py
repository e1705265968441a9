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

from headgate.core.admission.feasibility import unreachable
from headgate.core.admission.gate import (
    Admitted,
    Refusal,
    drain,
    duplicate,
    expected_wait,
    instead,
    judge,
    late,
    no_hold,
    no_place,
    no_retry,
    over_limit,
    servable,
    startable,
)
from headgate.core.admission.limits import TenantLimits
from headgate.core.admission.retry_after import bounded
from headgate.core.alarms import Agenda, Alarms
from headgate.core.attempts import Attempts
from headgate.core.commands import Abort, Command, Dispatch, End, Hold
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.hedging import Hedging
from headgate.core.measure import meant, measure
from headgate.core.open_requests import OpenRequests
from headgate.core.overload import Overload
from headgate.core.prediction import Predictions
from headgate.core.queues.bands import Backlog
from headgate.core.queues.floors import Floors
from headgate.core.queues.holds import Holds
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_seconds import choose, why
from headgate.core.routing.reserves import closed_bands
from headgate.core.rules import Rules
from headgate.core.state import Attempt, Request
from headgate.core.summary import EndpointSummary, Summary, Waiting
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant, PoolName, RequestId, after, seconds

_LOST = (Outcome.QUEUE_FULL, Outcome.UNREACHABLE)
"""How those are refused who could not be served in time."""


class Scheduler:
    def __init__(self) -> None:
        self._rules = Rules(Policy(), policy_hash="")
        self._agenda = Agenda()
        self._requests = OpenRequests(self._agenda)
        self._floors = Floors()
        self._backlog = Backlog(self._floors)
        self._expiries: Alarms[RequestId] = Alarms(self._agenda)
        self._holds = Holds()
        self._fleet = Fleet(self._rules)
        self._predictions = Predictions()
        self._attempts = Attempts(self._rules, self._fleet, self._backlog, self._predictions, self._agenda)
        self._retry_budget = RetryBudget(self._rules.policy.retry)
        self._hedging = Hedging(self._agenda)
        self._limits = TenantLimits()
        self._overload = Overload(self._rules)
        self._sequence = 0
        self._now = Instant(0)

    def handle(self, event: Event, now: Instant) -> list[Command]:
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        out: list[Command] = []
        if due := self._agenda.ring(now):
            self._expire(now, out)
            self._miss_deadlines(event, now, out)
            self._attempts.prefilled()
        self._overload.tick(self._fleet, self._floors, now)
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
            case PolicyChanged(policy, policy_hash):
                self._change_policy(policy, policy_hash, now, out)
            case _:
                _note(self._fleet.told(event, now), out)
        self._watch_endpoints(now, out)
        if self._holds.starts:
            self._release(now)
        self._dispatch(now, out)
        if due:
            self._hedge_silent(now, out)
        self._overload.watch(now)
        return out

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
                self._enqueue(request, now, out)
                return
            if refusal.outcome in _LOST:
                self._overload.lost(request)
            verdict = refusal
        name = verdict.service_class.name if verdict.service_class else None
        wait, left = bounded(verdict.retry_after_ns, verdict.outcome), self._limits.left(ticket.tenant, now)
        out.append(End(ticket.request_id, verdict.outcome, name, 0, Duration(0), wait, verdict.reason, left))

    def _move(self, request: Request, admitted: Admitted) -> None:
        """Gives it this class and these pools, less what the ladder takes from it there."""
        request.service_class, request.pools, request.model = admitted.service_class, admitted.pools, admitted.model
        request.fell_back = admitted.model != request.ticket.model
        measure(request, self._predictions, self._fleet, self._rules)
        self._overload.degrade(request, self._fleet)
        if request.level:
            measure(request, self._predictions, self._fleet, self._rules)
        request.kind = (request.pools, request.service_class.band, request.long)

    def _refusal(self, request: Request, now: Instant) -> Refusal | None:
        """Why a request that the policy allows does not come in at this moment."""
        return (
            late(request, now)
            or duplicate(self._requests.first_of_key(request.ticket), request)
            or self._unserved(request, now)
            or over_limit(request, self._limits, now)
            or self._overload.refusal(request, self._backlog, self._fleet, self._retry_budget, now)
            or (self._no_time_or_place(request, now) if request.hold is None else None)
            or no_retry(request, self._backlog, self._retry_budget, now)
        )

    def _no_time_or_place(self, request: Request, now: Instant) -> Refusal | None:
        return no_place(request, self._fleet, self._backlog, self._retry_budget, now) or unreachable(
            request, self._patience(request, now), self._backlog, self._fleet, self._rules
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
        if (pool := startable(request.service_class, request.pools, self._fleet, self._rules)) is None:
            return servable(request.service_class, request.pools, self._fleet, self._rules, holds=self._holds, now=now)
        refusal = no_hold(request, pool, self._backlog, self._fleet, self._rules, holds=self._holds, now=now)
        if refusal is None:
            request.hold = pool
        return refusal

    # Queue

    def _enqueue(self, request: Request, now: Instant, out: list[Command]) -> None:
        request.queued_since = now
        hold = request.hold
        patience = self._patience(request, now) if hold is None else self._hold(request, hold, out)
        self._set_expiry(request, patience, now)
        self._push(request)

    def _set_expiry(self, request: Request, patience: Duration, now: Instant) -> None:
        expires, deadline = after(now, patience), request.deadline
        if deadline is None or expires < deadline.at:
            self._expiries.set(request.ticket.request_id, expires)

    def _patience(self, request: Request, now: Instant) -> Duration:
        """How long it may wait from here on, by its class, if it is to be worth sending."""
        # One patience for all attempts together: what it has waited before is spent, but for what it was held.
        patience = request.service_class.queue_wait_ns_max - request.waited_ns + request.held_ns
        if request.target is not None:
            # Once its answer cannot begin in time even where least is ahead of it, computing it would be for nothing.
            patience = min(patience, request.target - request.soonest_ns - now)
        return Duration(max(0, patience))

    def _push(self, request: Request) -> None:
        self._backlog.push(request)
        self._overload.queued(request)
        self._fleet.waited_for(request.pools)

    def _stop_waiting(self, request: Request, now: Instant) -> None:
        # Whoever stood behind it in its line is the next one, and may fit where this one did not.
        self._fleet.waited_for(request.pools)
        self._expiries.clear(request.ticket.request_id)
        self._overload.left(request)
        if request.hold is not None and self._holds.remove(request):
            request.held_ns = Duration(request.held_ns + now - request.queued_since)
        request.waited_ns = Duration(request.waited_ns + now - request.queued_since)

    def _expire(self, now: Instant, out: list[Command]) -> None:
        for request_id in self._expiries.take():
            request = self._requests.by_id[request_id]
            self._backlog.remove(request)
            self._stop_waiting(request, now)
            waited = seconds(request.waited_ns)
            if self._fleet.live(request.pools):
                reason = f"waited {waited}{_part_held(request)}, {_why_expired(request)}"
                self._overload.lost(request)
                self._end(request, Outcome.EXPIRED, reason, out, drain(request, self._backlog, self._retry_budget, now))
            else:
                reason = f"no endpoint of pool {', '.join(request.pools)} became ready in {waited}"
                wait = expected_wait(request.pools, self._fleet, self._rules, self._holds, now)
                self._end(request, Outcome.NO_ENDPOINTS, reason, out, wait)

    def _miss_deadlines(self, event: Event, now: Instant, out: list[Command]) -> None:
        """Ends those whose callers want no answer any more, wherever they are.

        An attempt that is told to have ended at this moment is looked at first: its caller may
        have the whole answer already. An attempt that is stopped says nothing about its endpoint.
        """
        for request_id in self._requests.deadlines.take():
            request = self._requests.by_id[request_id]
            if request.running is None:
                self._backlog.remove(request)
                self._stop_waiting(request, now)
                self._too_late(request, f'while it waited in class "{request.service_class.name}"', out)
            elif not (isinstance(event, AttemptEnded) and _is_about(event, request)):
                self._abort_all(request, "the caller's deadline has passed", out)
                self._too_late(request, f"while attempt {request.attempt} was running", out)

    def _too_late(self, request: Request, how: str, out: list[Command]) -> None:
        assert request.deadline is not None
        self._end(request, Outcome.TOO_LATE, request.deadline.missed(how), out)

    # Held until an endpoint has started

    def _hold(self, request: Request, pool: PoolName, out: list[Command]) -> Duration:
        """Holds it; for how long, by its class."""
        self._holds.add(request, self._fleet)
        names = ", ".join(request.pools)
        reason = f"no endpoint of pool {names} takes work; held for the first endpoint of pool {pool} to start"
        out.append(Hold(request.ticket.request_id, pool, request.service_class.name, reason))
        return Duration(max(0, (request.service_class.start_wait_ns or 0) - request.held_ns))

    def _release(self, now: Instant) -> None:
        """Lets those wait as all others do for whom an endpoint takes work."""
        for request in self._holds.over(self._fleet, now):
            _note_held(request, now)
            self._expiries.clear(request.ticket.request_id)
            self._set_expiry(request, self._patience(request, now), now)

    def _hold_again(self, request: Request, now: Instant) -> PoolName | None:
        """For which pool's first endpoint it may be held after an attempt, if nobody is left to try and there is room.

        Where there is no room it waits as all others do.
        """
        if self._fleet.live(request.pools):
            return None
        pool = startable(request.service_class, request.pools, self._fleet, self._rules)
        if pool is None or no_hold(request, pool, self._backlog, self._fleet, self._rules, holds=self._holds, now=now):
            return None
        return pool

    def _hold_anew(self, request: Request, now: Instant, *, held: bool) -> None:
        """Counts it where it belongs by a new policy; `held` says whether it was held until here."""
        request.hold = startable(request.service_class, request.pools, self._fleet, self._rules)
        if held and request.hold is None:
            _note_held(request, now)
        elif held:
            self._holds.add(request, self._fleet)

    # Dispatch

    def _dispatch(self, now: Instant, out: list[Command]) -> None:
        """Fills every endpoint that has room, looking only at the pools where something changed.

        A place is given to whoever is first at its own pool, so that bands and turns hold at each
        pool by itself. A request that may use several pools goes to the least loaded endpoint
        because the pools are visited in that order.
        """
        changed = self._fleet.changed
        while changed:
            if not self._backlog.length:
                changed.clear()
            elif (pool := self._fleet.roomiest()) is not None and not self._give_place(pool, now, out):
                del changed[pool]

    def _give_place(self, pool: PoolName, now: Instant, out: list[Command]) -> bool:
        def start(request: Request) -> int | None:
            endpoint = choose(request, (pool,), self._fleet)
            return None if endpoint is None else self._start(request, endpoint, now, out)

        classes = self._rules.policy.classes
        closed = closed_bands(self._fleet.pools[pool], classes, self._backlog.of_class)
        return self._backlog.offer(pool, start, closed)

    def _start(self, request: Request, endpoint: EndpointRecord, now: Instant, out: list[Command]) -> int:
        """Sends it; what its tenant is charged."""
        ticket = request.ticket
        self._stop_waiting(request, now)
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
            endpoint = self._hedge_endpoint(request, request.running, now)
            if endpoint is None:
                self._hedging.watch(request, request.running.endpoint.pool, now)
            else:
                request.hedge = hedge = self._send(request, endpoint, now, out, hedge=True)
                self._backlog.settle(hedge.band, endpoint.pool, hedge.account, hedge.charged)

    def _hedge_endpoint(self, request: Request, silent: Attempt, now: Instant) -> EndpointRecord | None:
        """Another endpoint with room, if nothing is given up there and the budgets agree."""
        if not self._overload.allows_hedging(request.pools):
            return None
        request.avoid = silent.endpoint
        endpoint = choose(request, request.pools, self._fleet)
        if endpoint is None or endpoint is silent.endpoint:
            return None
        agreed = self._retry_budget.take(request.ticket.tenant, endpoint.pool, now, after_silence=False)
        return endpoint if agreed else None

    def _speaks(self, request: Request, attempt: Attempt, now: Instant, out: list[Command]) -> None:
        """This attempt answers the request; the other one, if there are two, is let go."""
        self._hedging.unwatch(request)
        if (other := request.beside(attempt)) is not None:
            if other is request.running:
                self._hedging.learn(request, other.endpoint.pool, Duration(now - other.heard_at))
            other.let_go = True
            self._abort(request, other, f"attempt {attempt.number} was the first to answer", out)
        request.running, request.hedge = attempt, None

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
            self._backlog.remove(request)
            self._stop_waiting(request, now)
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
            self._judge_endpoint(attempt.endpoint, event, now, out)
        tokens = self._attempts.ended(attempt, event)
        if not attempt.let_go:
            self._limits.attempt_ended(event.request_id, tokens, now)
        request = self._requests.by_id.get(event.request_id)
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

    def _judge_endpoint(self, endpoint: EndpointRecord, event: AttemptEnded, now: Instant, out: list[Command]) -> None:
        match event.ending:
            case AttemptEnding.COMPLETED | AttemptEnding.REFUSED:
                _note(self._fleet.succeeded(endpoint, now), out)
            case AttemptEnding.FAILED | AttemptEnding.SILENT:
                out += self._fleet.failed(endpoint, event.detail, now)
            case AttemptEnding.ABORTED:
                pass
            case _:
                assert_never(event.ending)

    def _judge(self, request: Request, now: Instant) -> Admitted | Refusal:
        """Where it may be tried again: at its own pools or, if none of them takes work, where it falls back to."""
        ticket = self._rules.without_gone_names(request.ticket)
        verdict = judge(ticket, self._rules)
        if isinstance(verdict, Refusal):
            return verdict
        pools = meant(request, verdict.pools, self._fleet, self._rules)
        if self._fleet.live(pools):
            return verdict
        other = instead(ticket, verdict.service_class, self._fleet, self._rules)
        return (
            other
            or servable(verdict.service_class, pools, self._fleet, self._rules, holds=self._holds, now=now)
            or verdict
        )

    def _retry(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, silent: bool
    ) -> None:
        """Puts it back at the head of its tenant, for another endpoint to try.

        Only as long as its caller still waits for it, nothing has reached the caller, the present
        policy has a place for it, and the budgets agree.
        """
        outcome = Outcome.ENGINE_SILENT if silent else Outcome.ENGINE_FAILED
        attempts_max = self._rules.policy.retry.attempts_max
        verdict = self._judge(request, now)
        if request.deadline is not None and request.deadline.passed(now):
            self._too_late(request, f"when attempt {request.attempt} ended: {detail}", out)
        elif request.first_token:
            self._end(request, outcome, f"after the first token: {detail}", out, SECOND)
        elif request.attempt >= attempts_max:
            self._end(request, outcome, f"attempt {request.attempt} of {attempts_max}: {detail}", out, SECOND)
        elif isinstance(verdict, Refusal):
            self._end(request, verdict.outcome, f"{verdict.reason} (after: {detail})", out, verdict.retry_after_ns)
        elif not self._take_retry(attempt, verdict, now, silent=silent):
            self._end(request, outcome, f"not tried again, the retry budget is used up: {detail}", out, SECOND)
        else:
            request.avoid = attempt.endpoint
            self._move(request, verdict)
            request.hold = self._hold_again(request, now)
            self._enqueue(request, now, out)

    def _take_retry(self, attempt: Attempt, admitted: Admitted, now: Instant, *, silent: bool) -> bool:
        """Whether the budgets allow another attempt. One at the pools of another model counts there."""
        pool = attempt.endpoint.pool
        if pool not in admitted.pools:
            pool = admitted.pools[0]
        return self._retry_budget.take(attempt.ticket.tenant, pool, now, after_silence=silent)

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
        out.append(End(request_id, outcome, name, attempts, waited_ns, wait, reason, left, held_ns))

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
        self._limits.change_rules(policy.tenants, (each.ticket for each in self._requests.by_id.values()), now)
        self._fleet.change_rules(self._rules)
        self._holds.change_rules(self._rules)
        self._floors.change_rules(self._rules.floors)
        self._backlog = Backlog(self._floors)
        self._attempts.change_rules(self._rules, self._backlog)
        waiting = [request for request in self._requests.by_id.values() if request.running is None]
        self._overload.change_rules(self._rules, waiting)
        for request in sorted(waiting, key=lambda each: each.sequence):
            if request.fell_back:
                verdict = self._judge(request, now)
            else:
                verdict = judge(self._rules.without_gone_names(request.ticket), self._rules)
            if isinstance(verdict, Refusal):
                self._stop_waiting(request, now)
                self._end(request, verdict.outcome, verdict.reason, out)
            elif request.hold is None:
                self._move(request, verdict)
                self._push(request)
            else:
                held = self._holds.remove(request)
                self._move(request, verdict)
                self._hold_anew(request, now, held=held)
                self._push(request)

    # For those who look

    def summary(self) -> Summary:
        return Summary(
            policy_hash=self._rules.hash,
            queued={each.name: self._backlog.in_class(each.name) for each in self._rules.policy.classes},
            requests=len(self._requests.by_id),
            endpoints=tuple(_seen(each) for each in self._fleet.endpoints.values()),
            given_up=tuple(self._overload.given_up()),
            prefix_hashes=tuple(
                (name, size) for name, each in self._fleet.pools.items() if (size := each.prefixes.size)
            ),
            waiting=tuple(Waiting(*where, work) for where, work in self._backlog.work.by_pools_and_band().items()),
            held=dict(self._backlog.held),
        )


def _seen(endpoint: EndpointRecord) -> EndpointSummary:
    """What those see of it who look."""
    return EndpointSummary(
        endpoint.id,
        endpoint.pool,
        endpoint.state,
        endpoint.leaving,
        endpoint.in_flight,
        endpoint.in_flight_max,
        kv_tokens=endpoint.kv_used + endpoint.kv_foreign,
        suspected=endpoint.suspected,
        decode_percent=endpoint.learned.decode_percent,
        prefill_percent=endpoint.learned.prefill_percent,
    )


def _note_held(request: Request, now: Instant) -> None:
    """It is held no longer: what its class promises, and how long it may wait, counts from here on."""
    held_ns = now - request.queued_since
    request.waited_ns, request.held_ns = Duration(request.waited_ns + held_ns), Duration(request.held_ns + held_ns)
    request.queued_since = now
    if request.target is not None:
        ttft_ns = request.service_class.ttft_ns
        request.target = None if ttft_ns is None else after(now, ttft_ns)


def _part_held(request: Request) -> str:
    return f", {seconds(request.held_ns)} of them until an endpoint had started" if request.held_ns else ""


def _why_expired(request: Request) -> str:
    service_class = request.service_class
    if request.waited_ns - request.held_ns < service_class.queue_wait_ns_max and service_class.ttft_ns is not None:
        promised = seconds(service_class.ttft_ns)
        return f'and its answer could no longer begin within the {promised} that class "{service_class.name}" promises'
    return f'as long as class "{service_class.name}" may wait'


def _is_about(event: AttemptEnded, request: Request) -> bool:
    """Whether it tells of the end of an attempt that the request goes by."""
    numbers = [each.number for each in request.in_flight()]
    return event.request_id == request.ticket.request_id and event.attempt in numbers


def _note(command: Command | None, out: list[Command]) -> None:
    if command is not None:
        out.append(command)
