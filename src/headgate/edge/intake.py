"""What does this caller want?

From an HTTP request to a ticket: who asks, for what, and how large it is. The body stays here;
only the ticket goes on.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.edge.auth import KeyRing
from headgate.edge.client import BodyTooLarge, Client
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ModelName, RequestId, TenantId
from headgate.wire.request import BadRequest, RequestBody

# A body beyond this is parsed in a thread: it would hold up every other stream for a millisecond or more.
_PARSED_ON_THE_LOOP_MAX = 256 * 1024
_RETRIES_TOLD_MAX = 1_000
_PASSED_ON = (b"traceparent", b"tracestate")


class Turned(Exception):
    """The request is refused at the door, before it becomes a ticket."""

    def __init__(self, outcome: Outcome, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Intake:
    ticket: Ticket
    body: RequestBody
    passed_on: Mapping[str, str]
    """Headers that go along to the engine."""


def identify(client: Client, keys: KeyRing) -> TenantId:
    tenant = keys.tenant(client.headers.get(b"authorization"))
    if tenant is None:
        message = "no known API key was given; send it as `Authorization: Bearer KEY`"
        raise Turned(Outcome.UNAUTHORIZED, message)
    return tenant


async def take_in(client: Client, *, api: Api, tenant: TenantId, request_id: RequestId, body_bytes_max: int) -> Intake:
    headers = client.headers
    body = await _read(client, api, body_bytes_max)
    ticket = Ticket(
        request_id=request_id,
        api=api,
        model=ModelName(body.model),
        tenant=tenant,
        stream=body.stream,
        prompt_bytes=body.prompt_bytes,
        class_named=_text(headers.get(b"x-headgate-class")),
        service_tier=body.service_tier,
        client_retries=_retries(headers.get(b"x-stainless-retry-count")),
    )
    passed_on = {name.decode(): headers[name].decode("latin-1") for name in _PASSED_ON if name in headers}
    return Intake(ticket, body, passed_on)


async def _read(client: Client, api: Api, size_max: int) -> RequestBody:
    too_large = Turned(Outcome.TOO_LARGE, f"the body is larger than the {size_max} bytes that are accepted")
    if client.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Turned(Outcome.INVALID, "compressed bodies are not accepted; send the body as plain JSON")
    announced = client.headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > size_max:
        raise too_large
    try:
        raw = await client.body(size_max)
    except BodyTooLarge:
        raise too_large from None
    try:
        if len(raw) <= _PARSED_ON_THE_LOOP_MAX:
            return RequestBody.parse(raw, api)
        return await asyncio.to_thread(RequestBody.parse, raw, api)
    except BadRequest as bad:
        raise Turned(Outcome.INVALID, bad.message, bad.param) from None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _retries(value: bytes | None) -> int:
    """How often the caller says it has tried before; what is no number counts as never."""
    if value is None or not value.isdigit():
        return 0
    return min(int(value[:4]), _RETRIES_TOLD_MAX)
