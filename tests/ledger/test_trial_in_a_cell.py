"""A setting trial in a live cell: any gateway starts it, and the old value returns after the leader is killed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testing.cell_processes import cell_processes
from testing.fake_engine import FakeEngine
from testing.gateway import Config, RunningGateway
from tests.ledger.databases import SECRET
from tests.ledger.test_gateway import OPERATOR, hashed

pytestmark = [pytest.mark.cell, pytest.mark.timeout(300)]
BEFORE, AFTER = 8, 6


def cell_config(engine: FakeEngine, url: str) -> Config:
    pool = {"engine": "vllm", "served_model": "fake", "in_flight_max": BEFORE, "endpoints": [engine.url]}
    return {
        "key_secret": SECRET.decode(),
        "database": {"url": url},
        "admin_keys": {"alice": {"key": hashed("hg-operator"), "permissions": ["read", "operate"]}},
        "pools": {"small": pool},
    }


async def trials(gateway: RunningGateway, action: str, **body: Any) -> Any:
    url = f"{gateway.admin_url}/admin/v1/trials/{action}"
    async with gateway.http.post(url, json=body, headers=OPERATOR) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return said


async def until_limit(gateway: RunningGateway, limit: int) -> None:
    def reached(status: Config) -> bool:
        return [each["in_flight_max"] for each in status["endpoints"]] == [limit]

    await gateway.wait_for_status(reached)


async def test_old_value_returns_after_the_leader_is_killed(url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, cell_processes(cell_config(engine, url), tmp_path) as cell:
        leading = await cell.leader()
        leader, follower = cell.gateways[leading], cell.gateways[1 - leading]
        setting = {"setting": "pools.small.in_flight_max", "value": str(AFTER), "block_s": 4, "duration_s": 120}
        await trials(follower, "start", **setting)
        await until_limit(leader, AFTER)
        await trials(follower, "abort")
        await until_limit(leader, BEFORE)

        await trials(leader, "start", **setting)
        await until_limit(leader, AFTER)
        # On a busy machine, the other gateway may lead by now.
        await cell.kill_leader()
        [survivor] = cell.gateways
        await cell.until_led()
        async with asyncio.timeout(60):
            while (trial := (await trials(survivor, "status"))["data"][-1])["phase"] == "running":
                await asyncio.sleep(0.1)

        assert (trial["phase"], trial["result"]) == ("reverted", "interrupted")
        await until_limit(survivor, BEFORE)
