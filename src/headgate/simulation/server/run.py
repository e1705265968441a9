"""How do several engines run in one process?"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headgate.ports.clock import Clock
from headgate.simulation.server.listener import EngineServer
from headgate.simulation.server.options import EngineOptions


@asynccontextmanager
async def run_engines(engines: Sequence[EngineOptions], clock: Clock) -> AsyncGenerator[list[EngineServer]]:
    """All of them, from their start to the end of the block; none if one of them cannot listen."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(EngineServer(each, clock)) for each in engines]
