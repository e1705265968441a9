"""Tests for non-streaming responses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.events import AttemptEnded, Event, FirstToken, RequestArrived, RequestWithdrawn
from headgate.edge import exchange, open_attempts
from headgate.edge.open_attempts import OpenAttempt
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from tests.security.hostile_engine import HANG, HostileEngine, Script
from tests.security.raw import body_of, request_of

UNWATCHED = {"engine": "openai_compatible"}
"""Settings for an engine from which the gateway requests complete responses instead of streams."""


async def test_chat_response_is_complete_and_has_usage(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(max_tokens=3)) as answer:
            body = await answer.json()

    assert answer.status == 200
    assert body["usage"]["completion_tokens"] == 3
    assert answer.headers["x-headgate-class"] == "interactive"


async def test_end_of_a_complete_response_reports_its_first_token(tmp_path: Path) -> None:
    watcher = RequestEvents()
    async with HostileEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path, observers=[watcher]) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert [type(event) for event in watcher.seen] == [RequestArrived, AttemptEnded]
    assert watcher.seen[-1].first_token


async def test_first_token_of_a_response_that_arrives_slowly_is_reported(tmp_path: Path) -> None:
    watcher = RequestEvents()
    async with HostileEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path, observers=[watcher]) as gateway:
            engine.script.append(Script((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", HANG)))
            asked = asyncio.create_task(gateway.post(chat()).__aenter__())
            async with asyncio.timeout(30):
                await watcher.first_token.wait()
            asked.cancel()

    assert [type(event) for event in watcher.seen][:2] == [RequestArrived, FirstToken]


async def test_failed_response_reports_its_first_token_before_its_end(tmp_path: Path) -> None:
    watcher = RequestEvents()
    async with HostileEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path, observers=[watcher]) as gateway:
            engine.script.append(Script((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{",)))
            async with gateway.post(chat()) as answer:
                assert answer.status == 502

    assert [type(event) for event in watcher.seen] == [RequestArrived, FirstToken, AttemptEnded]
    assert not watcher.seen[-1].first_token


async def test_first_token_is_reported_before_a_withdrawal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_attempts, "_FIRST_TOKEN_DELAY_S", 3_600.0)
    watcher, begun = RequestEvents(), asyncio.Event()
    seen = exchange.Exchange._on_first_token

    def on_first_token(self: exchange.Exchange, attempt: OpenAttempt) -> None:
        seen(self, attempt)
        begun.set()

    monkeypatch.setattr(exchange.Exchange, "_on_first_token", on_first_token)
    async with HostileEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path, observers=[watcher]) as gateway:
            engine.script.append(Script((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", HANG)))
            asked = asyncio.create_task(gateway.post(chat()).__aenter__())
            async with asyncio.timeout(30):
                await begun.wait()
                asked.cancel()
                await watcher.withdrawn.wait()

    assert [type(event) for event in watcher.seen][:3] == [RequestArrived, FirstToken, RequestWithdrawn]


class RequestEvents:
    """Observer of the events of requests."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.first_token = asyncio.Event()
        self.withdrawn = asyncio.Event()

    def observe(self, event: Event, commands: object, now: int) -> None:
        del commands, now
        if isinstance(event, RequestArrived | FirstToken | AttemptEnded | RequestWithdrawn):
            self.seen.append(event)
        if isinstance(event, FirstToken):
            self.first_token.set()
        elif isinstance(event, RequestWithdrawn):
            self.withdrawn.set()


async def test_completions_and_embeddings_pass_through(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post({"model": "m", "prompt": "once"}, "/v1/completions") as completion:
            assert (await completion.json())["object"] == "text_completion"
        async with gateway.post({"model": "m", "input": "once"}, "/v1/embeddings") as embedding:
            assert (await embedding.json())["data"][0]["embedding"] == [0.5, -0.5]


async def test_tools_schemas_images_and_unknown_fields_are_passed_through_unchanged(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = chat(
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        an_unknown_field={"deep": [1, 2.5, None, "ü"]},
        metadata={"feature": "search"},
    )
    body["messages"][0]["content"] = [{"type": "text", "text": "what is this?"}, picture]
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(body) as answer:
            assert answer.status == 200
        received = await engine.next_request()

    sent = received.json
    salt = sent.pop("cache_salt")
    assert sent == body | {"model": "fake"}
    assert len(salt) == 64


async def test_response_larger_than_the_buffer_passes_through(tmp_path: Path) -> None:
    large = json.dumps({"text": "x" * 3_000_000}).encode()
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=large)
        async with gateway.post(chat()) as answer:
            assert await answer.read() == large


async def test_truncated_body_is_never_delivered(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(cut_after=0)
        async with gateway.post(chat()) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 502
    assert error["code"] == "engine_error"


@pytest.mark.parametrize("length", [b"", b"content-length: 3000000\r\n"], ids=["no content-length", "content-length"])
async def test_truncated_response_larger_than_the_buffer_never_looks_complete(tmp_path: Path, length: bytes) -> None:
    async with HostileEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(half_of_a_large_one(length))
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


@pytest.mark.parametrize("length", [b"", b"content-length: 3000000\r\n"], ids=["no content-length", "content-length"])
async def test_truncated_response_resets_the_connection_of_an_http_1_0_client(tmp_path: Path, length: bytes) -> None:
    """If the client uses HTTP/1.0, a response without a content length ends when the connection closes."""
    async with HostileEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(half_of_a_large_one(length))
        reader, writer = await asyncio.open_connection(*gateway.url.removeprefix("http://").split(":"))
        writer.write(request_of(body_of("hi"), first=b"POST /v1/chat/completions HTTP/1.0"))
        head = await reader.readuntil(b"\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length" not in head


def half_of_a_large_one(length: bytes) -> Script:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%b\r\n" % length
    return Script((head + b'{"choices":[{"text":"' + b"x" * 1_500_000,))


async def test_engine_rejection_is_passed_through_and_not_retried(tmp_path: Path) -> None:
    refusal = b'{"error":{"message":"too many images","type":"invalid_request_error","param":null,"code":400}}'
    async with FakeEngine() as engine, FakeEngine() as other:
        async with gateway_in_loop(a_config(engine.url, other.url), tmp_path) as gateway:
            engine.behaviour = other.behaviour = Behaviour(status=400, body=refusal)
            async with gateway.post(chat()) as answer:
                assert await answer.read() == refusal

    assert answer.status == 400
    assert answer.headers["x-should-retry"] == "false"
    assert len(engine.requests) + len(other.requests) == 1


async def test_engine_rejecting_the_gateways_key_causes_502(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=401)
        async with gateway.post(chat()) as answer:
            assert answer.status == 502


async def test_engine_receives_the_pool_key_and_not_the_client_key(tmp_path: Path) -> None:
    async with FakeEngine(api_key="engine-key") as engine:
        config = a_config(engine.url)
        config["pools"]["small"]["api_key"] = "engine-key"
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(), headers={"authorization": "Bearer caller-key"}) as answer:
                assert answer.status == 200
            received = await engine.next_request()

    assert received.headers["authorization"] == "Bearer engine-key"
