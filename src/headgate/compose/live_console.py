"""A gateway's console: its files, live updates and data sources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.config.settings import Settings
from headgate.console.assets import load_assets
from headgate.core.summary import Summary
from headgate.edge.admin.console import AdminConsole
from headgate.model.units import Instant
from headgate.model.verdict import Verdict
from headgate.ports.engine import Capabilities
from headgate.ports.records import RequestRecord
from headgate.telemetry.live.live_state import GatewayInfo, LiveSources, LiveState
from headgate.telemetry.meters import Meters
from headgate.telemetry.scaling_metrics import PoolScaling


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """Functions that return the current state of the gateway's components."""

    now: Callable[[], Instant]
    gateway: Callable[[], GatewayInfo]
    summary: Callable[[], Summary]
    engines: Callable[[], Sequence[Capabilities]]
    scaling: Callable[[], Sequence[PoolScaling]]
    verdicts: Callable[[], Sequence[Verdict]]


class LiveConsole:
    """Live data for the console. Created before the components that it shows. Also receives each request record."""

    def __init__(self, settings: Settings, meters: Meters) -> None:
        self._settings = settings
        self._meters = meters
        self._state: LiveState | None = None
        self._console: AdminConsole | None = None

    def add(self, record: RequestRecord) -> None:
        if self._state is not None:
            self._state.requests.add(record)

    def open(self, watched: ConsoleSources) -> AdminConsole:
        """Opens the console with these data sources."""
        sources = LiveSources(
            now=watched.now,
            gateway=watched.gateway,
            summary=watched.summary,
            engines=watched.engines,
            scaling=watched.scaling,
            verdicts=watched.verdicts,
            has_prices=lambda: any(pool.prices for pool in self._settings.policy.pools),
        )
        self._state = LiveState(self._meters, sources, self._settings.stage_budgets)
        self._console = AdminConsole(load_assets(), self._state.initial_events)
        return self._console

    async def run(self) -> None:
        assert self._state is not None
        assert self._console is not None
        console = self._console
        await self._state.run(lambda: console.subscribers, console.broadcast)

    def change_to(self, settings: Settings) -> None:
        self._settings = settings
        if self._state is not None:
            self._state.change_budgets(settings.stage_budgets)

    def close(self) -> None:
        """Disconnects the console's clients, so that the listener does not wait for them."""
        if self._console is not None:
            self._console.close()
