"""What is to be done about what just happened?

The scheduler is a function of what happened. A host brings it events and the time; it answers
with commands. It has no clock, no I/O, no randomness and no log of its own, so the same events
at the same times always give the same commands, in whichever host it runs.

Theory of operation. A request is either queued or in flight, and ends exactly once. It is
bound to an endpoint only when that endpoint has room (late binding), so that as long as it
waits its order can still change. Three promises hold after every event:

- no endpoint has room while a request that could go there waits;
- nothing that has waited too long is still queued, and nothing whose caller's deadline has
  passed is still queued or in flight;
- every place taken at an endpoint belongs to an attempt that the host has not yet reported
  as ended. A place outlives its request where the request ended first.

What is not ideal: a place is counted in requests, not in seconds or memory, and a tenant's
turn costs the same whether its prompt is short or long.

The methods stand in the order of a request's life; fleet and policy come last.
"""

from typing import assert_never

from headgate.core.admission.gate import (
    Admitted,
    Refusal,
    drain,
    duplicate,
    expected_wait,
    judge,
    late,
    no_place,
    no_retry,
    servable,
)
from headgate.core.admission.retry_after import bounded
from headgate.core.alarms import Alarms
from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    EndpointJoined,
    EndpointLeaving,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FirstToken,
    PolicyChanged,
    Progressed,
    RequestArrived,
    RequestWithdrawn,
    TimerFired,
    WithdrawalCause,
)
from headgate.core.open_requests import OpenRequests
from headgate.core.queues.bands import Backlog
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.least_outstanding import choose
from headgate.core.rules import Rules
from headgate.core.state import Attempt, Request
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant, PoolName, RequestId, after, seconds


class Scheduler:
    def __init__(self) -> None:
        self._rules = Rules(Policy(), policy_hash="")
        self._requests = OpenRequests()
        self._attempts: dict[tuple[RequestId, int], Attempt] = {}
        """Every place taken at an endpoint."""
        self._backlog = Backlog()
        self._expiries: Alarms[RequestId] = Alarms()
        self._fleet = Fleet(self._rules.policy.health)
        self._retry_budget = RetryBudget(self._rules.policy.retry)
        self._sequence = 0
        self._now = Instant(0)

    def handle(self, event: Event, now: Instant) -> list[Command]:
        assert now >= self._now, "time went backwards: the host must stamp events with max(last, clock)"
        self._now = now
        out: list[Command] = []
        self._expire(now, out)
        self._miss_deadlines(event, now, out)
        match event:
            case RequestArrived(ticket):
                self._arrive(ticket, now, out)
            case FirstToken(request_id, attempt):
                self._first_token(request_id, attempt, now, out)
            case Progressed():
                self._progress(event, now)
            case AttemptEnded():
                self._attempt_ended(event, now, out)
            case RequestWithdrawn(request_id, cause):
                self._withdraw(request_id, cause, now, out)
            case TimerFired():
                pass
            case EndpointJoined(endpoint):
                self._fleet.join(endpoint, now)
            case EndpointReadied(endpoint_id):
                _note(self._fleet.ready(endpoint_id), out)
            case EndpointUnreadied(endpoint_id):
                self._fleet.unready(endpoint_id)
            case EndpointLeaving(endpoint_id):
                self._fleet.leave(endpoint_id)
            case PolicyChanged(policy, policy_hash):
                self._change_policy(policy, policy_hash, now, out)
            case _:
                assert_never(event)
        self._watch_endpoints(now, out)
        self._dispatch(now, out)
        return out

    def next_wakeup(self) -> Instant | None:
        """When the host must call again, if nothing happens before."""
        moments = (self._expiries.next(), self._requests.deadlines.next(), *self._fleet.next_wakeup())
        return min((moment for moment in moments if moment is not None), default=None)

    # Arrival

    def _arrive(self, ticket: Ticket, now: Instant, out: list[Command]) -> None:
        assert ticket.request_id not in self._requests.by_id, f"request {ticket.request_id} arrived twice"
        verdict = judge(ticket, self._rules)
        if isinstance(verdict, Admitted):
            self._sequence += 1
            request = Request(ticket, verdict.service_class, verdict.pools, sequence=self._sequence, now=now)
            refusal = self._refusal(request, verdict, now)
            if refusal is None:
                self._requests.add(request)
                self._enqueue(request, now)
                return
            verdict = refusal
        name = verdict.service_class.name if verdict.service_class else None
        wait = bounded(verdict.retry_after_ns)
        out.append(End(ticket.request_id, verdict.outcome, name, 0, Duration(0), wait, verdict.reason))

    def _refusal(self, request: Request, admitted: Admitted, now: Instant) -> Refusal | None:
        """Why a request that the policy allows does not come in at this moment."""
        return (
            late(request, now)
            or duplicate(self._requests.first_of_key(request.ticket), request)
            or servable(admitted, self._fleet, self._rules, now)
            or no_place(request, self._fleet, self._backlog, self._retry_budget, now)
            or no_retry(request, self._backlog, self._retry_budget, now)
        )

    # Queue

    def _enqueue(self, request: Request, now: Instant) -> None:
        request.queued_since = now
        # One patience for all attempts together: what it has waited before is spent.
        patience = Duration(max(0, request.service_class.queue_wait_ns_max - request.waited_ns))
        expires, deadline = after(now, patience), request.deadline
        if deadline is None or expires < deadline.at:
            self._expiries.set(request.ticket.request_id, expires)
        self._push(request)

    def _push(self, request: Request) -> None:
        self._backlog.push(request)
        for pool in request.pools:
            self._fleet.changed[pool] = None

    def _stop_waiting(self, request: Request, now: Instant) -> None:
        self._expiries.clear(request.ticket.request_id)
        request.waited_ns = Duration(request.waited_ns + now - request.queued_since)

    def _expire(self, now: Instant, out: list[Command]) -> None:
        for request_id in self._expiries.pop_due(now):
            request = self._requests.by_id[request_id]
            self._backlog.remove(request)
            self._stop_waiting(request, now)
            waited = seconds(request.waited_ns)
            if self._fleet.live(request.pools):
                reason = f'waited {waited}, as long as class "{request.service_class.name}" may wait'
                self._end(request, Outcome.EXPIRED, reason, out, drain(request, self._backlog, self._retry_budget, now))
            else:
                reason = f"no endpoint of pool {', '.join(request.pools)} became ready in {waited}"
                wait = expected_wait(request.pools, self._fleet, self._rules, now)
                self._end(request, Outcome.NO_ENDPOINTS, reason, out, wait)

    def _miss_deadlines(self, event: Event, now: Instant, out: list[Command]) -> None:
        """Ends those whose callers want no answer any more, wherever they are.

        An attempt that is told to have ended at this moment is looked at first: its caller may
        have the whole answer already. An attempt that is stopped says nothing about its endpoint.
        """
        for request_id in self._requests.deadlines.pop_due(now):
            request = self._requests.by_id[request_id]
            running = request.running
            if running is None:
                self._backlog.remove(request)
                self._stop_waiting(request, now)
                self._too_late(request, f'while it waited in class "{request.service_class.name}"', out)
            elif not (isinstance(event, AttemptEnded) and _is_about(event, request, running)):
                self._abort(request, running, "the caller's deadline has passed", out)
                self._too_late(request, f"while attempt {running.number} was running", out)

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
        while (pool := self._fleet.roomiest()) is not None:
            if not self._give_place(pool, now, out):
                del self._fleet.changed[pool]

    def _give_place(self, pool: PoolName, now: Instant, out: list[Command]) -> bool:
        def start(request: Request) -> bool:
            endpoint = choose(request, (pool,), self._fleet)
            if endpoint is None:
                return False
            self._start(request, endpoint, now, out)
            return True

        return self._backlog.offer(pool, start)

    def _start(self, request: Request, endpoint: EndpointRecord, now: Instant, out: list[Command]) -> None:
        ticket, service_class = request.ticket, request.service_class
        self._stop_waiting(request, now)
        request.attempt += 1
        if request.attempt == 1:
            client_retry = ticket.client_retries > 0
            self._retry_budget.first_attempt(ticket.tenant, endpoint.pool, now, client_retry=client_retry)
        attempt = Attempt(endpoint, number=request.attempt, stream=ticket.stream)
        self._attempts[ticket.request_id, request.attempt] = request.running = attempt
        self._fleet.occupy(endpoint)
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
                f"least outstanding, {endpoint.in_flight} of {endpoint.in_flight_max} in flight with it",
            )
        )

    # While it runs

    def _first_token(self, request_id: RequestId, number: int, now: Instant, out: list[Command]) -> None:
        attempt = self._attempts.get((request_id, number))
        if attempt is None:
            return
        _note(self._fleet.succeeded(attempt.endpoint, now), out)
        if attempt.stream and not attempt.streaming:
            attempt.streaming = True
            self._fleet.began_stream(attempt.endpoint, now)
        request = self._requests.by_id.get(request_id)
        if request is not None:
            self._requests.began(request)

    def _progress(self, event: Progressed, now: Instant) -> None:
        for report in event.attempts:
            attempt = self._attempts.get((report.request_id, report.attempt))
            if attempt is not None:
                attempt.endpoint.last_heard = now

    def _withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        request = self._requests.by_id.get(request_id)
        if request is None:
            return
        if request.running is not None:
            self._abort(request, request.running, cause.value, out)
        else:
            self._backlog.remove(request)
            self._stop_waiting(request, now)
        if cause is WithdrawalCause.CLIENT_LEFT:
            self._end(request, Outcome.CANCELLED, "the client left", out)
        else:
            outcome = Outcome.DRAINING if request.running is None else Outcome.EVICTED
            self._end(request, outcome, "this process is leaving and its grace time is over", out, SECOND)

    def _watch_endpoints(self, now: Instant, out: list[Command]) -> None:
        self._fleet.return_due(now)
        stalled = self._fleet.stalled(now)
        if not stalled:
            return
        for endpoint in stalled.values():
            _note(self._fleet.eject_stalled(endpoint, now), out)
        for (request_id, _), attempt in self._attempts.items():
            if attempt.stream and attempt.endpoint.id in stalled and request_id in self._requests.by_id:
                self._abort(self._requests.by_id[request_id], attempt, "its endpoint shows no sign of life", out)

    def _abort(self, request: Request, attempt: Attempt, reason: str, out: list[Command]) -> None:
        out.append(Abort(request.ticket.request_id, attempt.number, attempt.endpoint.id, reason))

    # The end

    def _attempt_ended(self, event: AttemptEnded, now: Instant, out: list[Command]) -> None:
        attempt = self._attempts.pop((event.request_id, event.attempt), None)
        if attempt is None:
            return
        self._judge_endpoint(attempt.endpoint, event, now, out)
        self._fleet.vacate(attempt.endpoint, streaming=attempt.streaming)
        request = self._requests.by_id.get(event.request_id)
        if request is None:
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
                _note(self._fleet.failed(endpoint, event.detail, now), out)
            case AttemptEnding.ABORTED:
                pass
            case _:
                assert_never(event.ending)

    def _judge(self, ticket: Ticket, now: Instant) -> Admitted | Refusal:
        verdict = judge(ticket, self._rules)
        if isinstance(verdict, Refusal):
            return verdict
        return servable(verdict, self._fleet, self._rules, now) or verdict

    def _retry(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, silent: bool
    ) -> None:
        """Puts it back at the head of its tenant, for another endpoint to try.

        Only as long as its caller still waits for it, nothing has reached the caller, the present
        policy has a place for it, and the budgets agree.
        """
        outcome = Outcome.ENGINE_SILENT if silent else Outcome.ENGINE_FAILED
        attempts_max = self._rules.policy.retry.attempts_max
        verdict = self._judge(self._rules.without_gone_class(request.ticket), now)
        if request.deadline is not None and request.deadline.passed(now):
            self._too_late(request, f"when attempt {request.attempt} ended: {detail}", out)
        elif request.first_token:
            self._end(request, outcome, f"after the first token: {detail}", out, SECOND)
        elif request.attempt >= attempts_max:
            self._end(request, outcome, f"attempt {request.attempt} of {attempts_max}: {detail}", out, SECOND)
        elif isinstance(verdict, Refusal):
            self._end(request, verdict.outcome, f"{verdict.reason} (after: {detail})", out, verdict.retry_after_ns)
        elif not self._retry_budget.take(request.ticket.tenant, attempt.endpoint.pool, now, after_silence=silent):
            self._end(request, outcome, f"not tried again, the retry budget is used up: {detail}", out, SECOND)
        else:
            request.avoid = attempt.endpoint
            request.service_class, request.pools = verdict.service_class, verdict.pools
            self._enqueue(request, now)

    def _end(
        self, request: Request, outcome: Outcome, reason: str, out: list[Command], retry_after: Duration | None = None
    ) -> None:
        self._requests.remove(request)
        request_id, name, wait = request.ticket.request_id, request.service_class.name, bounded(retry_after)
        out.append(End(request_id, outcome, name, request.attempt, request.waited_ns, wait, reason))

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
        self._fleet.change_rules(policy.health)
        self._backlog = Backlog()
        waiting = [request for request in self._requests.by_id.values() if request.running is None]
        for request in sorted(waiting, key=lambda each: each.sequence):
            verdict = judge(self._rules.without_gone_class(request.ticket), self._rules)
            if isinstance(verdict, Refusal):
                self._stop_waiting(request, now)
                self._end(request, verdict.outcome, verdict.reason, out)
            else:
                request.service_class, request.pools = verdict.service_class, verdict.pools
                self._push(request)

    # For those who look

    def summary(self) -> Summary:
        return Summary(
            policy_hash=self._rules.hash,
            queued={each.name: self._backlog.in_class(each.name) for each in self._rules.policy.classes},
            requests=len(self._requests.by_id),
            endpoints=tuple(
                EndpointSummary(each.id, each.pool, each.state, each.leaving, each.in_flight, each.in_flight_max)
                for each in self._fleet.endpoints.values()
            ),
        )


def _is_about(event: AttemptEnded, request: Request, attempt: Attempt) -> bool:
    return (event.request_id, event.attempt) == (request.ticket.request_id, attempt.number)


def _note(command: Command | None, out: list[Command]) -> None:
    if command is not None:
        out.append(command)
