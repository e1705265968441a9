"""A fake Triton server that speaks the KServe protocol in the test's process and follows a script.

It uses the behaviours of `FakeEngine`. Token settings apply to text streams, the other settings also to tensors. The
metrics port is two above the main port and serves Triton's and TensorRT-LLM's metric names.
"""

import asyncio
import json
import socket
import ssl

from testing.fake_engine import FakeEngine
from testing.fake_http import Connection, Received
from testing.fake_responses import Behaviour, compact
from testing.ports import free_ports

TEXT_INPUTS = {
    "text_input": "BYTES",
    "max_tokens": "INT32",
    "temperature": "FP32",
    "stop_words": "BYTES",
    "stream": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
}


class FakeTriton(FakeEngine):
    def __init__(
        self, *, models: tuple[str, ...] = ("fake",), tls: ssl.SSLContext | None = None, base_path: str = ""
    ) -> None:
        port, *_ = free_ports(3)
        super().__init__(models=models, port=port, tls=tls, base_path=base_path)
        self.inputs = dict(TEXT_INPUTS)
        """Input names and data types of every model."""
        self.config: dict[str, object] | None = {"parameters": {}}
        """Model configuration. None means the server returns 404 for it."""
        self.ready = True
        """Whether the models are ready."""
        self.word = " t{}"
        """Text of each stream event, with a placeholder for the event number."""
        self.infer_headers: dict[str, str] = {}
        """Additional headers in tensor responses."""
        self._metrics_server: asyncio.Server | None = None

    async def start(self) -> None:
        await super().start()
        listener = socket.create_server(("127.0.0.1", self.port + 2), backlog=64)
        self._metrics_server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), sock=listener, ssl=self.tls
        )

    async def kill(self) -> None:
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None
        await super().kill()

    def begin_answer(self, connection: Connection, received: Received) -> asyncio.Task[None]:
        received.remove_base_path(self.base_path)
        generating = received.path.endswith(("/generate_stream", "/infer"))
        (self.requests if generating else self.probes).append(received)
        (self._arrived if generating else self._probed).put_nowait(received)
        task = asyncio.create_task(self._serve(connection, received, generating=generating))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer_probe(self, connection: Connection, received: Received) -> None:
        _, _, rest = received.path.partition("/v2/models/")
        name, _, what = rest.partition("/")
        match received.path, name in self.models, what:
            case "/v2/health/ready", _, _:
                connection.answer(200 if self.ready else 400, b"")
            case "/v2", _, _:
                connection.answer(200, compact({"name": "triton", "version": "0.0-fake"}))
            case "/metrics", _, _:
                page = self.metrics if self.metrics is not None else self._metrics_page()
                connection.answer(self.metrics_status, page, content_type="text/plain")
            case _, True, "ready":
                connection.answer(200, b"") if self.ready else connection.answer(400, NOT_READY)
            case _, False, "ready":
                connection.answer(400, NOT_READY)
            case _, True, "":
                connection.answer(200, self._metadata(name))
            case _, True, "config" if self.config is not None:
                connection.answer(200, compact(self.config))
            case _, False, _ if name:
                connection.answer(404, _error(f"Request for unknown model: '{name}' is not found"))
            case _:
                connection.answer(404, b'{"error":"Not Found"}')

    def _metadata(self, name: str) -> bytes:
        inputs = [{"name": each, "datatype": kind, "shape": [1]} for each, kind in self.inputs.items()]
        outputs = [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]
        return compact({"name": name, "versions": ["1"], "platform": "python", "inputs": inputs, "outputs": outputs})

    def _metrics_page(self) -> bytes:
        pending = "".join(
            f'nv_inference_pending_request_count{{model="{name}",version="1"}} 0\n' for name in self.models
        )
        return (
            f"{pending}"
            'nv_inference_queue_duration_us{model="fake",version="1"} 1500\n'
            'nv_inference_request_success{model="fake",version="1"} 3\n'
            f'nv_trt_llm_request_metrics{{model="fake",request_type="scheduled",version="1"}} {self.running}\n'
            'nv_trt_llm_request_metrics{model="fake",request_type="max",version="1"} 64\n'
            'nv_trt_llm_request_metrics{model="fake",request_type="waiting",version="1"} 0\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="fake",version="1"} 0.25\n'
        ).encode()

    async def _generate(self, connection: Connection, received: Received) -> None:
        behaviour = self.script.popleft() if self.script else self.behaviour
        self.running += 1
        try:
            await self._answer(connection, received, behaviour)
        finally:
            self.running -= 1

    async def _answer(self, connection: Connection, received: Received, behaviour: Behaviour) -> None:
        if behaviour.hang_before_head:
            received.hung.set()
            await received.resume.wait()
        if behaviour.drop_before_head:
            connection.close()
        elif behaviour.status != 200:
            connection.answer(behaviour.status, behaviour.body or _error(behaviour.error))
        elif received.path.endswith("/infer"):
            self._infer(connection, received, behaviour)
        else:
            await self._stream(connection, received, behaviour)

    def _infer(self, connection: Connection, received: Received, behaviour: Behaviour) -> None:
        body = behaviour.body if behaviour.body is not None else compact({"model_name": "fake", "outputs": []})
        kind = behaviour.content_type or "application/json"
        extra = "".join(f"\r\n{name}: {value}" for name, value in self.infer_headers.items())
        connection.head(200, kind + extra, length=len(body))
        connection.write(body if behaviour.cut_after is None else body[: len(body) // 2])
        if behaviour.cut_after is not None:
            connection.close()

    async def _stream(self, connection: Connection, received: Received, behaviour: Behaviour) -> None:
        asked = received.json
        wanted = behaviour.tokens if behaviour.tokens is not None else int(str(asked.get("max_tokens", 4)))
        connection.head(200, "text/event-stream; charset=utf-8", length=None)
        for number in range(wanted + 1):
            if number == behaviour.hang_after:
                received.hung.set()
                await received.resume.wait()
            if number == behaviour.cut_after:
                connection.close()
                return
            if number == behaviour.error_after:
                connection.chunk(b"data: " + _error(behaviour.error) + b"\n\n")
                break
            if number < wanted:
                if behaviour.pace_s:
                    await asyncio.sleep(behaviour.pace_s)
                connection.chunk(b"data: " + compact(self._event(asked, number)) + b"\n\n")
                received.tokens_sent += 1
                await connection.drained()
        connection.last_chunk()

    def _event(self, asked: dict[str, object], number: int) -> dict[str, object]:
        event: dict[str, object] = {"model_name": "fake", "model_version": "1", "text_output": self.word.format(number)}
        if asked.get("return_num_input_tokens"):
            event["num_input_tokens"] = len(str(asked["text_input"]).split())
        if asked.get("return_num_output_tokens"):
            event["num_output_tokens"] = 1
        return event


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


NOT_READY = _error("Model version not ready")
