"""Overflow to a real LiteLLM proxy: what it receives, its rate limits and errors, and its sudden end."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.engines.dialects import DIALECTS
from headgate.engines.http_engine import HttpEngine
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_http import Received
from testing.fault_proxy import FaultProxy
from testing.gateway import GatewayInLoop, chat, events_of, gateway_in_loop, text_of
from testing.hosted_overflow import last_dispatch, overflow_config, steps_of
from testing.ports import free_port
from testing.real_litellm import (
    FAILING,
    KEY,
    LIMITED,
    MOCK,
    RATE_LIMITED,
    TEXT,
    TOO_LONG,
    VENDOR,
    VENDOR_KEY,
    LiteLlmProxy,
    litellm_proxy,
)
from tests.engines.calls import a_call

pytestmark = pytest.mark.litellm

HOSTED = "hosted"
"""Model that only the provider serves."""
CALLER = "canary-caller"
IDENTITY: dict[str, Any] = {
    "user": CALLER,
    "metadata": {"team": CALLER},
    "safety_identifier": CALLER,
    "extra_body": {"user": CALLER},
    "mock_response": CALLER,
    "litellm_metadata": {"team": CALLER},
}


@pytest.fixture(scope="module")
def vendor_port() -> int:
    """Port on which each test starts the vendor behind the shared proxy, if it needs one."""
    return free_port()


@pytest.fixture(scope="module")
def shared_proxy(vendor_port: int) -> Iterator[Callable[[], LiteLlmProxy]]:
    """Returns the proxy of all tests, and starts it again if a test has killed it. A start takes seconds."""
    running: list[LiteLlmProxy] = []
    with ExitStack() as stack:

        def proxy() -> LiteLlmProxy:
            if not running or running[-1].process.exit_status is not None:
                running.append(stack.enter_context(litellm_proxy(f"http://127.0.0.1:{vendor_port}")))
            return running[-1]

        yield proxy


@pytest.fixture
def proxy(shared_proxy: Callable[[], LiteLlmProxy]) -> LiteLlmProxy:
    return shared_proxy()


@pytest.fixture
async def vendor(vendor_port: int) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(models=("m",), api_key=VENDOR_KEY, port=vendor_port) as engine:
        yield engine


class Stage:
    """A gateway whose own engine is busy with one request, so that further requests overflow to LiteLLM."""

    def __init__(self, gateway: GatewayInLoop, own: FakeEngine, blocking: Received, first: "asyncio.Future[Any]"):
        self.gateway = gateway
        self.own = own
        self._blocking = blocking
        self._first = first

    async def free_own_engine(self) -> None:
        """Let the own engine finish its first request."""
        self._blocking.resume.set()
        async with await self._first as answer:
            assert answer.status == 200

    async def ask(self, content: str = "hi", **fields: Any) -> tuple[int, bytes, Any]:
        """Status, body and headers of a request's response."""
        async with self.gateway.post(chat(content, **fields), headers={"x-session-id": CALLER}) as answer:
            return answer.status, await answer.read(), answer.headers

    async def cloud(self) -> dict[str, Any]:
        return cloud_of(await self.gateway.status())


def cloud_of(status: dict[str, Any]) -> dict[str, Any]:
    [endpoint] = [each for each in status["endpoints"] if each["id"].startswith("cloud/")]
    return endpoint


def is_queued(status: dict[str, Any]) -> bool:
    return sum(status["queued"].values()) == 1


@asynccontextmanager
async def stage(
    provider: LiteLlmProxy | FaultProxy, folder: Path, model: str, *, key_header: str | None = None, after: str = "0s"
) -> AsyncIterator[Stage]:
    async with FakeEngine() as own:
        config = overflow_config(own.url, provider.url, served_model=model, api_key=KEY, after=after)
        config["models"][HOSTED] = "cloud"
        config["classes"]["interactive"]["queue_wait_max"] = "20s"
        if key_header is not None:
            config["pools"]["cloud"]["api_key_header"] = key_header
        async with gateway_in_loop(config, folder) as gateway:
            own.script.append(Behaviour(hang_before_head=True))
            first = asyncio.ensure_future(gateway.post(chat("first")))
            yield Stage(gateway, own, await own.next_request(), first)
            if not first.done():
                first.cancel()


@pytest.mark.parametrize("key_header", [None, "x-api-key"])
@pytest.mark.parametrize("stream", [False, True])
async def test_request_overflows_to_litellm(
    proxy: LiteLlmProxy, vendor: FakeEngine, tmp_path: Path, *, stream: bool, key_header: str | None
) -> None:
    async with FaultProxy(int(proxy.url.rpartition(":")[2])) as line:
        async with stage(line, tmp_path, VENDOR, key_header=key_header, after="100ms") as world:
            status, body, headers = await world.ask("second", stream=stream, max_tokens=3, **IDENTITY)
            step = await last_dispatch(world.gateway, headers["x-request-id"])
            await world.free_own_engine()

    [received] = vendor.requests
    expected = f"authorization: Bearer {KEY}" if key_header is None else f"{key_header}: {KEY}"
    assert (status, line.question.lower().count(expected.lower().encode())) == (200, 1)
    assert line.question.count(KEY.encode()) == 1
    assert CALLER.encode() not in line.question
    text = text_of(body) if stream else json.loads(body)["choices"][0]["message"]["content"]
    assert text == "word0 word1 word2 "
    assert (headers["x-headgate-model"], headers["x-headgate-attempts"]) == ("m", "1")
    assert not [name for name in headers if "litellm" in name.lower() or "llm_provider" in name.lower()]
    assert step["pool"] == "cloud"
    assert "overflow: the request has waited" in step["reason"]
    assert KEY not in repr(received.headers) + body.decode() + repr(headers) + repr(step)
    assert len(world.own.requests) == 1


async def test_rate_limit_of_litellm_stops_requests_until_its_reset(proxy: LiteLlmProxy, tmp_path: Path) -> None:
    """LiteLLM accepts one request a minute. A third one exceeds the limit even if a minute ends before it."""
    async with stage(proxy, tmp_path, LIMITED) as world:
        status, headers = 200, {}
        for number in range(3):
            if status == 200:
                status, _, headers = await world.ask(f"number {number}", model=HOSTED)
        second = asyncio.create_task(world.ask("second"))
        cloud = cloud_of(await world.gateway.wait_for_status(is_queued))
        await world.free_own_engine()
        answered, body, _ = await second

    # LiteLLM reports the time of one minute only in a header with its own prefix.
    assert (status, 30 < int(headers["retry-after"]) <= 60) == (503, True)
    assert (cloud["state"], cloud["suspected"], cloud["quota_exhausted"]) == ("ready", False, True)
    assert (answered, TEXT in body.decode()) == (200, False)


async def test_rate_limit_of_the_vendor_ends_after_its_wait(
    proxy: LiteLlmProxy, vendor: FakeEngine, tmp_path: Path
) -> None:
    vendor.script.append(Behaviour(status=429, headers=(("retry-after", "1"),)))
    async with stage(proxy, tmp_path, VENDOR) as world:
        status, _, headers = await world.ask("hi", model=HOSTED)
        steps = await steps_of(world.gateway, headers["x-request-id"])
        await world.free_own_engine()

    assert (status, len(vendor.requests)) == (200, 2)
    kinds = [step["kind"] for step in steps]
    # Without the wait, the request would not be queued, because the provider has free slots.
    assert (kinds.count("dispatched"), kinds.count("queued"), kinds.count("ejected")) == (2, 1, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "code"), [(FAILING, 500), (RATE_LIMITED, 429)])
async def test_failed_request_returns_to_the_own_engine(
    proxy: LiteLlmProxy, tmp_path: Path, model: str, code: int, *, stream: bool
) -> None:
    async with stage(proxy, tmp_path, model) as world:
        second = asyncio.create_task(world.ask("second", stream=stream))
        await world.gateway.wait_for_status(is_queued)
        await world.free_own_engine()
        status, body, headers = await second
        steps = await steps_of(world.gateway, headers["x-request-id"])

    assert (status, b"word0" in body) == (200, True)
    assert f"the engine reported an error with status {code}" in [step["reason"] for step in steps]
    assert [each.json["messages"][0]["content"] for each in world.own.requests] == ["first", "second"]


async def test_prompt_that_is_too_long_for_the_provider_is_the_callers_error(
    proxy: LiteLlmProxy, tmp_path: Path
) -> None:
    async with stage(proxy, tmp_path, TOO_LONG) as world:
        status, body, _ = await world.ask("second")
        cloud = await world.cloud()
        await world.free_own_engine()

    assert (status, "ContextWindowExceededError" in json.loads(body)["error"]["message"]) == (400, True)
    assert (cloud["state"], cloud["suspected"]) == ("ready", False)


async def test_error_within_a_stream_ends_it_without_the_key(
    proxy: LiteLlmProxy, vendor: FakeEngine, tmp_path: Path
) -> None:
    vendor.script.append(Behaviour(tokens=4, error_after=2, error=f"wrong key {KEY}"))
    async with stage(proxy, tmp_path, VENDOR) as world:
        status, body, headers = await world.ask("second", stream=True)
        steps = await steps_of(world.gateway, headers["x-request-id"])
        await world.free_own_engine()

    *tokens, last = events_of(body)
    assert (status, len(tokens)) == (200, 2)
    assert json.loads(last)["error"]["code"] == "stream_interrupted"
    assert KEY not in body.decode() + repr(steps)


async def test_slow_stream_does_not_delay_other_requests(
    proxy: LiteLlmProxy, vendor: FakeEngine, tmp_path: Path
) -> None:
    vendor.script.append(Behaviour(tokens=4, hang_after=2))
    async with stage(proxy, tmp_path, VENDOR) as world:
        second = asyncio.create_task(world.ask("second", stream=True))
        slow = await vendor.next_request()
        await slow.hung.wait()
        await world.free_own_engine()
        third = await world.ask("third")
        assert not second.done()
        slow.resume.set()
        status, body, _ = await second

    assert (third[0], status, text_of(body)) == (200, 200, "word0 word1 word2 word3 ")
    assert [each.json["messages"][0]["content"] for each in world.own.requests] == ["first", "third"]


async def test_wrong_key_is_an_error_of_the_account(proxy: LiteLlmProxy) -> None:
    """Without a database, LiteLLM returns 400 for a wrong key. Such an error must not reach the callers."""
    client = HttpEngine(proxy.url, served_model=MOCK, api_key="sk-wrong", dialect=DIALECTS["provider"])
    answer = await client.ask(a_call())
    body = bytearray()
    while data := await answer.read():
        body += data
    client.close()

    assert (answer.status, answer.is_request_error(bytes(body))) == (400, False)


async def test_killed_provider_ends_its_streams_and_own_engines_serve_on(
    proxy: LiteLlmProxy, vendor: FakeEngine, tmp_path: Path
) -> None:
    vendor.script += [Behaviour(tokens=4, hang_after=2), Behaviour(hang_before_head=True)]
    async with stage(proxy, tmp_path, VENDOR) as world:
        streamed = asyncio.create_task(world.ask("second", stream=True))
        await (await vendor.next_request()).hung.wait()
        whole = asyncio.create_task(world.ask("third"))
        await (await vendor.next_request()).hung.wait()
        proxy.process.kill()
        broken = await streamed
        fourth = asyncio.create_task(world.ask("fourth"))
        await world.gateway.wait_for_status(lambda status: sum(status["queued"].values()) == 2)
        await world.free_own_engine()
        retried, last = await whole, await fourth
    proxy.process.wait_until_ended()

    *tokens, error = events_of(broken[1])
    assert (broken[0], len(tokens) <= 2, "error" in json.loads(error)) == (200, True, True)
    assert (retried[0], retried[2]["x-headgate-attempts"], last[0]) == (200, "2", 200)
    assert [each.json["messages"][0]["content"] for each in world.own.requests] == ["first", "third", "fourth"]
