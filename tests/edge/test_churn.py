"""Resource leak test: many requests of every kind, ending in every possible way."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.core.events import AttemptEnding
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, events_of, gateway_in_loop
from testing.in_process_client import InProcessClient
from testing.scheduler_sizes import scheduler_sizes

SEED = 20_260
REQUESTS = 2_000
REQUESTS_AT_THE_END = 60
AT_ONCE = 150

BEHAVIOURS = (
    *[Behaviour(tokens=3, pace_s=0.001)] * 10,
    Behaviour(tokens=3, piece_bytes=7),
    Behaviour(tokens=3, pace_s=0.02),
    Behaviour(status=500),
    Behaviour(status=400),
    Behaviour(status=429),
    Behaviour(error_after=0),
    Behaviour(tokens=4, error_after=2),
    Behaviour(cut_after=0),
    Behaviour(tokens=4, cut_after=2),
    Behaviour(drop_before_head=True),
    Behaviour(tokens=2, without_done=True),
    Behaviour(tokens=2, close_after=True),
    Behaviour(hang_before_head=True),
    Behaviour(hang_after=0),
    Behaviour(tokens=4, hang_after=2),
    Behaviour(body=b'{"error": {"message": "no"}}', content_type="application/json"),
)
BODIES: tuple[dict[str, Any], ...] = (
    *[chat(stream=True)] * 6,
    *[chat()] * 3,
    chat(stream=True, service_tier="flex"),
    chat("x" * 300_000),
    chat(model="nobody"),
    {"model": "m"},
)


class Moody(FakeEngine):
    """An engine that chooses a random behaviour for each request."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    @property
    def behaviour(self) -> Behaviour:
        return self._chance.choice(BEHAVIOURS)

    @behaviour.setter
    def behaviour(self, _: Behaviour) -> None:
        pass


@pytest.mark.process
async def test_two_thousand_mixed_requests_leave_no_state_behind(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    limits = {
        "first_token_timeout": "600ms",
        "stream_idle_timeout": "600ms",
        "attempt_timeout": "900ms",
        "queue_length_max": 40,
    }
    classes = {name: {"priority_band": band, **limits} for band, name in enumerate(("interactive", "batch"))}
    async with Moody(chance) as first, Moody(chance) as second, Moody(chance) as third:
        engines = (first, second, third)
        urls = [engine.url for engine in engines]
        health = {"ejection_time": "100ms", "ejection_time_max": "200ms"}
        config = a_config(*urls, in_flight_max=20, classes=classes, health=health, drain_grace="300ms")
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = asyncio.all_tasks()
            told: Counter[str] = Counter()
            await churn(gateway, chance, told)
            await gateway.wait_until_idle()
            await drain_while_busy(gateway, chance, told)
            counted = counted_by(gateway)
            await gateway.http.close()
            await all_gone(before)
            nothing_is_left(gateway)
        for engine in engines:
            assert engine.running == 0
            assert engine.connections_open == 0

    assert sum(told.values()) == REQUESTS
    # A client may disconnect before the gateway reads its request, or just after the request has ended.
    assert REQUESTS - told["left"] - told["unheard"] <= counted["requests"] <= REQUESTS - told["unheard"]
    assert counted["completed"] >= told["completed"]
    assert counted["cancelled"] <= told["left"] + told["left the door"]
    ways = ("completed", "left", "left the door", "refused", "interrupted", "engine")
    assert min(told[way] for way in ways) > 20, told


async def churn(gateway: GatewayInLoop, chance: random.Random, told: Counter[str]) -> None:
    count = REQUESTS - REQUESTS_AT_THE_END
    remaining = iter([(chance.choice(BODIES), chance.expovariate(1 / 0.05)) for _ in range(count)])

    async def caller() -> None:
        for body, patience_s in remaining:
            match chance.randrange(6):
                case 0:
                    told[await how_it_ended(gateway, body, patience_s)] += 1
                case 1:
                    told[await left_the_door(gateway, body, patience_s)] += 1
                case _:
                    told[await how_it_ended(gateway, body, None)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller())


async def drain_while_busy(gateway: GatewayInLoop, chance: random.Random, told: Counter[str]) -> None:
    bodies = [chance.choice(BODIES) for _ in range(REQUESTS_AT_THE_END)]
    calls = [asyncio.create_task(how_it_ended(gateway, body, None)) for body in bodies]
    await gateway.wait_for_status(lambda status: status["requests_open"] > 0)
    gateway.gateway.shut_down()
    told.update(await asyncio.gather(*calls))
    assert await gateway.running == 0


async def how_it_ended(gateway: GatewayInLoop, body: dict[str, Any], patience_s: float | None) -> str:
    try:
        async with asyncio.timeout(patience_s), gateway.http.post(gateway.url + CHAT, json=body) as answer:
            content = await answer.read()
    except TimeoutError:
        return "left"
    except aiohttp.ClientPayloadError:
        return "interrupted"
    except aiohttp.ClientConnectionError:
        return "unheard"
    if answer.status >= 500:
        return "engine"
    if answer.status != 200:
        return "refused"
    if body.get("stream") and events_of(content)[-1] != "[DONE]":
        assert any(code in events_of(content)[-1] for code in ('"stream_interrupted"', '"slow_down"')), content
        return "interrupted"
    return "completed"


async def left_the_door(gateway: GatewayInLoop, body: dict[str, Any], patience_s: float) -> str:
    """Sends a request directly to the request handler and disconnects after `patience_s` seconds."""
    caller = InProcessClient(body)
    asyncio.get_running_loop().call_later(patience_s, caller.disconnect)
    await gateway.gateway._app(caller.client)
    assert len(caller.heads) <= 1
    assert caller.ends <= 1
    return "left the door"


def counted_by(gateway: GatewayInLoop) -> Counter[str]:
    """Returns the number of requests by outcome, as counted by the gateway."""
    counted: Counter[str] = Counter()
    for name, meter in gateway.gateway._meters.classes.items():
        counted.update({outcome.value: count for outcome, count in meter.requests.items()})
        counted["requests"] += sum(meter.requests.values())
        assert name != "other" or not sum(meter.requests.values())
    return counted


async def all_gone(before: set["asyncio.Task[Any]"]) -> None:
    """Waits until all tasks created since `before` have ended."""
    async with asyncio.timeout(60):
        while left := [task for task in asyncio.all_tasks() - before if "FakeEngine" not in repr(task)]:
            await asyncio.wait(left, timeout=0.1)


def nothing_is_left(gateway: GatewayInLoop) -> None:
    parts = gateway.gateway
    assert parts._host.open_channels() == 0
    assert len(parts._attempts) == 0
    assert parts._app.open_requests == 0
    assert not parts._app._receive_timeouts
    assert parts._meters._open == {}
    assert [each.in_flight for each in parts._host.summary().endpoints] == [0, 0, 0]
    left = scheduler_sizes(parts._host._scheduler)
    assert (left.requests, left.attempts, left.lines, left.expiries, left.stalls) == (0, 0, 0, 0, 0)
    pools = parts._meters.pools.values()
    assert sum(pool.endings[AttemptEnding.COMPLETED] for pool in pools) > 0
