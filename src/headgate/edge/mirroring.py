"""Sends copies of requests to the mirrors of their routes and discards the responses.

A copy is submitted to the scheduler as a request of its own once the response to the request itself begins, so that it
does not delay the first token. The scheduler sends the copy at once or not at all (`core/mirror_dispatch.py`). Its
exchange is the same as for any request, but its client discards the response. The copy continues if the caller
disconnects, and is stopped when the gateway drains.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from headgate.core.commands import Dispatch
from headgate.core.routing.model_routes import mirror_of
from headgate.edge import request_record
from headgate.edge.client import Client, Headers
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.exchange import Exchange
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.parsed_request import ParsedRequest
from headgate.model.outcome import Outcome
from headgate.model.policy import Model
from headgate.model.routes import MIRROR_TENANT, MirrorResult, mirror_id
from headgate.model.units import EndpointId, Instant, ModelName, TenantId
from headgate.ports.engine import Engine
from headgate.ports.host import Host
from headgate.ports.ledger import AttemptJournal
from headgate.ports.records import RecordSink, RequestRecord

OnMirrorResult = Callable[[ModelName, str, MirrorResult], None]
"""Callback for each request selected for copying, with its model and route."""
_STOP_WAIT_S: Final = 1.0
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_REPLIES: Final = ErrorReplies()
_NOT_SENT: Final = {
    Outcome.SHED: MirrorResult.PRESSURE,
    Outcome.QUEUE_FULL: MirrorResult.BUSY,
    Outcome.NO_ENDPOINTS: MirrorResult.NO_ENDPOINTS,
}
_SENT: Final = {
    Outcome.COMPLETED: MirrorResult.COMPLETED,
    Outcome.EVICTED: MirrorResult.STOPPED,
}


class DiscardingTransport:
    """Client connection that discards the response."""

    @property
    def blocked(self) -> bool:
        return False

    @property
    def peer(self) -> str:
        return ""

    def mark_authenticated(self, _tenant: TenantId | None = None, /) -> bool:
        return True

    def pause_body(self) -> None:
        """Does nothing: the body is complete."""

    def resume_body(self) -> None:
        """Does nothing: the body is complete."""

    def send_continue(self) -> None:
        pass

    def send_head(self, status: int, headers: Headers) -> None:
        pass

    def send(self, data: bytes) -> None:
        pass

    def send_end(self, data: bytes) -> None:
        pass

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return self.send


class Mirrors:
    """Copies in progress. Their number and the size of their bodies are limited."""

    def __init__(  # noqa: PLR0917 (the parts of a gateway)
        self,
        host: Host,
        engines: Mapping[EndpointId, Engine],
        attempts: OpenAttempts,
        records: RecordSink,
        on_result: OnMirrorResult,
        journal: AttemptJournal | None = None,
    ) -> None:
        self.models: Mapping[ModelName, Model] | None = None
        """Models with routes whose requests are copied. None if there are none."""
        self.open_max = 0
        """Maximum number of copies in progress."""
        self._host = host
        self._engines = engines
        self._attempts = attempts
        self._records = records
        self._on_result = on_result
        self._journal = journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def copy(self, intake: ParsedRequest, dispatch: Dispatch, cache_salt: str | None) -> None:
        """Submits a copy of a request whose response begins, if its route has a mirror that selects it.

        `dispatch` is the command of the attempt that responds. `cache_salt` is the salt of the caller's tenant.
        """
        ticket, models = intake.ticket, self.models
        if models is None or self._stopped or not dispatch.route:
            return
        model = models.get(ticket.model)
        if model is None or mirror_of(model, ticket, dispatch.route) is None:
            return
        skipped: MirrorResult | None = None
        if intake.body.is_large:
            skipped = MirrorResult.BODY_TOO_LARGE
        elif dispatch.level:
            skipped = MirrorResult.PRESSURE
        elif len(self._tasks) >= self.open_max:
            skipped = MirrorResult.LIMIT
        if skipped is not None:
            self._on_result(ticket.model, dispatch.route, skipped)
            return
        task = asyncio.get_running_loop().create_task(self._run(_copy_of(intake, dispatch), cache_salt))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def stop(self) -> None:
        """Stops all copies, and copies no further requests."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_WAIT_S)

    async def _run(self, intake: ParsedRequest, cache_salt: str | None) -> None:
        ticket = intake.ticket
        client = Client(DiscardingTransport(), "POST", b"", {}, 0)
        record = _begin_record(intake, client)
        exchange = Exchange(
            client,
            intake,
            self._host,
            self._engines,
            self._attempts,
            _REPLIES,
            cache_salt,
            record=record,
            journal=self._journal,
        )
        result = MirrorResult.STOPPED
        try:
            await exchange.run()
            outcome = record.outcome or Outcome.INTERNAL_ERROR
            results = _SENT if record.attempts else _NOT_SENT
            result = results.get(outcome, MirrorResult.FAILED)
        finally:
            self._on_result(ticket.model, ticket.mirror_route, result)
            client.release()
            if record.attempts:
                request_record.close(record, client)
                self._records.add(record)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "the copy of a request ended with an internal error", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


def _copy_of(intake: ParsedRequest, dispatch: Dispatch) -> ParsedRequest:
    """Returns the copy. Nothing in it connects it with the caller's tenant, session, deadline or trace."""
    ticket = replace(
        intake.ticket,
        request_id=mirror_id(intake.ticket.request_id),
        tenant=MIRROR_TENANT,
        requested_class=dispatch.service_class,
        service_tier=None,
        model_tier=None,
        client_retries=0,
        first_token_ns_left=None,
        completion_ns_left=None,
        idempotency_key=None,
        metadata=(),
        fingerprint="",
        session="",
        route_headers=(),
        sticky_keys=(),
        mirror_route=dispatch.route,
    )
    headers = {name: value for name, value in intake.forwarded_headers.items() if name not in _TRACE_HEADERS}
    return replace(intake, ticket=ticket, forwarded_headers=headers, session=b"")


def _begin_record(intake: ParsedRequest, client: Client) -> RequestRecord:
    now = time.monotonic_ns()
    record = RequestRecord(intake.ticket.request_id, Instant(time.time_ns()), now)
    record.head_received_at = record.authenticated_at = client.received_at = now
    record.api = intake.ticket.api
    request_record.describe(record, intake.ticket)
    return record
