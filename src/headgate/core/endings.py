"""How does a request end, and when is it tried once more instead?

A request ends exactly once: completed, refused by its engine, failed after its last attempt, expired in the queue, past
its caller's deadline, or withdrawn. An attempt that failed before its first token may be made again elsewhere; whether
it may is checked first, and its retry credit spent after that.
"""

from typing import Final, assert_never

from headgate.core.admission.admission import Admission
from headgate.core.admission.gate import Refusal, again, drain, expected_wait, judge
from headgate.core.admission.retry_after import bounded
from headgate.core.attempts import abort
from headgate.core.bills import bills_of
from headgate.core.commands import Command, End
from headgate.core.dispatcher import Dispatcher
from headgate.core.events import AttemptEnded, AttemptEnding, Event, WithdrawalCause
from headgate.core.queues.queue import why_expired
from headgate.core.retry_budget import pool_of_retry
from headgate.core.scheduler_state import SchedulerState
from headgate.core.state import Attempt, Request
from headgate.model.fault import FaultOrigin
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, Instant, RequestId, seconds

_EXCUSES: Final = (FaultOrigin.TENANT, FaultOrigin.MODEL, FaultOrigin.GATEWAY)
"""Origins that are no longer blamed if the same request is answered elsewhere."""


class Endings:
    __slots__ = ("_admission", "_dispatcher", "_state")

    def __init__(self, state: SchedulerState, admission: Admission, dispatcher: Dispatcher) -> None:
        self._state = state
        self._admission = admission
        self._dispatcher = dispatcher

    # In the queue

    def expire(self, now: Instant, out: list[Command]) -> None:
        """Ends those that have waited too long, unless others than the pools they waited for take work."""
        state = self._state
        for request_id in state.queue.expiries.take():
            request = state.requests.by_id[request_id]
            state.queue.remove(request, now)
            if state.fleet.live(request.pools):
                self.give_up(request, now, out)
            elif not self._goes_elsewhere(request, now, out):
                reason = f"no endpoint of pool {', '.join(request.pools)} became ready in {seconds(request.waited_ns)}"
                wait = expected_wait(request.pools, state.fleet, state.rules, state.queue.holds, now)
                self.end(request, Outcome.NO_ENDPOINTS, reason, now, out, retry_after=wait)

    def _goes_elsewhere(self, request: Request, now: Instant, out: list[Command]) -> bool:
        """Whether others take work than the cheap pools it has waited for. It goes there at once, or not at all."""
        state = self._state
        verdict = judge(state.rules.without_gone_names(request.ticket), state.rules)
        if isinstance(verdict, Refusal) or request.fell_back or not state.budgets.thrifty(request):
            return False
        self._admission.move(request, verdict, now)
        if live := state.fleet.live(request.pools) > 0:
            request.hold = None
            state.queue.enter(request, now, out)
        return live

    def give_up(self, request: Request, now: Instant, out: list[Command]) -> None:
        """It has waited for as long as its class allows, or is worth."""
        state = self._state
        state.overload.lost(request)
        wait = drain(request, state.queue.backlog, state.retry_budget, now)
        self.end(request, Outcome.EXPIRED, why_expired(request), now, out, retry_after=wait)

    # Deadlines and withdrawal

    def miss_deadlines(self, event: Event, now: Instant, out: list[Command]) -> None:
        """Ends those whose callers want no answer any more, wherever they are.

        An attempt that is told to have ended at this moment is looked at first: its caller may
        have the whole answer already. An attempt that is stopped says nothing about its endpoint.
        """
        state = self._state
        for request_id in state.requests.deadlines.take():
            request = state.requests.by_id[request_id]
            if request.running is None:
                state.queue.remove(request, now)
                self.too_late(request, f'while it waited in class "{request.service_class.name}"', now, out)
            elif not (isinstance(event, AttemptEnded) and request.goes_by(event.request_id, event.attempt)):
                self.abort_too_late(request, now, out)

    def abort_too_late(self, request: Request, now: Instant, out: list[Command]) -> None:
        """Stops all attempts of a request whose deadline has passed while it was running."""
        self._abort_all(request, "the caller's deadline has passed", out)
        self._leave(request, now)
        self.too_late(request, f"while attempt {request.attempt} was running", now, out)

    def too_late(self, request: Request, how: str, now: Instant, out: list[Command]) -> None:
        assert request.deadline is not None
        self.end(request, Outcome.TOO_LATE, request.deadline.missed(how), now, out)

    def withdraw(self, request_id: RequestId, cause: WithdrawalCause, now: Instant, out: list[Command]) -> None:
        request = self._state.requests.by_id.get(request_id)
        if request is None:
            return
        if request.running is not None:
            self._abort_all(request, cause.value, out)
        else:
            self._state.queue.remove(request, now)
        if cause is WithdrawalCause.CLIENT_LEFT:
            self._leave(request, now)
            self.end(request, Outcome.CANCELLED, "the client left", now, out)
        else:
            outcome = Outcome.DRAINING if request.running is None else Outcome.EVICTED
            self.end(
                request, outcome, "this process is leaving and its grace time is over", now, out, retry_after=SECOND
            )

    def _leave(self, request: Request, now: Instant) -> None:
        """Charges the tenant for the work until its caller left, or until the deadline that the caller set."""
        if request.running is not None:
            self._state.attempts.leave(request.running, now)

    def _abort_all(self, request: Request, reason: str, out: list[Command]) -> None:
        for attempt in request.in_flight():
            abort(request, attempt, reason, out)

    # Attempts

    def watch_endpoints(self, now: Instant, out: list[Command]) -> None:
        """Looks at endpoints that are due, and stops the streams of those that show no sign of life."""
        state = self._state
        fleet, health = state.fleet, state.fleet.health
        if fleet.lost:
            health.call_back(now)
        if not health.agenda.ring(now):
            return
        out += health.return_due(now)
        stalled = health.stalled(now)
        if not stalled:
            return
        for endpoint in stalled.values():
            out += health.eject_stalled(endpoint, now)
        for (request_id, _), attempt in state.attempts.by_number.items():
            request = state.requests.by_id.get(request_id)
            watched = attempt.reports_tokens and not attempt.let_go
            if watched and attempt.endpoint.id in stalled and request is not None:
                abort(request, attempt, "its endpoint shows no sign of life", out)

    def attempt_ended(self, event: AttemptEnded, now: Instant, out: list[Command]) -> None:
        state = self._state
        attempt = state.attempts.get(event.request_id, event.attempt)
        if attempt is None:
            return
        origin = FaultOrigin.ENDPOINT
        if not attempt.let_go:
            origin = self._origin(attempt, event, now)
            out += state.fleet.health.attempt_ended(attempt.endpoint, event, now, origin)
        request = state.requests.by_id.get(event.request_id)
        tokens = state.attempts.ended(attempt, request, event, now)
        if not attempt.let_go:
            state.limits.attempt_ended(event.request_id, tokens, now)
        if request is None or attempt.let_go or self._goes_on(request, attempt, event, now, out):
            return
        request.running = None
        match event.ending:
            case AttemptEnding.COMPLETED:
                self._dispatcher.answered_elsewhere(request, now, out)
                self.end(request, Outcome.COMPLETED, "", now, out)
            case AttemptEnding.REFUSED:
                self.end(request, Outcome.ENGINE_REFUSED, event.detail, now, out)
            case AttemptEnding.FAILED:
                self._failed(request, attempt, event.detail, now, out, origin=origin)
            case AttemptEnding.SILENT:
                self._fell_silent(request, attempt, event.detail, now, out, origin=origin)
            case AttemptEnding.ABORTED:
                # A request that outlives an abort was aborted because its endpoint stalled.
                why = "its endpoint showed no sign of life"
                self._retry(request, attempt, why, now, out, otherwise=Outcome.ENGINE_SILENT)
            case _:
                assert_never(event.ending)

    def _origin(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        """The origin of the fault, if the attempt failed."""
        blame, ticket = self._state.blame, attempt.ticket
        match event.ending:
            case AttemptEnding.FAILED | AttemptEnding.SILENT:
                origin = blame.judge(attempt, event, now)
                attempt.excuse = origin if origin in _EXCUSES else None
                if origin is FaultOrigin.MEMBER:
                    self._dispatcher.member_failed(attempt, now)
                return origin
            case AttemptEnding.COMPLETED:
                blame.answered(ticket)
                self._state.fleet.health.reach.served(ticket.gateway, attempt.endpoint)
            case AttemptEnding.REFUSED | AttemptEnding.ABORTED:
                pass
            case _:
                assert_never(event.ending)
        return FaultOrigin.ENDPOINT

    def _failed(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, origin: FaultOrigin
    ) -> None:
        """Ends the request if the request itself is to blame, since no other endpoint could do better."""
        if self._ends_here(request, origin, now):
            self._quarantined(request, attempt, detail, now, out)
        else:
            outcome = Outcome.GATEWAY_FAILED if origin is FaultOrigin.GATEWAY else Outcome.ENGINE_FAILED
            self._retry(request, attempt, detail, now, out, otherwise=outcome)

    def _fell_silent(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, origin: FaultOrigin
    ) -> None:
        """Ends the request if it is silent on every endpoint, or if its answer exceeds the limit.

        Another endpoint would repeat the same work, again in vain.
        """
        if not self._ends_here(request, origin, now):
            self._retry(request, attempt, detail, now, out, otherwise=Outcome.ENGINE_SILENT)
        elif self._state.blame.quarantined(attempt.ticket, now) is not None:
            self._quarantined(request, attempt, detail, now, out)
        else:
            self.end(request, Outcome.ENGINE_SILENT, detail, now, out, retry_after=SECOND)

    def _ends_here(self, request: Request, origin: FaultOrigin, now: Instant) -> bool:
        """Whether the request is to blame, and neither its deadline has passed nor its answer begun."""
        too_late = request.deadline is not None and request.deadline.passed(now)
        return origin is FaultOrigin.REQUEST and not too_late and not request.first_token

    def _quarantined(self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command]) -> None:
        wait = self._state.blame.quarantined(attempt.ticket, now)
        reason = f"attempt {request.attempt}: it failed on two endpoints that serve other requests: {detail}"
        self.end(request, Outcome.QUARANTINED, reason, now, out, retry_after=wait)

    def _goes_on(
        self, request: Request, attempt: Attempt, event: AttemptEnded, now: Instant, out: list[Command]
    ) -> bool:
        """Whether the request goes on without this attempt, because of another one that is under way."""
        if request.hedge is None:
            self._state.hedging.unwatch(request)
            return False
        other = request.beside(attempt)
        if other is None or event.ending in (AttemptEnding.COMPLETED, AttemptEnding.REFUSED):
            self._dispatcher.responded_first(request, attempt, now, out)
            return False
        request.running, request.hedge = other, None
        if request.deadline is not None and request.deadline.passed(now):
            abort(request, other, "the caller's deadline has passed", out)
            self._leave(request, now)
            self.too_late(request, f"while attempt {other.number} was running", now, out)
        return True

    def _retry(
        self, request: Request, attempt: Attempt, detail: str, now: Instant, out: list[Command], *, otherwise: Outcome
    ) -> None:
        """Puts the request back at the head of its tenant, for another endpoint to try; or ends it as `otherwise`.

        A request is retried only while its caller waits for it, nothing has reached the caller, the present policy has
        a place for it, and the budgets allow it.
        """
        state, tenant = self._state, attempt.ticket.tenant
        outcome, silent = otherwise, otherwise is Outcome.ENGINE_SILENT
        attempts_max = state.rules.policy.retry.attempts_max
        verdict = again(request, state.fleet, state.rules, holds=state.queue.holds, now=now)
        if request.deadline is not None and request.deadline.passed(now):
            self.too_late(request, f"when attempt {request.attempt} ended: {detail}", now, out)
        elif request.first_token:
            self.end(request, outcome, f"after the first token: {detail}", now, out, retry_after=SECOND)
        elif request.attempt >= attempts_max:
            self.end(
                request, outcome, f"attempt {request.attempt} of {attempts_max}: {detail}", now, out, retry_after=SECOND
            )
        elif isinstance(verdict, Refusal):
            reason = f"{verdict.reason} (after: {detail})"
            self.end(request, verdict.outcome, reason, now, out, retry_after=verdict.retry_after_ns)
        elif not state.retry_budget.allows(
            tenant, pool := pool_of_retry(attempt, verdict.pools), now, after_silence=silent
        ):
            self.end(
                request,
                outcome,
                f"not tried again, the retry budget is used up: {detail}",
                now,
                out,
                retry_after=SECOND,
            )
        else:
            state.retry_budget.spend(tenant, pool, now, after_silence=silent)
            request.avoid = attempt.endpoint
            self._admission.move(request, verdict, now)
            request.hold = state.queue.hold_again(request, now)
            state.queue.enter(request, now, out)

    # The end

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
        state.hedging.unwatch(request)
        request_id, name, wait = request.ticket.request_id, request.service_class.name, bounded(retry_after, outcome)
        state.limits.request_ended(request_id, now, in_flight=request.running is not None)
        # With an answer that is whole they have been told already.
        left = None if outcome is Outcome.COMPLETED else state.limits.left(request.ticket.tenant, now)
        attempts, waited_ns, held_ns = request.attempt, request.waited_ns, request.held_ns
        bills = bills_of(request, outcome, state.attempts, state.rules, now)
        reserved = state.budgets.settle(request, bills)
        out.append(End(request_id, outcome, name, attempts, waited_ns, wait, reason, left, held_ns, bills, reserved))
