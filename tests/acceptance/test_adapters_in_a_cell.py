"""LoRA adapters in a live cell: the slots of an engine hold for all its gateways, also if the leader is killed."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testing.cell_processes import CellProcesses, cell_processes
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, RunningGateway, a_config, chat

pytestmark = [pytest.mark.cell, pytest.mark.timeout(400)]

ADAPTERS = ("red", "green", "blue", "white")
MAX_LORA = 2
PACED = Behaviour(tokens=4, pace_s=0.005)


def cell_config(engine: FakeEngine) -> Config:
    config = a_config(engine.url, in_flight_max=16, routing={"adapter_load_penalty": "5ms"})
    config["pools"]["small"] |= {
        "adapters": [{"name": name, "source": f"/adapters/{name}"} for name in ADAPTERS],
        "max_lora": MAX_LORA,
    }
    return config


async def ask(gateway: RunningGateway, model: str) -> int:
    """The request names its adapter in the prompt too. Returns the status, or 0 if the gateway is gone."""
    try:
        async with gateway.post(chat(model, model=model)) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def until_served(gateway: RunningGateway, model: str) -> None:
    async with asyncio.timeout(60):
        while (status := await ask(gateway, model)) != 200:
            assert status == 503
            await asyncio.sleep(0.05)


def loads(engine: FakeEngine) -> Counter[str]:
    return Counter(str(each.json["lora_name"]) for each in engine.probes if each.path == "/v1/load_lora_adapter")


def wrong_adapters(engine: FakeEngine) -> list[Any]:
    return [each.json for each in engine.requests if each.json["model"] != each.json["messages"][0]["content"]]


async def adapters_in_flight(gateway: RunningGateway) -> dict[str, int]:
    """Requests in flight by adapter, from the metrics of the leader."""
    async with gateway.http.get(f"{gateway.admin_url}/metrics") as page:
        lines = (await page.text()).splitlines()
    found = [line for line in lines if line.startswith("headgate_adapter_attempts_in_flight{")]
    counts = {line.partition('adapter="')[2].partition('"')[0]: int(float(line.rpartition(" ")[2])) for line in found}
    return {name: count for name, count in counts.items() if count}


async def test_slots_and_loading_of_adapters_are_those_of_the_whole_cell(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.max_lora, engine.unknown_models_are_rejected, engine.behaviour = MAX_LORA, True, PACED
        async with cell_processes(cell_config(engine), tmp_path) as cell:
            for gateway, name in itertools.product(cell.gateways, ADAPTERS):
                await until_served(gateway, name)
            asked = zip(itertools.cycle(cell.gateways), ADAPTERS * 20, strict=False)
            statuses = await asyncio.gather(*(ask(gateway, name) for gateway, name in asked))
            assert set(statuses) == {200}
            assert (engine.adapters_running_max, loads(engine)) == (MAX_LORA, Counter(ADAPTERS))
            assert engine.running_max > MAX_LORA

            await check_takeover(cell, engine)

        assert wrong_adapters(engine) == []
        assert (engine.adapters_running_max, loads(engine)) == (MAX_LORA, Counter(ADAPTERS))


async def check_takeover(cell: CellProcesses, engine: FakeEngine) -> None:
    """The leader is killed while requests of the other gateway occupy both slots and further adapters wait."""
    survivor = cell.gateways[1 - await cell.leader()]
    arrived = len(engine.requests)
    engine.script.extend([Behaviour(tokens=4, hang_after=2)] * MAX_LORA)
    holding = [asyncio.create_task(ask(survivor, name)) for name in ADAPTERS[:MAX_LORA]]
    while len(engine.requests) < arrived + MAX_LORA:
        await asyncio.sleep(0.01)
    hung = engine.requests[arrived:]
    waiting = [
        asyncio.create_task(ask(gateway, name)) for gateway, name in itertools.product(cell.gateways, ADAPTERS[2:])
    ]
    killed = await cell.kill_leader()
    waiting += [asyncio.create_task(ask(survivor, name)) for name in ADAPTERS * 3]
    await cell.until_led()

    # The new leader knows the slots in use from the report of the other gateway.
    async with asyncio.timeout(60):
        while set(await adapters_in_flight(survivor)) != set(ADAPTERS[:MAX_LORA]):
            await asyncio.sleep(0.02)
    assert {str(each.json["model"]) for each in engine.requests[arrived:]} == set(ADAPTERS[:MAX_LORA])
    for each in hung:
        each.resume.set()
    statuses = Counter(await asyncio.gather(*holding, *waiting))
    assert statuses == {200: MAX_LORA + len(waiting) - 2, 0: 2}, f"only requests of {killed.url} may fail"
