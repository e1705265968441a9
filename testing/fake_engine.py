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
import socket
from collections import deque
from typing import Self

from testing.fake_answers import Behaviour, Generation, compact, error, token_text
from testing.fake_http import Connection, Received
from testing.ports import keep_port

__all__ = ["Behaviour", "FakeEngine", "Received", "token_text"]

_GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class FakeEngine:
    def __init__(self, *, models: tuple[str, ...] = ("fake",), api_key: str | None = None, port: int = 0) -> None:
        self.models = models
        self.owned_by = "fake"
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
        self.props: dict[str, object] | None = None
        """What llama.cpp's /props says; None answers 404."""
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
        self._kept_port: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._kept_port = keep_port(self.port)
        self.port = self._kept_port.getsockname()[1]
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        if self._kept_port is not None:
            self._kept_port.close()

    async def start(self) -> None:
        """Listens; after `kill` on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        # Inherited by what is accepted. asyncio does it only for sockets that are named as TCP, which this one is not.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listener)

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

    def opened(self, connection: Connection) -> int:
        self._connections.add(connection)
        self.connections_open += 1
        self.connections_total += 1
        return self.connections_total

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.connections_open -= 1

    def take(self, connection: Connection, received: Received) -> asyncio.Task[None]:
        generating = received.path in _GENERATING
        (self.requests if generating else self.probes).append(received)
        (self._arrived if generating else self._probed).put_nowait(received)
        task = asyncio.create_task(self._serve(connection, received, generating=generating))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: Connection, received: Received, *, generating: bool) -> None:
        try:
            if self.api_key is not None and received.headers.get("authorization") != f"Bearer {self.api_key}":
                connection.answer(401, error(401, "a valid key is required"))
            elif self.loading:
                connection.answer(503, error(503, "Loading model"))
            elif generating and received.method == "POST":
                await self._generate(connection, received)
            else:
                self._tell(connection, received)
            connection.finished()
        finally:
            received.ended.set()

    def _tell(self, connection: Connection, received: Received) -> None:
        match received.path:
            case "/health":
                connection.answer(200, b"")
            case "/v1/models":
                about = {"object": "model", "created": 0, "owned_by": self.owned_by}
                listed = [{"id": name, **about} for name in self.models]
                connection.answer(200, compact({"object": "list", "data": listed}))
            case "/version" if self.version is not None:
                connection.answer(200, compact({"version": self.version}))
            case "/props" if self.props is not None:
                connection.answer(200, compact(self.props))
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

    async def _generate(self, connection: Connection, received: Received) -> None:
        behaviour = self.script.popleft() if self.script else self.behaviour
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await Generation(connection, received, behaviour).run()
        finally:
            self.running -= 1
