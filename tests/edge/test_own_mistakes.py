"""Tests for internal errors and for forced shutdown."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, PoolName
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop


def make_a_mistake(gateway: GatewayInLoop, endpoint: str) -> None:
    """Sends the scheduler an impossible event."""
    with pytest.raises(AssertionError, match="changed its pool"):
        gateway.gateway._host.report(EndpointJoined(Endpoint(EndpointId(endpoint), PoolName("another"), 1)))


async def test_internal_error_exits_immediately_and_truncates_open_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, in_flight_max=1, drain_grace="60s")
        async with gateway_in_loop(config, tmp_path, exit_code=70) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            streaming = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await (await engine.next_request()).hung.wait()
            waiting = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)

            make_a_mistake(gateway, f"small/{engine.url[7:]}")
            async with asyncio.timeout(30):
                await gateway.running

            assert await streaming == "cut off"
            assert await waiting == "500"
    [record] = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert record.getMessage() == "internal error; exiting immediately. This is a bug in Headgate"


def fail(event: Event, commands: Sequence[Command], now: Instant) -> None:
    """An observer that raises on every event."""
    raise AssertionError("broken observer")


async def test_internal_error_while_draining_exits_immediately(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path, exit_code=70) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            async with asyncio.timeout(30), gateway.post(chat(stream=True)) as streaming:
                gateway.gateway._host._observe = (fail,)
                gateway.gateway.shut_down()
                await gateway.running
                with pytest.raises(aiohttp.ClientPayloadError):
                    await streaming.read()


async def test_second_shutdown_signal_ends_the_drain(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="60s"), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            streaming = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await (await engine.next_request()).hung.wait()

            gateway.gateway.shut_down()
            gateway.gateway.shut_down()
            async with asyncio.timeout(30):
                assert await gateway.running == 0
                assert await streaming == "slow_down"


async def test_configuration_is_not_reloaded_while_draining(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = await gateway.status()
            engine.behaviour = Behaviour(hang_before_head=True)
            call = asyncio.create_task(how_it_went(gateway.post(chat())))
            held = await engine.next_request()
            gateway.gateway.shut_down()
            await gateway.wait_for_status(lambda status: status["draining"])
            await gateway.rewrite(config | {"models": {"n": "small"}})
            after = await gateway.status()
            held.resume.set()
            assert await call == "200"

    assert after["config_hash"] == before["config_hash"]


async def how_it_went(request: "aiohttp.client._RequestContextManager") -> str:
    try:
        async with request as answer:
            body = await answer.read()
    except aiohttp.ClientPayloadError:
        return "cut off"
    return "slow_down" if b'"slow_down"' in body else str(answer.status)
