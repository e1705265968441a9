"""A member's requests.

A gateway owns its requests: only it knows whether a request is open, queued or running, and only it returns the result
to the caller, once. A request ends without a decision by the authority after a complete response, an engine rejection,
a failure after the first token, or a client disconnect. The authority is informed and returns the cost
(`BillsReceived`). Its other decisions about an ended request are ignored.
"""

from collections.abc import Iterable

from headgate.core.admission.budgets import paid_by_tenant
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptsProgressed,
    FirstToken,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.hosts.cell.member.authority import Authority, Decision, RequestUpdate
from headgate.hosts.cell.member.commands import BillsReceived, MemberCommand
from headgate.hosts.cell.member.held_requests import HeldAttempt, HeldRequest, HeldRequests
from headgate.hosts.cell.protocol.messages import FinishedAttempt, GrantDeclined, SnapshotId
from headgate.hosts.cell.protocol.validation import InvalidMessage, check_ticket
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant
from headgate.model.usage import UsageSource

_TIMEOUT_ENDINGS = (AttemptEnding.TIMEOUT, AttemptEnding.ABORTED)
_TENANT_PAID_OUTCOMES = (Outcome.COMPLETED, Outcome.ENGINE_REJECTED, Outcome.CANCELLED, Outcome.DEADLINE_EXCEEDED)
"""Outcomes decided by the member that the tenant pays for."""


class MemberRequests:
    def __init__(self, holdings: HeldRequests, authority: Authority, *, held_max: int) -> None:
        self._held = holdings
        self._requests = holdings.requests
        self._held_max = held_max
        self.authority = authority
        """Current authority. Replaced when the mode of the member changes."""

    # Events

    def open(self, ticket: Ticket, now: Instant) -> list[MemberCommand]:
        assert ticket.request_id not in self._requests, f"request {ticket.request_id} arrived twice"
        try:
            check_ticket(ticket)
        except InvalidMessage as what:
            # The scheduler would reject this ticket and eventually fence this member.
            reason = f"the cell does not accept this request: {what}; correct it"
            return [End(ticket.request_id, Outcome.INVALID_REQUEST, None, 0, Duration(0), None, reason)]
        if (full := self._open_rejection()) is not None:
            reason = f"{full}; retry in 1 s"
            return [End(ticket.request_id, Outcome.QUEUE_FULL, None, 0, Duration(0), SECOND, reason)]
        request = self._requests[ticket.request_id] = HeldRequest(ticket, now)
        return self.perform(self.authority.open(request, now), now)

    def _open_rejection(self) -> str | None:
        if len(self._requests) >= self._held_max:
            return f"this gateway already holds {len(self._requests)} of {self._held_max} requests"
        return self.authority.open_rejection()

    def first_token(self, event: FirstToken, now: Instant) -> list[MemberCommand]:
        request, attempt = self._open_attempt(event)
        if request is None or attempt is None:
            return []
        if event.delivered:
            _record_first_token(request, attempt)
        return self._report(event, now)

    def progressed(self, event: AttemptsProgressed, now: Instant) -> list[MemberCommand]:
        self._held.add_progress(event)
        return self._report(event, now)

    def attempt_ended(self, event: AttemptEnded, now: Instant) -> list[MemberCommand]:
        request, attempt = self._open_attempt(event)
        if request is None or attempt is None:
            return []
        if event.first_token:
            _record_first_token(request, attempt)
        del request.running[event.attempt]
        ended_before = request.over
        out: list[MemberCommand] = []
        if not ended_before:
            request.usage = event.usage
            out += self._end_if_final(request, attempt, event, now)
        if event.usage is None or event.usage.source is not UsageSource.ENGINE:
            # Usage from the engine includes all tokens.
            self.authority.report_last_progress(attempt, now)
        out += self._report(FinishedAttempt(event, request_over=request.over), now)
        if request.over and not ended_before:
            request.end_serial = self.authority.serial
        self._held.release(request, self.authority.serial, now)
        return out

    def _open_attempt(self, event: FirstToken | AttemptEnded) -> tuple[HeldRequest | None, HeldAttempt | None]:
        request = self._requests.get(event.request_id)
        return request, None if request is None else request.running.get(event.attempt)

    def _end_if_final(
        self, request: HeldRequest, attempt: HeldAttempt, event: AttemptEnded, now: Instant
    ) -> list[MemberCommand]:
        """Ends the request if no decision is needed. Otherwise the request waits for a decision."""
        if event.ending is AttemptEnding.COMPLETED:
            request.completed = True
            return self._end(request, attempt, Outcome.COMPLETED, "")
        if event.ending is AttemptEnding.REJECTED:
            return self._end(request, attempt, Outcome.ENGINE_REJECTED, event.detail)
        if request.responding_attempt == event.attempt or (
            request.responding_attempt is not None and not request.running
        ):
            outcome = Outcome.ENGINE_TIMEOUT if event.ending in _TIMEOUT_ENDINGS else Outcome.ENGINE_ERROR
            outcome = Outcome.INTERNAL_ERROR if event.fault is Fault.GATEWAY else outcome
            return self._end(request, attempt, outcome, f"after the first token: {event.detail}", retry_after_ns=SECOND)
        if not request.running:
            request.queued_at = now
            request.failed_endpoint_id = attempt.dispatch.endpoint_id
        return []

    def withdrawn(self, event: RequestWithdrawn, now: Instant) -> list[MemberCommand]:
        request = self._requests.get(event.request_id)
        if request is None or request.over:
            return []
        left = event.cause is WithdrawalCause.CLIENT_DISCONNECTED
        if left:
            outcome, reason = Outcome.CANCELLED, "the client disconnected"
        else:
            outcome = Outcome.EVICTED if request.running else Outcome.DRAINING
            reason = "the gateway is shutting down and its grace period has ended"
        wait, waited = None if left else SECOND, request.waited(now)
        out = self._end(request, request.last_attempt, outcome, reason, retry_after_ns=wait, waited=waited)
        for attempt in request.running.values():
            self.authority.report_last_progress(attempt, now)
        out += self._report(event, now)
        request.end_serial = self.authority.serial
        self._held.release(request, self.authority.serial, now)
        return out

    def _end(
        self,
        request: HeldRequest,
        attempt: HeldAttempt | None,
        outcome: Outcome,
        reason: str,
        *,
        retry_after_ns: Duration | None = None,
        waited: Duration | None = None,
    ) -> list[MemberCommand]:
        """Ends a request without a decision by the authority, and aborts its other attempts."""
        request.over, request.tenant_pays = True, outcome in _TENANT_PAID_OUTCOMES
        why = reason or "another attempt has completed the request"
        running = [attempt.dispatch for attempt in request.running.values()]
        out: list[MemberCommand] = [Abort(request.id, order.attempt, order.endpoint_id, why) for order in running]
        name = None if attempt is None else attempt.dispatch.service_class
        waited = request.waited_ns if waited is None else waited
        out.append(
            End(request.id, outcome, name, request.attempts, waited, retry_after_ns, reason, held_ns=request.held_ns)
        )
        return out

    def _report(self, news: RequestUpdate, now: Instant) -> list[MemberCommand]:
        return self.perform(self.authority.handle(news, now), now)

    # The authority's decisions

    def perform(self, decisions: Iterable[Decision], now: Instant) -> list[MemberCommand]:
        """Carries out immediate decisions. Attempts that cannot be started are declined."""
        out: list[MemberCommand] = []
        for decision in decisions:
            if isinstance(decision, Dispatch) and (why := self.start_rejection(decision)) is not None:
                out += self.decline(decision, why, now)
            else:
                out += self.apply(decision, None, now)
        return out

    def apply(self, decision: Decision, dispatch_snapshot: SnapshotId | None, now: Instant) -> list[MemberCommand]:
        """Carries out one decision.

        `dispatch_snapshot` is the first snapshot that includes the dispatch. None if an island decides.
        """
        if isinstance(decision, End) and decision.bills:
            self._held.record_cost(decision.request_id, paid_by_tenant(decision.bills))
        request = self._requests.get(decision.request_id)
        match decision:
            case Dispatch():
                if request is None:
                    return []
                request.start_attempt(decision, dispatch_snapshot, now)
                return [decision]
            case Abort():
                return [decision] if request is not None and decision.attempt in request.running else []
            case End():
                if request is None or request.over:
                    return (
                        [BillsReceived(decision.request_id, decision.bills, decision.reserved)]
                        if decision.bills
                        else []
                    )
                self._close(request, now)
                return [decision]

    def _close(self, request: HeldRequest, now: Instant) -> None:
        request.over = True
        if request.attempts:
            self._held.release(request, self.authority.serial, now)
        elif not request.running:
            # The request was never sent, so there is no usage to settle.
            del self._requests[request.id]

    def start_rejection(self, dispatch: Dispatch) -> str | None:
        """Returns why an attempt cannot be started, or None."""
        request = self._requests.get(dispatch.request_id)
        if request is None or request.over:
            return "the request has ended"
        if dispatch.attempt in request.running or (request.running and not dispatch.hedge):
            return "another attempt of the request is running"
        return "another attempt has started to respond" if request.responding_attempt is not None else None

    def decline(self, dispatch: Dispatch, reason: str, now: Instant) -> list[MemberCommand]:
        request = self._requests.get(dispatch.request_id)
        over = request is None or request.over
        waited = Duration(0) if request is None else request.waited(now)
        if request is not None and not over:
            request.admitted = True
        declined = GrantDeclined(dispatch.request_id, dispatch.attempt, over, waited, reason)
        return self.perform(self.authority.decline(declined, now), now)


def _record_first_token(request: HeldRequest, attempt: HeldAttempt) -> None:
    attempt.first_token = True
    if request.responding_attempt is None:
        request.responding_attempt = attempt.dispatch.attempt
