"""What would an engine do? An OpenAI-compatible engine in the test's own process, which does as it is told.

    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=8, cut_after=3))    # the next request; others get engine.behaviour
        ...                                                       # ask it at engine.url
        request = await engine.next_request()                     # what it received, body and headers
        await request.client_left.wait()                          # or .ended, when it is done with it

Nothing here sleeps unless a behaviour has a pace. A request that hangs goes on when its `resume` is set, and ends when
its client leaves; both are events, so that a test awaits what happened instead of guessing how long it takes. A client
that closes, resets or half-closes has left, as with the real engines.
"""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self, cast

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}
_GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What becomes of one request. The defaults answer it well."""

    tokens: int | None = None
    """How many tokens, one event each; None takes the request's own maximum, else 4."""
    pace_s: float = 0.0
    """Time before each token."""
    usage: bool = True
    """Whether it says its usage when asked."""
    finish_reason: str = "stop"
    status: int = 200
    """Any other is an error status with a JSON error body."""
    error: str = "the fake engine was told to fail"
    """The message of an error status or event."""
    body: bytes | None = None
    """These bytes in place of what it would say: an event stream if the request asks for a stream, else JSON."""
    hang_before_head: bool = False
    hang_after: int | None = None
    """Falls silent after so many tokens; 0 is after the head and before the first token."""
    error_after: int | None = None
    """An error event after so many tokens, then [DONE], as vLLM does; 0 makes it the first event."""
    cut_after: int | None = None
    """Closes the connection after so many tokens, without a terminal event. Not streamed: in the middle of the body."""
    drop_before_head: bool = False
    """Takes the request and closes without a word."""
    without_done: bool = False
    """Ends the stream cleanly, but without [DONE]."""
    piece_bytes: int | None = None
    """Sends the answer in pieces of so many bytes; None sends one piece per event."""
    close_after: bool = False
    """Closes the connection after a whole answer, unannounced, as engines do with idle ones."""


@dataclass(eq=False, slots=True)
class Received:
    """One request as the engine got it, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    """The number of the connection it came on."""
    tokens_sent: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test to let a hanging request go on."""
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has fallen silent as told."""
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client went away before the answer was whole."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine is done with it, however it ended."""

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.raw)


class FakeEngine:
    def __init__(self, *, models: tuple[str, ...] = ("fake",), api_key: str | None = None, port: int = 0) -> None:
        self.models = models
        self.api_key = api_key
        self.port = port
        self.behaviour = Behaviour()
        self.script: deque[Behaviour] = deque()
        """Behaviours of the next requests, used up one by one before `behaviour` applies."""
        self.loading = False
        """While true every path answers 503, as llama.cpp does."""
        self.metrics: bytes | None = None
        """The metrics page; None gives a page in vLLM's words with the true figures."""
        self.metrics_status = 200
        self.version: str | None = "0.0-fake"
        """What /version says; None answers 404."""
        self.requests: list[Received] = []
        """Every request to generate, in the order received."""
        self.probes: list[Received] = []
        """Every other request."""
        self.running = 0
        self.running_max = 0
        self.connections_open = 0
        self.connections_total = 0
        self._arrived: asyncio.Queue[Received] = asyncio.Queue()
        self._probed: asyncio.Queue[Received] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Listens; after `kill` on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=listener)

    async def kill(self) -> None:
        """Stops listening and breaks off everything, as SIGKILL does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_request(self) -> Received:
        """The next request to generate that no test has taken yet."""
        return await self._arrived.get()

    async def next_probe(self, path: str | None = None) -> Received:
        """The next other request (of this path) that no test has taken yet."""
        while True:
            probe = await self._probed.get()
            if path is None or probe.path == path:
                return probe

    def close_idle_connections(self) -> None:
        """Closes what carries no request, as uvicorn does after five seconds."""
        for connection in list(self._connections):
            if connection.idle:
                connection.close()

    # -- used by the connections

    def opened(self, connection: "_Connection") -> int:
        self._connections.add(connection)
        self.connections_open += 1
        self.connections_total += 1
        return self.connections_total

    def closed(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self.connections_open -= 1

    def take(self, connection: "_Connection", received: Received) -> asyncio.Task[None]:
        generating = received.path in _GENERATING
        (self.requests if generating else self.probes).append(received)
        (self._arrived if generating else self._probed).put_nowait(received)
        task = asyncio.create_task(self._serve(connection, received, generating=generating))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: "_Connection", received: Received, *, generating: bool) -> None:
        try:
            if self.api_key is not None and received.headers.get("authorization") != f"Bearer {self.api_key}":
                connection.answer(401, _error(401, "a valid key is required"))
            elif self.loading:
                connection.answer(503, _error(503, "Loading model"))
            elif generating and received.method == "POST":
                await self._generate(connection, received)
            else:
                self._tell(connection, received)
            connection.finished()
        finally:
            received.ended.set()

    def _tell(self, connection: "_Connection", received: Received) -> None:
        match received.path:
            case "/health":
                connection.answer(200, b"")
            case "/v1/models":
                listed = [{"id": name, "object": "model", "created": 0, "owned_by": "fake"} for name in self.models]
                connection.answer(200, _compact({"object": "list", "data": listed}))
            case "/version" if self.version is not None:
                connection.answer(200, _compact({"version": self.version}))
            case "/metrics":
                page = self.metrics if self.metrics is not None else self._true_metrics()
                connection.answer(self.metrics_status, page, content_type="text/plain; version=0.0.4")
            case _:
                connection.answer(404, b'{"detail":"Not Found"}')

    def _true_metrics(self) -> bytes:
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0",model_name="fake"}} {self.running}.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.25\n'
            'vllm:num_preemptions_total{engine="0",model_name="fake"} 0.0\n'
        ).encode()

    async def _generate(self, connection: "_Connection", received: Received) -> None:
        behaviour = self.script.popleft() if self.script else self.behaviour
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await _Generation(connection, received, behaviour).run()
        finally:
            self.running -= 1


class _Generation:
    """One request being answered."""

    def __init__(self, connection: "_Connection", received: Received, behaviour: Behaviour) -> None:
        self._connection = connection
        self._received = received
        self._behaviour = behaviour
        try:
            self._asked = received.json
        except ValueError:
            self._asked = {}
        wanted = self._asked.get("max_completion_tokens") or self._asked.get("max_tokens") or 4
        self._tokens = behaviour.tokens if behaviour.tokens is not None else int(str(wanted))

    async def run(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        if behaviour.hang_before_head:
            await self._hang()
        if behaviour.drop_before_head:
            connection.close()
        elif behaviour.status != 200:
            connection.answer(behaviour.status, behaviour.body or _error(behaviour.status, behaviour.error))
        elif self._asked.get("stream") is True:
            await self._stream()
        else:
            await self._whole()
        if behaviour.close_after:
            connection.close()

    async def _hang(self) -> None:
        self._received.hung.set()
        await self._received.resume.wait()

    async def _whole(self) -> None:
        behaviour = self._behaviour
        for _ in range(self._tokens):
            await self._pace()
            self._received.tokens_sent += 1
        body = behaviour.body if behaviour.body is not None else self._whole_body()
        if behaviour.cut_after is not None or behaviour.hang_after is not None:
            self._connection.head(200, "application/json", length=len(body))
            self._connection.write(body[: len(body) // 2])
            if behaviour.hang_after is not None:
                await self._hang()
                self._connection.write(body[len(body) // 2 :])
            else:
                self._connection.close()
            return
        self._connection.answer(200, body)

    async def _stream(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        connection.head(200, "text/event-stream; charset=utf-8", length=None)
        if behaviour.body is not None:
            await self._send(behaviour.body)
            connection.last_chunk()
            return
        for number in range(self._tokens + 1):
            if number == behaviour.hang_after:
                await self._hang()
            if number == behaviour.cut_after:
                connection.close()
                return
            if number == behaviour.error_after:
                await self._send(b"data: " + _error(500, behaviour.error) + b"\n\ndata: [DONE]\n\n")
                connection.last_chunk()
                return
            if number < self._tokens:
                await self._pace()
                await self._send(self._token_event(number))
                self._received.tokens_sent += 1
        await self._send_ending()
        connection.last_chunk()

    async def _send_ending(self) -> None:
        options = cast("dict[str, object]", self._asked.get("stream_options") or {})
        if self._behaviour.usage and options.get("include_usage") is True:
            await self._send(_event(self._frame([]) | {"usage": self._usage()}))
        if not self._behaviour.without_done:
            await self._send(b"data: [DONE]\n\n")

    async def _pace(self) -> None:
        if self._behaviour.pace_s > 0:
            await asyncio.sleep(self._behaviour.pace_s)

    async def _send(self, data: bytes) -> None:
        for piece in _pieces(data, self._behaviour.piece_bytes):
            self._connection.chunk(piece)
            await self._connection.drained()

    def _frame(self, choices: list[dict[str, object]]) -> dict[str, object]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {"id": "fake-1", "object": kind, "created": 0, "model": self._asked.get("model"), "choices": choices}

    def _token_event(self, number: int) -> bytes:
        last = number == self._tokens - 1
        choice: dict[str, object] = {"index": 0, "finish_reason": self._behaviour.finish_reason if last else None}
        if not self._is_chat:
            choice["text"] = token_text(number)
        elif number == 0:
            choice["delta"] = {"role": "assistant", "content": token_text(number)}
        else:
            choice["delta"] = {"content": token_text(number)}
        return _event(self._frame([choice]))

    def _whole_body(self) -> bytes:
        if self._received.path == "/v1/embeddings":
            vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]
            usage = {"prompt_tokens": 7, "total_tokens": 7}
            return _compact({"object": "list", "data": vectors, "model": self._asked.get("model"), "usage": usage})
        text = "".join(token_text(number) for number in range(self._tokens))
        choice: dict[str, object] = {"index": 0, "finish_reason": self._behaviour.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        body = self._frame([choice]) | {"object": "chat.completion" if self._is_chat else "text_completion"}
        return _compact(body | ({"usage": self._usage()} if self._behaviour.usage else {}))

    def _usage(self) -> dict[str, object]:
        cached = {"cached_tokens": 3}
        total = 7 + self._tokens
        return {
            "prompt_tokens": 7,
            "completion_tokens": self._tokens,
            "total_tokens": total,
            "prompt_tokens_details": cached,
        }

    @property
    def _is_chat(self) -> bool:
        return self._received.path == "/v1/chat/completions"


class _Connection(asyncio.Protocol):
    """One client's connection: HTTP/1.1 with keep-alive, one request at a time."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._current: Received | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport
        self._number = 0

    @property
    def idle(self) -> bool:
        return self._current is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._engine.opened(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        assert len(self._buffer) <= BODY_BYTES_MAX, "a test sent the fake engine more than it holds"
        self._next()

    def eof_received(self) -> bool:
        self._left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._writable.set()
        self._engine.closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drained(self) -> None:
        await self._writable.wait()
        # A burst of tokens must not keep the loop from hearing that the client has left.
        await asyncio.sleep(0)

    def _left(self) -> None:
        if self._current is not None and not self._current.ended.is_set():
            self._current.client_left.set()
            assert self._task is not None
            self._task.cancel()
        self._current = None

    def _next(self) -> None:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if self._current is not None or not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self._current = Received(method, path, headers, rest[:length], self._number)
        self._task = self._engine.take(self, self._current)

    def finished(self) -> None:
        """The answer is whole: the connection may carry the next request, unless the client called this its last."""
        if self._is_last:
            self.close()
        self._current = None
        self._next()

    def answer(self, status: int, body: bytes, *, content_type: str = "application/json") -> None:
        self.head(status, content_type, length=len(body))
        self.write(body)

    def head(self, status: int, content_type: str, *, length: int | None) -> None:
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        if self._is_last:
            framing += "\r\nconnection: close"
        reason = _REASONS.get(status, "Status")
        self.write(f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{framing}\r\n\r\n".encode())

    @property
    def _is_last(self) -> bool:
        return self._current is not None and self._current.headers.get("connection") == "close"

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self) -> None:
        self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def token_text(number: int) -> str:
    """The text of a token, so that a test can say what the whole answer must be."""
    return f"word{number} "


def _compact(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + _compact(value) + b"\n\n"


def _error(status: int, message: str) -> bytes:
    return _compact({"error": {"message": message, "type": "fake_error", "param": None, "code": status}})


def _pieces(data: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(data)
    for start in range(0, len(data), step):
        yield data[start : start + step]
