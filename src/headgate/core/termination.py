"""Ends requests, or retries them after a failed attempt.

A request ends exactly once: it completes, is rejected by its engine, fails on its last attempt, times out in the queue,
misses its caller's deadline, or is withdrawn. An attempt that fails before its first token may be retried on another
endpoint. The retry is checked first, and its retry credit is spent only if all checks pass.
"""

from collections.abc import Collection
from typing import Final, assert_never

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Rejection, class_drain_time, readmission
from headgate.core.admission.retry_after import clamp_retry_after
from headgate.core.attempts import abort
from headgate.core.bills import bills_of
from headgate.core.commands import Command, End
from headgate.core.dispatcher import Dispatcher
from headgate.core.events import AttemptEnded, AttemptEnding, Event, WithdrawalCause
from headgate.core.queues.queue import queue_timeout_reason
from headgate.core.request_state import Attempt, Request
from headgate.core.retry_budget import retry_pool
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.scheduler_state import SchedulerState
from headgate.model.fault import FaultOrigin
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, Instant, RequestId, after

_REVISABLE_ORIGINS: Final = (FaultOrigin.TENANT, FaultOrigin.MODEL, FaultOrigin.GATEWAY)
"""Fault origins that are revised if the same request succeeds on another endpoint."""
# Enum members that every request needs: Python 3.11 looks them up slowly.
_ENDED_WELL: Final = AttemptEnding.COMPLETED
_COMPLETED: Final = Outcome.COMPLETED
_ENDPOINT: Final = FaultOrigin.ENDPOINT
_INTERRUPTED: Final = "an operator took the endpoint out of service"


class Termination:
    __slots__ = ("_admission", "_dispatcher", "_state")

    def __init__(self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher) -> None:
        self._state = state
        self._admission = admission
        self._dispatcher = dispatcher

    # Queue

    def end_queue_timeout(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Ends a request that has waited as long as its class allows, or so long that a response would be useless."""
        state = self._state
        state.overload.record_lost(request)
        wait = class_drain_time(request, state.queue.backlog, state.retry_budget, now)
        self.end(request, Outcome.QUEUE_TIMEOUT, queue_timeout_reason(request), now, out, retry_after=wait)

    # Deadlines and withdrawal

    def end_past_deadlines(self, event: Event, now: Instant, out: list[Command]) -> None:
        """Ends queued and running requests whose deadline has passed.

        An attempt that ends at the same moment is handled by its own event, because its caller may already have the
        complete response. Stopping an attempt does not reflect on its endpoint.
        """
        state = self._state
        for request_id in state.requests.deadline_timers.pop_fired():
            request = state.requests.by_id[request_id]
            if request.running is None:
                state.queue.remove(request, now)
                how = f'while the request waited in class "{request.service_class.name}"{request.overflow_note}'
                self.end_deadline_exceeded(request, how, now, out)
            elif not (
                isinstance(event, AttemptEnded) and request.has_attempt_in_flight(event.request_id, event.attempt)
            ):
                self.abort_past_deadline(request, now, out)

    def abort_past_deadline(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Stops all attempts of a running request whose deadline has passed."""
        self._abort_all(request, "the caller's deadline has passed", out)
        self._record_cancel(request, now)
        self.end_deadline_exceeded(request, f"while attempt {request.attempts_made} was running", now, out)

    def end_deadline_exceeded(self, request: Request, how: str, now: Instant, out: list[Command]) -> None:
        assert request.deadline is not None
        self.end(request, Outcome.DEADLINE_EXCEEDED, request.deadline.missed_reason(how), now, out)

    def withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        request = self._state.requests.by_id.get(request_id)
        if request is None:
            return
        if request.running is not None:
            self._abort_all(request, cause.value, out)
        else:
            self._state.queue.remove(request, now)
        if cause is WithdrawalCause.CLIENT_DISCONNECTED:
            self._record_cancel(request, now)
            self.end(request, Outcome.CANCELLED, "the client disconnected", now, out)
        else:
            outcome = Outcome.DRAINING if request.running is None else Outcome.EVICTED
            reason = "the gateway is shutting down and its grace period has ended"
            self.end(request, outcome, reason, now, out, retry_after=SECOND)

    def _record_cancel(self, request: Request, now: Instant) -> None:
        """Charges the tenant for the work done until the client disconnected or the deadline passed."""
        if request.running is not None:
            self._state.attempts.record_cancel(request.running, now)

    def _abort_all(self, request: Request, reason: str, out: list[Command]) -> None:
        for attempt in request.in_flight():
            abort(request, attempt, reason, out)

    # Attempts

    def check_endpoints(self, now: Instant, out: list[Command]) -> None:
        """Runs the endpoint checks that are due and aborts the streams of stalled endpoints."""
        state = self._state
        fleet, health = state.fleet, state.fleet.health
        if fleet.pools_with_losses:
            health.relax_lost_pools(now)
        if not health.timer_heap.pop_due(now):
            return
        fleet.quotas.apply_due(now)
        out += health.apply_due(now)
        stalled = health.pop_stalled(now)
        if not stalled:
            return
        for endpoint in stalled.values():
            out += health.eject_stalled(endpoint, now)
        for (request_id, _), attempt in state.attempts.by_number.items():
            request = state.requests.by_id.get(request_id)
            watched = attempt.reports_tokens and not attempt.superseded
            if watched and attempt.endpoint.id in stalled and request is not None:
                abort(request, attempt, "the endpoint has stalled", out)

    def abort_attempts(self, endpoints: Collection[EndpointRecord], out: list[Command]) -> None:
        """Aborts all attempts on these endpoints, as if the endpoints had failed. Their requests are retried if nothing
        has reached the caller.
        """
        if not endpoints:
            return
        for (request_id, _), attempt in self._state.attempts.by_number.items():
            request = self._state.requests.by_id.get(request_id)
            if attempt.endpoint in endpoints and not attempt.superseded and request is not None:
                abort(request, attempt, _INTERRUPTED, out)

    def attempt_ended(self, event: AttemptEnded, now: Instant, out: list[Command]) -> None:
        state = self._state
        if event.first_token:
            self._dispatcher.first_token(event.request_id, event.attempt, now, out, delivered=True)
        attempt = state.attempts.get(event.request_id, event.attempt)
        if attempt is None:
            return
        origin = _ENDPOINT
        if not attempt.superseded:
            origin = self._fault_origin(attempt, event, now)
            out += state.fleet.health.attempt_ended(attempt.endpoint, event, now, origin)
        request = state.requests.by_id.get(event.request_id)
        tokens = state.attempts.close(attempt, request, event, now)
        if not attempt.superseded:
            state.limits.attempt_ended(event.request_id, tokens, now)
        if request is None or attempt.superseded or self._continues_with_hedge(request, attempt, event, now, out):
            return
        request.running = None
        if event.ending is _ENDED_WELL:
            if request.attempts_made > 1:
                self._dispatcher.reattribute_failures(request, now, out)
            self.end(request, _COMPLETED, "", now, out)
            return
        match event.ending:
            case AttemptEnding.REJECTED:
                self.end(request, Outcome.ENGINE_REJECTED, event.detail, now, out)
            case AttemptEnding.FAILED:
                self._failed(request, attempt, event.detail, now, out, origin=origin)
            case AttemptEnding.TIMEOUT:
                self._timed_out(request, attempt, event.detail, now, out, origin=origin)
            case AttemptEnding.ABORTED:
                # A request continues after an abort only if its endpoint stalled or was interrupted.
                interrupted = self._state.fleet.drains.interrupts(attempt.endpoint)
                why = _INTERRUPTED if interrupted else "the endpoint stalled"
                otherwise = Outcome.ENGINE_ERROR if interrupted else Outcome.ENGINE_TIMEOUT
                self._retry(request, attempt, why, now, out, otherwise=otherwise)
            case _:
                assert_never(event.ending)

    def _fault_origin(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        """Returns the fault origin, which is meaningless if the attempt did not fail."""
        blame, ticket = self._state.blame, attempt.ticket
        if event.ending is _ENDED_WELL:
            blame.clear(ticket)
            reach = self._state.fleet.health.reach
            if reach.failing:
                reach.record_served(ticket.gateway, attempt.endpoint)
            return _ENDPOINT
        match event.ending:
            case AttemptEnding.FAILED | AttemptEnding.TIMEOUT:
                origin = blame.attribute(attempt, event, now)
                attempt.other_origin = origin if origin in _REVISABLE_ORIGINS else None
                if origin is FaultOrigin.MEMBER:
                    self._dispatcher.record_member_failure(attempt, now)
                return origin
            case AttemptEnding.REJECTED | AttemptEnding.ABORTED:
                return _ENDPOINT
            case _:
                assert_never(event.ending)

    def _failed(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, origin: FaultOrigin
    ) -> None:
        """Ends the request if the request itself caused the failure. Otherwise retries it."""
        if self._ends_without_retry(request, origin, now):
            self._end_quarantined(request, attempt, detail, now, out)
        else:
            outcome = Outcome.INTERNAL_ERROR if origin is FaultOrigin.GATEWAY else Outcome.ENGINE_ERROR
            self._retry(request, attempt, detail, now, out, otherwise=outcome)

    def _timed_out(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, origin: FaultOrigin
    ) -> None:
        """Ends the request if it times out on every endpoint or if its response exceeds the limit.

        Another endpoint would only repeat the same work and fail.
        """
        if not self._ends_without_retry(request, origin, now):
            self._retry(request, attempt, detail, now, out, otherwise=Outcome.ENGINE_TIMEOUT)
        elif self._state.blame.quarantine_ns_left(attempt.ticket, now) is not None:
            self._end_quarantined(request, attempt, detail, now, out)
        else:
            self.end(request, Outcome.ENGINE_TIMEOUT, detail, now, out, retry_after=SECOND)

    def _ends_without_retry(self, request: Request, origin: FaultOrigin, now: Instant) -> bool:
        """Returns whether the request is at fault, before its deadline and before its response has started."""
        too_late = request.deadline is not None and request.deadline.passed(now)
        return origin is FaultOrigin.REQUEST and not too_late and not request.first_token

    def _end_quarantined(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command]
    ) -> None:
        wait = self._state.blame.quarantine_ns_left(attempt.ticket, now)
        reason = (
            f"attempt {request.attempts_made}: the request failed on two endpoints that serve other requests: {detail}"
        )
        self.end(request, Outcome.QUARANTINED, reason, now, out, retry_after=wait)

    def _continues_with_hedge(
        self, request: Request, attempt: Attempt, event: AttemptEnded, now: Instant, out: list[Command]
    ) -> bool:
        """Returns whether the request continues with its other running attempt."""
        if request.hedge is None:
            if request.service_class.hedging:
                self._state.hedging.unwatch(request)
            return False
        other = request.other_attempt(attempt)
        if other is None or event.ending in (AttemptEnding.COMPLETED, AttemptEnding.REJECTED):
            self._dispatcher.responded_first(request, attempt, now, out)
            return False
        request.running, request.hedge = other, None
        if request.deadline is not None and request.deadline.passed(now):
            abort(request, other, "the caller's deadline has passed", out)
            self._record_cancel(request, now)
            self.end_deadline_exceeded(request, f"while attempt {other.number} was running", now, out)
        return True

    def _retry(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, otherwise: Outcome
    ) -> None:
        """Requeues the request as the first of its tenant to try another endpoint, or ends it with `otherwise`.

        A request is retried only if its deadline has not passed, nothing has reached the caller, the current policy can
        serve it, and the retry budgets allow it.
        """
        state, tenant = self._state, attempt.ticket.tenant
        outcome, silent = otherwise, otherwise is Outcome.ENGINE_TIMEOUT
        attempts_max = 1 if attempt.ticket.mirror_route else state.rules.policy.retry.attempts_max
        last = after(now, state.queue.wait_ns_left(request, now))
        verdict = readmission(request, state.fleet, state.rules, holds=state.queue.holds, last=last, now=now)
        if request.deadline is not None and request.deadline.passed(now):
            self.end_deadline_exceeded(request, f"when attempt {request.attempts_made} ended: {detail}", now, out)
        elif request.first_token:
            self.end(request, outcome, f"after the first token: {detail}", now, out, retry_after=SECOND)
        elif request.attempts_made >= attempts_max:
            reason = f"attempt {request.attempts_made} of {attempts_max}: {detail}"
            self.end(request, outcome, reason, now, out, retry_after=SECOND)
        elif isinstance(verdict, Rejection):
            reason = f"{verdict.reason} (after: {detail})"
            self.end(request, verdict.outcome, reason, now, out, retry_after=verdict.retry_after_ns)
        elif not state.retry_budget.allows(
            tenant, pool := retry_pool(attempt, verdict.pools), now, after_silence=silent
        ):
            reason = f"not retried because the retry budget is exhausted: {detail}"
            self.end(request, outcome, reason, now, out, retry_after=SECOND)
        else:
            state.retry_budget.spend(tenant, pool, now, after_silence=silent)
            request.avoid = attempt.endpoint
            self._admission.assign(request, verdict, now)
            request.held_for = state.queue.retry_hold_pool(request, now)
            state.queue.enqueue(request, now, out)

    # Completion

    def end(
        self,
        request: Request,
        outcome: Outcome,
        reason: str,
        now: Instant,
        out: list[Command],
        *,
        retry_after: Duration | None = None,
    ) -> None:
        state = self._state
        state.requests.remove(request)
        if state.mirrors:
            state.mirrors.pop(request.ticket.request_id, None)
        if request.service_class.hedging:
            state.hedging.unwatch(request)
        request_id, name = request.ticket.request_id, request.service_class.name
        wait = None if retry_after is None else clamp_retry_after(retry_after, outcome)
        state.limits.request_ended(request_id, now, in_flight=request.running is not None)
        # The remaining limits have already been reported with the completed response.
        left = None if outcome is _COMPLETED else state.limits.left(request.ticket.tenant, now)
        attempts, waited_ns, held_ns = request.attempts_made, request.waited_ns, request.held_ns
        bills = bills_of(request, outcome, state.attempts, state.rules, now)
        reserved = state.budgets.settle(request, bills)
        out.append(End(request_id, outcome, name, attempts, waited_ns, wait, reason, left, held_ns, bills, reserved))
