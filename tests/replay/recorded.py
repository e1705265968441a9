"""Log from a real gateway with failing engines and impatient callers.

The complete gateway runs in this event loop with its own clock, request handler and probes, and an observer records the
log. Engines fail, stop responding and truncate responses. Callers queue, time out and disconnect. The configuration
changes.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.replay.recorder import Recorder

_SLOWLY = Behaviour(tokens=8, pace_s=0.03)


async def record(folder: Path) -> Recorder:
    recorder = Recorder()
    async with FakeEngine() as first, FakeEngine() as second, FakeEngine() as third:
        config = _config(first, second)
        async with gateway_in_loop(config, folder, observers=(recorder,)) as gateway:
            await _a_crowd(gateway, first, second)
            await _a_failing_engine(gateway, first, second)
            await _callers_that_leave(gateway, first, second)
            await _a_silent_engine(gateway, first, second)
            await _nobody_there(gateway, first, second)
            await _another_configuration(gateway, config, second, third)
            await gateway.wait_until_idle()
    return recorder


def _config(*engines: FakeEngine) -> Config:
    config = a_config(
        in_flight_max=1,
        classes={
            "interactive": {"priority_band": 0, "queue_wait_max": "200ms", "first_token_timeout": "500ms"},
            "batch": {
                "priority_band": 1,
                "queue_wait_max": "20s",
                "first_token_timeout": "500ms",
                "cold_start_wait_max": "20s",
            },
        },
        health={"consecutive_failures_max": 2, "ejection_time": "200ms"},
    )
    config["pools"]["small"]["endpoints"] = [
        {"name": f"e{number}", "url": engine.url} for number, engine in enumerate(engines)
    ]
    config["pools"]["small"]["scaling"] = {"endpoints_min": 0, "endpoints_max": 2, "period": "1h", "cold_start": "1s"}
    # The budget is exhausted immediately. It is soft, so no request is rejected.
    config["pools"]["small"]["prices"] = {"per_hour": 3600}
    config["classes"]["batch"]["budgets"] = {"day": {"usd": "0.000001", "kind": "soft"}}
    return config


async def _ask(gateway: GatewayInLoop, *, tier: str = "auto", patience_s: float | None = None, **fields: Any) -> None:
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(patience_s):
            async with gateway.post(chat(service_tier=tier, **fields)) as answer:
                await answer.read()


async def _a_crowd(gateway: GatewayInLoop, *engines: FakeEngine) -> None:
    """Sends more requests than there are slots. Some wait, interactive ones expire, and one has an unknown model."""
    for engine in engines:
        engine.behaviour = _SLOWLY
    async with asyncio.TaskGroup() as callers:
        for number in range(8):
            callers.create_task(_ask(gateway, stream=number % 3 != 0))
        for _ in range(4):
            callers.create_task(_ask(gateway, stream=True, tier="flex"))
        callers.create_task(_ask(gateway, model="unknown"))


async def _a_failing_engine(gateway: GatewayInLoop, bad: FakeEngine, good: FakeEngine) -> None:
    """Makes attempts fail in several ways until the engine is ejected, and waits until it is used again."""
    ways = (Behaviour(status=500), Behaviour(cut_after=0), Behaviour(cut_after=2), Behaviour(status=400))
    bad.behaviour, good.behaviour = ways[0], _SLOWLY
    bad.script.extend(ways)
    async with asyncio.TaskGroup() as callers:
        for _ in range(6):
            callers.create_task(_ask(gateway, stream=True, tier="flex"))
    bad.behaviour = Behaviour()
    await gateway.wait_for_status(
        lambda status: all(each["state"] in ("ready", "trial") for each in status["endpoints"])
    )
    await asyncio.gather(*(_ask(gateway, stream=True, tier="flex") for _ in range(4)))


async def _callers_that_leave(gateway: GatewayInLoop, *engines: FakeEngine) -> None:
    """Disconnects some callers while they wait and others in the middle of their response."""
    for engine in engines:
        engine.behaviour = Behaviour(tokens=20, pace_s=0.05)
    async with asyncio.TaskGroup() as callers:
        for patience_s in (0.2, 0.3, 0.1, 0.15, 0.5):
            callers.create_task(_ask(gateway, stream=True, tier="flex", patience_s=patience_s))
    await gateway.wait_until_idle()


async def _a_silent_engine(gateway: GatewayInLoop, silent: FakeEngine, good: FakeEngine) -> None:
    silent.behaviour = good.behaviour = Behaviour()
    silent.script.append(Behaviour(hang_before_head=True))
    await asyncio.gather(*(_ask(gateway, stream=True, tier="flex") for _ in range(3)))


async def _nobody_there(gateway: GatewayInLoop, *engines: FakeEngine) -> None:
    """Puts a request on hold while every engine reloads."""
    for engine in engines:
        engine.loading = True
    await gateway.wait_for_status(lambda status: all(each["state"] == "warming" for each in status["endpoints"]))
    async with asyncio.TaskGroup() as callers:
        callers.create_task(_ask(gateway, tier="flex"))
        await gateway.wait_for_status(lambda status: status["held_for_start"] == {"small": 1})
        for engine in engines:
            engine.loading = False


async def _another_configuration(gateway: GatewayInLoop, config: Config, second: FakeEngine, third: FakeEngine) -> None:
    """Removes one endpoint and moves the other to a new engine while requests are waiting and running."""
    second.behaviour = _SLOWLY
    async with asyncio.TaskGroup() as callers:
        for _ in range(4):
            callers.create_task(_ask(gateway, stream=True, tier="flex"))
        await asyncio.sleep(0.05)
        config["pools"]["small"]["endpoints"] = [{"name": "e1", "url": third.url}]
        await gateway.rewrite(config)
    await _ask(gateway)
