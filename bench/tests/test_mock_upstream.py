"""Tests that the upstream behaves like an engine."""

import json
import time
from typing import Any

import aiohttp

from bench.mock_upstream import MODEL
from headgate.engines.engine_detection import detect_engine
from headgate.engines.metrics_page import read_metrics
from testing.gateway import events_of


def asked(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}


async def post(upstream_port: int, body: dict[str, Any]) -> tuple[list[bytes], bytes]:
    """Return the chunks as received, and the full body."""
    url = f"http://127.0.0.1:{upstream_port}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 200
        chunks = [chunk async for chunk, _ in answer.content.iter_chunks()]
    return chunks, b"".join(chunks)


async def test_upstream_is_recognised_as_vllm(upstream_port: int) -> None:
    async with aiohttp.ClientSession() as http:
        found = await detect_engine(http, f"http://127.0.0.1:{upstream_port}")

    assert (found.dialect.name, found.models) == ("vllm", (MODEL,))


async def test_non_streaming_response_contains_one_kilobyte_and_usage(upstream_port: int) -> None:
    _, body = await post(upstream_port, asked("Hi"))

    assert 900 <= len(body) <= 1300
    assert json.loads(body)["usage"]["completion_tokens"] > 0


async def test_stream_has_requested_chunks_then_usage_then_end(upstream_port: int) -> None:
    body = asked("chunks=5 pace_ms=1", stream=True, stream_options={"include_usage": True})

    *tokens, usage, end = events_of((await post(upstream_port, body))[1])

    assert end == "[DONE]"
    assert json.loads(usage)["usage"]["completion_tokens"] == len(tokens) == 5
    assert json.loads(usage)["choices"] == []
    reasons = [json.loads(token)["choices"][0]["finish_reason"] for token in tokens]
    assert reasons == [None, None, None, None, "stop"]


async def test_stream_omits_usage_unless_requested(upstream_port: int) -> None:
    events = events_of((await post(upstream_port, asked("chunks=3 pace_ms=0", stream=True)))[1])

    assert len(events) == 3 + 1


async def test_stream_sends_one_chunk_per_token_at_requested_pace(upstream_port: int) -> None:
    began = time.monotonic()

    chunks, _ = await post(upstream_port, asked("chunks=11 pace_ms=20", stream=True))

    assert time.monotonic() - began >= 0.2
    assert [chunk.count(b"data: ") for chunk in chunks[:11]] == [1] * 11


async def test_metrics_use_engine_metric_names(upstream_port: int) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{upstream_port}/metrics") as answer,
    ):
        page = await answer.read()

    assert read_metrics(page, ["vllm:num_requests_running"])["vllm:num_requests_running"].total == 0
