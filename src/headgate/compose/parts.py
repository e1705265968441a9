"""The running parts of one gateway process, for those who change or show them."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.compose.accounts import Accounts
from headgate.compose.engines import Engines
from headgate.compose.fleets import Fleets
from headgate.compose.sight import Sight
from headgate.config.settings import Settings
from headgate.control.autoscaling import Scaling
from headgate.control.learned_speeds import LearnedSpeeds
from headgate.edge.door import Door
from headgate.edge.large_bodies.client import LargeBodies
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.server import Listener
from headgate.engines.batching.batcher import Batchers
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.ports.clock import Clock

if TYPE_CHECKING:
    import aiohttp

    from headgate.fleets.keda.scaler import KedaScaler
    from headgate.hosts.cell.redis.registry import Registry


@dataclass(slots=True)
class Configuration:
    """The configuration in force, and the one that is to follow."""

    settings: Settings
    staged: Settings | None = None
    """Was read and waits for the rest of the cell."""
    problems: tuple[str, ...] = ()
    """Why the file that was read last was rejected."""


@dataclass(slots=True)
class Parts:
    clock: Clock
    session: "aiohttp.ClientSession"
    sight: Sight
    accounts: Accounts
    scaling: Scaling
    host: LocalHost | CellHost
    engines: Engines
    batchers: Batchers
    fleets: Fleets
    attempts: OpenAttempts
    large_bodies: LargeBodies
    door: Door
    cell: CellHost | None = None
    """The host, if it shares its queue with others."""
    registry: "Registry | None" = None
    listeners: tuple[Listener, ...] = ()
    """The one for callers, if this process serves any, and last the one for operators."""
    keda: "KedaScaler | None" = None
    speeds: LearnedSpeeds | None = None

    @property
    def decides(self) -> bool:
        """Whether the scheduler in this process decides."""
        return self.cell is None or self.cell.leads

    def start_services(self) -> Iterator[asyncio.Task[None]]:
        """Starts the services that this process has only by its configuration."""
        for service in (self.registry, self.speeds):
            if service is not None:
                yield asyncio.create_task(service.run())

    async def stop_services(self) -> None:
        await self.stop_scaler()
        if self.speeds is not None:
            await self.speeds.stop()

    async def stop_scaler(self) -> None:
        if self.keda is not None:
            await self.keda.stop()
