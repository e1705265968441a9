"""Observability for one gateway process: metrics, records, traces, diagnosis and console.

These components make no decisions, and the gateway can serve requests without them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.compose.live_console import ConsoleSources, LiveConsole
from headgate.compose.records import RecordStore, process_name
from headgate.compose.traces import Tracing
from headgate.config.settings import Settings
from headgate.control.diagnosis import DiagnosisService
from headgate.control.leader_client import LeaderClient
from headgate.core.summary import Summary
from headgate.edge.admin.api import AdminRoute
from headgate.edge.admin.console import AdminConsole
from headgate.edge.admin.traffic import traffic_routes
from headgate.engines.page import Page
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.model.units import SECOND, Duration, Instant, PoolName
from headgate.model.verdict import Cause, Verdict
from headgate.ports.engine import Capabilities
from headgate.ports.observer import Observer
from headgate.ports.records import RequestRecord
from headgate.telemetry.audit.read_log import ReadLog
from headgate.telemetry.cell_metrics import CellStats
from headgate.telemetry.config_metrics import ConfigStats, config_metrics
from headgate.telemetry.cost_observer import CostObserver
from headgate.telemetry.decision_history import DecisionHistory
from headgate.telemetry.directory_metrics import DirectoryStats
from headgate.telemetry.engine_metrics import EngineReadings
from headgate.telemetry.exposition import MetricFamily
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.host_report import HostSources, StoreHealth
from headgate.telemetry.identity_metrics import IdentityStats, identity_metrics
from headgate.telemetry.ledger_metrics import LedgerStats
from headgate.telemetry.live.live_state import GatewayInfo
from headgate.telemetry.log_observer import LogObserver
from headgate.telemetry.loop_lag import measure_loop_lag
from headgate.telemetry.loop_watchdog import LoopWatchdog, loop_iteration_metrics
from headgate.telemetry.meters import Meters
from headgate.telemetry.process_metrics import process_stats
from headgate.telemetry.prometheus import OptionalMetrics, render
from headgate.telemetry.recording.traffic_recorder import TrafficRecorder
from headgate.telemetry.records.stats import records_metrics
from headgate.telemetry.scaling_metrics import PoolScaling
from headgate.telemetry.shortages import shortages
from headgate.telemetry.stages.stage_meters import stage_metrics
from headgate.telemetry.tls_metrics import ListenerTlsStats, tls_metrics
from headgate.telemetry.traces.stats import trace_metrics
from headgate.telemetry.trial_metrics import TrialStats, trial_metrics
from headgate.telemetry.verdict_metrics import CurrentVerdict, verdict_row

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Functions that return the current state of the gateway's components."""

    now: Callable[[], Instant]
    summary: Callable[[], Summary]
    resources_held: Callable[[], dict[str, int]]
    signals: Callable[[], EngineReadings]
    scaling: Callable[[], Sequence[PoolScaling]]
    cell: Callable[[], CellStats | None]
    ledger: Callable[[], LedgerStats | None]
    directory: Callable[[], DirectoryStats | None]
    identity: Callable[[], IdentityStats | None]
    decide_s: Callable[[], float]
    """Time spent on decisions since the process started, in seconds."""
    decides: Callable[[], bool]
    """Whether this process makes scheduling decisions."""
    connect_times: Callable[[], Sequence[tuple[PoolName, Duration]]]
    """Recent connect times for each pool."""
    name_problems: Callable[[], Sequence[str]]
    """Name resolution failures that affect endpoints."""
    configuration: Callable[[], ConfigStats]
    trials: Callable[[], TrialStats]
    gateway: Callable[[], GatewayInfo]
    engines: Callable[[], Sequence[Capabilities]]
    session: "aiohttp.ClientSession"
    tls: Callable[[], Sequence[ListenerTlsStats]]
    get_member_page: Callable[..., Awaitable[Page]]
    """Reads a page of another member of the cell."""


class Observability:
    """Observability components for one process. Must be created and run inside an event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # In a cell, bills arrive after a request has ended, and `CostObserver` counts them.
        self.meters = Meters(counts_bills=settings.cell is None)
        self.meters.set_objectives({str(name): each for name, each in settings.objectives.items()})
        self._costs = () if settings.cell is None else (CostObserver(self.meters),)
        self.decisions = DecisionHistory()
        self.records = RecordStore(settings, self.decisions)
        self.reads = ReadLog(settings.audit, process_name())
        """Log of tenant data that operators have read."""
        self._traces = Tracing(settings)
        self._live = LiveConsole(settings, self.meters)
        self._diagnosis = DiagnosisService(has_operators=bool(settings.admin_keys or settings.operators))
        self.recorder: TrafficRecorder | None = None
        """Recordings of traffic. None if there is no admin API."""
        self._leader_client: LeaderClient | None = None
        """Client for the cell scheduler's verdicts. Created when this process starts."""
        self._loop_lag = Histogram()
        self.turns = LoopWatchdog(asyncio.get_running_loop().call_soon_threadsafe)
        self._tasks: set[asyncio.Task[None]] = set()

    # Observation

    @property
    def request_observers(self) -> tuple[Observer, ...]:
        """Observers for this process's requests."""
        return self.meters, self.decisions, LogObserver()

    @property
    def billing_observers(self) -> tuple[Observer, ...]:
        """Request observers that see a request end only once its bills have arrived."""
        return self._costs

    @property
    def scheduler_observers(self) -> tuple[Observer, ...]:
        """Observers for scheduling decisions, if this process makes them."""
        return (self._diagnosis,)

    def add(self, record: RequestRecord) -> None:
        """Receives the record of a finished request."""
        self._live.add(record)
        self.records.add(record)
        self._traces.add(record)
        if self.recorder is not None:
            self.recorder.add(record)

    def recordings_held(self) -> dict[str, int]:
        """Returns the number of recordings of traffic, and of the requests in them."""
        recorder = self.recorder
        if recorder is None:
            return {"recordings": 0, "recorded_requests": 0}
        return {"recordings": recorder.recordings, "recorded_requests": recorder.requests}

    def traffic_routes(self, host: LocalHost | CellHost, now: Callable[[], Instant]) -> Mapping[bytes, AdminRoute]:
        """Returns the admin paths that record traffic. Recordings continue if the configuration changes."""
        recorder = self.recorder = self.recorder or TrafficRecorder(now, host.add_observer)
        return traffic_routes(recorder.start, lambda: recorder.start_with(self.records.recent_records()), recorder.read)

    # Lifecycle

    def start(self, sources: StatusSources, on_task_done: Callable[["asyncio.Task[None]"], None]) -> None:
        """Starts the background tasks. `on_task_done` is called when one of them ends."""
        self._run(measure_loop_lag(self._loop_lag), on_task_done)
        self.turns.start()
        self.records.start()
        self._traces.start()
        self._run(self._live.run(), on_task_done)
        looks = self._diagnosis.run(
            _host_sources(sources), summary=sources.summary, decides=sources.decides, now=sources.now
        )
        self._run(looks, on_task_done)
        self._leader_client = LeaderClient(
            sources.session, partial(_leader_address, sources), sources.now, get=sources.get_member_page
        )
        self._run(self._leader_client.run(), on_task_done)

    def console(self, sources: StatusSources) -> AdminConsole:
        """Opens the console, which shows live data from then on."""
        return self._live.open(
            ConsoleSources(
                now=sources.now,
                gateway=sources.gateway,
                summary=sources.summary,
                engines=sources.engines,
                scaling=sources.scaling,
                verdicts=self.verdicts,
            )
        )

    def verdicts(self) -> Sequence[Verdict]:
        """Returns the current verdicts, worst first."""
        heard = () if self._leader_client is None else self._leader_client.verdicts()
        return sorted((*self._diagnosis.verdicts, *heard), key=lambda each: each.cause is Cause.HEALTHY)

    def verdict_page(self, sources: StatusSources) -> Mapping[str, object]:
        """Returns the verdicts as a page, with the name of the scheduler observing the cell's pools."""
        gateway, now = sources.gateway(), sources.now()
        cell = gateway.cell
        return {
            "gateway": gateway.name,
            "decides": sources.decides(),
            "scheduler": None
            if cell is None or cell.scheduler is None
            else dict(zip(("name", "admin"), cell.scheduler, strict=True)),
            "verdicts": [verdict_row(each, now) for each in self.verdicts()],
        }

    def close_console(self) -> None:
        """Disconnects console clients, so that the listener does not wait for them."""
        self._live.close()

    def _run(self, work: Coroutine[object, object, None], ended: Callable[["asyncio.Task[None]"], None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ended)

    def change_to(self, settings: Settings) -> None:
        self._settings = settings
        self.meters.set_objectives({str(name): each for name, each in settings.objectives.items()})
        self._live.change_to(settings)
        self.records.change_to(settings)
        self._traces.change_to(settings)

    async def stop(self) -> None:
        self.turns.stop()
        for task in (running := tuple(self._tasks)):
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self.records.stop()
        await self._traces.stop()

    # Output

    def metrics(self, sources: StatusSources) -> Callable[[], tuple[bytes, str]]:
        """Takes a snapshot now and returns a function that renders it as a page and can run in any thread."""
        return partial(
            render,
            self.meters,
            self._loop_lag,
            sources.summary(),
            sources.resources_held(),
            sources.signals(),
            optional=OptionalMetrics(
                scaling=sources.scaling(),
                cell=sources.cell(),
                ledger=sources.ledger(),
                directory=sources.directory(),
                process=process_stats(sources.decide_s()),
                verdicts=[CurrentVerdict(each.pool, each.cause, each.incident) for each in self._diagnosis.verdicts],
                extra_families=self._more_metrics(sources),
            ),
        )

    def _more_metrics(self, sources: StatusSources) -> Iterator[MetricFamily]:
        yield loop_iteration_metrics(self.turns)
        yield from stage_metrics(self.records.stages)
        yield from records_metrics(self.records.figures())
        if (traces := self._traces.figures()) is not None:
            yield from trace_metrics(traces)
        yield from tls_metrics(sources.tls())
        yield from config_metrics(sources.configuration())
        yield from trial_metrics(sources.trials())
        if (identity := sources.identity()) is not None:
            yield from identity_metrics(identity)


def _leader_address(sources: StatusSources) -> str | None:
    """Returns the scheduler's admin address, or None if this process is the scheduler or the address is unknown."""
    cell = sources.gateway().cell
    return None if cell is None or cell.is_leader or cell.scheduler is None else cell.scheduler[1] or None


def _host_sources(sources: StatusSources) -> HostSources:
    """Returns the data sources for this process's health report."""

    def store() -> StoreHealth | None:
        cell = sources.cell()
        return None if cell is None else StoreHealth(Duration(round(cell.store_round_trip_s * SECOND)), cell.store_up)

    def database_up() -> bool | None:
        directory = sources.directory()
        return None if directory is None else directory.fresh

    def disk_problem() -> str | None:
        ledger = sources.ledger()
        return None if ledger is None else ledger.disk_problem

    return HostSources(
        process=lambda: sources.gateway().name,
        scheduler_busy_s=sources.decide_s,
        transport=sources.connect_times,
        store=store,
        database_up=database_up,
        shortages=lambda: shortages(disk_problem(), sources.name_problems()),
    )
