"""Tests for the response header that reports degradation under overload."""

import asyncio
from pathlib import Path

from headgate.model.caps import ReasoningEffort
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop

# Level 2 is reached within 0.1 s once ten requests are waiting, and lasts until the end of the test.
LADDER = {"escalate_above_percent": 2, "recover_below_percent": 1, "escalate_after": "20ms", "level_max": 2}
CLASS = {
    "priority_band": 0,
    "ttft": "10s",
    "degradation_steps": [{"level": 2, "caps": {"output_tokens": 5, "reasoning_effort": "low"}}],
}
WAITING = 40


async def call(gateway: GatewayInLoop, **fields: object) -> str:
    async with gateway.post(chat(**fields)) as answer:
        assert answer.status == 200
        return answer.headers["x-headgate-degraded"]


async def until_level(gateway: GatewayInLoop, level: int) -> None:
    wanted, page = f'headgate_degradation_level{{pool="small"}} {level:.1f}', ""
    while wanted not in page:
        await asyncio.sleep(0.02)
        async with gateway.http.get(gateway.admin_url + "/metrics") as answer:
            page = await answer.text()


async def test_degradation_header_reports_changes_and_level(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(hang_before_head=True))
        config = a_config(
            engine.url, in_flight_max=1, classes={"interactive": CLASS}, degradation=LADDER, shedding={"period": "20ms"}
        )
        # Waiting requests do not count as overload while the engine speed is only assumed.
        config["pools"]["small"]["speed"] = {"step": "10ms"}
        async with gateway_in_loop(config, tmp_path) as gateway, asyncio.timeout(50):
            first = asyncio.create_task(call(gateway))
            hanging = await engine.next_request()
            early = [asyncio.create_task(call(gateway)) for _ in range(WAITING)]
            await until_level(gateway, 2)
            late = asyncio.create_task(call(gateway, max_tokens=9, reasoning_effort=ReasoningEffort.HIGH))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] >= WAITING)
            hanging.resume.set()
            told = await late
            unchanged = await first
            others = await asyncio.gather(*early)

    assert told == "output_tokens=5, reasoning_effort=low, level=2"
    assert unchanged == "none"
    # Some requests may arrive after the level has been reached.
    assert set(others) <= {"none", "output_tokens=5, level=2"}
    assert {each.json["max_tokens"] for each in engine.requests if "max_tokens" in each.json} == {5}
