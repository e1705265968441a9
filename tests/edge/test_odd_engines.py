"""Tests for invalid and unusual engine responses."""

import asyncio
import json
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import NO_TARGETS, a_config, chat, events_of, gateway_in_loop

ERROR = b'{"error": {"message": "out of memory", "type": "x", "param": null, "code": 500}}'
OLD_VLLM_ERROR = b'{"object": "error", "message": "out of memory", "code": 500}'


@pytest.mark.parametrize("body", [ERROR, OLD_VLLM_ERROR])
@pytest.mark.parametrize("stream", [True, False])
async def test_error_body_with_status_200_is_treated_as_an_error(tmp_path: Path, body: bytes, stream: bool) -> None:
    for quotes in (True, False):
        config = a_config(quote_engine_errors=quotes)
        async with FakeEngine() as engine:
            config["pools"]["small"]["endpoints"] = [engine.url]
            async with gateway_in_loop(config, tmp_path) as gateway:
                engine.behaviour = Behaviour(body=body, content_type="application/json")
                async with gateway.post(chat(stream=stream)) as answer:
                    error = (await answer.json())["error"]

        assert (answer.status, error["code"]) == (502, "engine_error")
        assert "the engine reported an error" in error["message"]
        assert ("out of memory" in error["message"]) is quotes


@pytest.mark.parametrize(
    ("stream", "content_type"), [(True, "application/json"), (True, "text/plain"), (False, "text/event-stream")]
)
async def test_response_with_unexpected_content_type_is_treated_as_a_failure(
    tmp_path: Path, stream: bool, content_type: str
) -> None:
    kind = "openai_compatible"  # The gateway always requests streams from other engine kinds.
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, engine=kind), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=b'{"choices":[]}', content_type=content_type)
        async with gateway.post(chat(stream=stream)) as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (502, "engine_error")
    assert content_type in error["message"]


@pytest.mark.parametrize("body", [b"", b'{"choices":[{"message"'])
async def test_incomplete_json_response_is_never_delivered(tmp_path: Path, body: bytes) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=body, content_type="application/json")
        async with gateway.post(chat()) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "engine_error")


async def test_response_mentioning_errors_is_not_treated_as_an_error(tmp_path: Path) -> None:
    body = b'{"choices": [{"message": {"content": "an \\"error\\""}, "error": null}], "error": null}\n'
    kind = "openai_compatible"
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, engine=kind), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=body)
        async with gateway.post(chat()) as answer:
            assert (answer.status, await answer.read()) == (200, body)


async def test_non_ascii_content_type_is_sanitized(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(body=b"{}", content_type="application/json; a=\xff")
        async with gateway.post(chat()) as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json; a=?")


@pytest.mark.parametrize(("setting", "tokens"), [("first_token_timeout", 0), ("stream_idle_timeout", 2)])
async def test_comments_are_not_counted_as_tokens(tmp_path: Path, setting: str, tokens: int) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, setting: "300ms"}}
    config = {"classes": classes, "retry": {"attempts_max": 1}}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, **config), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=4, hang_after=tokens, comment_s=0.02)
        async with asyncio.timeout(30), gateway.post(chat(stream=True)) as answer:
            body = await answer.read()

    error = json.loads(events_of(body)[-1] if tokens else body)["error"]
    assert answer.status == (200 if tokens else 504)
    assert error["code"] == ("stream_interrupted" if tokens else "engine_timeout")


async def test_stream_with_several_choices_ends_only_at_done(tmp_path: Path) -> None:
    events = [
        b'data: {"choices":[{"index":%d,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n' % i for i in (0, 1)
    ]
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(Behaviour(body=b"".join(events) + b"data: [DONE]\n\n"))
        async with gateway.post(chat(stream=True, n=2)) as whole:
            assert await whole.read() == b"".join(events) + b"data: [DONE]\n\n"
        engine.script.append(Behaviour(body=events[0]))
        async with gateway.post(chat(stream=True, n=2)) as broken:
            assert "stream_interrupted" in events_of(await broken.read())[-1]
