"""Several process fleets in one gateway do not interfere with each other."""

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.fleets.builders import is_alive, until_dead
from tests.fleets.scaled import SIMULATED, a_scaled_config, a_scaled_gateway, frozen, pids, streaming

pytestmark = pytest.mark.process

QUIET = ("--profile", "tiny", "--speed-up", "1")


async def test_engines_in_two_pools_get_different_ports(tmp_path: Path) -> None:
    """Some engines start listening only after loading, so the system reports their ports as free for minutes."""
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET), endpoints=2)
    config["pools"]["second"] = deepcopy(config["pools"]["small"])
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        urls = [each.endpoint.url for each in gateway.gateway._fleets.endpoints()]
        async with asyncio.timeout(60):
            while any(url.endswith(":0") for url in urls) or len(urls) < 4:
                await asyncio.sleep(0.01)
                urls = [each.endpoint.url for each in gateway.gateway._fleets.endpoints()]

    assert len(set(urls)) == 4, urls


async def test_restored_pool_waits_for_its_draining_engines(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET))
    async with FakeEngine() as other, a_scaled_gateway(config, tmp_path) as gateway:
        [before] = pids(gateway).values()
        without = a_config(other.url) | {name: config[name] for name in ("listen", "admin_listen")}
        with frozen(before):
            asked = asyncio.create_task(_text(gateway.post(streaming(tokens=300))))
            await gateway.wait_for_status(lambda status: status["endpoints"][0]["in_flight"] == 1)
            await gateway.rewrite(without)
            await gateway.rewrite(config)
            assert is_alive(before), "the engine still has a stream"
        assert (await asked).endswith("data: [DONE]\n\n")
        await until_dead(before)
        await gateway.wait_until_ready(1, seconds_max=60)
        [after] = pids(gateway).values()

        assert after != before


async def _text(request: Any) -> str:
    async with request as answer:
        return await answer.text()
