"""HTTP client for engines.

Each endpoint has its own connections, which stay open for a short time after a response. The only timeout here is the
connect timeout. Response timeouts belong to the relay, because it knows the class. This module never retries; only the
scheduler decides on retries.
"""

import asyncio
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]  (its addresses are bare tuples)

from headgate.engines.buffered_response import BufferedResponse
from headgate.engines.dialect import OPTIONAL_APIS, Dialect, is_unknown_model
from headgate.engines.dns_cache import DnsCache
from headgate.engines.engine_connection import EngineConnection
from headgate.engines.engine_tls import EngineTls
from headgate.engines.faults import failure_reason, fault_of
from headgate.engines.http_response import HttpResponse
from headgate.engines.joined_response import join_stream
from headgate.model.fault import Fault
from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import SECOND, Duration, RequestId
from headgate.ports.api_key import ApiKey
from headgate.ports.engine import Call, EngineFault, EngineResponse
from headgate.ports.tls import ClientTlsOptions, InvalidTlsFile
from headgate.wire.kserve.infer import error_body
from headgate.wire.openai_bodies import error_body as openai_error
from headgate.wire.rate_limit_headers import read_rate_limits
from headgate.wire.redaction import redacted_body
from headgate.wire.stream_joiner import StreamDiffers
from headgate.wire.turn_budget import TurnBudget

CONNECT_S_MAX: Final = 5.0
HAPPY_EYEBALLS_S: Final = 0.25
"""Delay before trying a host's next address in parallel, in seconds."""
IDLE_S_MAX: Final = 3.0
"""How long an idle connection is kept open, in seconds. vLLM (uvicorn) and llama.cpp close idle connections after 5 s.
A request sent at that moment is lost and would look like an engine failure.
"""

WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes from all engines that are buffered for parsing: one read from each of a thousand connections."""

_INVALID_HEADER_CHARS: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
"""Characters that a header value must not contain."""
_RESERVED_HEADERS: Final = frozenset(
    {"authorization", "connection", "content-length", "content-type", "host", "x-request-id"}
)
"""Headers that callers cannot override."""
_BETA_HEADER: Final = "anthropic-beta"

_JSON_LINE: Final = "content-type: application/json\r\n"
_MISSING_STATUSES: Final = (405, 501)
"""Statuses of an engine that does not offer an API, besides 404 for an unknown path. A retry would not help."""
_ERROR_BODY_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes that are kept of an error body whose key is removed. The relay does not use more."""
_MISSING_BODY_BYTES_MAX: Final = 16 * 1024
"""Maximum bytes that are read from a 404 to tell an unknown path from an unknown model. A 404 about a model is
much shorter.
"""

# In Python 3.11, access to a member through its enum takes as long as several function calls.
_GENERATION_APIS: Final = frozenset({Api.CHAT, Api.COMPLETIONS})

_Answer = HttpResponse | BufferedResponse


def turn_budget() -> TurnBudget:
    """Creates the parsing budget shared by all engines in the running event loop."""
    call_soon = asyncio.get_running_loop().call_soon
    return TurnBudget(call_soon, time.perf_counter_ns, waiting_bytes_max=WAITING_BYTES_MAX)


def url_at(base_url: str, path: str) -> str:
    """Returns the URL of a path. The base URL may end with `/v1`."""
    return base_url.rstrip("/").removesuffix("/v1") + path


def metrics_url(base_url: str, dialect: Dialect) -> str:
    """Returns the base URL of an engine's metrics, which may be on a separate port.

    A base URL with a path belongs to a proxy, which serves all pages of the engine on one port.
    """
    parts = urlsplit(base_url)
    if not dialect.metrics_port_offset or _base_path(base_url):
        return base_url
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = (parts.port or (443 if parts.scheme == "https" else 80)) + dialect.metrics_port_offset
    return f"{parts.scheme}://{host}:{port}"


def _base_path(url: str) -> str:
    """Returns the path that precedes the paths of the engine's API. Empty for most engines."""
    return url_at(urlsplit(url).path, "")


def authorization(api_key: ApiKey | str | None) -> dict[str, str]:
    """Returns the header with the key."""
    if api_key is None:
        return {}
    return api_key.as_headers() if isinstance(api_key, ApiKey) else {"authorization": f"Bearer {api_key}"}


class HttpEngine:
    """HTTP client for one endpoint's engine. Must be created inside an event loop; the owner closes it."""

    def __init__(
        self,
        url: str,
        *,
        served_model: str,
        api_key: ApiKey | str | None,
        dialect: Dialect,
        passes_priority: bool = False,
        anthropic_betas: Sequence[str] = (),
        joins_streams: bool = True,
        on_connected: Callable[[Duration], None] | None = None,
        budget: TurnBudget | None = None,
        dns: DnsCache | None = None,
        tls: EngineTls | None = None,
    ) -> None:
        """Creates a client without opening a connection.

        A hosted provider receives only those values of the header `anthropic-beta` that are in `anthropic_betas`.
        `on_connected` receives the time that each new connection took to open. `budget` limits parsing across all
        engines that share it, and `dns` caches host addresses for them. If either is None, the engine creates its own.
        `tls` applies to `https` URLs; if None, the engine's certificate is verified with the system's authorities.
        """
        parts = urlsplit(url)
        assert parts.hostname is not None, "the engine address has no host; validation should have rejected it"
        self._host = parts.hostname
        self._tls = (tls or EngineTls(ClientTlsOptions())) if parts.scheme == "https" else None
        self._port = parts.port or (80 if self._tls is None else 443)
        self.served_model = served_model
        self._passes_priority = passes_priority
        self._anthropic_betas = frozenset(anthropic_betas)
        self._on_connected = on_connected
        self._dialect = dialect
        self._joins_streams = joins_streams and dialect.joins_streams
        self._streams_differ: set[Api] = set()
        """APIs for which this engine's stream differed from its non-streaming response."""
        self._secret = ApiKey.text(api_key)
        self._common_headers = _header_lines(parts.netloc, api_key)
        self._base_path = _base_path(url)
        self._request_starts = _request_starts(dialect, self._base_path, self._common_headers)
        self._adapter = dialect.adapter(self) if dialect.adapter is not None else None
        self._loop = asyncio.get_running_loop()
        self._budget = budget or turn_budget()
        self._dns = dns or DnsCache()
        self._open: set[EngineConnection] = set()
        self._idle: list[EngineConnection] = []
        self._outdated: set[EngineConnection] = set()
        """Active connections that use an earlier TLS context. They are closed instead of becoming idle."""
        self._pruning: asyncio.TimerHandle | None = None
        self._unanswered = 0
        """Number of requests to a hosted provider whose response has not begun."""

    async def ask(self, call: Call) -> EngineResponse:
        if self._adapter is not None:
            return await self._adapter.ask(call)
        if call.api not in self._request_starts:
            said = f"the API {call.api} is not available for this model; its engine offers the OpenAI API at /v1/"
            return BufferedResponse(404, error_body(said), blames=True)
        if self._should_join(call) and (answer := await self._ask_joined(call)) is not None:
            return answer
        if self._asks_progress(call):
            answer = await self._ask(self._as_stream(call))
            answer.reports_progress = True
            return answer
        if call.api in FORM_APIS:
            call = _with_usage(call, self._dialect.transcript_usage_field)
        answer = await self._ask(call)
        if answer.status < 404 or call.api not in OPTIONAL_APIS:
            return answer
        return await self._optional_api_error(answer, call.api, call.adapter or self.served_model)

    async def _optional_api_error(self, answer: _Answer, api: Api, model: str) -> EngineResponse:
        """Returns the response of an engine that may not offer this API.

        Without the API, the request is to blame. Otherwise any tenant could eject the engine. A 404 about the model is
        a failure of the engine, as in all other APIs, so that it does not attract further requests.
        """
        body = b""
        if answer.status == 404:
            body = await _read_start(answer, _MISSING_BODY_BYTES_MAX)
        elif answer.status in _MISSING_STATUSES:
            answer.close()
        else:
            return answer
        if answer.status == 404 and is_unknown_model(body, model):
            return BufferedResponse(404, body)
        said = f"the engine does not offer {self._dialect.paths[api]} for this model; use another API"
        body = openai_error(message=said, type="invalid_request_error", code="engine_rejected")
        return BufferedResponse(404, body, blames=True)

    async def _ask_joined(self, call: Call) -> EngineResponse | None:
        """Joins a stream into a non-streaming response. Returns None if the request must be made without streaming."""
        if call.watch is not None:
            call.watch.begin()
        try:
            answer = await self._ask(self._as_stream(call))
            return answer if isinstance(answer, BufferedResponse) else await join_stream(answer, call.api, call.watch)
        except StreamDiffers:
            # The server parses its output, for example with a reasoning parser. The first such request needs a second
            # prefill, which the prefix cache shortens. Later requests have no extra cost.
            self._streams_differ.add(call.api)
        if call.watch is not None:
            call.watch.end()
        return None

    async def _ask(self, call: Call) -> _Answer:
        dialect, allowed = self._dialect, call.body
        if dialect.private_fields:
            allowed = allowed.without(
                dialect.private_fields, prefixes=dialect.private_prefixes, disabled=dialect.disabled_fields
            )
        body = allowed.encode_in_pieces(
            served_model=call.adapter or self.served_model,
            passes_priority=self._passes_priority,
            cache_salt=call.cache_salt if self._dialect.supports_cache_salt else None,
        )
        closes = call.body.stream and not self._dialect.keeps_connection_after_stream
        start = self._request_starts[call.api]
        if call.api in FORM_APIS:
            start += f"content-type: {call.body.content_type}\r\n"
        head = self._head(start, call.request_id, call.headers, sum(map(len, body)), closes=closes)
        connection = self._take_idle() or await self._connect()
        if self._dialect.reports_rate_limits:
            return await self._ask_provider(connection, [head, *body], call)
        answer = await connection.ask([head, *body], self._dialect, call.on_sent)
        answer.secret = self._secret
        return await _read_error(answer) if answer.status >= 300 and self._secret else answer

    async def _ask_provider(
        self, connection: EngineConnection, question: list[bytes | memoryview], call: Call
    ) -> _Answer:
        """Asks a hosted provider and reports the rate limits in its response."""
        connection.keeps_headers = True
        self._unanswered += 1
        try:
            answer = await connection.ask(question, self._dialect, call.on_sent)
        finally:
            self._unanswered -= 1
        answer.secret = self._secret
        reply = answer if answer.status < 300 else await _read_error(answer)
        # A single request that exceeds the limit does not mean that the provider accepts nothing else.
        rejects_all = answer.status != 429 or not reply.is_request_error(b"")
        limits = read_rate_limits(answer.status if rejects_all else 400, answer.headers, time.time())
        if limits is not None and call.on_limits is not None:
            if limits.requests_left is not None:
                # The provider has probably not counted the requests that it is still reading.
                limits = replace(limits, requests_left=max(0, limits.requests_left - self._unanswered))
            call.on_limits(limits)
        return reply

    async def send(
        self,
        method: str,
        path: str,
        request_id: RequestId,
        headers: Mapping[str, str],
        body: list[bytes | memoryview],
        *,
        sent: Callable[[], None] | None = None,
    ) -> _Answer:
        """Sends a request on behalf of a protocol adapter."""
        start = f"{method} {self._base_path}{path} HTTP/1.1\r\n{self._common_headers}{_JSON_LINE}"
        head = self._head(start, request_id, headers, sum(map(len, body)), closes=False)
        connection = self._take_idle() or await self._connect()
        answer = await connection.ask([head, *body], self._dialect, sent)
        answer.secret = self._secret
        return await _read_error(answer) if answer.status >= 300 and self._secret else answer

    @property
    def connections(self) -> int:
        """Number of open connections, including idle ones."""
        return len(self._open)

    @property
    def connections_idle(self) -> int:
        return len(self._idle)

    def renew_connections(self) -> None:
        """From now on, requests use new connections. Active connections close when their responses end."""
        self._close_idle()
        self._outdated = set(self._open)

    def close(self) -> None:
        """Closes idle connections. Active connections close when their responses end."""
        self._close_idle()
        if self._pruning is not None:
            self._pruning.cancel()
            self._pruning = None

    def _asks_progress(self, call: Call) -> bool:
        """Returns whether to request prompt progress even though the caller did not ask for it."""
        switch = self._dialect.progress_field
        if switch is None or not call.body.stream or call.api not in _GENERATION_APIS:
            return False
        return not call.body.has_fields((switch,))

    def _as_stream(self, call: Call) -> Call:
        switch = self._dialect.progress_field
        return replace(call, body=call.body.as_stream(*([switch] if switch else [])))

    def _should_join(self, call: Call) -> bool:
        """Returns whether to request a stream even though the caller wants a non-streaming response."""
        dialect, body = self._dialect, call.body
        if body.stream or call.api not in _GENERATION_APIS:
            return False
        if not dialect.notices_disconnect_only_in_streams:
            watched = self._joins_streams and call.api not in self._streams_differ
            return watched and not any(body.has_fields((name,)) for name in dialect.unjoined_fields)
        return not dialect.unstreamable_fields or not body.has_fields(dialect.unstreamable_fields)

    # Request

    def _head(
        self, start: str, request_id: RequestId, headers: Mapping[str, str], length: int, *, closes: bool = False
    ) -> bytes:
        forwarded = self._dialect.forwarded_headers
        if forwarded is not None and headers:
            headers = _allowed_headers(headers, forwarded, self._anthropic_betas)
        lines = start + _call_header_lines(headers)
        if closes:
            lines += "connection: close\r\n"
        if forwarded is None:
            lines += f"x-request-id: {request_id}\r\n"
        return f"{lines}content-length: {length}\r\n\r\n".encode("latin-1")

    # Connections

    async def _connect(self) -> EngineConnection:
        def connection() -> EngineConnection:
            return EngineConnection(self._on_idle, self._on_lost, self._budget)

        tls, began_s = self._tls, self._loop.time()
        raw: socket.socket | None = None
        try:
            context = None if tls is None else tls.context
            name = None if tls is None else tls.server_name or self._host
            async with asyncio.timeout(CONNECT_S_MAX):
                # Addresses are tried in parallel, so that an unresponsive address does not delay the others.
                raw = await start_connection(
                    await self._dns.addresses(self._host, self._port),
                    happy_eyeballs_delay=HAPPY_EYEBALLS_S,
                    loop=self._loop,
                )
                _, made = await self._loop.create_connection(connection, sock=raw, ssl=context, server_hostname=name)
        except TimeoutError as error:
            missing = "connection" if raw is None else "TLS handshake"
            reason = failure_reason(error) if error.errno else f"no {missing} within {CONNECT_S_MAX:g} s"
            raise EngineFault(f"the request to the engine failed: {reason}", Fault.CONNECTION) from error
        except OSError as error:
            fault = fault_of(error, Fault.CONNECTION)
            raise EngineFault(f"the request to the engine failed: {failure_reason(error)}", fault) from error
        except InvalidTlsFile as error:
            raise EngineFault(f"the request to the engine failed: {error}", Fault.GATEWAY) from error
        if self._on_connected is not None:
            self._on_connected(Duration(int((self._loop.time() - began_s) * SECOND)))
        if made.is_open:
            self._open.add(made)
            if tls is not None and tls.context is not context:
                self._outdated.add(made)
        return made

    def _take_idle(self) -> EngineConnection | None:
        fresh_since = self._loop.time() - IDLE_S_MAX
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since > fresh_since:
                return connection
            connection.close()
        return None

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _on_idle(self, connection: EngineConnection) -> None:
        if self._outdated and connection in self._outdated:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._pruning is None:
            self._pruning = self._loop.call_later(IDLE_S_MAX, self._prune)

    def _on_lost(self, connection: EngineConnection) -> None:
        self._open.discard(connection)
        self._outdated.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _prune(self) -> None:
        """Closes connections that have been idle for too long. The list is ordered by idle time, longest first."""
        self._pruning = None
        stale_since = self._loop.time() - IDLE_S_MAX
        while self._idle and (self._idle[0].idle_since <= stale_since or not self._idle[0].is_open):
            self._idle.pop(0).close()
        if self._idle:
            self._pruning = self._loop.call_later(IDLE_S_MAX, self._prune)


def _request_starts(dialect: Dialect, base_path: str, common_headers: str) -> dict[Api, str]:
    """Returns the first lines of the requests to each API, which are the same for all requests."""
    return {
        api: f"POST {base_path}{path} HTTP/1.1\r\n{common_headers}" + ("" if api in FORM_APIS else _JSON_LINE)
        for api, path in dialect.paths.items()
    }


def _call_header_lines(headers: Mapping[str, str]) -> str:
    """Returns the headers of a call, except those that callers cannot override."""
    lines = ""
    for name, value in headers.items():
        if name.lower() not in _RESERVED_HEADERS and not _INVALID_HEADER_CHARS.search(value):
            lines += f"{name}: {value}\r\n"
    return lines


def _allowed_headers(headers: Mapping[str, str], names: frozenset[str], betas: frozenset[str]) -> dict[str, str]:
    """Returns the headers that a hosted provider may receive, with only these beta features."""
    allowed = {name.lower(): value for name, value in headers.items() if name.lower() in names}
    if (asked := allowed.pop(_BETA_HEADER, None)) is not None:
        kept = [beta for beta in map(str.strip, asked.split(",")) if beta in betas]
        if kept:
            allowed[_BETA_HEADER] = ",".join(kept)
    return allowed


def _with_usage(call: Call, field: str | None) -> Call:
    """Returns the call with a request for usage, if the engine has a field for it in streamed transcripts."""
    return call if field is None or not call.body.stream else replace(call, body=call.body.as_stream(field))


def _header_lines(host: str, api_key: ApiKey | str | None) -> str:
    """Returns the headers that every request carries."""
    lines = {
        "host": host,
        "accept": "*/*",
        # The relay must be able to scan the stream and forward each event as it arrives.
        "accept-encoding": "identity",
        "user-agent": "headgate",
    } | authorization(api_key)
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items())


async def _read_error(answer: HttpResponse) -> BufferedResponse:
    """Returns an error response without the gateway's key, which some engines repeat in their messages."""
    body = await _read_start(answer, _ERROR_BODY_BYTES_MAX)
    reply = BufferedResponse(answer.status, redacted_body(body, answer.secret), blames=answer.is_request_error(body))
    reply.content_type, reply.body_headers = answer.content_type, answer.body_headers
    return reply


async def _read_start(answer: _Answer, bytes_max: int) -> bytes:
    body = bytearray()
    try:
        while len(body) < bytes_max and (data := await answer.read()):
            body += data
    finally:
        answer.close()
    return bytes(body[:bytes_max])
