"""What does this caller want?

From an HTTP request to a ticket: who asks, for what, how large it is, and by when it is wanted. The
body stays here; only the ticket goes on.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from headgate.edge.auth import KeyRing, Unverified
from headgate.edge.client import BodyTooLarge, Client
from headgate.edge.large_bodies.client import ReadLarge, read_in_thread
from headgate.edge.options import FIELD_BYTES_MAX
from headgate.edge.parse_turns import ParseTurns
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api, Ticket
from headgate.model.units import MILLISECOND, SECOND, Duration, ModelName, RequestId, TenantId
from headgate.wire.fingerprint import HASHED_AT_ONCE_BYTES, body_digest, fingerprint
from headgate.wire.kserve.infer import HEADER_LENGTH, Asked, InferBody, json_length
from headgate.wire.prefix import salted
from headgate.wire.request import LARGE_BYTES, BadRequest, RequestBody, is_large

_RETRIES_TOLD_MAX = 1_000
_UNVERIFIED_AGAIN = Duration(5 * SECOND)
"""A database that is away is asked again about as often."""
_PASSED_ON = (b"traceparent", b"tracestate")

DEADLINE = b"x-headgate-deadline-ms"
_PROXY_TIMEOUT = b"x-envoy-expected-rq-timeout-ms"
_SDK_READ_TIMEOUT = b"x-stainless-read-timeout"
TIME_LEFT_MAX = Duration(24 * 3600 * SECOND)
"""More time than this is no deadline that a request could miss; it is taken for this."""
IDEMPOTENCY_KEY = b"idempotency-key"
IDEMPOTENCY_KEY_CHARS_MAX = 255
_DigestAndBody = tuple[bytes, RequestBody]


class Turned(Exception):
    """The request is refused at the door, before it becomes a ticket."""

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        param: str | None = None,
        *,
        retry_after_ns: Duration | None = None,
        kept: str | None = None,
    ) -> None:
        """`kept` is the message without any words of the caller, where it has some."""
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.kept = message if kept is None else kept
        self.param = param
        self.retry_after_ns = retry_after_ns


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """What the path of a request says, where it names the model."""

    model: str
    asked: Asked


@dataclass(frozen=True, slots=True)
class Intake:
    ticket: Ticket
    body: RequestBody
    passed_on: Mapping[str, str]
    """Headers that go along to the engine."""
    digest: bytes = b""
    """Hash of the body as received."""

    def of(self, tenant: TenantId) -> "Intake":
        """The same, asked by another tenant."""
        prefix = salted(self.body.prefix, tenant)
        name = fingerprint(self.digest, tenant, self.ticket.model)
        return replace(self, ticket=replace(self.ticket, tenant=tenant, prefix=prefix, fingerprint=name))


def identify(client: Client, keys: KeyRing) -> TenantId:
    try:
        tenant = keys.tenant(client.headers.get(b"authorization"))
    except Unverified as why:
        raise Turned(Outcome.UNVERIFIED, str(why), retry_after_ns=_UNVERIFIED_AGAIN) from None
    if tenant is None:
        message = "no known API key was given; send it as `Authorization: Bearer KEY`"
        raise Turned(Outcome.UNAUTHORIZED, message)
    if not client.identified(tenant):
        message = f'tenant "{tenant}" holds its share of limits.connections_open_max; close idle connections and retry'
        raise Turned(Outcome.QUEUE_FULL, message)
    return tenant


async def take_in(
    client: Client,
    *,
    api: Api,
    tenant: TenantId,
    request_id: RequestId,
    body_bytes_max: int,
    field_bytes_max: int = FIELD_BYTES_MAX,
    read_large: ReadLarge = read_in_thread,
    parse_turns: ParseTurns | None = None,
    zone: str = "",
    asked: ModelAsked | None = None,
    metadata_names: tuple[str, ...] = (),
) -> Intake:
    """`zone` is where this gateway stands; `asked` is what the path has said already, in KServe's protocol.

    Of the caller's metadata the `metadata_names` are kept.
    """
    headers = client.headers
    reading = _Reading(tenant, read_large, ParseTurns() if parse_turns is None else parse_turns)
    deadline_ns = _deadline(headers.get(DEADLINE))
    idempotency_key = _idempotency_key(headers.get(IDEMPOTENCY_KEY))
    if asked is None:
        digest, body = await _read(client, api, body_bytes_max, reading)
    else:
        digest, body = await _read_tensors(client, asked, body_bytes_max, reading)
    _check_names(body, field_bytes_max)
    first_token_ns, completion_ns = _time_left(headers, deadline_ns, stream=body.stream)
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
        prompt_bytes_kept=body.prompt_bytes_kept,
        first_token_ns_left=first_token_ns,
        completion_ns_left=completion_ns,
        idempotency_key=idempotency_key,
        n=body.n,
        output_tokens_max=body.output_tokens_max,
        prefix=salted(body.prefix, tenant),
        rung=_text(headers.get(b"x-headgate-rung")),
        zone=zone,
        metadata=body.metadata(metadata_names) if metadata_names else (),
        prompts=body.length.prompts,
        prompt_bytes_before=body.length.before,
        fingerprint=fingerprint(digest, tenant, body.model),
        media=body.length.media,
    )
    passed_on = {name.decode(): headers[name].decode("latin-1") for name in _PASSED_ON if name in headers}
    return Intake(ticket, body, passed_on, digest)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Parsers of request bodies, and the tenant whose body is parsed."""

    tenant: TenantId
    read_large: ReadLarge
    parse_turns: ParseTurns

    async def parse(self, raw: bytes | bytearray, api: Api) -> _DigestAndBody:
        try:
            if isinstance(raw, bytes) and len(raw) <= LARGE_BYTES:
                parse = partial(_parse_inline, raw, api)
                digest, body = await self.parse_turns.run(parse, size=len(raw), tenant=self.tenant)
            else:
                digest, body = await digest_of(raw), None
            # `read_large` may pass a large body to another process.
            return digest, await self.read_large(raw, api, self.tenant) if body is None else body
        except BadRequest as bad:
            raise _not_understood(bad) from None


def _parse_inline(raw: bytes, api: Api) -> tuple[bytes, RequestBody | None]:
    """Returns the digest and the parsed body, or None for a body that should not be parsed in the event loop."""
    return body_digest(raw), None if is_large(raw) else RequestBody.parse(raw, api)


async def _read(client: Client, api: Api, size_max: int, reading: _Reading) -> _DigestAndBody:
    return await reading.parse(await _receive(client, size_max), api)


async def _read_tensors(client: Client, asked: ModelAsked, size_max: int, reading: _Reading) -> _DigestAndBody:
    """Of tensors the JSON is read, to refuse what no engine should see; they travel on as they came."""
    raw = await _receive(client, size_max)
    digest = await digest_of(raw)
    if asked.asked is not Asked.INFERENCE:
        return digest, InferBody.of(b"", model=asked.model, asked=asked.asked)
    try:
        json_bytes = json_length(client.headers.get(HEADER_LENGTH.encode()), len(raw))
    except BadRequest as bad:
        raise _not_understood(bad) from None
    await reading.parse(raw if json_bytes is None else raw[:json_bytes], Api.INFER)
    return digest, InferBody.of(raw, model=asked.model, asked=asked.asked, json_bytes=json_bytes)


async def digest_of(raw: bytes | bytearray) -> bytes:
    """Hashes the body without blocking the event loop for longer than a small body takes."""
    return body_digest(raw) if len(raw) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(body_digest, raw)


def announced_bytes(client: Client) -> int:
    """Value of the Content-Length header; 0 if there is none."""
    announced = client.headers.get(b"content-length", b"")
    # 20 digits always exceed the limit, so the rest need not be converted. Leading zeros do not count.
    return int(announced.lstrip(b"0")[:20] or b"0") if announced.isdigit() else 0


async def _receive(client: Client, size_max: int) -> bytes | bytearray:
    if client.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Turned(Outcome.INVALID, "compressed bodies are not accepted; send the body as plain JSON")
    if announced_bytes(client) > size_max:
        raise _too_large(size_max)
    try:
        return await client.body(size_max)
    except BodyTooLarge:
        raise _too_large(size_max) from None


def _check_names(body: RequestBody, chars_max: int) -> None:
    """Rejects long names, because names are kept in records and shown to operators."""
    for field, name in (("model", body.model), ("service_tier", body.service_tier)):
        if name is not None and len(name) > chars_max:
            raise Turned(Outcome.INVALID, f"{field} has {len(name)} characters; at most {chars_max} are allowed", field)


def _not_understood(bad: BadRequest) -> Turned:
    return Turned(Outcome.INVALID, bad.message, bad.param, kept=bad.kept)


def _too_large(size_max: int) -> Turned:
    return Turned(Outcome.TOO_LARGE, f"the body is larger than the {size_max} bytes that are accepted")


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _retries(value: bytes | None) -> int:
    """How often the caller says it has tried before; what is no number counts as never."""
    if value is None or not value.isdigit():
        return 0
    return min(int(value[:4]), _RETRIES_TOLD_MAX)


# By when


def _deadline(value: bytes | None) -> Duration | None:
    """The caller's own deadline. It is meant for us, so one that cannot be kept in mind is an error."""
    if value is None:
        return None
    if (time_left := _milliseconds(value)) is None:
        name = DEADLINE.decode()
        raise Turned(Outcome.INVALID, f"{name} must be a whole number of milliseconds above 0", name)
    return time_left


def _time_left(
    headers: Mapping[bytes, bytes], deadline_ns: Duration | None, *, stream: bool
) -> tuple[Duration | None, Duration | None]:
    """What is left up to the first token, and up to the end of the answer.

    What others say of their patience helps where it can be read, and is no error where it cannot. The official client
    waits so long for each read: of a stream that bounds the first token, of an answer that comes whole its end.
    """
    if deadline_ns is not None:
        return None, deadline_ns
    if (proxys := _milliseconds(headers.get(_PROXY_TIMEOUT, b""))) is not None:
        return None, proxys
    read_ns = _seconds(headers.get(_SDK_READ_TIMEOUT, b""))
    return (read_ns, None) if stream else (None, read_ns)


def _milliseconds(value: bytes) -> Duration | None:
    # Numbers of more digits are beyond the bound by far; to convert any length would cost more than its square.
    if not value.isdigit():
        return None
    time_left = int(value) * MILLISECOND if len(value) <= 18 else TIME_LEFT_MAX
    return Duration(min(time_left, TIME_LEFT_MAX)) if time_left > 0 else None


def _seconds(value: bytes) -> Duration | None:
    try:
        length_s = float(value) if len(value) <= 32 else math.nan
    except ValueError:
        return None
    if not 0 < length_s < math.inf:
        return None
    return Duration(min(max(int(length_s * SECOND), 1), TIME_LEFT_MAX))


# The same again?


def _idempotency_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    key = value.decode("latin-1")
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        name = IDEMPOTENCY_KEY.decode()
        message = f"{name} must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters"
        raise Turned(Outcome.INVALID, message, name)
    return key
