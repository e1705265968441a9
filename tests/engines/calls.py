"""How does a test ask an engine, and what does it see of the pool of connections?"""

import json
from collections.abc import Mapping

import aiohttp

from headgate.engines.dialects import DIALECTS
from headgate.engines.http import HttpAnswer, HttpEngine
from headgate.model.ticket import Api
from headgate.model.units import RequestId
from headgate.ports.engine import Call
from headgate.wire.request import RequestBody

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
    }
    raw = json.dumps({"model": "public"} | prompt[api] | ({"stream": True} if stream else {}) | fields).encode()
    return Call(RequestId(request_id), api, RequestBody.parse(raw, api), headers or {})


def an_http_engine(
    session: aiohttp.ClientSession,
    url: str,
    *,
    dialect: str = "vllm",
    served_model: str = "fake",
    api_key: str | None = None,
) -> HttpEngine:
    return HttpEngine(session, url, served_model=served_model, api_key=api_key, dialect=DIALECTS[dialect])


async def read_all(answer: HttpAnswer) -> bytes:
    body = bytearray()
    while data := await answer.read():
        body += data
    return bytes(body)


def connections_in_use(session: aiohttp.ClientSession) -> int:
    assert session.connector is not None
    return len(session.connector._acquired)


def connections_idle(session: aiohttp.ClientSession) -> int:
    assert session.connector is not None
    return sum(map(len, session.connector._conns.values()))
