"""What happens when we find a mistake of our own, or are told to leave in a hurry?"""

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest

from headgate.core.commands import Command
from headgate.core.events import EndpointJoined, Event
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, PoolName
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop


def make_a_mistake(gateway: GatewayInLoop, endpoint: str) -> None:
    """Tells the scheduler what cannot be."""
    with pytest.raises(AssertionError, match="changed its pool"):
        gateway.gateway._host.tell(EndpointJoined(Endpoint(EndpointId(endpoint), PoolName("another"), 1)))


async def test_a_mistake_of_ours_ends_the_process_at_once_and_no_answer_looks_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, in_flight_max=1, drain_grace="60s")
        async with gateway_in_loop(config, tmp_path, exit_code=70) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            streaming = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await (await engine.next_request()).hung.wait()
            waiting = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await gateway.until(lambda status: status["queued"]["interactive"] == 1)

            make_a_mistake(gateway, f"small/{engine.url[7:]}")
            async with asyncio.timeout(30):
                await gateway.running

            assert await streaming == "cut off"
            assert await waiting == "500"
    told = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert [record.getMessage() for record in told] == ["this is a mistake in Headgate; leaving at once"]


class Broken(Scheduler):
    """A scheduler that can decide nothing any more."""

    def handle(self, event: Event, now: Instant) -> list[Command]:
        raise AssertionError("this cannot be")


async def test_a_mistake_found_while_leaving_ends_as_one_found_before(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path, exit_code=70) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            async with asyncio.timeout(30), gateway.post(chat(stream=True)) as streaming:
                gateway.gateway._host._scheduler = Broken()
                gateway.gateway.leave()
                await gateway.running
                with pytest.raises(aiohttp.ClientPayloadError):
                    await streaming.read()


async def test_who_says_twice_that_we_should_leave_does_not_wait(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="60s"), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=3, hang_after=1)
            streaming = asyncio.create_task(how_it_went(gateway.post(chat(stream=True))))
            await (await engine.next_request()).hung.wait()

            gateway.gateway.leave()
            gateway.gateway.leave()
            async with asyncio.timeout(30):
                assert await gateway.running == 0
                assert await streaming == "slow_down"


async def test_a_gateway_that_leaves_takes_no_new_configuration(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = await gateway.status()
            engine.behaviour = Behaviour(hang_before_head=True)
            call = asyncio.create_task(how_it_went(gateway.post(chat())))
            held = await engine.next_request()
            gateway.gateway.leave()
            await gateway.until(lambda status: status["draining"])
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
