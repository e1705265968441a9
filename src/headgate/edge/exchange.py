"""How does one request go from its ticket to its end?

The exchange follows its line: it carries out each order, reports how that went, and tells the
caller how it ended. Every `Dispatch` is answered by exactly one `AttemptEnded`, whatever happens
in between; that is what keeps the scheduler's count of places true.

A hedge, a second attempt while the first is silent, runs in a task of its own. Whichever of the two
is first to have something for the caller speaks from there on, and the other is let go within the
same breath: before the scheduler says so, since that may be a message away.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    FirstToken,
    Progressed,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.edge.client import Client
from headgate.edge.intake import Intake
from headgate.edge.large_bodies.client import CapLarge, cap_in_thread
from headgate.edge.open_attempts import OpenAttempt, OpenAttempts
from headgate.edge.relay import EngineReply, Relay, Result
from headgate.edge.replies import Replies, tale
from headgate.edge.request_record import passed_on
from headgate.edge.watched_attempt import WatchedAttempt
from headgate.model.caps import Caps
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, EndpointId, Instant
from headgate.model.usage import Usage, impossible
from headgate.ports.engine import Call, Company, Engine
from headgate.ports.host import Host
from headgate.ports.ledger import AttemptJournal
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.wire.batched_apis import BATCHED
from headgate.wire.request import RequestBody

_SPOKEN = "another attempt was the first to answer"
_REPORTED_BEFORE_S = 0.002
"""How long before a deadline the delivered tokens are reported. Timers of the loop have a resolution of 1 ms."""


class Exchange:
    def __init__(
        self,
        client: Client,
        intake: Intake,
        host: Host,
        engines: Mapping[EndpointId, Engine],
        attempts: OpenAttempts,
        *,
        replies: Replies,
        cache_salt: str | None = None,
        cap_large: CapLarge = cap_in_thread,
        record: RequestRecord | None = None,
        traced: bool = False,
        journal: AttemptJournal | None = None,
    ) -> None:
        """The result is written into `record`. If `traced`, engines receive the trace context.

        No attempt is sent before it is in the `journal`.
        """
        self._client = client
        ticket = self._ticket = intake.ticket
        self._record = record or RequestRecord(ticket.request_id, Instant(0), 0)
        self._traced = traced
        self._journal = journal
        self._intake = intake
        self._cache_salt = cache_salt
        self._cap_large = cap_large
        self._host = host
        self._engines = engines
        self._attempts = attempts
        self._replies = replies
        self._model = ticket.model
        """The one that serves it, or was the last to be asked to."""
        self._refusal: EngineReply | None = None
        self._arrived_s = asyncio.get_running_loop().time()
        self._events = 0
        """How many events of a stream the caller has been sent."""
        self._open: dict[int, OpenAttempt] = {}
        """Attempts under way, by number."""
        self._spoken = False
        """Whether one of them has begun to answer the caller. From then on no other may."""
        self._hedges: list[asyncio.Task[None]] = []
        self._aborted: dict[int, str] = {}
        """Why an attempt is not to be begun, where its abort came before."""

    async def run(self) -> None:
        self._record.queued_at = time.monotonic_ns()
        line = self._host.open(self._ticket, self._aside)
        self._client.notify_when_left(self._client_left)
        reporting = self._report_before_deadline()
        ended = False
        try:
            while isinstance(order := await line.next(), Dispatch):
                await self._attempt(order)
            ended = True
            self._conclude(order)
        finally:
            if reporting is not None:
                reporting.cancel()
            if not ended:
                self._give_up()
            if (untaken := line.close()) is not None:
                closed = Result(AttemptEnding.ABORTED, "the door was closed")
                self._attempt_ended(untaken, closed, self._begin_record(untaken))
            for hedge in self._hedges:
                # The end of the request has stopped it, and it has nothing more to wait for.
                await hedge

    def _report_before_deadline(self) -> asyncio.TimerHandle | None:
        """Schedules a report of the delivered tokens just before the scheduler ends the request at its deadline."""
        if (left_ns := self._ticket.completion_ns_left) is None:
            return None
        seconds_left = max(0.0, left_ns / SECOND - _REPORTED_BEFORE_S)
        return asyncio.get_running_loop().call_later(seconds_left, self._report_delivered)

    def _give_up(self) -> None:
        """Nobody will carry out what the scheduler orders for this request from here on."""
        self._host.tell(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.GRACE_OVER))

    def _report_delivered(self) -> None:
        """Reports the tokens of each attempt so far. The tenant pays for tokens reported before the request ends."""
        reports: list[AttemptProgress] = []
        for attempt in self._open.values():
            if attempt.events > attempt.reported:
                number, tokens = attempt.dispatch.attempt, attempt.events - attempt.reported
                reports.append(AttemptProgress(self._ticket.request_id, number, tokens))
                attempt.reported = attempt.events
        if reports:
            self._host.tell(Progressed(tuple(reports), self._attempts.pace.late))

    def _client_left(self) -> None:
        self._report_delivered()
        self._host.tell(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.CLIENT_LEFT))

    def _aside(self, order: Abort | Dispatch) -> None:
        if isinstance(order, Dispatch):
            self._hedges.append(asyncio.create_task(self._attempt(order)))
        elif (attempt := self._open.get(order.attempt)) is not None:
            attempt.stop(AttemptEnding.ABORTED, order.reason)
        else:
            # The order to begin it has been given, but who is to carry it out has yet to wake up and take it.
            self._aborted[order.attempt] = order.reason

    # One attempt

    async def _attempt(self, dispatch: Dispatch) -> None:
        record = self._begin_record(dispatch)
        why = _SPOKEN if self._spoken else self._aborted.get(dispatch.attempt)
        if why is not None:
            self._attempt_ended(dispatch, Result(AttemptEnding.ABORTED, why), record)
            return
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        now = asyncio.get_running_loop().time()
        attempt = OpenAttempt(dispatch, self._client, task, record, reports_tokens=self._ticket.stream, now=now)
        self._attempts.add(attempt)
        self._open[dispatch.attempt] = attempt
        result: Result | None = None
        try:
            result = await self._relay(dispatch, attempt)
        except asyncio.CancelledError:
            if attempt.stopped is None or task.uncancel():
                raise
            ending, why, fault = attempt.stopped
            result = Result(ending, why, fault=fault)
        finally:
            self._attempts.remove(attempt)
            del self._open[dispatch.attempt]
            if attempt.first_seen:
                self._events = attempt.events
            if result is None:
                # Given up before the place is, or the scheduler would send the request elsewhere.
                self._give_up()
                result = Result(AttemptEnding.ABORTED, "the door was closed")
            if result.usage is None and attempt.events > attempt.reported:
                # Nobody else will say how much there was of it.
                last = AttemptProgress(dispatch.request_id, dispatch.attempt, attempt.events - attempt.reported)
                self._host.tell(Progressed((last,), self._attempts.pace.late))
            if result.usage is None and attempt.first_seen:
                self._record.output_tokens = attempt.events
            self._attempt_ended(dispatch, result, record)

    def _begin_record(self, dispatch: Dispatch) -> AttemptRecord:
        record = AttemptRecord(
            dispatch.attempt,
            dispatch.endpoint_id,
            dispatch.pool,
            reason=dispatch.reason,
            hedge=dispatch.hedge,
            waited_ns=dispatch.waited_ns,
            now=time.monotonic_ns(),
        )
        self._record.class_name = dispatch.service_class
        self._record.attempts.append(record)
        return record

    async def _relay(self, dispatch: Dispatch, attempt: OpenAttempt) -> Result:
        engine = self._engines.get(dispatch.endpoint_id)
        if engine is None:
            return Result(AttemptEnding.FAILED, f"endpoint {dispatch.endpoint_id} has left", fault=Fault.CONNECTION)
        body, degraded = await self._shaped(dispatch.caps)
        call = self._call(body, dispatch, attempt)
        self._model = dispatch.model or self._ticket.model
        if dispatch.model is not None:
            degraded = (*degraded, f"model={dispatch.model}")
        if dispatch.level:
            degraded = (*degraded, f"level={dispatch.level}")
        self._record.degraded, self._record.model_served = degraded, dispatch.model
        waited_ns, number, limits, held_ns = dispatch.waited_ns, dispatch.attempt, dispatch.limits, dispatch.held_ns
        told = tale(dispatch.service_class, self._model, waited_ns, number, degraded, limits=limits, held_ns=held_ns)
        if self._journal is not None and (why := await self._journal.noted(dispatch.request_id, dispatch.attempt)):
            return Result(AttemptEnding.FAILED, why, fault=Fault.GATEWAY)
        relay = Relay(self._client, attempt, told, quotes_engine=self._replies.quotes_engines)
        result = await relay.run(engine, call, lambda: self._first_token(attempt))
        self._refusal = relay.refusal or self._refusal
        return result if result.usage is None else self._believed(result, result.usage, dispatch.caps)

    def _believed(self, result: Result, usage: Usage, caps: Caps) -> Result:
        """Removes impossible usage from the result; delivered tokens are then counted, as without usage."""
        ticket = self._ticket
        answers, most = ticket.answers(caps.n), ticket.output_most(caps.output_tokens)
        flaw = impossible(usage, ticket, answers=answers, output_most=most)
        if flaw is None:
            return result
        detail = f"{result.detail}; {flaw}" if result.detail else flaw
        return replace(result, detail=detail, usage=None, disbelieved=True)

    async def _shaped(self, caps: Caps) -> tuple[RequestBody, tuple[str, ...]]:
        """The body as its class allows it, and what was given up for that."""
        whole = self._intake.body
        if whole.is_large:
            body, degraded = await self._cap_large(whole, caps, self._ticket.tenant)
        else:
            body, degraded = whole.capped(caps)
        return (body if degraded else whole), degraded

    def _call(self, body: RequestBody, dispatch: Dispatch, attempt: OpenAttempt) -> Call:
        ticket = self._ticket
        headers = passed_on(self._record, dispatch.attempt) if self._traced else self._intake.passed_on
        company = self._company(dispatch) if ticket.api in BATCHED else None
        watch = None if ticket.stream else WatchedAttempt(attempt, lambda: self._first_undelivered(dispatch))
        return Call(ticket.request_id, ticket.api, body, headers, self._cache_salt, company, attempt.record.sent, watch)

    def _company(self, dispatch: Dispatch) -> Company:
        """On which terms it may wait for others to be asked together with it."""
        left_ns = self._ticket.completion_ns_left
        if left_ns is not None:
            passed_s = asyncio.get_running_loop().time() - self._arrived_s
            left_ns = Duration(max(0, left_ns - int(passed_s * SECOND)))
        return Company(self._ticket.tenant, dispatch.service_class, dispatch.attempt > 1, left_ns)

    def _first_token(self, attempt: OpenAttempt) -> None:
        """This one speaks for the request from here on."""
        self._spoken = True
        for other in self._open.values():
            if other is not attempt:
                other.stop(AttemptEnding.ABORTED, _SPOKEN)
        self._host.tell(FirstToken(attempt.dispatch.request_id, attempt.dispatch.attempt))

    def _first_undelivered(self, dispatch: Dispatch) -> None:
        """Reports a first token that has not been delivered: another attempt may still answer the request."""
        self._host.tell(FirstToken(dispatch.request_id, dispatch.attempt, delivered=False))

    def _attempt_ended(self, dispatch: Dispatch, result: Result, record: AttemptRecord) -> None:
        record.ended_at = time.monotonic_ns()
        record.ending, record.detail = result.ending, result.detail
        if (usage := result.usage) is not None:
            whole = self._record
            whole.prompt_tokens, whole.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            whole.output_tokens = usage.output_tokens
        how = result.ending, result.detail, result.usage, result.fault, result.disbelieved
        self._host.tell(AttemptEnded(dispatch.request_id, dispatch.attempt, *how))

    # The end

    def _conclude(self, end: End) -> None:
        """Tells the caller how it ended, unless it knows already or is gone."""
        record = self._record
        record.outcome, record.reason, record.class_name = end.outcome, end.reason, end.service_class
        record.waited_ns, record.held_ns = end.waited_ns, end.held_ns
        if self._client.finished or end.outcome is Outcome.CANCELLED:
            return
        if not self._client.started:
            self._reply(end)
        elif self._ticket.stream:
            self._client.finish(self._replies.interruption(end, self._ticket.api, self._events))
        # Otherwise half a body has been sent, and only a cut connection says so: the server cuts
        # it when we return without having finished.

    def _reply(self, end: End) -> None:
        waited_ns, attempts, held_ns = end.waited_ns, end.attempts, end.held_ns
        told = tale(end.service_class, self._model, waited_ns, attempts, limits=end.limits, held_ns=held_ns)
        if end.outcome is Outcome.ENGINE_REFUSED and self._refusal is not None:
            refusal = self._refusal
            kind = (b"content-type", refusal.content_type.encode())
            headers = [*told, kind, (b"x-should-retry", b"false")]
            self._client.reply(refusal.status, headers, refusal.body)
        else:
            status, headers, body = self._replies.error(end.outcome, end.reason, retry_after_ns=end.retry_after_ns)
            self._client.reply(status, [*told, *headers], body)
