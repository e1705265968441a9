"""Running components of one gateway process."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.compose.accounts import TenantAccounts
from headgate.compose.engines import Engines
from headgate.compose.fleets import Fleets
from headgate.compose.listener_tls import ListenerCertificates
from headgate.compose.observability import Observability
from headgate.config.settings import Settings
from headgate.control.autoscaling import AutoscalingService
from headgate.control.learned_speeds import LearnedSpeeds
from headgate.control.options import FileStamp
from headgate.control.rollouts.service import RolloutService
from headgate.control.trials.service import TrialService
from headgate.edge.app import GatewayApp
from headgate.edge.large_bodies.client import LargeBodyReader
from headgate.edge.listener import Listener
from headgate.edge.open_attempts import OpenAttempts
from headgate.engines.batching.batcher import Batchers
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.ports.clock import Clock
from headgate.telemetry.config_metrics import ConfigStats

if TYPE_CHECKING:
    import aiohttp

    from headgate.fleets.keda.scaler import KedaScaler
    from headgate.hosts.cell.redis.registry import MemberRegistry


@dataclass(slots=True)
class Configuration:
    """The configuration in force and the one that will replace it."""

    settings: Settings
    staged: Settings | None = None
    """Pending configuration, already read here. It is applied once the rest of the cell has read it too."""
    problems: tuple[str, ...] = ()
    """Problems in the last configuration file, if it was rejected."""
    files: Mapping[Path, FileStamp] = field(default_factory=dict[Path, FileStamp])
    """Stamps of the files that were read most recently, including those of a rejected configuration."""
    in_force_since: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When the settings in force were applied."""
    started: Settings = field(init=False)
    """Settings with which the process was started."""
    restart_needed: tuple[str, ...] = ()
    """Settings in force that differ from those in use until the process is restarted."""

    def __post_init__(self) -> None:
        self.started = self.settings

    def stats(self, keys_verified: Mapping[str, int]) -> ConfigStats:
        """`keys_verified` is the number of verified keys by fingerprint of the key secret."""
        return ConfigStats(self.in_force_since.timestamp(), not self.problems, len(self.restart_needed), keys_verified)


@dataclass(slots=True)
class GatewayParts:
    clock: Clock
    session: "aiohttp.ClientSession"
    observability: Observability
    accounts: TenantAccounts
    scaling: AutoscalingService
    rollouts: RolloutService
    trials: TrialService
    host: LocalHost | CellHost
    engines: Engines
    batchers: Batchers
    fleets: Fleets
    attempts: OpenAttempts
    large_bodies: LargeBodyReader
    app: GatewayApp
    certificates: ListenerCertificates
    cell: CellHost | None = None
    """The host, if the process belongs to a cell."""
    registry: "MemberRegistry | None" = None
    listeners: tuple[Listener, ...] = ()
    """The client listener, if this process serves clients, followed by the admin listener."""
    keda: "KedaScaler | None" = None
    speeds: LearnedSpeeds | None = None

    @property
    def is_deciding(self) -> bool:
        """Whether this process makes scheduling decisions."""
        return self.cell is None or self.cell.is_leader

    def start_services(self) -> Iterator[asyncio.Task[None]]:
        """Starts watching the TLS files, and starts this process's optional services."""
        yield asyncio.create_task(self.fleets.tls.run(self.engines.renew_connections))
        yield asyncio.create_task(self.rollouts.run(lambda: self.is_deciding))
        yield asyncio.create_task(self.trials.run(lambda: self.is_deciding))
        for service in (self.certificates, self.registry, self.speeds):
            if service is not None:
                yield asyncio.create_task(service.run())

    async def stop_services(self) -> None:
        await self.stop_scaler()
        if self.speeds is not None:
            await self.speeds.stop()

    async def stop_scaler(self) -> None:
        if self.keda is not None:
            await self.keda.stop()
