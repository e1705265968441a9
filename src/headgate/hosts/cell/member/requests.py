"""What becomes of the requests that a member holds?

A gateway owns its requests: whether one is open, waits or runs is known here, and only here an end is told to its
caller, once. What needs no decision is not waited for: a whole answer, a refusal by the engine, a failure after the
first token and a caller who leaves end a request at once. The authority hears of it, and answers with what it cost
(`Billed`); other decisions about a request that has ended are ignored.
"""

from collections.abc import Iterable

from headgate.core.admission.budgets import paid_by_tenant
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    FirstToken,
    Progressed,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.hosts.cell.member.authority import Authority, Decision, RequestNews
from headgate.hosts.cell.member.held import HeldRequest, Holdings, OpenAttempt
from headgate.hosts.cell.member.orders import Billed, Order
from headgate.hosts.cell.protocol.messages import Declined, Ended, Snapshots
from headgate.hosts.cell.protocol.validation import Implausible, check_ticket
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant

_SILENT = (AttemptEnding.SILENT, AttemptEnding.ABORTED)
_PAID = (Outcome.COMPLETED, Outcome.ENGINE_REFUSED, Outcome.CANCELLED, Outcome.TOO_LATE)
"""The outcomes that the tenant pays for, among those that the member decides."""


class MemberRequests:
    def __init__(self, holdings: Holdings, authority: Authority, *, held_max: int) -> None:
        self._holdings = holdings
        self._requests = holdings.requests
        self._held_max = held_max
        self.authority = authority
        """Replaced when the member changes its mode."""

    # What happens to them

    def open(self, ticket: Ticket, now: Instant) -> list[Order]:
        assert ticket.request_id not in self._requests, f"request {ticket.request_id} arrived twice"
        try:
            check_ticket(ticket)
        except Implausible as what:
            # The scheduler would reject this ticket and, in the end, fence this member.
            reason = f"the cell does not accept this request: {what} (invalid); correct it"
            return [End(ticket.request_id, Outcome.INVALID, None, 0, Duration(0), None, reason)]
        if (full := self._full()) is not None:
            reason = f"{full} (queue_full); wait 1 s"
            return [End(ticket.request_id, Outcome.QUEUE_FULL, None, 0, Duration(0), SECOND, reason)]
        request = self._requests[ticket.request_id] = HeldRequest(ticket, now)
        return self.perform(self.authority.open(request, now), now)

    def _full(self) -> str | None:
        if len(self._requests) >= self._held_max:
            return f"this gateway holds {len(self._requests)} of {self._held_max} requests"
        return self.authority.full()

    def first_token(self, event: FirstToken, now: Instant) -> list[Order]:
        request, attempt = self._open_attempt(event)
        if request is None or attempt is None:
            return []
        if event.delivered:
            attempt.first_token = True
            if request.spoken is None:
                request.spoken = event.attempt
        return self._report(event, now)

    def progressed(self, event: Progressed, now: Instant) -> list[Order]:
        for each in event.attempts:
            attempt = self._holdings.attempt(each.request_id, each.attempt)
            if attempt is not None:
                attempt.tokens += each.tokens
        return self._report(event, now)

    def attempt_ended(self, event: AttemptEnded, now: Instant) -> list[Order]:
        request, attempt = self._open_attempt(event)
        if request is None or attempt is None:
            return []
        del request.running[event.attempt]
        ended_before = request.over
        out: list[Order] = []
        if not ended_before:
            request.usage = event.usage
            out += self._judge(request, attempt, event, now)
        out += self._report(Ended(event, over=request.over), now)
        if request.over and not ended_before:
            request.ended = self.authority.serial
        self._holdings.release(request, self.authority.serial, now)
        return out

    def _open_attempt(self, event: FirstToken | AttemptEnded) -> tuple[HeldRequest | None, OpenAttempt | None]:
        request = self._requests.get(event.request_id)
        return request, None if request is None else request.running.get(event.attempt)

    def _judge(self, request: HeldRequest, attempt: OpenAttempt, event: AttemptEnded, now: Instant) -> list[Order]:
        """End the request if no decision is needed; otherwise it waits for one."""
        if event.ending is AttemptEnding.COMPLETED:
            request.completed = True
            return self._end(request, attempt, Outcome.COMPLETED, "")
        if event.ending is AttemptEnding.REFUSED:
            return self._end(request, attempt, Outcome.ENGINE_REFUSED, event.detail)
        if request.spoken == event.attempt or (request.spoken is not None and not request.running):
            outcome = Outcome.ENGINE_SILENT if event.ending in _SILENT else Outcome.ENGINE_FAILED
            outcome = Outcome.GATEWAY_FAILED if event.fault is Fault.GATEWAY else outcome
            return self._end(request, attempt, outcome, f"after the first token: {event.detail}", retry_after_ns=SECOND)
        if not request.running:
            request.queued_at = now
            request.failed_at = attempt.order.endpoint_id
        return []

    def withdrawn(self, event: RequestWithdrawn, now: Instant) -> list[Order]:
        request = self._requests.get(event.request_id)
        if request is None or request.over:
            return []
        left = event.cause is WithdrawalCause.CLIENT_LEFT
        if left:
            outcome, reason = Outcome.CANCELLED, "the client left"
        else:
            outcome = Outcome.EVICTED if request.running else Outcome.DRAINING
            reason = "this process is leaving and its grace time is over"
        wait, waited = None if left else SECOND, request.waited(now)
        out = self._end(request, request.last, outcome, reason, retry_after_ns=wait, waited=waited)
        out += self._report(event, now)
        request.ended = self.authority.serial
        self._holdings.release(request, self.authority.serial, now)
        return out

    def _end(
        self,
        request: HeldRequest,
        attempt: OpenAttempt | None,
        outcome: Outcome,
        reason: str,
        *,
        retry_after_ns: Duration | None = None,
        waited: Duration | None = None,
    ) -> list[Order]:
        """End a request without asking, and stop its other attempts."""
        request.over, request.pays = True, outcome in _PAID
        why = reason or "another attempt has answered"
        running = [attempt.order for attempt in request.running.values()]
        out: list[Order] = [Abort(request.id, order.attempt, order.endpoint_id, why) for order in running]
        name = None if attempt is None else attempt.order.service_class
        waited = request.waited_ns if waited is None else waited
        out.append(
            End(request.id, outcome, name, request.attempts, waited, retry_after_ns, reason, held_ns=request.held_ns)
        )
        return out

    def _report(self, news: RequestNews, now: Instant) -> list[Order]:
        return self.perform(self.authority.handle(news, now), now)

    # What the authority decides

    def perform(self, decisions: Iterable[Decision], now: Instant) -> list[Order]:
        """Carry out what the authority decides at once. It is told at once what is not started."""
        out: list[Order] = []
        for decision in decisions:
            if isinstance(decision, Dispatch) and (why := self.why_not(decision)) is not None:
                out += self.decline(decision, why, now)
            else:
                out += self.obey(decision, None, now)
        return out

    def obey(self, decision: Decision, sent: Snapshots | None, now: Instant) -> list[Order]:
        """`sent` is the first snapshot of the scheduler that knows of a dispatch; None if an island decides."""
        if isinstance(decision, End) and decision.bills:
            self._holdings.note_cost(decision.request_id, paid_by_tenant(decision.bills))
        request = self._requests.get(decision.request_id)
        match decision:
            case Dispatch():
                if request is None:
                    return []
                request.begin(decision, sent, now)
                return [decision]
            case Abort():
                return [decision] if request is not None and decision.attempt in request.running else []
            case End():
                if request is None or request.over:
                    return [Billed(decision.request_id, decision.bills, decision.reserved)] if decision.bills else []
                self._close(request, now)
                return [decision]

    def _close(self, request: HeldRequest, now: Instant) -> None:
        request.over = True
        if request.attempts:
            self._holdings.release(request, self.authority.serial, now)
        elif not request.running:
            # It has used nothing that would have to be settled.
            del self._requests[request.id]

    def why_not(self, dispatch: Dispatch) -> str | None:
        """Why an attempt cannot be started; None if it can."""
        request = self._requests.get(dispatch.request_id)
        if request is None or request.over:
            return "the request has ended"
        if dispatch.attempt in request.running or (request.running and not dispatch.hedge):
            return "an attempt of the request is under way"
        return "an attempt has begun to answer" if request.spoken is not None else None

    def decline(self, dispatch: Dispatch, why: str, now: Instant) -> list[Order]:
        request = self._requests.get(dispatch.request_id)
        over = request is None or request.over
        waited = Duration(0) if request is None else request.waited(now)
        if request is not None and not over:
            request.accepted = True
        declined = Declined(dispatch.request_id, dispatch.attempt, over, waited, why)
        return self.perform(self.authority.decline(declined, now), now)
