"""Application behind the data listener.

The application authenticates each request, reads it into a ticket and starts an `Exchange` for it. Requests that cannot
become a ticket are rejected here, with the same kind of error response. The list of routes is fixed, and all other
paths are rejected. Requests of KServe's protocol (`kserve.py`) and of Anthropic's (`anthropic.py`) have their own paths
and errors and are otherwise handled like all others. Every path except the error pages (`pages/`) requires an API key.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from headgate.core.events import RequestRejected, RequestWithdrawn, WithdrawalCause
from headgate.edge import request_record
from headgate.edge.anthropic import MESSAGES_ROUTES, VERSION_HEADER, AnthropicReplies
from headgate.edge.auth import CallerKeys
from headgate.edge.body_bytes import BodyBytes, BodyClaim
from headgate.edge.client import BodyMemoryExceeded, Client, ClientDisconnected
from headgate.edge.error_replies import JSON_HEADER, ErrorReplies, rate_limit_headers
from headgate.edge.exchange import Exchange
from headgate.edge.kserve import SERVER_ROUTES, KserveReplies, ServerOperation, find_route, is_kserve
from headgate.edge.large_bodies.client import CapLarge, ReadLarge, cap_in_thread, read_in_thread
from headgate.edge.mirroring import Mirrors
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.options import EdgeLimits
from headgate.edge.pages.served import HtmlPage, error_pages
from headgate.edge.parse_queue import ParseQueue
from headgate.edge.parsed_request import (
    EdgeRejection,
    ModelTarget,
    ParsedRequest,
    authenticate,
    authenticate_again,
    content_length,
    read_request,
)
from headgate.edge.tenant_shares import TenantShares
from headgate.edge.unverified_bodies import UnverifiedBodies
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.routes import RouteInputs
from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import SECOND, EndpointId, ModelName, RequestId, TenantId
from headgate.ports.engine import Engine
from headgate.ports.host import Host
from headgate.ports.identity import UnknownTokenKey
from headgate.ports.ledger import AttemptJournal
from headgate.ports.records import NullRecordSink, RecordSink, RequestRecord
from headgate.wire.anthropic_bodies import REQUEST_ID_HEADER, is_messages, model_list
from headgate.wire.doors import DOORS
from headgate.wire.openai_bodies import json_body, models_body
from headgate.wire.turn_budget import SLICE_BYTES

ROUTES: Mapping[bytes, Api] = {
    b"/v1/chat/completions": Api.CHAT,
    b"/v1/completions": Api.COMPLETIONS,
    b"/v1/embeddings": Api.EMBEDDINGS,
    b"/v1/responses": Api.RESPONSES,
    b"/v1/audio/transcriptions": Api.TRANSCRIPTIONS,
    b"/v1/audio/translations": Api.TRANSLATIONS,
    **{path.encode(): api for api, door in DOORS.items() for path in door.paths},
}
MODELS_ROUTE = b"/v1/models"
USAGE_ROUTE = b"/v1/usage"
GET_ROUTES = (MODELS_ROUTE, USAGE_ROUTE)
_COUNTED_REJECTIONS = (
    Outcome.INVALID_REQUEST,
    Outcome.REQUEST_TOO_LARGE,
    Outcome.MODEL_NOT_FOUND,
    Outcome.FORBIDDEN,
    Outcome.DUPLICATE_REQUEST,
)
"""Rejections before admission that count toward the tenant's request rate."""


@dataclass(slots=True)
class Access:
    """Keys, models, salts and usage reports of all tenants. Replaced when the configuration changes."""

    keys: CallerKeys
    models: Callable[[TenantId], tuple[ModelName, ...]]
    """Models that a tenant may use."""
    salts: Mapping[TenantId, str]
    """Salts that keep each tenant's cached prefixes separate from other tenants'."""
    usage: Callable[[TenantId], Mapping[str, object]]
    """Usage report of a tenant: its limits and current usage."""


@dataclass(slots=True)
class GatewayApp:
    """Application behind the data listener."""

    host: Host
    engines: Mapping[EndpointId, Engine]
    attempts: OpenAttempts
    access: Access
    limits: EdgeLimits
    on_rejected: Callable[[Outcome], None]
    """Callback for each request rejected before it becomes a ticket."""
    replies: ErrorReplies = field(default_factory=ErrorReplies)
    read_large: ReadLarge = read_in_thread
    cap_large: CapLarge = cap_in_thread
    zone: str = ""
    """Zone of this gateway. Empty if not configured."""
    metadata_names: tuple[str, ...] = ()
    """Names of the request metadata fields that are stored in the ledger."""
    session_fields: tuple[str, ...] | None = None
    """Body fields that may name a session. None if sessions are not used."""
    route_inputs: RouteInputs | None = None
    """Parts of requests that the routes of models need. None if they need nothing."""
    records: RecordSink = field(default_factory=NullRecordSink)
    """Receives the record of each request when it ends."""
    sample_ppm: int | None = None
    """Trace sampling rate, in parts per million. None if tracing is off."""
    journal: AttemptJournal | None = None
    """Journal to which each attempt is written before it is sent. None without a ledger."""
    pages: Mapping[bytes, HtmlPage] = field(default_factory=error_pages)
    """Error pages by path. They are served without a key and without involving the scheduler."""
    mirrors: Mirrors | None = None
    """Sends copies of requests. None if no route has had a mirror yet."""
    draining: bool = False
    unverified_bodies: UnverifiedBodies = field(default_factory=UnverifiedBodies)
    _bodies: BodyBytes = field(default_factory=BodyBytes)
    _parse_queue: ParseQueue = field(default_factory=ParseQueue)
    _awaiting_body: TenantShares = field(default_factory=TenantShares)
    """Open requests whose bodies have not fully arrived."""
    _open: set[RequestId] = field(default_factory=set[RequestId])
    _receive_timeouts: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """Receive timeouts of requests that are still being read."""
    _grace_ended: bool = False
    _drained_event: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, client: Client) -> None:
        request_id = RequestId("req_" + os.urandom(12).hex())
        client.common_headers.append((b"x-request-id", request_id.encode()))
        if self.draining:
            client.closes = True
        record = request_record.begin(client, request_id, self.sample_ppm)
        try:
            # One coroutine less in the common case, because every resumption passes through all of them.
            api = ROUTES.get(client.path) if client.method == "POST" else None
            if api is not None:
                await self._handle(api, client, record)
            else:
                await self._route(client, record)
        except EdgeRejection as turned:
            self._record_rejection(record, turned.outcome, turned.log_message)
            replies, wait = _replies_for(client, self.replies), turned.retry_after_ns
            client.reply(*replies.error(turned.outcome, turned.message, param=turned.param, retry_after_ns=wait))
        except ClientDisconnected:
            self._record_rejection(record, Outcome.CANCELLED, "the client disconnected before the request was complete")
        except asyncio.CancelledError:
            record.outcome, record.reason = Outcome.CANCELLED, "the gateway stopped before the request ended"
            raise
        except Exception:
            record.reason = "internal error; see the gateway's log"
            # If no response has started, the connection sends a 500 response.
            record.status = 0 if client.started or client.disconnected else 500
            raise
        finally:
            if record.tenant is not None and record.outcome in _COUNTED_REJECTIONS:
                self.host.report(RequestRejected(record.tenant))
            if client.method == "POST" or not _is_answered_by_gateway(client, self.pages):
                request_record.close(record, client)
                self.records.add(record)

    def _record_rejection(self, record: RequestRecord, outcome: Outcome, why: str) -> None:
        record.outcome, record.reason = outcome, why
        self.on_rejected(outcome)

    async def _route(self, client: Client, record: RequestRecord) -> None:
        """Handles everything except requests for the inference routes."""
        if is_messages(client.path):
            client.common_headers.append((REQUEST_ID_HEADER, record.request_id.encode()))
        if client.path == MODELS_ROUTE and client.method == "GET":
            tenant = await self._authenticate(client)
            listed = model_list if VERSION_HEADER in client.headers else models_body
            client.reply(200, [JSON_HEADER], listed(self.access.models(tenant)))
        elif client.path == USAGE_ROUTE and client.method == "GET":
            tenant = await self._authenticate(client)
            client.reply(200, [JSON_HEADER, (b"cache-control", b"no-store")], json_body(self.access.usage(tenant)))
        elif (api := MESSAGES_ROUTES.get(client.path)) is not None and client.method == "POST":
            await self._handle(api, client, record, replies=_replies_for(client, self.replies))
        elif is_kserve(client.path):
            await self._route_kserve(client, record)
        elif (page := self.pages.get(client.path)) is not None and client.method in ("GET", "HEAD"):
            page.send(client)
        else:
            self._reply_unknown_route(client, record)

    async def _route_kserve(self, client: Client, record: RequestRecord) -> None:
        route = find_route(client.path)
        if route is None or client.method != route.method:
            self._reply_unknown_route(client, record)
        elif isinstance(route.target, ModelTarget):
            await self._handle(Api.INFER, client, record, route.target, _replies_for(client, self.replies))
        else:
            await self._authenticate(client)
            self._reply_server_operation(route.target, client)

    def _reply_server_operation(self, operation: ServerOperation, client: Client) -> None:
        """Responds for the gateway itself. It is ready if it is not draining and at least one engine is ready."""
        if operation is ServerOperation.READINESS:
            if self.draining:
                raise _draining_rejection()
            endpoints = self.host.summary().endpoints
            if not any(each.state is EndpointState.READY and not each.leaving for each in endpoints):
                raise EdgeRejection(Outcome.NO_ENDPOINTS, "no endpoint is ready; retry when one has loaded its model")
        client.reply(200, [JSON_HEADER], operation.body)

    async def _authenticate(self, client: Client, *, holds_body: bool = True) -> TenantId:
        """Returns the caller's tenant. `holds_body` is False if the body is already counted for a tenant."""
        keys = self.access.keys
        try:
            return authenticate(client, keys)
        except UnknownTokenKey as error:
            # Compiled coroutines must not await inside an except block.
            unknown = error
        if not holds_body:
            return await authenticate_again(client, keys, unknown)
        return await self.unverified_bodies.authenticate(client, keys, unknown, self.limits.unverified_body_bytes_max)

    async def _handle(
        self,
        api: Api,
        client: Client,
        record: RequestRecord,
        target: ModelTarget | None = None,
        replies: ErrorReplies | None = None,
    ) -> None:
        record.api = api
        if self.draining:
            raise _draining_rejection()
        if len(self._open) >= self.limits.requests_open_max:
            message = f"{len(self._open)} requests are open, the maximum set by limits.requests_open_max; retry"
            raise EdgeRejection(Outcome.QUEUE_FULL, message)
        access = self.access
        client.body_bytes_max = self.limits.form_bytes_max if api in FORM_APIS else self.limits.body_bytes_max
        tenant = record.tenant = await self._authenticate(client)
        record.authenticated_at = time.monotonic_ns()
        request_id, body = record.request_id, self._bodies.open(tenant)
        self._check_head(client, tenant, body)
        self._open.add(request_id)
        if not client.received:
            client.limit_body(partial(self._reserve, body))
        elif not body.grow(client.received_bytes, self.limits.total_body_bytes_max):
            client.reject_body()
        try:
            intake = await self._read_request(api, tenant, client, request_id, target)
            if api in FORM_APIS and not self._reserve(body, intake.body.copied_bytes):
                raise _body_memory_rejection(self.bodies_bytes)
            if self.access is not access:
                # The configuration changed while the body was arriving, so the key may now belong to another tenant.
                intake = intake.for_tenant(await self._authenticate(client, holds_body=False))
            request_record.describe(record, intake.ticket)
            await Exchange(
                client,
                intake,
                self.host,
                self.engines,
                self.attempts,
                replies or self.replies,
                self.access.salts.get(intake.ticket.tenant),
                self.cap_large,
                record,
                # Tracing may have been switched on or off since the request began.
                bool(record.span_seed),
                self.journal,
                None if self.mirrors is None else self.mirrors.copy,
            ).run()
        finally:
            self._open.discard(request_id)
            client.release()
            body.close()
            if not self._open:
                self._drained_event.set()

    def _reserve(self, body: BodyClaim, size: int) -> bool:
        return body.grow(size, self.limits.total_body_bytes_max)

    def _check_head(self, client: Client, tenant: TenantId, body: BodyClaim) -> None:
        """Rejects a request based on its head alone if the body is large or has not arrived yet."""
        if client.received and client.received_bytes <= SLICE_BYTES:
            return  # The scheduler decides, once the request is complete.
        if (short := self.host.limit_reached(tenant)) is not None:
            if (left := self.host.limits_left(tenant)) is not None:
                client.common_headers += rate_limit_headers(left)
            raise EdgeRejection(short.outcome, short.reason, retry_after_ns=short.wait_ns)
        if client.received:
            return
        free = self.limits.requests_open_max - len(self._open) - 1
        if not self._awaiting_body.has_room(tenant, 1, free=free):
            raise _unread_bodies_rejection(tenant, self._awaiting_body.of(tenant))
        announced = content_length(client)
        if announced <= client.body_bytes_max and not body.has_room(announced, self.limits.total_body_bytes_max):
            raise _body_memory_rejection(self.bodies_bytes)

    @property
    def bodies_bytes(self) -> int:
        """Total size of the bodies of open requests, in bytes."""
        return self._bodies.total

    async def _read_request(
        self, api: Api, tenant: TenantId, client: Client, request_id: RequestId, target: ModelTarget | None
    ) -> ParsedRequest:
        taken = read_request(
            client,
            api,
            tenant,
            request_id,
            client.body_bytes_max,
            self.limits.field_bytes_max,
            self.read_large,
            self._parse_queue,
            self.zone,
            target,
            self.metadata_names,
            self.session_fields,
            self.route_inputs,
        )
        try:
            return await (taken if client.received else self._read_in_time(taken, client, tenant))
        except BodyMemoryExceeded:
            raise _body_memory_rejection(self.bodies_bytes) from None

    async def _read_in_time(self, taken: Awaitable[ParsedRequest], client: Client, tenant: TenantId) -> ParsedRequest:
        limit = asyncio.timeout(self.limits.body_timeout_ns / SECOND)
        self._receive_timeouts.add(limit)
        self._awaiting_body.add(tenant, 1)
        try:
            async with limit:
                return await taken
        except TimeoutError:
            raise (
                _draining_rejection() if self.draining else _receive_timeout_rejection(client, self.limits)
            ) from None
        finally:
            self._receive_timeouts.discard(limit)
            self._awaiting_body.add(tenant, -1)

    def _reply_unknown_route(self, client: Client, record: RequestRecord) -> None:
        reads = client.path in GET_ROUTES or client.path in self.pages
        posts = client.path in ROUTES or client.path in MESSAGES_ROUTES
        allowed = "POST" if posts else "GET" if reads else None
        if (route := find_route(client.path)) is not None:
            allowed = route.method
        message = f"method {client.method} is not allowed; use {allowed}" if allowed else "unknown path"
        self._record_rejection(record, Outcome.INVALID_REQUEST, message)
        status, headers, body = _replies_for(client, self.replies).unknown_route(message, allowed=allowed)
        client.reply(status, headers, body)

    # Draining

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def drain(self, grace_s: float) -> bool:
        """Rejects new requests, waits for open ones and withdraws those that do not end within `grace_s` seconds.

        Returns True if no request had to be withdrawn.
        """
        self.draining = True
        if await self._drained_within(grace_s):
            return True
        for limit in self._receive_timeouts:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        for request_id in list(self._open):
            self.host.report(RequestWithdrawn(request_id, WithdrawalCause.SHUTDOWN))
        self._grace_ended = False
        await self._drained_within(2.0)
        return False

    async def _drained_within(self, limit_s: float) -> bool:
        self._drained_event.clear()
        if not self._open or self._grace_ended:
            return not self._open
        try:
            async with asyncio.timeout(limit_s):
                await self._drained_event.wait()
        except TimeoutError:
            pass
        return not self._open

    def end_grace(self) -> None:
        """Ends the grace period of the current or next drain."""
        self._grace_ended = True
        self._drained_event.set()


def _is_answered_by_gateway(client: Client, pages: Mapping[bytes, HtmlPage]) -> bool:
    """Returns whether the gateway responds without an engine. Such requests are not recorded."""
    if client.path in pages:
        return client.method in ("GET", "HEAD")
    return client.method == "GET" and (client.path in GET_ROUTES or client.path in SERVER_ROUTES)


def _draining_rejection() -> EdgeRejection:
    return EdgeRejection(Outcome.DRAINING, "this gateway is draining; retry to reach another gateway")


def _receive_timeout_rejection(client: Client, limits: EdgeLimits) -> EdgeRejection:
    limit = f"{limits.body_timeout_ns / SECOND:g} s"
    if client.received:
        message = f"the gateway could not parse the request body within {limit}; retry"
        return EdgeRejection(Outcome.QUEUE_FULL, message)
    return EdgeRejection(Outcome.INVALID_REQUEST, f"the request body did not arrive within {limit}; send it faster")


def _unread_bodies_rejection(tenant: TenantId, count: int) -> EdgeRejection:
    message = f'tenant "{tenant}" has {count} requests with incomplete bodies'
    return EdgeRejection(
        Outcome.QUEUE_FULL, f"{message}, its share of limits.requests_open_max; send the bodies and retry"
    )


def _body_memory_rejection(total_bytes: int) -> EdgeRejection:
    message = f"the bodies of open requests use {total_bytes} bytes"
    return EdgeRejection(Outcome.QUEUE_FULL, f"{message}; this body would exceed limits.total_body_bytes_max; retry")


def _replies_for(client: Client, ours: ErrorReplies) -> ErrorReplies:
    """Returns the error responses in the format that the client expects."""
    if is_kserve(client.path) and client.path not in ROUTES:
        return KserveReplies.of(ours)
    if is_messages(client.path) or (client.path == MODELS_ROUTE and VERSION_HEADER in client.headers):
        # The first header is the request ID.
        return AnthropicReplies(ours.error_docs, ours.quotes_engines, client.common_headers[0][1].decode())
    return ours
