"""One request, from ticket to completion.

The exchange carries out each command from its command channel, reports the result and sends the outcome to the client.
Every `Dispatch` is followed by exactly one `AttemptEnded`, whatever happens in between. The scheduler relies on this to
keep its slot counts correct.

A hedge is a second attempt, started while the first one has produced no output. It runs in its own task. The first
attempt with output delivers the response. The exchange stops the other one immediately, because the scheduler's abort
may take a network round trip.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    FirstToken,
    RequestWithdrawn,
    WithdrawalCause,
)
from headgate.edge.client import Client, Headers
from headgate.edge.error_replies import ErrorReplies, routing_headers
from headgate.edge.generation_reporter import GenerationReporter
from headgate.edge.large_bodies.client import CapLarge, cap_in_thread
from headgate.edge.open_attempts import OpenAttempt, OpenAttempts
from headgate.edge.parsed_request import ParsedRequest
from headgate.edge.relay import AttemptResult, EngineReply, Relay
from headgate.edge.request_record import trace_headers
from headgate.model.caps import Caps
from headgate.model.fault import Fault
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, EndpointId, Instant
from headgate.model.usage import Usage, UsageSource, usage_problem
from headgate.ports.engine import BatchHints, Call, Engine
from headgate.ports.host import Host
from headgate.ports.ledger import AttemptJournal
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.wire.batch_codecs import BATCH_CODECS
from headgate.wire.request_body import RequestBody

OnResponse = Callable[[ParsedRequest, Dispatch, str | None], None]
"""Called with the request, the command of the attempt that responds and the salt of the tenant's prefix caches."""
_SUPERSEDED = "another attempt responded first"
# Python 3.11 takes about 1,000 instructions to look up an enum member.
_CANCELLED = Outcome.CANCELLED
_COMPLETED = AttemptEnding.COMPLETED
_REPORT_LEAD_S = 0.002
"""Delivered tokens are reported this many seconds before a deadline. Event loop timers are accurate to 1 ms."""


class Exchange:
    def __init__(  # noqa: PLR0917 (keyword arguments make the call slower)
        self,
        client: Client,
        intake: ParsedRequest,
        host: Host,
        engines: Mapping[EndpointId, Engine],
        attempts: OpenAttempts,
        replies: ErrorReplies,
        cache_salt: str | None = None,
        cap_large: CapLarge = cap_in_thread,
        record: RequestRecord | None = None,
        traced: bool = False,  # noqa: FBT001, FBT002 (as above)
        journal: AttemptJournal | None = None,
        on_response: OnResponse | None = None,
    ) -> None:
        """Writes the result to `record`. If `traced` is set, engines receive the trace context.

        Each attempt is written to `journal` before it is sent. `on_response` is called when the response begins.
        """
        self._client = client
        ticket = self._ticket = intake.ticket
        self._record = record or RequestRecord(ticket.request_id, Instant(0), 0)
        self._traced = traced
        self._journal, self._on_response = journal, on_response
        self._intake = intake
        self._cache_salt = cache_salt
        self._cap_large = cap_large
        self._host, self._engines = host, engines
        self._attempts, self._replies = attempts, replies
        self._model = ticket.model
        """Model of the current or last attempt."""
        self._engine_rejection: EngineReply | None = None
        self._arrived_s = 0.0 if ticket.completion_ns_left is None else asyncio.get_running_loop().time()
        """Time of arrival, in seconds of the event loop clock. 0 if there is no deadline."""
        self._events = 0
        """Number of stream events sent to the client."""
        self._open: dict[int, OpenAttempt] = {}
        """Running attempts, by number."""
        self._responded = False
        """Whether an attempt has started the response. If so, no other attempt may respond."""
        self._hedges: list[asyncio.Task[None]] = []
        self._aborted_early: dict[int, str] = {}
        """Abort reasons for attempts that had not started when the abort arrived, by attempt number."""

    async def run(self) -> None:
        self._record.queued_at = time.monotonic_ns()
        line = self._host.open(self._ticket, self._interrupt)
        self._client.notify_on_disconnect(self._on_disconnect)
        left_ns = self._ticket.completion_ns_left
        reporting: asyncio.TimerHandle | None = None
        if left_ns is not None:
            # Reports delivered tokens just before the scheduler ends the request at its deadline.
            seconds_left = max(0.0, left_ns / SECOND - _REPORT_LEAD_S)
            reporting = asyncio.get_running_loop().call_later(seconds_left, self._report_delivered)
        ended = False
        failure: BaseException | None = None
        try:
            while isinstance(order := await line.next(), Dispatch):
                await self._attempt(order, self._client.task)
            ended = True
            self._finish(order)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failure = error
        if reporting is not None:
            reporting.cancel()
        if not ended:
            self._withdraw()
        if (untaken := line.close()) is not None:
            closed = AttemptResult(AttemptEnding.ABORTED, "the exchange was cancelled")
            self._attempt_ended(untaken, closed, self._begin_record(untaken))
        for hedge in self._hedges:
            # This task was already stopped when the request ended. A compiled coroutine may not wait in `finally`.
            await hedge
        if failure is not None:
            raise failure

    def _withdraw(self) -> None:
        """Withdraws the request, because this exchange will not carry out any more commands for it."""
        self._host.report(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.SHUTDOWN))

    def _report_delivered(self) -> None:
        """Reports each attempt's tokens so far.

        The tenant is billed for the tokens reported before the request ends.
        """
        reports: list[AttemptProgress] = []
        for attempt in self._open.values():
            if attempt.cancel_first_token_report():
                self._report_first_token(attempt)
            if attempt.events > attempt.events_reported:
                number, tokens = attempt.dispatch.attempt, attempt.events - attempt.events_reported
                reports.append(AttemptProgress(self._ticket.request_id, number, tokens))
                attempt.events_reported = attempt.events
        if reports:
            self._host.report(AttemptsProgressed(tuple(reports), self._attempts.lateness.late))

    def _on_disconnect(self) -> None:
        self._report_delivered()
        self._host.report(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.CLIENT_DISCONNECTED))

    def _interrupt(self, order: Abort | Dispatch) -> None:
        if isinstance(order, Dispatch):
            self._hedges.append(asyncio.create_task(self._attempt(order, None)))
        elif (attempt := self._open.get(order.attempt)) is not None:
            attempt.stop(AttemptEnding.ABORTED, order.reason)
        else:
            # The attempt has been dispatched, but its task has not started it yet.
            self._aborted_early[order.attempt] = order.reason

    # One attempt

    async def _attempt(self, dispatch: Dispatch, task: asyncio.Task[None] | None) -> None:
        """Makes one attempt. `task` is the task that calls this, or None if the caller does not know it."""
        record = self._begin_record(dispatch)
        why = _SUPERSEDED if self._responded else self._aborted_early.get(dispatch.attempt)
        if why is not None:
            self._attempt_ended(dispatch, AttemptResult(AttemptEnding.ABORTED, why), record)
            return
        task = task or asyncio.current_task()
        assert task is not None
        now = asyncio.get_running_loop().time()
        attempt = OpenAttempt(dispatch, self._client, task, record, self._ticket.stream, now)
        self._attempts.add(attempt)
        self._open[dispatch.attempt] = attempt
        try:
            result = await self._relay(dispatch, attempt)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or attempt.stop_cause is None or task.uncancel():
                self._end_attempt(attempt, None)
                raise
            ending, why, fault = attempt.stop_cause
            result = AttemptResult(ending, why, fault=fault)
        self._end_attempt(attempt, result)

    def _end_attempt(self, attempt: OpenAttempt, result: AttemptResult | None) -> None:
        """Reports the end of an attempt. `result` is None if the exchange was cancelled or failed."""
        dispatch = attempt.dispatch
        self._attempts.remove(attempt)
        del self._open[dispatch.attempt]
        first_token = attempt.cancel_first_token_report()
        if first_token and (result is None or result.ending is not _COMPLETED):
            # The end reports the first token only if nothing else depends on their order, such as a withdrawal.
            self._report_first_token(attempt)
            first_token = False
        if attempt.first_token_seen:
            self._events = attempt.events
        if result is None:
            # Withdraw before freeing the slot. Otherwise the scheduler would retry the request elsewhere.
            self._withdraw()
            result = AttemptResult(AttemptEnding.ABORTED, "the exchange was cancelled")
        if attempt.events > attempt.events_reported and (
            result.usage is None or result.usage.source is not UsageSource.ENGINE
        ):
            # If the engine does not report usage, the event count is the only measure of the tokens.
            last = AttemptProgress(dispatch.request_id, dispatch.attempt, attempt.events - attempt.events_reported)
            self._host.report(AttemptsProgressed((last,), self._attempts.lateness.late))
        if result.usage is None and attempt.first_token_seen:
            self._record.output_tokens = attempt.events
        if attempt.limits is not None:
            result = replace(result, limits=attempt.pop_limits())
        self._attempt_ended(dispatch, result, attempt.record, first_token=first_token)

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

    async def _relay(self, dispatch: Dispatch, attempt: OpenAttempt) -> AttemptResult:
        try:
            engine = self._engines[dispatch.endpoint_id]  # `Mapping.get` would call two functions.
        except KeyError:
            return AttemptResult(
                AttemptEnding.FAILED, f"endpoint {dispatch.endpoint_id} was removed", fault=Fault.CONNECTION
            )
        body, caps = self._intake.body, dispatch.caps
        capped, degraded = (
            await self._cap_large(body, caps, self._ticket.tenant) if body.is_large else body.capped(caps)
        )
        call = self._call(capped if degraded else body, dispatch, attempt)
        self._model = dispatch.model or self._ticket.model
        if dispatch.model is not None:
            degraded = (*degraded, f"model={dispatch.model}")
        if dispatch.level:
            degraded = (*degraded, f"level={dispatch.level}")
        self._record.degraded, self._record.model_served = degraded, dispatch.model
        told = routing_headers(
            dispatch.service_class,
            self._model,
            dispatch.waited_ns,
            dispatch.attempt,
            degraded,
            dispatch.limits,
            dispatch.held_ns,
        )
        if self._journal is not None and (
            why := await self._journal.wait_journaled(dispatch.request_id, dispatch.attempt)
        ):
            return AttemptResult(AttemptEnding.FAILED, why, fault=Fault.GATEWAY)
        relay = Relay(self._client, attempt, told, self._replies.quotes_engines, self._on_first_token)
        result = await relay.run(engine, call)
        self._engine_rejection = relay.rejection or self._engine_rejection
        return result if result.usage is None else _check_usage(result, result.usage, self._ticket, dispatch.caps)

    def _call(self, body: RequestBody, dispatch: Dispatch, attempt: OpenAttempt) -> Call:
        ticket, sent, limits, adapter = self._ticket, attempt.record.mark_sent, attempt.record_limits, dispatch.adapter
        given = self._intake.forwarded_headers
        headers = trace_headers(self._record, dispatch.attempt, given) if self._traced else given
        company = (
            _batch_hints(ticket, dispatch, self._arrived_s)
            if ticket.api in BATCH_CODECS and not dispatch.adapter
            else None
        )
        watch = None if ticket.stream else GenerationReporter(attempt, self._on_undelivered_first_token)
        return Call(
            ticket.request_id, ticket.api, body, headers, self._cache_salt, company, sent, watch, adapter, limits
        )

    def _on_first_token(self, attempt: OpenAttempt) -> None:
        """Makes this attempt the one that responds, and stops all others."""
        self._responded = True
        if self._on_response is not None:
            self._on_response(self._intake, attempt.dispatch, self._cache_salt)
        if len(self._open) > 1:
            for other in self._open.values():
                if other is not attempt:
                    other.stop(AttemptEnding.ABORTED, _SUPERSEDED)
        if self._ticket.stream or self._ticket.first_token_ns_left is not None:
            self._report_first_token(attempt)
        else:
            attempt.delay_first_token_report(self._report_first_token)

    def _report_first_token(self, attempt: OpenAttempt) -> None:
        self._host.report(attempt.first_token_event())

    def _on_undelivered_first_token(self, dispatch: Dispatch) -> None:
        """Reports a first token that was not delivered. Another attempt may still respond."""
        self._host.report(FirstToken(dispatch.request_id, dispatch.attempt, delivered=False))

    def _attempt_ended(
        self, dispatch: Dispatch, result: AttemptResult, record: AttemptRecord, *, first_token: bool = False
    ) -> None:
        record.ended_at = time.monotonic_ns()
        record.ending, record.detail = result.ending, result.detail
        if (usage := result.usage) is not None:
            whole = self._record
            whole.prompt_tokens, whole.cached_tokens = usage.prompt_tokens, usage.cached_tokens
            whole.output_tokens = usage.output_tokens
        self._host.report(result.event(dispatch, first_token=first_token))

    # The end

    def _finish(self, end: End) -> None:
        """Sends the outcome to the client, unless the response is complete or the client has disconnected."""
        record = self._record
        record.outcome, record.reason, record.class_name = end.outcome, end.reason, end.service_class
        record.waited_ns, record.held_ns = end.waited_ns, end.held_ns
        if self._client.finished or end.outcome is _CANCELLED:
            return
        if not self._client.started:
            self._reply(end)
        elif self._ticket.stream:
            self._client.finish(self._replies.stream_error(end, self._ticket.api, self._events))
        # Otherwise part of a non-streaming response has been sent. The server aborts the connection when this method
        # returns without finishing, which shows the client that the response is incomplete.

    def _reply(self, end: End) -> None:
        waited_ns, attempts, held_ns = end.waited_ns, end.attempts, end.held_ns
        told = routing_headers(end.service_class, self._model, waited_ns, attempts, limits=end.limits, held_ns=held_ns)
        status, headers, body = _error_reply(end, self._engine_rejection, self._replies)
        self._client.reply(status, [*told, *headers], body)


def _error_reply(end: End, rejection: EngineReply | None, replies: ErrorReplies) -> tuple[int, Headers, bytes]:
    if end.outcome is not Outcome.ENGINE_REJECTED or rejection is None:
        return replies.error(end.outcome, end.reason, retry_after_ns=end.retry_after_ns)
    kind, body = replies.engine_error(rejection.status, rejection.content_type, rejection.body)
    return rejection.status, [(b"content-type", kind.encode()), (b"x-should-retry", b"false")], body


def _check_usage(result: AttemptResult, usage: Usage, ticket: Ticket, caps: Caps) -> AttemptResult:
    """Drops impossible usage from the result, so that delivered tokens are counted instead."""
    answers, most = ticket.answers(caps.n), ticket.output_limit(caps.output_tokens)
    flaw = usage_problem(usage, ticket, answers=answers, output_limit=most)
    if flaw is None:
        return result
    detail = f"{result.detail}; {flaw}" if result.detail else flaw
    return replace(result, detail=detail, usage=None, usage_implausible=True)


def _batch_hints(ticket: Ticket, dispatch: Dispatch, arrived_s: float) -> BatchHints:
    """Returns the conditions under which the request may be batched with others."""
    left_ns = ticket.completion_ns_left
    if left_ns is not None:
        passed_s = asyncio.get_running_loop().time() - arrived_s
        left_ns = Duration(max(0, left_ns - int(passed_s * SECOND)))
    return BatchHints(ticket.tenant, dispatch.service_class, dispatch.attempt > 1, left_ns)
