"""What does a whole gateway make of its cell, with a real store that fails?"""

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import pytest

from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import places_of
from headgate.model.units import EndpointId
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from testing.processes import MissingPart
from testing.stores import Server, redis
from tests.hosts.cell.store_places import absent

MEMBERS = 64


@contextlib.contextmanager
def a_redis() -> Generator[Server]:
    try:
        with redis() as server:
            yield server
    except MissingPart as missing:
        absent(missing)


def without_a_part_of(url: str) -> str:
    """The name of a member that has no place at this endpoint, of which there is one, by itself."""
    endpoint = EndpointId(f"small/{url.removeprefix('http://')}")
    names = (f"m{number}" for number in range(MEMBERS))
    return next(name for name in names if not places_of(Share(crc32(name.encode()) % MEMBERS, MEMBERS), endpoint, 1))


async def answered(gateway: GatewayInLoop) -> int:
    async with asyncio.timeout(30), gateway.post(chat()) as answer:
        return answer.status


@pytest.mark.process
async def test_an_island_without_a_part_of_an_endpoint_can_ask_it_when_it_returns(tmp_path: Path) -> None:
    with a_redis() as server:
        server.kill()
        async with FakeEngine() as engine:
            cell = {"store": server.url, "members": MEMBERS, "member": without_a_part_of(engine.url)}
            config = a_config(engine.url, in_flight_max=1, cell=cell)
            async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
                await gateway.until(lambda status: status["cell"]["mode"] == "island")
                await gateway.rewrite(config | {"drain_grace": "4s"})
                await asyncio.to_thread(server.restart)
                await gateway.until(lambda status: status["cell"]["leads"] and status["cell"]["mode"] == "following")
                await gateway.until_ready(1)

                assert await answered(gateway) == 200
