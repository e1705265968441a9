"""Tests for hedged requests: a second engine responds while the first is silent."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.core.hedging import SAMPLES_MIN
from testing.fake_engine import Behaviour, FakeEngine, Received, token_text
from testing.gateway import NO_TARGETS, GatewayInLoop, a_config, chat, events_of, gateway_in_loop, text_of

CLASSES = {"interactive": {"priority_band": 0, **NO_TARGETS, "hedging": True}}
RETRY = {"tenant_budget_burst": 100, "pool_retries_min": 100}
WITHIN_S = 30.0
"""Timeout in seconds. Much longer than a hedge takes, and half of the timeout for a silent engine."""


@asynccontextmanager
async def two_engines(folder: Path) -> AsyncIterator[tuple[GatewayInLoop, FakeEngine, FakeEngine]]:
    """Yields a gateway that has learned the usual time to first token. Checks at the end that it is idle."""
    async with FakeEngine() as one, FakeEngine() as other:
        config = a_config(one.url, other.url, in_flight_max=32, classes=CLASSES, retry=RETRY)
        async with gateway_in_loop(config, folder) as gateway:
            for _ in range(SAMPLES_MIN // 10):
                await asyncio.gather(*[stream_of(gateway) for _ in range(10)])
            for engine in (one, other):
                engine.requests.clear()
            tasks = len(asyncio.all_tasks())
            yield gateway, one, other
            await gateway.wait_until_idle()
            status = await gateway.status()
            assert status["attempts_open"] == 0
            assert one.running == other.running == 0
            assert len(asyncio.all_tasks()) <= tasks + 2, "a task is still running"


async def stream_of(gateway: GatewayInLoop) -> tuple[int, str, bytes]:
    async with gateway.post(chat(stream=True, max_tokens=3)) as answer:
        return answer.status, answer.headers.get("x-headgate-attempts", ""), await answer.read()


Call = asyncio.Task[tuple[int, str, bytes]]
SILENT = Behaviour(hang_before_head=True)


async def asked_in_vain(
    gateway: GatewayInLoop, *engines: FakeEngine, first: Behaviour = SILENT, second: Behaviour | None = None
) -> tuple[Call, FakeEngine, FakeEngine]:
    """Returns a call, the engine holding it without responding, and the other engine, which may get the hedge."""
    shared = deque([first])
    for engine in engines:
        engine.script, engine.behaviour = shared, second or Behaviour()
    call = asyncio.create_task(stream_of(gateway))
    while not any(request.hung.is_set() for engine in engines for request in engine.requests):
        await asyncio.sleep(0)
    silent, other = sorted(engines, key=lambda engine: not any(request.hung.is_set() for request in engine.requests))
    return call, silent, other


async def until_asked(engine: FakeEngine) -> Received:
    """Waits for the engine's only request and returns it."""
    while not engine.requests:
        await asyncio.sleep(0.001)
    (request,) = engine.requests
    return request


async def hedges_of(gateway: GatewayInLoop) -> int:
    return (await gateway.status())["counted"]["pools"]["small"]["hedges"]


async def test_hedge_responds_while_the_first_engine_is_silent(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, *engines):
        async with asyncio.timeout(WITHIN_S):
            call, silent, other = await asked_in_vain(gateway, *engines)
            (held,) = silent.requests
            status, attempts, body = await call
        async with asyncio.timeout(WITHIN_S):
            await held.client_left.wait()

        assert (status, attempts) == (200, "2")
        assert text_of(body) == "".join(token_text(number) for number in range(3))
        assert events_of(body)[-1] == "[DONE]"
        assert len(other.requests) == 1
        assert await hedges_of(gateway) == 1


async def test_hedge_cancels_a_first_attempt_that_sent_only_its_head(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, *engines):
        async with asyncio.timeout(WITHIN_S):
            call, silent, _ = await asked_in_vain(gateway, *engines, first=Behaviour(hang_after=0))
            held = silent.requests[-1]
            status, attempts, body = await call
        async with asyncio.timeout(WITHIN_S):
            await held.client_left.wait()

        assert (status, attempts) == (200, "2")
        assert text_of(body) == "".join(token_text(number) for number in range(3))


async def test_failed_hedge_leaves_the_first_attempt_running(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, *engines):
        async with asyncio.timeout(WITHIN_S):
            call, silent, other = await asked_in_vain(gateway, *engines, second=Behaviour(status=500))
            await (await until_asked(other)).ended.wait()
            await gateway.wait_for_status(lambda status: status["attempts_open"] == 1)
            silent.requests[-1].resume.set()
            status, attempts, body = await call

        assert (status, attempts) == (200, "1")
        assert events_of(body)[-1] == "[DONE]"


async def test_disconnecting_client_frees_both_engines(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, *engines):
        async with asyncio.timeout(WITHIN_S):
            call, silent, other = await asked_in_vain(gateway, *engines, second=SILENT)
            asked = await until_asked(other)
            call.cancel()
            await asyncio.wait([call])
            await silent.requests[-1].client_left.wait()
            await asked.client_left.wait()
        await gateway.wait_until_idle()
        assert await hedges_of(gateway) == 1


async def test_non_streaming_request_is_not_hedged(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as (gateway, one, other):
        asked = len(one.requests) + len(other.requests)
        one.behaviour = other.behaviour = Behaviour(pace_s=0.2)
        async with gateway.post(chat(max_tokens=2)) as answer:
            assert answer.status == 200
            assert answer.headers["x-headgate-attempts"] == "1"
        assert len(one.requests) + len(other.requests) == asked + 1
        assert await hedges_of(gateway) == 0
