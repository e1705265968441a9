"""What does a caller get who does not stream?"""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from tests.security.hostile_engine import HostileEngine, Script
from tests.security.raw import body_of, request_of

UNWATCHED = {"engine": "openai_compatible"}
"""An engine from which the gateway requests complete responses instead of streams."""


async def test_a_chat_comes_whole_with_its_usage(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(max_tokens=3)) as answer:
            body = await answer.json()

    assert answer.status == 200
    assert body["usage"]["completion_tokens"] == 3
    assert answer.headers["x-headgate-class"] == "interactive"


async def test_completions_and_embeddings_pass_through(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post({"model": "m", "prompt": "once"}, "/v1/completions") as completion:
            assert (await completion.json())["object"] == "text_completion"
        async with gateway.post({"model": "m", "input": "once"}, "/v1/embeddings") as embedding:
            assert (await embedding.json())["data"][0]["embedding"] == [0.5, -0.5]


async def test_tools_schemas_images_and_unknown_fields_reach_the_engine_untouched(tmp_path: Path) -> None:
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


async def test_a_body_larger_than_what_is_held_passes_through(tmp_path: Path) -> None:
    large = json.dumps({"text": "x" * 3_000_000}).encode()
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, **UNWATCHED), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=large)
        async with gateway.post(chat()) as answer:
            assert await answer.read() == large


async def test_half_a_body_is_never_delivered(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(cut_after=0)
        async with gateway.post(chat()) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 502
    assert error["code"] == "engine_error"


@pytest.mark.parametrize("length", [b"", b"content-length: 3000000\r\n"], ids=["without a length", "with a length"])
async def test_an_answer_beyond_what_is_held_that_breaks_off_never_looks_whole(tmp_path: Path, length: bytes) -> None:
    async with HostileEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(half_of_a_large_one(length))
        async with gateway.post(chat()) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


@pytest.mark.parametrize("length", [b"", b"content-length: 3000000\r\n"], ids=["without a length", "with a length"])
async def test_a_cut_is_a_reset_to_a_caller_who_takes_every_close_for_the_end(tmp_path: Path, length: bytes) -> None:
    """An answer without a length ends with its connection, where the caller speaks HTTP/1.0."""
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


async def test_the_engines_own_refusal_is_passed_on_and_not_retried(tmp_path: Path) -> None:
    refusal = b'{"error":{"message":"too many dragons","type":"invalid_request_error","param":null,"code":400}}'
    async with FakeEngine() as engine, FakeEngine() as other:
        async with gateway_in_loop(a_config(engine.url, other.url), tmp_path) as gateway:
            engine.behaviour = other.behaviour = Behaviour(status=400, body=refusal)
            async with gateway.post(chat()) as answer:
                assert await answer.read() == refusal

    assert answer.status == 400
    assert answer.headers["x-should-retry"] == "false"
    assert len(engine.requests) + len(other.requests) == 1


async def test_an_engine_that_wants_another_key_is_our_fault_not_the_callers(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=401)
        async with gateway.post(chat()) as answer:
            assert answer.status == 502


async def test_the_pools_key_goes_to_the_engine_and_the_callers_does_not(tmp_path: Path) -> None:
    async with FakeEngine(api_key="engine-key") as engine:
        config = a_config(engine.url)
        config["pools"]["small"]["api_key"] = "engine-key"
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat(), headers={"authorization": "Bearer caller-key"}) as answer:
                assert answer.status == 200
            received = await engine.next_request()

    assert received.headers["authorization"] == "Bearer engine-key"
