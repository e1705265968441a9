"""Do fleets that run at the same time get into each other's way?"""

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


async def test_engines_of_two_pools_never_get_the_same_port(tmp_path: Path) -> None:
    """Some listen only when they have loaded, so that for minutes the system takes their ports to be free."""
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET), endpoints=2)
    config["pools"]["second"] = deepcopy(config["pools"]["small"])
    async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
        urls = [each.url for _, each in gateway.gateway._fleets.endpoints()]
        async with asyncio.timeout(60):
            while any(url.endswith(":0") for url in urls) or len(urls) < 4:
                await asyncio.sleep(0.01)
                urls = [each.url for _, each in gateway.gateway._fleets.endpoints()]

    assert len(set(urls)) == 4, urls


async def test_a_pool_that_comes_back_while_its_engines_drain_waits_for_their_names(tmp_path: Path) -> None:
    config = a_scaled_config(tmp_path, (*SIMULATED, *QUIET))
    async with FakeEngine() as other, a_scaled_gateway(config, tmp_path) as gateway:
        [before] = pids(gateway).values()
        without = a_config(other.url) | {name: config[name] for name in ("listen", "admin_listen")}
        with frozen(before):
            asked = asyncio.create_task(_text(gateway.post(streaming(tokens=300))))
            await gateway.until(lambda status: status["endpoints"][0]["in_flight"] == 1)
            await gateway.rewrite(without)
            await gateway.rewrite(config)
            assert is_alive(before), "a stream goes on"
        assert (await asked).endswith("data: [DONE]\n\n")
        await until_dead(before)
        await gateway.until_ready(1, seconds_max=60)
        [after] = pids(gateway).values()

        assert after != before


async def _text(request: Any) -> str:
    async with request as answer:
        return await answer.text()
