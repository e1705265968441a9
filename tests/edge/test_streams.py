"""Tests for streaming responses."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, events_of, gateway_in_loop, text_of


async def test_stream_passes_through_and_ends_with_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True, max_tokens=5)) as answer:
            body = await answer.read()

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert text_of(body)
    assert len(events_of(body)) == 6
    assert events_of(body)[-1] == "[DONE]"


async def test_response_headers_report_routing(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True)) as answer:
            await answer.read()

    told = {name: answer.headers[name] for name in answer.headers if name.startswith("x-headgate-")}
    assert told == {
        "x-headgate-model": "m",
        "x-headgate-queue-ms": "0",
        "x-headgate-attempts": "1",
        "x-headgate-class": "interactive",
        "x-headgate-degraded": "none",
    }
    assert answer.headers["x-request-id"].startswith("req_")


async def test_usage_is_requested_from_the_engine_but_hidden_unless_requested(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True)) as answer:
            body = await answer.read()
        received = await engine.next_request()

    assert received.json["stream_options"] == {"include_usage": True}
    assert b'"usage"' not in body


async def test_client_requesting_usage_gets_it_before_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True, stream_options={"include_usage": True})) as answer:
            events = events_of(await answer.read())

    last = json.loads(events[-2])
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 7


async def test_truncated_stream_ends_with_an_error_and_never_with_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=5, cut_after=2)
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert answer.status == 200
    assert len(events) == 3
    assert json.loads(events[-1])["error"]["code"] == "stream_interrupted"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(tokens=5, without_done=True),
        Behaviour(tokens=5, error_after=3),
    ],
    ids=["ends without [DONE]", "reports an error"],
)
async def test_failed_stream_never_ends_with_done(tmp_path: Path, behaviour: Behaviour) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = behaviour
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert "[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "stream_interrupted"


async def test_error_as_first_event_is_retried_elsewhere(tmp_path: Path) -> None:
    async with FakeEngine() as bad, FakeEngine() as good:
        async with gateway_in_loop(a_config(bad.url, good.url), tmp_path) as gateway:
            bad.behaviour = Behaviour(error_after=0)
            both = await asyncio.gather(*(read(gateway.post(chat(stream=True))) for _ in range(2)))

    # Each engine got one of the two requests, and the good one also got the retry.
    assert [(status, events_of(body)[-1]) for status, body in both] == [(200, "[DONE]")] * 2
    assert len(bad.requests) == 1
    assert len(good.requests) == 2


async def test_error_as_first_event_in_every_attempt_returns_502(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(error_after=0, error="out of memory")
        async with gateway.post(chat(stream=True)) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 502
    assert answer.headers["retry-after"] == "1"
    assert error["code"] == "engine_error"
    assert "the engine reported an error" in error["message"]


async def test_reads_of_any_size_are_sent_as_complete_events(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=20, piece_bytes=7)
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert len(events) == 21
    assert events[-1] == "[DONE]"


async def read(request: "aiohttp.client._RequestContextManager") -> tuple[int, bytes]:
    async with request as answer:
        return answer.status, await answer.read()


async def test_consecutive_streams_share_an_engine_connection(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for _ in range(5):
            async with gateway.post(chat(stream=True)) as answer:
                await answer.read()
            await gateway.wait_for_status(lambda status: status["endpoints"][0]["in_flight"] == 0)
            await asyncio.sleep(0.02)

    assert len({request.connection for request in engine.requests}) == 1
