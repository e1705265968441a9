"""Scenarios with the official `anthropic` client, for every engine with the Messages API behind the gateway."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from anthropic import (
    APIStatusError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from anthropic.types import MessageParam, ToolParam

from headgate.wire.keys import digest, format_digest
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import NO_TARGETS, Config, RunningGateway, gateway_in_loop
from testing.real_engines import RealEngine
from tests.acceptance.scenarios import config_for

SECRET = "a secret of at least some length"
PROMPT: list[MessageParam] = [{"role": "user", "content": "Count from one to fifty in words."}]
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
AFTER_A_TOOL: list[MessageParam] = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny, 20 degrees"}]},
]


def sdk(gateway: RunningGateway, **options: Any) -> AsyncAnthropic:
    return AsyncAnthropic(**({"base_url": gateway.url, "api_key": "hg-acme", "max_retries": 0} | options))


def config_with_key(url: str, engine: RealEngine, dialect: str, **settings: Any) -> Config:
    """One endpoint, which may be a proxy of the engine, and one tenant with a key."""
    config = config_for(engine, dialect=dialect, key_secret=SECRET, **settings)
    del config["anonymous_tenant"]
    config["pools"]["small"]["endpoints"] = [url]
    config["tenants"] = {"acme": {"keys": [format_digest(digest(SECRET.encode(), "hg-acme"))]}}
    return config


async def the_sdk_uses_messages(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_in_loop(config_with_key(engine.url, engine, dialect), folder) as gateway:
        async with sdk(gateway) as client:
            whole = await client.messages.create(model="chat", max_tokens=6, messages=PROMPT, system="Be brief.")
            async with client.messages.stream(model="chat", max_tokens=6, messages=PROMPT) as stream:
                texts = [text async for text in stream.text_stream]
                streamed = await stream.get_final_message()
            tools = await client.messages.create(model="chat", max_tokens=6, messages=PROMPT, tools=[WEATHER])
            async with client.messages.stream(
                model="chat", max_tokens=6, messages=AFTER_A_TOOL, tools=[WEATHER]
            ) as answering:
                answered = await answering.get_final_message()
            counted = await client.messages.count_tokens(model="chat", messages=PROMPT)
            models = [model.id async for model in await client.models.list()]
            await a_wrong_request_is_explained(gateway, client)
        await gateway.wait_until_idle()
        ended = (await gateway.status())["counted"]["classes"]["interactive"]["ended"]

    for message in (whole, streamed, tools, answered):
        assert message.role == "assistant"
        assert message.stop_reason in {"max_tokens", "end_turn", "tool_use"}
        assert 1 <= message.usage.output_tokens <= 6
    assert whole._request_id is not None
    assert whole._request_id.startswith("req_")
    assert "".join(texts) == "".join(block.text for block in streamed.content if block.type == "text")
    assert texts
    assert models == ["chat"]
    used = streamed.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)
    assert ended["completed"] == 5


async def a_wrong_request_is_explained(gateway: RunningGateway, client: AsyncAnthropic) -> None:
    async with sdk(gateway, api_key="hg-nobody") as stranger:
        with pytest.raises(AuthenticationError) as unknown:
            await stranger.messages.create(model="chat", max_tokens=6, messages=PROMPT)
    assert error_type(unknown.value) == "authentication_error"
    with pytest.raises(NotFoundError) as missing:
        await client.messages.create(model="nobody", max_tokens=6, messages=PROMPT)
    assert error_type(missing.value) == "not_found_error"
    # Only the engine checks this field.
    with pytest.raises(BadRequestError) as wrong:
        await client.messages.create(model="chat", max_tokens=6, messages=PROMPT, extra_body={"temperature": "hot"})
    assert error_type(wrong.value) == "invalid_request_error"
    assert wrong.value.request_id is not None


async def faults_reach_the_sdk(engine: RealEngine, dialect: str, folder: Path) -> None:
    """Check a stream that breaks, one that exceeds its deadline, and overload."""
    port = urlsplit(engine.url).port
    assert port is not None
    classes = {"interactive": {**NO_TARGETS, "queue_length_max": 1}}
    async with FaultProxy(port) as proxy:
        config = config_with_key(proxy.url, engine, dialect, classes=classes, in_flight_max=1)
        async with gateway_in_loop(config, folder) as gateway, sdk(gateway) as client:
            proxy.fault = Fault(only=b"POST", cut_after=1_500)
            assert await failed_stream(client) == "api_error"

            proxy.fault = Fault(only=b"POST", silent_after=1_500)
            late = {"x-headgate-deadline-ms": "3000"}
            assert await failed_stream(client, extra_headers=late) == "timeout_error"
            proxy.fault = Fault(only=b"POST", lost="answer")
            with pytest.raises(APIStatusError) as exceeded:
                await client.messages.create(model="chat", max_tokens=6, messages=PROMPT, extra_headers=late)
            assert (exceeded.value.status_code, error_type(exceeded.value)) == (504, "timeout_error")

            await overload_is_rejected(gateway, client)
            proxy.fault = Fault()
            after = await client.messages.create(model="chat", max_tokens=6, messages=PROMPT)
    assert after.usage.output_tokens >= 1


async def overload_is_rejected(gateway: RunningGateway, client: AsyncAnthropic) -> None:
    """Check that a request is rejected if one waits for the engine's response and another one in the queue."""

    async def ask() -> object:
        return await client.messages.create(model="chat", max_tokens=6, messages=PROMPT)

    waiting = [asyncio.create_task(ask()) for _ in range(2)]
    await gateway.wait_for_status(lambda status: status["requests_open"] == 2)
    with pytest.raises(RateLimitError) as overloaded:
        await ask()
    assert error_type(overloaded.value) == "overloaded_error"
    assert int(overloaded.value.response.headers["retry-after"]) >= 0
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await gateway.wait_until_idle()


async def failed_stream(client: AsyncAnthropic, **options: Any) -> str:
    """Read a stream until it fails, and return the type of the error."""
    texts: list[str] = []
    with pytest.raises(APIStatusError) as failure:
        async with client.messages.stream(model="chat", max_tokens=400, messages=PROMPT, **options) as stream:
            texts += [text async for text in stream.text_stream]
    return error_type(failure.value)


def error_type(error: APIStatusError) -> str:
    body: Any = error.body
    assert body["type"] == "error"
    return body["error"]["type"]
