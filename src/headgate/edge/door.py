"""What happens at the door to each request that comes?

Routes are a closed list and everything else is refused. A request is identified, read, made a
ticket and handed to its exchange; what cannot become a ticket is turned away here with the same
kind of answer. Callers who speak KServe's protocol (`kserve.py`) come in by paths of their own and
are then treated as all others.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from headgate.core.events import RequestRejected, RequestWithdrawn, WithdrawalCause
from headgate.edge import request_record
from headgate.edge.auth import KeyRing
from headgate.edge.body_bytes import BodyBytes, BodyClaim
from headgate.edge.client import Client, ClientLeft, NoRoomForBody
from headgate.edge.exchange import Exchange
from headgate.edge.intake import Intake, ModelAsked, Turned, announced_bytes, identify, take_in
from headgate.edge.kserve import SERVER_ROUTES, KserveReplies, ServerAsked, find_route, is_kserve
from headgate.edge.large_bodies.client import CapLarge, ReadLarge, cap_in_thread, read_in_thread
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.options import EdgeLimits
from headgate.edge.parse_turns import ParseTurns
from headgate.edge.replies import JSON, Replies, rates_left
from headgate.edge.tenant_shares import TenantShares
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import SECOND, EndpointId, ModelName, RequestId, TenantId
from headgate.ports.engine import Engine
from headgate.ports.host import Host
from headgate.ports.ledger import AttemptJournal
from headgate.ports.records import NoRecords, Records, RequestRecord
from headgate.wire.replies import json_body, models_body
from headgate.wire.turn_budget import SLICE_BYTES

ROUTES: Mapping[bytes, Api] = {
    b"/v1/chat/completions": Api.CHAT,
    b"/v1/completions": Api.COMPLETIONS,
    b"/v1/embeddings": Api.EMBEDDINGS,
    b"/v1/responses": Api.RESPONSES,
}
MODELS_ROUTE = b"/v1/models"
USAGE_ROUTE = b"/v1/usage"
READ_ROUTES = (MODELS_ROUTE, USAGE_ROUTE)
_COUNTED = (Outcome.INVALID, Outcome.TOO_LARGE, Outcome.MODEL_NOT_FOUND, Outcome.FORBIDDEN, Outcome.DUPLICATE)
"""Outcomes of invalid requests rejected before admission. They count in the tenant's request rate."""


@dataclass(slots=True)
class Access:
    """Who may ask for what. Replaced as a whole when the configuration changes."""

    keys: KeyRing
    models: Callable[[TenantId], tuple[ModelName, ...]]
    """The models that a tenant may use."""
    salts: Mapping[TenantId, str]
    """What keeps each tenant's cached prefixes apart from those of others."""
    usage: Callable[[TenantId], Mapping[str, object]]
    """What a tenant is told of what it may do and has done."""


@dataclass(slots=True)
class Door:
    """The application behind the data listener."""

    host: Host
    engines: Mapping[EndpointId, Engine]
    attempts: OpenAttempts
    access: Access
    limits: EdgeLimits
    turned_away: Callable[[Outcome], None]
    """Told of each request that ends here, before it becomes a ticket."""
    replies: Replies = field(default_factory=Replies)
    read_large: ReadLarge = read_in_thread
    cap_large: CapLarge = cap_in_thread
    zone: str = ""
    """Where this gateway stands; empty where nobody says."""
    metadata_names: tuple[str, ...] = ()
    """What of callers' metadata is kept for the accounts."""
    records: Records = field(default_factory=NoRecords)
    """Told of each request that has ended, however it did."""
    sample_ppm: int | None = None
    """Of a million traces so many are kept whatever becomes of them; None where no traces are sent."""
    journal: AttemptJournal | None = None
    """Journal of attempts, written before each is sent; None without a ledger."""
    draining: bool = False
    _bodies: BodyBytes = field(default_factory=BodyBytes)
    _parse_turns: ParseTurns = field(default_factory=ParseTurns)
    _reading: TenantShares = field(default_factory=TenantShares)
    """Open requests whose bodies have not arrived yet."""
    _open: set[RequestId] = field(default_factory=set[RequestId])
    _coming_in: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """The limits of requests that are still being read."""
    _hurried: bool = False
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, client: Client) -> None:
        request_id = RequestId(f"req_{secrets.token_hex(12)}")
        client.always.append((b"x-request-id", request_id.encode()))
        if self.draining:
            client.always.append((b"connection", b"close"))
        record = request_record.begin(client, request_id, self.sample_ppm)
        try:
            await self._route(client, record)
        except Turned as turned:
            self._turn_away(record, turned.outcome, turned.kept)
            replies = self._replies_for(client)
            wait = turned.retry_after_ns
            client.reply(*replies.error(turned.outcome, turned.message, param=turned.param, retry_after_ns=wait))
        except ClientLeft:
            self._turn_away(record, Outcome.CANCELLED, "its caller left before the request was complete")
        except asyncio.CancelledError:
            record.outcome, record.reason = Outcome.CANCELLED, "this gateway left before the request had ended"
            raise
        except Exception:
            record.reason = "it met a mistake of this gateway, which its log tells"
            # Its connection gives this answer, where none has begun.
            record.status = 0 if client.started or client.left else 500
            raise
        finally:
            if record.tenant is not None and record.outcome in _COUNTED:
                self.host.tell(RequestRejected(record.tenant))
            if not _is_of_gateway(client):
                request_record.close(record, client)
                self.records.take(record)

    def _turn_away(self, record: RequestRecord, outcome: Outcome, why: str) -> None:
        record.outcome, record.reason = outcome, why
        self.turned_away(outcome)

    async def _route(self, client: Client, record: RequestRecord) -> None:
        api = ROUTES.get(client.path)
        if api is not None and client.method == "POST":
            await self._take(api, client, record)
        elif client.path == MODELS_ROUTE and client.method == "GET":
            tenant = identify(client, self.access.keys)
            client.reply(200, [JSON], models_body(self.access.models(tenant)))
        elif client.path == USAGE_ROUTE and client.method == "GET":
            tenant = identify(client, self.access.keys)
            client.reply(200, [JSON, (b"cache-control", b"no-store")], json_body(self.access.usage(tenant)))
        elif is_kserve(client.path):
            await self._route_kserve(client, record)
        else:
            self._no_route(client, record)

    async def _route_kserve(self, client: Client, record: RequestRecord) -> None:
        route = find_route(client.path)
        if route is None or client.method != route.method:
            self._no_route(client, record)
        elif isinstance(route.asked, ModelAsked):
            await self._take(Api.INFER, client, record, route.asked)
        else:
            identify(client, self.access.keys)
            self._tell_of_itself(route.asked, client)

    def _tell_of_itself(self, asked: ServerAsked, client: Client) -> None:
        """The gateway stands for all its engines: it is ready when one of them is and it does not leave."""
        if asked is ServerAsked.READINESS:
            if self.draining:
                raise _leaving()
            endpoints = self.host.summary().endpoints
            if not any(each.state is EndpointState.READY and not each.leaving for each in endpoints):
                raise Turned(Outcome.NO_ENDPOINTS, "no endpoint is ready; try again when one has loaded its model")
        client.reply(200, [JSON], asked.body)

    def _replies_for(self, client: Client) -> Replies:
        return KserveReplies.of(self.replies) if is_kserve(client.path) else self.replies

    async def _take(self, api: Api, client: Client, record: RequestRecord, asked: ModelAsked | None = None) -> None:
        record.api = api
        if self.draining:
            raise _leaving()
        if len(self._open) >= self.limits.requests_open_max:
            message = f"{len(self._open)} requests are open, as many as limits.requests_open_max allows; try again"
            raise Turned(Outcome.QUEUE_FULL, message)
        access = self.access
        record.tenant = tenant = identify(client, access.keys)
        record.authorised_at = time.monotonic_ns()
        request_id, body = record.request_id, self._bodies.open(tenant)
        self._check_head(client, tenant, body)
        self._open.add(request_id)
        client.count_body(lambda size: body.grow(size, self.limits.bodies_bytes_max))
        try:
            intake = await self._take_in(api, tenant, client, request_id, asked)
            if self.access is not access:
                # While the body came in the configuration changed, and with it perhaps whose key this is.
                intake = intake.of(identify(client, self.access.keys))
            parts = (self.host, self.engines, self.attempts)
            request_record.describe(record, intake.ticket)
            await Exchange(
                client,
                intake,
                *parts,
                replies=self._replies_for(client),
                cache_salt=self.access.salts.get(intake.ticket.tenant),
                cap_large=self.cap_large,
                record=record,
                # By how it began: meanwhile traces may have been switched on or off.
                traced=bool(record.span),
                journal=self.journal,
            ).run()
        finally:
            self._open.discard(request_id)
            client.release()
            body.close()
            if not self._open:
                self._emptied.set()

    def _check_head(self, client: Client, tenant: TenantId, body: BodyClaim) -> None:
        """Rejects requests by their head alone, before a body is read that is large or has not arrived yet."""
        if client.received and client.received_bytes <= SLICE_BYTES:
            return  # The scheduler decides with the whole request.
        if (short := self.host.limit_reached(tenant)) is not None:
            if (left := self.host.limits_left(tenant)) is not None:
                client.always += rates_left(left)
            raise Turned(short.outcome, short.reason, retry_after_ns=short.wait_ns)
        if client.received:
            return
        free = self.limits.requests_open_max - len(self._open) - 1
        if not self._reading.has_room(tenant, 1, free=free):
            raise self._too_many_reading(tenant)
        announced = announced_bytes(client)
        if announced <= self.limits.body_bytes_max and not body.has_room(announced, self.limits.bodies_bytes_max):
            raise self._no_room()

    def _too_many_reading(self, tenant: TenantId) -> Turned:
        message = f'tenant "{tenant}" has {self._reading.of(tenant)} requests whose bodies have not arrived yet'
        return Turned(
            Outcome.QUEUE_FULL, f"{message}, its share of limits.requests_open_max; send the bodies and retry"
        )

    @property
    def bodies_bytes(self) -> int:
        """Total size of the bodies of open requests."""
        return self._bodies.total

    def _no_room(self) -> Turned:
        message = f"the bodies of open requests take {self.bodies_bytes} bytes; with this one they would take more"
        return Turned(Outcome.QUEUE_FULL, f"{message} than limits.bodies_bytes_max allows; try again")

    async def _take_in(
        self, api: Api, tenant: TenantId, client: Client, request_id: RequestId, asked: ModelAsked | None
    ) -> Intake:
        taken = take_in(
            client,
            api=api,
            tenant=tenant,
            request_id=request_id,
            body_bytes_max=self.limits.body_bytes_max,
            field_bytes_max=self.limits.field_bytes_max,
            read_large=self.read_large,
            parse_turns=self._parse_turns,
            zone=self.zone,
            asked=asked,
            metadata_names=self.metadata_names,
        )
        if client.received:
            return await self._held(taken)
        limit = asyncio.timeout(self.limits.receive_ns_max / SECOND)
        self._coming_in.add(limit)
        self._reading.add(tenant, 1)
        try:
            async with limit:
                return await self._held(taken)
        except TimeoutError:
            raise (_leaving() if self.draining else self._too_slow(client)) from None
        finally:
            self._coming_in.discard(limit)
            self._reading.add(tenant, -1)

    async def _held(self, taken: Awaitable[Intake]) -> Intake:
        try:
            return await taken
        except NoRoomForBody:
            raise self._no_room() from None

    def _too_slow(self, client: Client) -> Turned:
        limit = f"{self.limits.receive_ns_max / SECOND:g} s"
        if client.received:
            return Turned(Outcome.QUEUE_FULL, f"a body of this size could not be read within {limit}; try again")
        return Turned(Outcome.INVALID, f"the request did not come in whole within {limit}; send it faster")

    def _no_route(self, client: Client, record: RequestRecord) -> None:
        allowed = "POST" if client.path in ROUTES else "GET" if client.path in READ_ROUTES else None
        if (route := find_route(client.path)) is not None:
            allowed = route.method
        message = f"{client.method} is not allowed here; use {allowed}" if allowed else "there is nothing at this path"
        self._turn_away(record, Outcome.INVALID, message)
        status, headers, body = self._replies_for(client).no_route(message, allowed=allowed)
        client.reply(status, headers, body)

    # Leaving

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def drain(self, grace_s: float) -> bool:
        """Takes nothing new, lets what is open end, and withdraws what has not ended in time.

        True if everything ended by itself.
        """
        self.draining = True
        if await self._empty_within(grace_s):
            return True
        for limit in self._coming_in:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        for request_id in list(self._open):
            self.host.tell(RequestWithdrawn(request_id, WithdrawalCause.GRACE_OVER))
        self._hurried = False
        await self._empty_within(2.0)
        return False

    async def _empty_within(self, limit_s: float) -> bool:
        self._emptied.clear()
        if not self._open or self._hurried:
            return not self._open
        try:
            async with asyncio.timeout(limit_s):
                await self._emptied.wait()
        except TimeoutError:
            pass
        return not self._open

    def hurry(self) -> None:
        """Ends the grace time of a drain, be it under way or yet to begin."""
        self._hurried = True
        self._emptied.set()


def _is_of_gateway(client: Client) -> bool:
    """Whether the gateway itself answers. Of that no record is kept: it says nothing of engines or queues."""
    return client.method == "GET" and (client.path in READ_ROUTES or client.path in SERVER_ROUTES)


def _leaving() -> Turned:
    return Turned(Outcome.DRAINING, "this gateway is leaving; try again, another one will answer")
