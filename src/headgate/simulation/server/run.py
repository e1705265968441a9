"""Runs several simulated engines in one process."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headgate.ports.clock import Clock
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.options import EngineOptions


@asynccontextmanager
async def run_engines(engines: Sequence[EngineOptions], clock: Clock) -> AsyncGenerator[list[EngineServer]]:
    """Runs all engines until the block ends, or none if one of them cannot listen."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(EngineServer(each, clock)) for each in engines]
