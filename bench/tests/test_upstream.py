"""Does the upstream speak as an engine does?"""

import json
import time
from typing import Any

import aiohttp

from bench.upstream import MODEL
from headgate.engines.metrics_page import read_metrics
from headgate.engines.recognise import recognise
from testing.gateway import events_of


def asked(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}


async def post(upstream_port: int, body: dict[str, Any]) -> tuple[list[bytes], bytes]:
    """The chunks as they came, and all of them together."""
    url = f"http://127.0.0.1:{upstream_port}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 200
        chunks = [chunk async for chunk, _ in answer.content.iter_chunks()]
    return chunks, b"".join(chunks)


async def test_it_is_recognised_as_vllm(upstream_port: int) -> None:
    async with aiohttp.ClientSession() as http:
        found = await recognise(http, f"http://127.0.0.1:{upstream_port}")

    assert (found.dialect.name, found.models) == ("vllm", (MODEL,))


async def test_an_answer_that_is_not_streamed_is_a_kilobyte_with_usage(upstream_port: int) -> None:
    _, body = await post(upstream_port, asked("Hi"))

    assert 900 <= len(body) <= 1300
    assert json.loads(body)["usage"]["completion_tokens"] > 0


async def test_a_stream_has_the_chunks_that_were_asked_for_then_usage_then_the_end(upstream_port: int) -> None:
    body = asked("chunks=5 pace_ms=1", stream=True, stream_options={"include_usage": True})

    *tokens, usage, end = events_of((await post(upstream_port, body))[1])

    assert end == "[DONE]"
    assert json.loads(usage)["usage"]["completion_tokens"] == len(tokens) == 5
    assert json.loads(usage)["choices"] == []
    reasons = [json.loads(token)["choices"][0]["finish_reason"] for token in tokens]
    assert reasons == [None, None, None, None, "stop"]


async def test_usage_is_told_only_to_those_who_ask(upstream_port: int) -> None:
    events = events_of((await post(upstream_port, asked("chunks=3 pace_ms=0", stream=True)))[1])

    assert len(events) == 3 + 1


async def test_each_token_is_one_chunk_and_the_pace_is_kept(upstream_port: int) -> None:
    began = time.monotonic()

    chunks, _ = await post(upstream_port, asked("chunks=11 pace_ms=20", stream=True))

    assert time.monotonic() - began >= 0.2
    assert [chunk.count(b"data: ") for chunk in chunks[:11]] == [1] * 11


async def test_its_metrics_have_the_engines_names(upstream_port: int) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{upstream_port}/metrics") as answer,
    ):
        page = await answer.read()

    assert read_metrics(page, ["vllm:num_requests_running"])["vllm:num_requests_running"].total == 0
