"""Builders for engine calls, and a container that counts the engines' connections."""

import asyncio
import json
from collections.abc import Mapping
from typing import Self

from headgate.engines.dialects import DIALECTS
from headgate.engines.dns_cache import DnsCache
from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import HttpEngine, HttpResponse
from headgate.model.ticket import Api
from headgate.model.units import RequestId
from headgate.ports.engine import Call
from headgate.wire.request_body import RequestBody

MESSAGES = [{"role": "user", "content": "Say hello in five words."}]


def a_call(
    api: Api = Api.CHAT,
    *,
    stream: bool = False,
    request_id: str = "r1",
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> Call:
    prompt: dict[Api, dict[str, object]] = {
        Api.CHAT: {"messages": MESSAGES},
        Api.COMPLETIONS: {"prompt": "Once upon a time"},
        Api.EMBEDDINGS: {"input": "hello"},
        Api.RESPONSES: {"input": "Say hello in five words."},
    }
    raw = json.dumps({"model": "public"} | prompt[api] | ({"stream": True} if stream else {}) | fields).encode()
    return Call(RequestId(request_id), api, RequestBody.parse(raw, api), headers or {})


class Engines:
    """HTTP engines created by a test, and their connections."""

    def __init__(self) -> None:
        self._made: dict[object, HttpEngine] = {}

    def __call__(
        self,
        url: str,
        *,
        dialect: str = "vllm",
        served_model: str = "fake",
        api_key: str | None = None,
        watches: bool = False,
        names: DnsCache | None = None,
        tls: EngineTls | None = None,
    ) -> HttpEngine:
        """With `watches`, the engine streams responses even if the call asks for a complete one."""
        asked = (url, dialect, served_model, api_key, watches, tls)
        if asked not in self._made:
            self._made[asked] = HttpEngine(
                url,
                served_model=served_model,
                api_key=api_key,
                dialect=DIALECTS[dialect],
                joins_streams=watches,
                dns=names,
                tls=tls,
            )
        return self._made[asked]

    @property
    def in_use(self) -> int:
        """Number of connections with a response in progress."""
        return sum(engine.connections - engine.connections_idle for engine in self._made.values())

    @property
    def idle(self) -> int:
        return sum(engine.connections_idle for engine in self._made.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self._made.values():
            engine.close()
        # The event loop needs a few iterations to close connections.
        for _ in range(3):
            await asyncio.sleep(0)


async def read_all(answer: HttpResponse) -> bytes:
    body = bytearray()
    while data := await answer.read():
        body += data
    return bytes(body)
