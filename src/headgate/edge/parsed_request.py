"""Parses an HTTP request into a ticket with its tenant, model, sizes and deadline.

The body stays in the gateway. Only the ticket goes to the scheduler.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from headgate.edge.auth import CallerKeys, KeyUnverified, bearer_token
from headgate.edge.client import BodyTooLarge, Client
from headgate.edge.large_bodies.client import ReadLarge, read_in_thread
from headgate.edge.options import FIELD_BYTES_MAX
from headgate.edge.parse_queue import ParseQueue
from headgate.edge.route_inputs import with_route_inputs
from headgate.edge.session import session_hash, session_name
from headgate.model.message import message
from headgate.model.outcome import Outcome
from headgate.model.routes import RouteInputs
from headgate.model.ticket import ANTHROPIC_APIS, FORM_APIS, PROMPT_BYTES_MAX, PROMPTS_MAX, Api, Ticket
from headgate.model.units import BYTES_PER_TOKEN, MILLISECOND, SECOND, Duration, ModelName, RequestId, TenantId
from headgate.ports.identity import InvalidToken, TokenFault, UnknownTokenKey
from headgate.wire.fingerprint import HASHED_AT_ONCE_BYTES, body_digest, fingerprint
from headgate.wire.kserve.infer import JSON_LENGTH_HEADER, InferBody, ModelOperation, json_length
from headgate.wire.multipart import STEP_BYTES, MultipartParser, read_boundary
from headgate.wire.prefix_hashes import salt_hashes
from headgate.wire.request_body import LARGE_BYTES, BadRequest, RequestBody, is_large
from headgate.wire.transcription import TranscriptionBody

_CLIENT_RETRIES_MAX = 1_000
_UNVERIFIED_RETRY_AFTER = Duration(5 * SECOND)
"""`Retry-After` value while keys cannot be verified. The gateway retries the database about as often."""
_UNVERIFIED_TOKEN = "the token cannot be verified at present; retry"
_TRACEPARENT = b"traceparent"
_TRACESTATE = b"tracestate"

_ANTHROPIC_HEADERS = (b"anthropic-version", b"anthropic-beta")
API_KEY_HEADER = b"x-api-key"
"""Header with the key of a caller that sends no `Authorization: Bearer`."""
DEADLINE_HEADER = b"x-headgate-deadline-ms"
_PROXY_TIMEOUT_HEADER = b"x-envoy-expected-rq-timeout-ms"
_SDK_TIMEOUT_HEADER = b"x-stainless-read-timeout"
TIME_LEFT_MAX = Duration(24 * 3600 * SECOND)
"""Maximum time until a deadline. Larger values are reduced to this maximum."""
IDEMPOTENCY_KEY_HEADER = b"idempotency-key"
IDEMPOTENCY_KEY_CHARS_MAX = 255
_CLASS_HEADER = b"x-headgate-class"
_MODEL_TIER_HEADER = b"x-headgate-model-tier"
_RETRY_COUNT_HEADER = b"x-stainless-retry-count"
_CONTENT_ENCODING_HEADER = b"content-encoding"
_CONTENT_TYPE_HEADER = b"content-type"
_DigestAndBody = tuple[bytes, RequestBody]


class EdgeRejection(Exception):
    """The request is rejected before it becomes a ticket."""

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        param: str | None = None,
        *,
        retry_after_ns: Duration | None = None,
        log_message: str | None = None,
    ) -> None:
        """`log_message` is the message without text from the client, for logs and records."""
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.log_message = message if log_message is None else log_message
        self.param = param
        self.retry_after_ns = retry_after_ns


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """Model and operation in the request path."""

    model: str
    operation: ModelOperation


@message
class ParsedRequest:
    ticket: Ticket
    body: RequestBody
    forwarded_headers: Mapping[str, str]
    """Headers to forward to the engine."""
    digest: bytes = b""
    """Hash of the body as received."""
    session: bytes = field(default=b"", repr=False)
    """Session that the caller named, if sessions are used."""

    def for_tenant(self, tenant: TenantId) -> "ParsedRequest":
        """Returns the same request for another tenant."""
        prefix = salt_hashes(self.body.prefix, tenant)
        name = fingerprint(self.digest, tenant, self.ticket.model)
        session = session_hash(self.session, tenant)
        ticket = replace(self.ticket, tenant=tenant, prefix_hashes=prefix, fingerprint=name, session=session)
        return replace(self, ticket=ticket)


def authenticate(client: Client, keys: CallerKeys) -> TenantId:
    """Returns the caller's tenant. Raises `EdgeRejection`, and `UnknownTokenKey` for `authenticate_again`."""
    headers = client.headers
    try:
        # Most requests have no `x-api-key`.
        tenant = keys.tenant(_authorization(headers) if API_KEY_HEADER in headers else headers.get(b"authorization"))
    except KeyUnverified as why:
        raise EdgeRejection(Outcome.KEY_UNVERIFIED, str(why), retry_after_ns=_UNVERIFIED_RETRY_AFTER) from None
    except UnknownTokenKey:
        raise
    except InvalidToken as invalid:
        raise _token_rejection(invalid) from None
    if tenant is None:
        message = "missing or unknown API key; send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        raise EdgeRejection(Outcome.UNAUTHORIZED, message)
    if not client.mark_authenticated(tenant):
        raise _connections_rejection(tenant)
    return tenant


async def authenticate_again(client: Client, keys: CallerKeys, unknown: UnknownTokenKey) -> TenantId:
    """Like `authenticate`, after the keys of the token's issuer have been read again."""
    try:
        tenant = await keys.reread_tenant(_authorization(client.headers), unknown)
    except InvalidToken as invalid:
        raise _token_rejection(invalid) from None
    if not client.mark_authenticated(tenant):
        raise _connections_rejection(tenant)
    return tenant


def unverified_bodies_rejection(total_bytes: int) -> EdgeRejection:
    """Returns the rejection of a caller whose token cannot be verified yet and whose body cannot be kept until then."""
    log_message = (
        f"token not verified yet, and bodies of such callers use {total_bytes} bytes, "
        "close to limits.unverified_body_bytes_max"
    )
    return EdgeRejection(
        Outcome.KEY_UNVERIFIED, _UNVERIFIED_TOKEN, retry_after_ns=_UNVERIFIED_RETRY_AFTER, log_message=log_message
    )


def _authorization(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Returns the caller's credential, in the form of an `Authorization` header. None if there is none.

    A key or token in `Authorization: Bearer` takes precedence, even if it is not valid. Otherwise it is the key in
    `x-api-key`, because an `Authorization` header with another scheme may be meant for a proxy in front of the gateway.
    """
    authorization, key = headers.get(b"authorization"), headers.get(API_KEY_HEADER)
    return authorization if key is None or bearer_token(authorization) else b"Bearer " + key


def _token_rejection(invalid: InvalidToken) -> EdgeRejection:
    """The messages reveal the reason only if the token has a valid signature."""
    log_message = f"token rejected: {invalid.fault.value}"
    match invalid.fault:
        case TokenFault.UNVERIFIED:
            return EdgeRejection(
                Outcome.KEY_UNVERIFIED,
                _UNVERIFIED_TOKEN,
                retry_after_ns=_UNVERIFIED_RETRY_AFTER,
                log_message=log_message,
            )
        case TokenFault.UNKNOWN_TENANT:
            message = "the token is valid, but its tenant does not exist here; ask the operator to create it"
            return EdgeRejection(Outcome.FORBIDDEN, message, log_message=log_message)
        case TokenFault.EXPIRED:
            message = "the token has expired; request a new one from its issuer"
        case _:
            message = "the token is not valid for this gateway; request a new one from a configured issuer"
    return EdgeRejection(Outcome.UNAUTHORIZED, message, log_message=log_message)


def _connections_rejection(tenant: TenantId) -> EdgeRejection:
    message = f'tenant "{tenant}" has reached its share of limits.connections_open_max'
    return EdgeRejection(Outcome.QUEUE_FULL, f"{message}; close idle connections and retry")


async def read_request(  # noqa: PLR0917 (keyword arguments make the call slower)
    client: Client,
    api: Api,
    tenant: TenantId,
    request_id: RequestId,
    body_bytes_max: int,
    field_bytes_max: int = FIELD_BYTES_MAX,
    read_large: ReadLarge = read_in_thread,
    parse_queue: ParseQueue | None = None,
    zone: str = "",
    target: ModelTarget | None = None,
    metadata_names: tuple[str, ...] = (),
    session_fields: tuple[str, ...] | None = None,
    route_inputs: RouteInputs | None = None,
) -> ParsedRequest:
    """Reads the body and returns the parsed request. Raises `EdgeRejection`.

    `zone` is the zone of this gateway. `target` is the model and operation in a KServe path. `metadata_names` are the
    metadata fields to keep. `session_fields` are the body fields that may name a session. None if sessions are not
    used. `route_inputs` are the parts that the routes of models need.
    """
    headers = client.headers
    parser = _BodyParser(tenant, read_large, ParseQueue() if parse_queue is None else parse_queue)
    # Most requests have none of these headers.
    deadline_ns = _deadline(headers[DEADLINE_HEADER]) if DEADLINE_HEADER in headers else None
    idempotency_key = _idempotency_key(headers[IDEMPOTENCY_KEY_HEADER]) if IDEMPOTENCY_KEY_HEADER in headers else None
    if target is None and api not in FORM_APIS:
        _check_body_headers(client, body_bytes_max)
        raw = _received(client, body_bytes_max) if client.received else await _receive(client, body_bytes_max)
        digest, body = await parser.parse(raw, api)
    else:
        digest, body = await _read_other(client, api, target, body_bytes_max, parser)
    if len(body.model) > field_bytes_max or body.service_tier is not None:
        _check_names(body, field_bytes_max)
    first_token_ns, completion_ns = _time_left(headers, deadline_ns, stream=body.stream)
    session = b"" if session_fields is None else session_name(headers, body, session_fields)
    length = body.length
    other_bytes = length.preamble + length.extra
    if (prompt_bytes := length.text + other_bytes) > PROMPT_BYTES_MAX or length.prompts > PROMPTS_MAX:
        raise _prompt_rejection(prompt_bytes, length.prompts)
    ticket = Ticket(  # Positional, because keyword arguments would make this call three times as slow.
        request_id,
        api,
        ModelName(body.model),
        tenant,
        body.stream,
        prompt_bytes,
        headers[_CLASS_HEADER].decode("latin-1") if _CLASS_HEADER in headers else None,
        body.service_tier,
        _client_retries(headers[_RETRY_COUNT_HEADER]) if _RETRY_COUNT_HEADER in headers else 0,
        length.text_min + other_bytes,
        first_token_ns,
        completion_ns,
        idempotency_key,
        body.n,
        body.output_tokens_max,
        salt_hashes(body.prefix, tenant) if body.prefix else b"",
        headers[_MODEL_TIER_HEADER].decode("latin-1") if _MODEL_TIER_HEADER in headers else None,
        zone,
        body.metadata(metadata_names) if metadata_names else (),
        "",  # The gateway is set by the host.
        length.prompts,
        length.preamble,
        fingerprint(digest, tenant, body.model),
        length.media,
        session_hash(session, tenant) if session else "",
    )
    if route_inputs is not None:
        ticket = with_route_inputs(ticket, body, headers, route_inputs)
    return ParsedRequest(ticket, body, _forwarded_headers(headers, api), digest, session)


def _forwarded_headers(headers: Mapping[bytes, bytes], api: Api) -> Mapping[str, str]:
    forwarded = _protocol_headers(headers) if api in ANTHROPIC_APIS else {}
    if _TRACEPARENT in headers:
        forwarded["traceparent"] = headers[_TRACEPARENT].decode("latin-1")
    if _TRACESTATE in headers:
        forwarded["tracestate"] = headers[_TRACESTATE].decode("latin-1")
    return forwarded


def _protocol_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns the headers of Anthropic's API, which engines receive as well."""
    return {name.decode(): headers[name].decode("latin-1") for name in _ANTHROPIC_HEADERS if name in headers}


class _BodyParser:
    """Body parsers for one tenant's requests."""

    __slots__ = ("_parse_queue", "_read_large", "_tenant")

    def __init__(self, tenant: TenantId, read_large: ReadLarge, parse_queue: ParseQueue) -> None:
        self._tenant = tenant
        self._read_large = read_large
        self._parse_queue = parse_queue

    async def parse(self, raw: bytes | bytearray, api: Api) -> _DigestAndBody:
        body: RequestBody | None = None
        try:
            size = len(raw)
            if not isinstance(raw, bytes) or size > LARGE_BYTES:
                digest = await hash_body(raw)
            elif self._parse_queue.admit(size):
                digest, body = _parse_inline(raw, api)
            else:
                parse = partial(_parse_inline, raw, api)
                digest, body = await self._parse_queue.wait(parse, size=size, tenant=self._tenant)
            # `read_large` may parse the body in another process.
            return digest, await self._read_large(raw, api, self._tenant) if body is None else body
        except BadRequest as bad:
            raise _invalid_rejection(bad) from None

    async def parse_form(self, raw: bytes | bytearray, boundary: bytes, api: Api) -> TranscriptionBody:
        """Parses a form of any size in the event loop, one step at a time. Raises `BadRequest`."""
        form = MultipartParser(raw, boundary)
        size = min(len(raw), STEP_BYTES)
        while not await self._parse_queue.run(form.parse_step, size=size, tenant=self._tenant):
            pass
        make = partial(TranscriptionBody.of, raw, api, form.parts)
        return await self._parse_queue.run(make, size=size, tenant=self._tenant)


def _parse_inline(raw: bytes, api: Api) -> tuple[bytes, RequestBody | None]:
    """Returns the digest and the parsed body. The body is None if it is too large to parse in the event loop."""
    return body_digest(raw), None if is_large(raw) else RequestBody.parse(raw, api)


async def _read_other(
    client: Client, api: Api, target: ModelTarget | None, size_max: int, parser: _BodyParser
) -> _DigestAndBody:
    """Reads a body that is not a JSON object with a model."""
    if target is None:
        return await _read_form(client, api, size_max, parser)
    return await _read_tensors(client, target, size_max, parser)


async def _read_tensors(client: Client, asked: ModelTarget, size_max: int, parser: _BodyParser) -> _DigestAndBody:
    """Parses only the JSON part, to reject invalid requests. Tensors are forwarded unchanged."""
    _check_body_headers(client, size_max)
    raw = _received(client, size_max) if client.received else await _receive(client, size_max)
    digest = await hash_body(raw)
    if asked.operation is not ModelOperation.INFERENCE:
        return digest, InferBody.of(b"", model=asked.model, operation=asked.operation)
    try:
        json_bytes = json_length(client.headers.get(JSON_LENGTH_HEADER.encode()), len(raw))
    except BadRequest as bad:
        raise _invalid_rejection(bad) from None
    await parser.parse(raw if json_bytes is None else raw[:json_bytes], Api.INFER)
    return digest, InferBody.of(raw, model=asked.model, operation=asked.operation, json_bytes=json_bytes)


async def _read_form(client: Client, api: Api, size_max: int, parser: _BodyParser) -> _DigestAndBody:
    _check_body_headers(client, size_max)
    try:
        # Rejected before the body arrives.
        boundary = read_boundary(client.headers.get(_CONTENT_TYPE_HEADER))
        raw = _received(client, size_max) if client.received else await _receive(client, size_max)
        body = await parser.parse_form(raw, boundary, api)
        # Clients choose a new boundary for each retry, so it must not affect the digest.
        return body_digest(await hash_body(body.content) + body.encoded_fields()), body
    except BadRequest as bad:
        raise _invalid_rejection(bad) from None


async def hash_body(raw: bytes | bytearray | memoryview) -> bytes:
    """Hashes the body, in a thread if it is large."""
    return body_digest(raw) if len(raw) <= HASHED_AT_ONCE_BYTES else await asyncio.to_thread(body_digest, raw)


def content_length(client: Client) -> int:
    """Returns the value of the Content-Length header, or 0 if it is missing or invalid."""
    announced = client.headers.get(b"content-length", b"")
    # 20 digits always exceed the limit, so there is no need to convert the rest.
    return int(announced.lstrip(b"0")[:20] or b"0") if announced.isdigit() else 0


def _check_body_headers(client: Client, size_max: int) -> None:
    encoding = client.headers.get(_CONTENT_ENCODING_HEADER)
    if encoding is not None and encoding.lower() != b"identity":
        raise EdgeRejection(
            Outcome.INVALID_REQUEST, "compressed request bodies are not supported; send the body uncompressed"
        )
    # The size of a complete body is known.
    if (client.received_bytes if client.received_at else content_length(client)) > size_max:
        raise _too_large_rejection(size_max)


async def _receive(client: Client, size_max: int) -> bytes | bytearray:
    try:
        return await client.body(size_max)
    except BodyTooLarge:
        raise _too_large_rejection(size_max) from None


def _received(client: Client, size_max: int) -> bytes | bytearray:
    try:
        return client.received_body(size_max)
    except BodyTooLarge:
        raise _too_large_rejection(size_max) from None


def _check_names(body: RequestBody, chars_max: int) -> None:
    """Rejects long names, because records and operator pages contain them."""
    for param, name in (("model", body.model), ("service_tier", body.service_tier)):
        if name is not None and len(name) > chars_max:
            raise EdgeRejection(
                Outcome.INVALID_REQUEST, f"{param} has {len(name)} characters; the limit is {chars_max}", param
            )


def _invalid_rejection(bad: BadRequest) -> EdgeRejection:
    return EdgeRejection(Outcome.INVALID_REQUEST, bad.message, bad.param, log_message=bad.log_message)


def _too_large_rejection(size_max: int) -> EdgeRejection:
    return EdgeRejection(Outcome.REQUEST_TOO_LARGE, f"the request body exceeds the limit of {size_max} bytes")


def _prompt_rejection(prompt_bytes: int, prompts: int) -> EdgeRejection:
    length = f"the request has {prompts} prompts of about {prompt_bytes // BYTES_PER_TOKEN} tokens in total"
    limit = f"the limit is {PROMPTS_MAX} prompts and {PROMPT_BYTES_MAX // BYTES_PER_TOKEN} tokens"
    return EdgeRejection(Outcome.REQUEST_TOO_LARGE, f"{length}; {limit}; send fewer or shorter prompts")


def _client_retries(value: bytes) -> int:
    """Returns the client's retry count, or 0 if it is invalid."""
    if not value.isdigit():
        return 0
    return min(int(value[:4]), _CLIENT_RETRIES_MAX)


# Deadlines


def _deadline(value: bytes) -> Duration:
    """Returns the time until the client's deadline.

    Rejects invalid values, because this header is specific to Headgate.
    """
    if (time_left := _milliseconds(value)) is None:
        name = DEADLINE_HEADER.decode()
        raise EdgeRejection(Outcome.INVALID_REQUEST, f"{name} must be a positive whole number of milliseconds", name)
    return time_left


def _time_left(
    headers: Mapping[bytes, bytes], deadline_ns: Duration | None, *, stream: bool
) -> tuple[Duration | None, Duration | None]:
    """Returns the time left until the first token and until the end of the response.

    Timeout headers from proxies and SDKs are used if valid and ignored otherwise. The OpenAI SDK's timeout applies to
    each read. It therefore applies to the first token of a stream, or to the whole of a non-streaming response.
    """
    if deadline_ns is not None:
        return None, deadline_ns
    if _PROXY_TIMEOUT_HEADER in headers and (proxys := _milliseconds(headers[_PROXY_TIMEOUT_HEADER])) is not None:
        return None, proxys
    if _SDK_TIMEOUT_HEADER not in headers:
        return None, None
    read_ns = _seconds(headers[_SDK_TIMEOUT_HEADER])
    return (read_ns, None) if stream else (None, read_ns)


def _milliseconds(value: bytes) -> Duration | None:
    # Longer numbers exceed the maximum anyway, and converting them takes quadratic time.
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


# Idempotency


def _idempotency_key(value: bytes) -> str:
    key = value.decode("latin-1")
    if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        name = IDEMPOTENCY_KEY_HEADER.decode()
        message = f"{name} must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters"
        raise EdgeRejection(Outcome.INVALID_REQUEST, message, name)
    return key
