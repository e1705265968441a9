"""An OpenAI-compatible engine that runs in the test's process and follows a script.

    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=8, cut_after=3))    # the next request; others get engine.behaviour
        ...                                                       # send a request to engine.url
        request = await engine.next_request()                     # the received request, body and headers
        await request.client_left.wait()                          # or .ended, when the engine has finished

The engine sleeps only if a behaviour has a pace. A hanging request continues when its `resume` is set and ends when its
client disconnects. Both are events, so tests do not have to wait for a fixed time. A client that closes, resets or
half-closes its connection counts as disconnected, as with real engines.
"""

import asyncio
import socket
import ssl
from collections import deque
from typing import Self

from testing.fake_http import Connection, Received
from testing.fake_responses import WITHOUT_OUTPUT, Behaviour, Generation, compact, error, token_text
from testing.ports import reserve_port

__all__ = ["Behaviour", "FakeEngine", "Received", "token_text"]

_GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    *WITHOUT_OUTPUT,
)


class FakeEngine:
    def __init__(
        self,
        *,
        models: tuple[str, ...] = ("fake",),
        api_key: str | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        base_path: str = "",
    ) -> None:
        """With `tls`, the engine accepts only TLS. With `base_path`, it returns 404 for all other paths."""
        self.models = models
        self.owned_by = "fake"
        self.adapters: dict[str, str] = {}
        """LoRA adapters by name, each with its source. They are in the list of models, with a parent."""
        self.max_lora: int | None = None
        """Number of adapters in use at the same time, reported as a metric. None reports nothing."""
        self.allows_loading = True
        """Whether adapters can be loaded and unloaded (vLLM: `VLLM_ALLOW_RUNTIME_LORA_UPDATING`)."""
        self.slow_loads_end = asyncio.Event()
        """Until this is set, the engine is loading adapters whose source begins with `/slow`."""
        self.unknown_models_are_rejected = False
        """Whether a request for a model that is not listed returns 404, as in vLLM."""
        self.adapters_running: list[str] = []
        """Adapter of each request in progress that has one."""
        self.adapters_running_max = 0
        """Largest number of distinct adapters that had requests in progress at the same time."""
        self.api_key = api_key
        self.api_key_header: str | None = None
        """Header that must contain the key alone. None expects `Authorization: Bearer KEY`."""
        self.port = port
        self.tls = tls
        self.base_path = base_path
        self.behaviour = Behaviour()
        self.script: deque[Behaviour] = deque()
        """Behaviours for the next requests, used in order before `behaviour` applies."""
        self.loading = False
        """Whether every path returns 503, as llama.cpp does while it is loading a model."""
        self.metrics: bytes | None = None
        """Metrics page. None generates a page in vLLM's format with the current values."""
        self.metrics_status = 200
        self.version: str | None = "0.0-fake"
        """Version that /version returns. None returns 404."""
        self.props: dict[str, object] | None = None
        """Properties that llama.cpp's /props returns. None returns 404."""
        self.requests: list[Received] = []
        """All generation requests, in the order received."""
        self.probes: list[Received] = []
        """All other requests."""
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
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}{self.base_path}"

    async def __aenter__(self) -> Self:
        self._kept_port = reserve_port(self.port)
        self.port = self._kept_port.getsockname()[1]
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        if self._kept_port is not None:
            self._kept_port.close()

    async def start(self) -> None:
        """Listen. After `kill`, listen on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        # Accepted connections inherit TCP_NODELAY. asyncio sets it only on sockets created with IPPROTO_TCP.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listener, ssl=self.tls)

    async def kill(self) -> None:
        """Stop listening and reset all connections, as SIGKILL would."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_request(self) -> Received:
        """The next generation request that no test has taken yet."""
        return await self._arrived.get()

    async def next_probe(self, path: str | None = None) -> Received:
        """The next other request, optionally for one path, that no test has taken yet."""
        while True:
            probe = await self._probed.get()
            if path is None or probe.path == path:
                return probe

    def close_idle_connections(self) -> None:
        """Close idle connections, as uvicorn does after five seconds."""
        for connection in list(self._connections):
            if connection.idle:
                connection.close()

    # Called by connections

    def opened(self, connection: Connection) -> int:
        self._connections.add(connection)
        self.connections_open += 1
        self.connections_total += 1
        return self.connections_total

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.connections_open -= 1

    def begin_answer(self, connection: Connection, received: Received) -> asyncio.Task[None]:
        received.remove_base_path(self.base_path)
        generating = received.path in _GENERATING
        (self.requests if generating else self.probes).append(received)
        (self._arrived if generating else self._probed).put_nowait(received)
        task = asyncio.create_task(self._serve(connection, received, generating=generating))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: Connection, received: Received, *, generating: bool) -> None:
        try:
            if self.api_key is not None and not self._has_key(received):
                connection.answer(401, error(401, "a valid key is required"))
            elif self.loading:
                connection.answer(503, error(503, "Loading model"))
            elif generating and received.method == "POST":
                await self._generate(connection, received)
            else:
                if received.path == "/v1/load_lora_adapter" and "/slow" in str(received.json["lora_path"]):
                    await self.slow_loads_end.wait()
                self._answer_probe(connection, received)
            connection.finished()
        finally:
            received.ended.set()

    def _has_key(self, received: Received) -> bool:
        if self.api_key_header is None:
            return received.headers.get("authorization") == f"Bearer {self.api_key}"
        return received.headers.get(self.api_key_header) == self.api_key

    def _answer_probe(self, connection: Connection, received: Received) -> None:
        match received.path:
            case "/health":
                connection.answer(200, b"")
            case "/v1/models":
                about = {"object": "model", "created": 0, "owned_by": self.owned_by}
                listed = [{"id": name, "parent": None, **about} for name in self.models]
                listed += [{"id": name, "parent": self.models[0], **about} for name in self.adapters]
                connection.answer(200, compact({"object": "list", "data": listed}))
            case "/v1/messages/count_tokens" if received.method == "POST":
                connection.answer(200, b'{"input_tokens":7}')
            case "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" if self.allows_loading:
                self._change_adapter(connection, received)
            case "/version" if self.version is not None:
                connection.answer(200, compact({"version": self.version}))
            case "/props" if self.props is not None:
                connection.answer(200, compact(self.props))
            case "/metrics":
                page = self.metrics if self.metrics is not None else self._metrics_page()
                connection.answer(self.metrics_status, page, content_type="text/plain; version=0.0.4")
            case _:
                connection.answer(404, b'{"detail":"Not Found"}')

    def _change_adapter(self, connection: Connection, received: Received) -> None:
        name = str(received.json["lora_name"])
        if received.path.endswith("/load_lora_adapter"):
            if name in self.adapters:
                connection.answer(400, error(400, f"The lora adapter '{name}' has already been loaded."))
                return
            if str(received.json["lora_path"]).startswith("/missing"):
                connection.answer(404, error(404, f"LoRA adapter {name} does not exist"))
                return
            self.adapters[name] = str(received.json["lora_path"])
        elif self.adapters.pop(name, None) is None:
            connection.answer(404, error(404, f"The lora adapter '{name}' cannot be found."))
            return
        connection.answer(200, b"Success", content_type="text/plain")

    def _metrics_page(self) -> bytes:
        lora = ""
        if self.max_lora is not None:
            running = ",".join(dict.fromkeys(self.adapters_running))
            lora = (
                f'vllm:lora_requests_info{{max_lora="{self.max_lora}",running_lora_adapters="{running}",'
                'waiting_lora_adapters=""} 1.7e+09\n'
            )
        return (
            lora.encode()
            + (
                "# TYPE vllm:num_requests_running gauge\n"
                f'vllm:num_requests_running{{engine="0",model_name="fake"}} {self.running}.0\n'
                'vllm:num_requests_waiting{engine="0",model_name="fake"} 0.0\n'
                'vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.25\n'
                'vllm:num_preemptions_total{engine="0",model_name="fake"} 0.0\n'
            ).encode()
        )

    async def _generate(self, connection: Connection, received: Received) -> None:
        if self.unknown_models_are_rejected and received.fields["model"] not in (*self.models, *self.adapters):
            connection.answer(404, error(404, f"The model `{received.fields['model']}` does not exist."))
            return
        behaviour = self.script.popleft() if self.script else self.behaviour
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        adapter = self._adapter_of(received)
        if adapter is not None:
            self.adapters_running.append(adapter)
            self.adapters_running_max = max(self.adapters_running_max, len(set(self.adapters_running)))
        try:
            await Generation(connection, received, behaviour).run()
        finally:
            self.running -= 1
            if adapter is not None:
                self.adapters_running.remove(adapter)

    def _adapter_of(self, received: Received) -> str | None:
        model = received.fields.get("model")
        return model if isinstance(model, str) and model in self.adapters else None
