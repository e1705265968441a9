"""How does one request go from its ticket to its end?

The exchange follows its line: it carries out each order, reports how that went, and tells the
caller how it ended. Every `Dispatch` is answered by exactly one `AttemptEnded`, whatever happens
in between; that is what keeps the scheduler's count of places true.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken, RequestWithdrawn, WithdrawalCause
from headgate.edge.client import Client
from headgate.edge.intake import Intake
from headgate.edge.large_bodies import CapLarge, cap_in_thread
from headgate.edge.open_attempts import OpenAttempt, OpenAttempts
from headgate.edge.relay import EngineReply, Relay, Result
from headgate.edge.replies import Replies, tale
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.units import EndpointId
from headgate.ports.engine import Call, Engine
from headgate.ports.host import Host


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
    ) -> None:
        self._client = client
        self._ticket = intake.ticket
        ticket = intake.ticket
        self._call = Call(ticket.request_id, ticket.api, intake.body, intake.passed_on, cache_salt)
        self._cap_large = cap_large
        self._host = host
        self._engines = engines
        self._attempts = attempts
        self._replies = replies
        self._refusal: EngineReply | None = None
        self._events = 0
        """How many events of a stream the caller has been sent."""
        self._aborted: Abort | None = None
        """An abort that came before its attempt had begun."""

    async def run(self) -> None:
        line = self._host.open(self._ticket, self._on_abort)
        self._client.notify_when_left(self._client_left)
        ended = False
        try:
            while isinstance(order := await line.next(), Dispatch):
                await self._attempt(order)
            ended = True
            self._conclude(order)
        finally:
            if not ended:
                self._give_up()
            if (untaken := line.close()) is not None:
                self._attempt_ended(untaken, Result(AttemptEnding.ABORTED, "the door was closed"))

    def _give_up(self) -> None:
        """Nobody will carry out what the scheduler orders for this request from here on."""
        self._host.tell(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.GRACE_OVER))

    def _client_left(self) -> None:
        self._host.tell(RequestWithdrawn(self._ticket.request_id, WithdrawalCause.CLIENT_LEFT))

    def _on_abort(self, abort: Abort) -> None:
        attempt = self._attempts.get(abort.request_id)
        if attempt is not None and attempt.dispatch.attempt == abort.attempt:
            attempt.stop(AttemptEnding.ABORTED, abort.reason)
        else:
            # The order to begin it has been given, but the exchange has yet to wake up and take it.
            self._aborted = abort

    # One attempt

    async def _attempt(self, dispatch: Dispatch) -> None:
        if self._aborted is not None and self._aborted.attempt == dispatch.attempt:
            self._attempt_ended(dispatch, Result(AttemptEnding.ABORTED, self._aborted.reason))
            return
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        now = asyncio.get_running_loop().time()
        attempt = OpenAttempt(dispatch, self._client, task, streamed=self._ticket.stream, now=now)
        self._attempts.add(attempt)
        result: Result | None = None
        try:
            result = await self._relay(dispatch, attempt)
        except asyncio.CancelledError:
            if attempt.stopped is None or task.uncancel():
                raise
            result = Result(*attempt.stopped)
        finally:
            self._attempts.remove(attempt)
            self._events = attempt.events
            if result is None:
                # Given up before the place is, or the scheduler would send the request elsewhere.
                self._give_up()
                result = Result(AttemptEnding.ABORTED, "the door was closed")
            self._attempt_ended(dispatch, result)

    async def _relay(self, dispatch: Dispatch, attempt: OpenAttempt) -> Result:
        engine = self._engines.get(dispatch.endpoint_id)
        if engine is None:
            return Result(AttemptEnding.FAILED, f"endpoint {dispatch.endpoint_id} has left")
        call, degraded = await self._shaped(dispatch.caps)
        told = tale(dispatch.service_class, self._ticket.model, dispatch.waited_ns, dispatch.attempt, degraded)
        relay = Relay(self._client, attempt, told, quotes_engine=self._replies.quotes_engines)
        result = await relay.run(engine, call, lambda: self._first_token(dispatch))
        self._refusal = relay.refusal
        return result

    async def _shaped(self, caps: Caps) -> tuple[Call, tuple[str, ...]]:
        """The call as its class allows it, and what was given up for that."""
        whole = self._call.body
        if whole.is_large:
            body, degraded = await self._cap_large(whole, caps)
        else:
            body, degraded = whole.capped(caps)
        return (replace(self._call, body=body) if degraded else self._call), degraded

    def _first_token(self, dispatch: Dispatch) -> None:
        self._host.tell(FirstToken(dispatch.request_id, dispatch.attempt))

    def _attempt_ended(self, dispatch: Dispatch, result: Result) -> None:
        self._host.tell(AttemptEnded(dispatch.request_id, dispatch.attempt, result.ending, result.detail, result.usage))

    # The end

    def _conclude(self, end: End) -> None:
        """Tells the caller how it ended, unless it knows already or is gone."""
        if self._client.finished or end.outcome is Outcome.CANCELLED:
            return
        if not self._client.started:
            self._reply(end)
        elif self._ticket.stream:
            self._client.finish(self._replies.interruption(end, self._ticket.api, self._events))
        # Otherwise half a body has been sent, and only a cut connection says so: the server cuts
        # it when we return without having finished.

    def _reply(self, end: End) -> None:
        told = tale(end.service_class, self._ticket.model, end.waited_ns, end.attempts)
        if end.outcome is Outcome.ENGINE_REFUSED and self._refusal is not None:
            refusal = self._refusal
            kind = (b"content-type", refusal.content_type.encode())
            headers = [*told, kind, (b"x-should-retry", b"false")]
            self._client.reply(refusal.status, headers, refusal.body)
        else:
            status, headers, body = self._replies.error(end.outcome, end.reason, retry_after_ns=end.retry_after_ns)
            self._client.reply(status, [*told, *headers], body)
