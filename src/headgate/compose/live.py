"""How does the console come to know what a gateway does?

The page and its files, what is told to it each second, and the parts of the gateway that this is made of.
"""

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
from headgate.telemetry.live.state import GatewayNow, LiveSources, LiveState
from headgate.telemetry.meters import Meters
from headgate.telemetry.scaling import PoolScaling
from headgate.telemetry.tenants_now import TenantsNow


@dataclass(frozen=True, slots=True)
class Watched:
    """What the parts of a gateway tell of themselves at the moment they are asked."""

    now: Callable[[], Instant]
    gateway: Callable[[], GatewayNow]
    summary: Callable[[], Summary]
    engines: Callable[[], Sequence[Capabilities]]
    scaling: Callable[[], Sequence[PoolScaling]]
    verdicts: Callable[[], Sequence[Verdict]]


class Live:
    """Made before the parts that it watches. It is a keeper of records."""

    def __init__(self, settings: Settings, meters: Meters) -> None:
        self.tenants = TenantsNow()
        """An observer of the requests of this process."""
        self._settings = settings
        self._meters = meters
        self._state: LiveState | None = None
        self._console: AdminConsole | None = None

    def take(self, record: RequestRecord) -> None:
        if self._state is not None:
            self._state.take(record)

    def open(self, watched: Watched) -> AdminConsole:
        """From here on there is something to be seen."""
        sources = LiveSources(
            now=watched.now,
            gateway=watched.gateway,
            summary=watched.summary,
            engines=watched.engines,
            scaling=watched.scaling,
            verdicts=watched.verdicts,
            has_prices=lambda: any(pool.prices for pool in self._settings.policy.pools),
        )
        self._state = LiveState(self._meters, self.tenants, sources, self._settings.stage_budgets)
        self._console = AdminConsole(load_assets(), self._state.first_events)
        return self._console

    async def run(self) -> None:
        assert self._state is not None
        assert self._console is not None
        console = self._console
        await self._state.run(lambda: console.listeners, console.tell)

    def change_to(self, settings: Settings) -> None:
        self._settings = settings
        if self._state is not None:
            self._state.change_budgets(settings.stage_budgets)

    def close(self) -> None:
        """Lets go of whoever watches, so that nobody waits for them."""
        if self._console is not None:
            self._console.close()
