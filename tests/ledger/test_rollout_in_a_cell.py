"""Weighted routes, mirrors and a rollout in a live cell: all gateways decide alike, also after the leader is killed."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from testing.cell_processes import CellProcesses, cell_processes
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, RunningGateway, chat, text_of
from tests.ledger.databases import SECRET
from tests.ledger.test_gateway import OPERATOR, hashed

pytestmark = [pytest.mark.cell, pytest.mark.timeout(600)]

USERS = tuple(f"user-{number}" for number in range(40))
SIDES = {"stable-model": "stable", "candidate-model": "candidate"}


@dataclass
class Engines:
    stable: FakeEngine
    candidate: FakeEngine
    shadow: FakeEngine


def cell_config(engines: Engines, url: str) -> Config:
    def pool(engine: FakeEngine, in_flight_max: int) -> Config:
        [model] = engine.models
        return {
            "engine": "vllm",
            "served_model": model,
            "in_flight_max": in_flight_max,
            "endpoints": [engine.url],
            "prices": [{"input_per_1m_tokens": 1, "output_per_1m_tokens": 1}],
        }

    routes = [
        {"pools": ["stable"], "weight": 50, "mirror": {"pools": ["shadow"]}},
        {"pools": ["candidate"], "weight": 50},
    ]
    return {
        "key_secret": SECRET.decode(),
        "database": {"url": url},
        "ledger": {},
        "admin_keys": {"alice": {"key": hashed("hg-operator"), "permissions": ["read", "operate"]}},
        "pools": {
            "stable": pool(engines.stable, 8),
            "candidate": pool(engines.candidate, 8),
            # As many slots as gateways: an island must have a share.
            "shadow": pool(engines.shadow, 2),
        },
        "models": {
            "m": {"pools": ["stable"], "sticky": "user", "routes": routes},
            "shadow": "shadow",
        },
    }


async def side_of(gateway: RunningGateway, user: str) -> str:
    """Returns the route that a request of this user takes, by the model that responds."""
    async with gateway.post(chat(model="m", user=user, max_tokens=1)) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return SIDES[said["model"]]


async def on_candidate(cell: CellProcesses) -> set[str] | None:
    """Returns the users whose requests take the candidate, or None if the gateways do not agree (yet)."""
    found = [
        await asyncio.gather(*(side_of(gateway, user) for user in USERS)) for gateway in cell.gateways for _ in range(2)
    ]
    if any(each != found[0] for each in found):
        return None
    return {user for user, side in zip(USERS, found[0], strict=True) if side == "candidate"}


async def until_on_candidate(cell: CellProcesses, reached: Callable[[set[str]], bool]) -> set[str]:
    """Returns the users whose requests take the candidate once all gateways agree about a set that is expected."""
    async with asyncio.timeout(60):
        while (found := await on_candidate(cell)) is None or not reached(found):
            await asyncio.sleep(0.05)
    return found


async def rollout(gateway: RunningGateway, action: str, **body: Any) -> Any:
    url = f"{gateway.admin_url}/admin/v1/rollouts/{action}"
    async with gateway.http.post(url, json={"model": "m", **body}, headers=OPERATOR) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return said


async def explained(gateway: RunningGateway, request_id: str) -> Any:
    """Returns the explanation of a request that has ended, which another gateway may have served."""
    async with asyncio.timeout(60):
        while True:
            async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
                found = await page.json()
            if found.get("outcome") is not None:
                return found
            await asyncio.sleep(0.05)


async def test_routes_mirrors_and_a_rollout_are_those_of_the_whole_cell(url: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        names = ("stable", "candidate", "shadow")
        made = [await stack.enter_async_context(FakeEngine(models=(f"{name}-model",))) for name in names]
        engines = Engines(*made)
        cell = await stack.enter_async_context(cell_processes(cell_config(engines, url), tmp_path))
        copies = await check_mirror(cell, engines)
        await check_rollout(cell)
        await check_ledger(url, copies)


async def check_mirror(cell: CellProcesses, engines: Engines) -> list[str]:
    """Copies of two gateways occupy the slots of the mirror until a request of a third needs one of them."""
    user = min(set(USERS) - await until_on_candidate(cell, bool))
    for gateway in cell.gateways:
        await gateway.wait_until_idle()
    engines.shadow.script.extend([Behaviour(hang_after=0)] * 2)
    before, ids = len(engines.shadow.requests), list[str]()
    for gateway in cell.gateways:
        async with gateway.post(chat(model="m", user=user, stream=True)) as answer:
            # The response is complete while the copy has not even begun.
            assert text_of(await answer.read())
            ids.append(answer.headers["x-request-id"])
    async with asyncio.timeout(60):
        while len(engines.shadow.requests) < before + 2:
            await asyncio.sleep(0.01)
    hung = engines.shadow.requests[before:]
    assert not any(each.ended.is_set() for each in hung)

    async with cell.gateways[0].post(chat(model="shadow")) as answer:
        assert answer.status == 200
    await asyncio.gather(*(each.client_left.wait() for each in hung))
    for name, gateway in zip(ids, reversed(cell.gateways), strict=True):
        copy = await explained(gateway, f"{name}-mirror")
        assert (copy["outcome"], copy["class"], copy["tenant"]) == ("evicted", "mirror", "_mirror")
    return [f"{name}-mirror" for name in ids]


async def check_rollout(cell: CellProcesses) -> None:
    """The operator uses another gateway for each step. The leader is killed at 25 %."""
    one, other = cell.gateways
    half = await until_on_candidate(cell, bool)
    assert 10 <= len(half) <= 30

    await rollout(one, "start", candidate="candidate", step_s=86_400)
    first = await until_on_candidate(cell, lambda found: len(found) < 5)
    assert first <= half
    await rollout(other, "step")
    await rollout(one, "step")
    quarter = await until_on_candidate(cell, lambda found: len(found) >= 5)
    assert first <= quarter <= half
    assert len(quarter) < len(half)

    await cell.kill_leader()
    assert await until_on_candidate(cell, lambda _: True) == quarter
    await cell.until_led()
    [survivor] = cell.gateways
    [kept] = (await rollout(survivor, "status"))["data"]
    assert (kept["percent"], kept["phase"]) == (25, "running")
    assert await until_on_candidate(cell, lambda _: True) == quarter
    await rollout(survivor, "step")
    assert await until_on_candidate(cell, lambda found: found != quarter) == half
    await rollout(survivor, "abort")
    assert await until_on_candidate(cell, lambda found: found != half) == set()


async def check_ledger(url: str, copies: list[str]) -> None:
    """The platform pays for all copies, and the two that were stopped are among them."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60):
            while True:
                rows = await connection.fetch(
                    "select * from headgate.usage where tenant = '_mirror' or cause = 'mirror'"
                )
                if {*copies} <= {row["request"] for row in rows}:
                    break
                await asyncio.sleep(0.1)
    finally:
        await connection.close()
    assert {(row["tenant"], row["class"], row["cause"], row["payer"], row["pool"]) for row in rows} == {
        ("_mirror", "mirror", "mirror", "platform", "shadow")
    }
