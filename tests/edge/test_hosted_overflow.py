"""A gateway with engines of its own and a hosted provider: overflow, rate limits, keys and data residency."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.wire.openai_bodies import MESSAGE_CHARS_MAX
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.hosted_overflow import BANK_KEY, last_dispatch, overflow_config, steps_of

KEY = "canary-provider-key"


@asynccontextmanager
async def stage(folder: Path, **overflow: Any) -> AsyncIterator[tuple[FakeEngine, FakeEngine, GatewayInLoop]]:
    """Yields an own engine with one slot, a provider with eight, and the gateway."""
    async with FakeEngine() as own, FakeEngine(models=("vendor/m",), api_key=KEY) as provider:
        provider.api_key_header = "x-api-key"
        async with gateway_in_loop(config_for(own, provider, **overflow), folder) as gateway:
            yield own, provider, gateway


def config_for(own: FakeEngine, provider: FakeEngine, **overflow: Any) -> Config:
    config = overflow_config(own.url, provider.url, served_model="vendor/m", api_key=KEY, **overflow)
    config["pools"]["cloud"]["api_key_header"] = "x-api-key"
    return config


@pytest.mark.parametrize("stream", [False, True])
async def test_request_overflows_while_the_own_engine_is_busy(tmp_path: Path, *, stream: bool) -> None:
    async with stage(tmp_path) as (own, provider, gateway):
        own.script.append(Behaviour(hang_before_head=True))
        first = asyncio.ensure_future(gateway.post(chat("first")))
        blocking = await own.next_request()
        async with gateway.post(chat("second", stream=stream), headers={"x-request-id": "r-second"}) as answer:
            body, request_id = await answer.read(), answer.headers["x-request-id"]
        received = await provider.next_request()
        step = await last_dispatch(gateway, request_id)
        blocking.resume.set()
        async with await first as answer:
            first_status = answer.status

    assert (answer.status, first_status) == (200, 200)
    assert b"chat.completion" in body
    assert (received.json["model"], received.headers["x-api-key"]) == ("vendor/m", KEY)
    assert not {"authorization", "x-request-id", "traceparent"} & set(received.headers)
    assert step["pool"] == "cloud"
    assert "overflow: the request has waited" in step["reason"]
    assert len(own.requests) == 1


async def test_request_of_a_local_tenant_waits_for_the_own_engine(tmp_path: Path) -> None:
    async with stage(tmp_path, after="0s") as (own, provider, gateway):
        own.script.append(Behaviour(hang_before_head=True))
        first = asyncio.ensure_future(gateway.post(chat("first")))
        blocking = await own.next_request()
        headers = {"authorization": f"Bearer {BANK_KEY}"}
        second = asyncio.ensure_future(gateway.post(chat("second"), headers=headers))
        # A request of another tenant shows that the provider is free and that the decision has been made.
        async with gateway.post(chat("third")) as answer:
            assert answer.status == 200
        blocking.resume.set()
        async with await first, await second as answer:
            status = answer.status

    assert status == 200
    assert [each.json["messages"][0]["content"] for each in provider.requests] == ["third"]
    assert [each.json["messages"][0]["content"] for each in own.requests] == ["first", "second"]


async def test_rate_limited_provider_is_left_alone_until_its_reset(tmp_path: Path) -> None:
    async with stage(tmp_path, after="0s") as (own, provider, gateway):
        own.script.append(Behaviour(hang_before_head=True))
        first = asyncio.ensure_future(gateway.post(chat("first")))
        blocking = await own.next_request()
        provider.script.append(Behaviour(status=429, headers=(("retry-after", "60"),)))
        second = asyncio.ensure_future(gateway.post(chat("second")))

        def limited(status: dict[str, Any]) -> bool:
            return any(each["quota_exhausted"] for each in status["endpoints"])

        status = await gateway.wait_for_status(limited)
        blocking.resume.set()
        async with await first, await second as answer:
            final = answer.status

    states = {each["id"].partition("/")[0]: (each["state"], each["suspected"]) for each in status["endpoints"]}
    assert states["cloud"] == ("ready", False)
    assert final == 200
    assert len(provider.requests) == 1
    assert [each.json["messages"][0]["content"] for each in own.requests] == ["first", "second"]


async def test_failing_provider_gives_the_request_back_to_the_own_engine(tmp_path: Path) -> None:
    async with stage(tmp_path, after="0s") as (own, provider, gateway):
        own.script.append(Behaviour(hang_before_head=True))
        first = asyncio.ensure_future(gateway.post(chat("first")))
        blocking = await own.next_request()
        provider.script.append(Behaviour(status=500))
        second = asyncio.ensure_future(gateway.post(chat("second")))
        await provider.next_request()
        await gateway.wait_for_status(lambda status: sum(status["queued"].values()) == 1)
        blocking.resume.set()
        async with await first, await second as answer:
            final = answer.status

    assert final == 200
    assert (len(provider.requests), len(own.requests)) == (1, 2)


async def test_wrong_key_is_reported_without_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine() as own, FakeEngine(models=("vendor/m",), api_key="another") as provider:
        async with gateway_in_loop(config_for(own, provider), tmp_path, wait_for=1) as gateway:

            def rejected(status: dict[str, Any]) -> bool:
                return any(each["trouble"] == "key_rejected" for each in status["endpoints"])

            status = await gateway.wait_for_status(rejected)

    assert KEY not in repr(status) + caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_quoted_errors_are_shortened_without_showing_a_part_of_the_key(tmp_path: Path, *, stream: bool) -> None:
    length = len("wrong key ")
    said = f"wrong key {'x' * (MESSAGE_CHARS_MAX - length - 8)}{KEY}, ask for another"
    async with FakeEngine(models=("vendor/m",), api_key=KEY) as engine:
        config = a_config(engine.url, engine="provider", served_model="vendor/m", quote_engine_errors=True)
        config["pools"]["small"]["api_key"] = KEY
        async with gateway_in_loop(config, tmp_path) as gateway:
            body = json.dumps({"error": {"message": said, "type": "server_error"}}).encode()
            engine.behaviour = (
                Behaviour(tokens=4, error_after=2, error=said)
                if stream
                else Behaviour(body=body, content_type="application/json")
            )
            async with gateway.post(chat(max_tokens=9, stream=stream)) as answer:
                await answer.read()
                steps = repr(await steps_of(gateway, answer.headers["x-request-id"]))

    assert "wrong key xxx" in steps
    assert KEY[:4] not in steps.split("wrong key")[1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("engine_type", ["provider", "vllm"])
async def test_quoted_errors_within_a_response_do_not_contain_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, engine_type: str, *, stream: bool
) -> None:
    said = f"wrong key {KEY}"
    async with FakeEngine(models=("vendor/m",), api_key=KEY) as engine:
        config = a_config(engine.url, engine=engine_type, served_model="vendor/m", quote_engine_errors=True)
        config["pools"]["small"]["api_key"] = KEY
        async with gateway_in_loop(config, tmp_path) as gateway:
            body = json.dumps({"error": {"message": said, "type": "server_error"}}).encode()
            engine.behaviour = (
                Behaviour(tokens=4, error_after=2, error=said)
                if stream
                else Behaviour(body=body, content_type="application/json")
            )
            question = {"model": "m", "input": "hi"} if path == "/v1/responses" else chat(max_tokens=9)
            async with gateway.post(question | {"stream": stream}, path) as answer:
                received = await answer.text()
                steps = repr(await steps_of(gateway, answer.headers["x-request-id"]))

    assert "wrong key ***" in steps
    assert KEY not in received + steps + caplog.text
