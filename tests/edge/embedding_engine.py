"""Scripted embeddings engine for tests. The embedding of a text depends only on its length and bytes.

engine = EmbeddingEngine()
engine.hold()                      # calls wait until `go`
engine.poison = {"bad": 400}       # a call that contains this input gets this status
"""

import asyncio
import json
from collections.abc import Callable

from headgate.engines.dialect import is_request_error
from headgate.ports.engine import Call, EngineFault, EngineResponse


def vector(text: object) -> list[float]:
    content = json.dumps(text)
    return [float(len(content)), float(sum(content.encode()) % 97), 0.5]


class EmbeddingEngine:
    def __init__(self) -> None:
        self.calls: list[list[object]] = []
        """Inputs of each call, in order of arrival."""
        self.sent: list[Call] = []
        self.poison: dict[str, int] = {}
        self.fault: str | None = None
        self.body: bytes | None = None
        """Response body for every call. None to return embeddings of the inputs."""
        self.padding = 0
        """Bytes added to each entry in a response."""
        self.running = 0
        self.running_max = 0
        self.cut = 0
        """Calls cancelled before they got a response."""
        self._free = asyncio.Event()
        self._free.set()
        self._held: dict[str, asyncio.Event] = {}

    def holding(self, text: str) -> asyncio.Event:
        """Returns an event that all calls with this input wait for."""
        return self._held.setdefault(text, asyncio.Event())

    def hold(self) -> None:
        self._free.clear()

    def go(self) -> None:
        self._free.set()

    async def ask(self, call: Call) -> EngineResponse:
        asked = json.loads(call.body.encode(served_model="engine"))
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        if texts and isinstance(texts[0], int):
            texts = [texts]
        self.calls.append(texts)
        self.sent.append(call)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(0)
            await self._free.wait()
            for text in texts:
                if isinstance(text, str) and text in self._held:
                    await self._held[text].wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        finally:
            self.running -= 1
        if self.fault is not None:
            raise EngineFault(self.fault)
        statuses = [self.poison[text] for text in texts if isinstance(text, str) and text in self.poison]
        if statuses:
            return FakeAnswer(statuses[0], json.dumps({"error": {"message": f"about {texts}"}}).encode())
        return FakeAnswer(200, self.body or self._good(texts))

    def _good(self, texts: list[object]) -> bytes:
        pad = {"padding": "x" * self.padding} if self.padding else {}
        data = [{"object": "embedding", "index": at, "embedding": vector(text)} | pad for at, text in enumerate(texts)]
        tokens = sum(len(json.dumps(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json.dumps({"object": "list", "data": data, "model": "engine", "usage": usage}).encode()


class FakeAnswer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.content_type = "application/json"
        self.reports_progress = False
        self.usage_estimated = False
        self.secret = ""
        self.closed = False
        self._body = body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def take_body(self) -> bytes | None:
        return None

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        del chunk_sink
        sink(await self.read())

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def is_request_error(self, body: bytes) -> bool:
        return is_request_error(self.status, body)

    def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True
