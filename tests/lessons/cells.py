"""How does a test get a whole cell: some gateways in its own event loop, around a real store?"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.fault_proxy import FaultProxy
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop
from testing.stores import Server, redis


@dataclass
class CellInLoop:
    store: Server
    gateways: list[GatewayInLoop]
    way: FaultProxy
    """By which the last of them reaches the store."""

    async def until_all(self, reached: Callable[[Config], bool], *, seconds_max: float = 60.0) -> list[Config]:
        """The first status of each gateway for which `reached` holds."""
        return [await gateway.until(reached, seconds_max=seconds_max) for gateway in self.gateways]

    async def until_all_are(self, mode: str, *, seconds_max: float = 60.0) -> list[Config]:
        return await self.until_all(lambda status: status["cell"]["mode"] == mode, seconds_max=seconds_max)


@asynccontextmanager
async def a_cell(count: int, folder: Path, *urls: str, **settings: Any) -> AsyncIterator[CellInLoop]:
    """So many gateways before the engines at these addresses, once all of them follow one that leads."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(redis())
        way = await stack.enter_async_context(FaultProxy(store.port))
        gateways: list[GatewayInLoop] = []
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            url = store.url if number < count - 1 else f"redis://127.0.0.1:{way.port}"
            cell = {"store": url, "member": f"gateway-{number}", "members": count}
            config = a_config(*urls, cell=cell, **settings)
            gateways.append(await stack.enter_async_context(gateway_in_loop(config, own)))
        made = CellInLoop(store, gateways, way)
        # Who came last has changed everybody's share; the leader tells all of them.
        await made.until_all(
            lambda status: status["cell"]["mode"] == "following" and status["cell"]["share"].endswith(f"/{count}")
        )
        yield made
