"""A prefix that most prompts share does not overload the engine that has it cached.

The test runs four simulated engines behind a gateway. Seven of ten requests start with the same long instructions, the
rest with one of five others. A router that follows only the cache sends most of the work to one endpoint, and one that
ignores the cache computes the instructions everywhere. The test samples the number of requests in flight on each
endpoint.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.hosts.local.clock import SystemClock
from headgate.model.engine_profile import TINY
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.record import read_record
from testing.gateway import RunningGateway, a_config, gateway_process_with_client
from testing.stalls import rerun_if_stalled

pytestmark = [pytest.mark.process, pytest.mark.timing]

ENGINES, PLACES, TOKENS = 4, 16, 20
STEP_S = 0.010
PROFILE = replace(TINY, step_ps=int(STEP_S * 1e12), prefill_token_ps=20_000_000)
"""Computing a thousand tokens of instructions takes 20 ms. A cache hit is useful, but not worth a long wait."""
SPEED = {"step": "10ms", "prefill_token": "20us"}
HALF_FULL = ENGINES * PLACES / 2
REQUESTS = 300
PER_S = HALF_FULL / (TOKENS * STEP_S) / 2
SHARED_PERCENT = 70
INSTRUCTIONS = [
    f"You are number {number} of six. " + "Be brief and kind, and say what you know. " * 100 for number in range(6)
]


def a_chat(dice: random.Random, number: int) -> dict[str, object]:
    which = 0 if dice.randrange(100) < SHARED_PERCENT else dice.randrange(1, len(INSTRUCTIONS))
    messages = [
        {"role": "system", "content": INSTRUCTIONS[which]},
        {"role": "user", "content": f"question {number}"},
    ]
    return {"model": "m", "messages": messages, "max_tokens": TOKENS, "ignore_eos": True}


async def ask(gateway: RunningGateway, body: dict[str, object]) -> None:
    async with gateway.post(body) as answer:
        assert answer.status == 200, await answer.text()


async def count(gateway: RunningGateway, running: dict[str, int]) -> None:
    """Sum the requests in flight on each endpoint until cancelled."""
    while True:
        for endpoint in (await gateway.status())["endpoints"]:
            running[endpoint["id"]] = running.get(endpoint["id"], 0) + endpoint["in_flight"]
        await asyncio.sleep(0.02)


@rerun_if_stalled
async def test_busiest_endpoint_has_at_most_one_and_a_half_times_the_mean_load(tmp_path: Path) -> None:
    dice, running, record = random.Random("one prompt for all"), dict[str, int](), tmp_path / "record"
    async with AsyncExitStack() as stack:
        options = EngineOptions(profile=PROFILE, model="sim", record_path=record)
        engines = [
            await stack.enter_async_context(EngineServer(replace(options, number=number), SystemClock()))
            for number in range(ENGINES)
        ]
        config = a_config(*(each.url for each in engines), served_model="sim", in_flight_max=PLACES)
        config["pools"]["small"]["speed"] = SPEED
        gateway, _ = await stack.enter_async_context(gateway_process_with_client(config, tmp_path))
        counting = asyncio.create_task(count(gateway, running))
        due = time.monotonic()
        async with asyncio.TaskGroup() as callers:
            for number in range(REQUESTS):
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                callers.create_task(ask(gateway, a_chat(dice, number)))
                # A late request does not catch up: a burst would arrive before the shared instructions are cached.
                due = max(due, time.monotonic()) + 1 / PER_S
        counting.cancel()

    found = len([line for line in read_record(record) if line["cached_tokens"]])
    print(f"sum of requests in flight: {running}; prefix cache hits: {found} of {REQUESTS}")
    assert len(running) == ENGINES
    assert max(running.values()) <= 1.5 * sum(running.values()) / ENGINES
    # A router that ignores the cache could pass the check above, so nearly all requests must also hit the cache.
    assert found > 0.9 * REQUESTS
