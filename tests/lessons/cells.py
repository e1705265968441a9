"""A cell for tests: several gateways in one event loop with a real Redis store."""

import ssl
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
    """Proxy between the last gateway and the store."""

    async def until_all(self, reached: Callable[[Config], bool], *, seconds_max: float = 60.0) -> list[Config]:
        """Return the first status of each gateway for which `reached` is true."""
        return [await gateway.wait_for_status(reached, seconds_max=seconds_max) for gateway in self.gateways]

    async def until_all_are(self, mode: str, *, seconds_max: float = 60.0) -> list[Config]:
        return await self.until_all(lambda status: status["cell"]["mode"] == mode, seconds_max=seconds_max)


@asynccontextmanager
async def a_cell(
    count: int, folder: Path, *urls: str, tls: ssl.SSLContext | bool = True, **settings: Any
) -> AsyncIterator[CellInLoop]:
    """Start `count` gateways in front of these engines and wait until all of them follow a scheduler. `tls` is the
    client's context for listeners with TLS.
    """
    async with AsyncExitStack() as stack:
        store = stack.enter_context(redis())
        way = await stack.enter_async_context(FaultProxy(store.port))
        gateways: list[GatewayInLoop] = []
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            url = store.url if number < count - 1 else f"redis://127.0.0.1:{way.port}"
            cell = {"store": url, "member_name": f"gateway-{number}", "member_count": count}
            config = a_config(*urls, cell=cell, **settings)
            gateways.append(await stack.enter_async_context(gateway_in_loop(config, own, tls=tls)))
        made = CellInLoop(store, gateways, way)
        # The last gateway to join changes the share of all gateways, and the scheduler notifies them.
        await made.until_all(
            lambda status: status["cell"]["mode"] == "following" and status["cell"]["share"].endswith(f"/{count}")
        )
        yield made
