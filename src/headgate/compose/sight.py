"""How is it seen what a gateway does, and what is wrong with it?

All by which one process is looked at: what it counts, which decisions it remembers, what it tells of itself to
Prometheus and to whoever asks for one request. Nothing here decides anything, and a gateway without any of it would
serve all the same.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headgate.compose.live import Live, Watched
from headgate.compose.records import KeptRecords
from headgate.compose.traces import LiveTraces
from headgate.config.settings import Settings
from headgate.control.diagnosis import LiveDiagnosis
from headgate.control.leader_client import SchedulerWord
from headgate.core.summary import Summary
from headgate.edge.admin.console import AdminConsole
from headgate.model.units import SECOND, Duration, Instant, PoolName
from headgate.model.verdict import Cause, Verdict
from headgate.ports.engine import Capabilities
from headgate.ports.observer import Observer
from headgate.ports.records import RequestRecord
from headgate.telemetry.cell import CellFigures
from headgate.telemetry.costs import Costs
from headgate.telemetry.decisions import Decisions
from headgate.telemetry.directory import DirectoryFigures
from headgate.telemetry.engines import EngineSignals
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.host_report import HostSources, StoreSeen
from headgate.telemetry.ledger import LedgerFigures
from headgate.telemetry.live.state import GatewayNow
from headgate.telemetry.log import LogObserver
from headgate.telemetry.loop_lag import measure_for_ever
from headgate.telemetry.loop_turns import TurnWatch, turn_metrics
from headgate.telemetry.meters import Meters
from headgate.telemetry.page import Family
from headgate.telemetry.process import process_figures
from headgate.telemetry.prometheus import Beside, render
from headgate.telemetry.records.figures import records_metrics
from headgate.telemetry.scaling import PoolScaling
from headgate.telemetry.shortages import shortages
from headgate.telemetry.stages.meters import stage_metrics
from headgate.telemetry.traces.figures import trace_metrics
from headgate.telemetry.verdicts import Present, verdict_row

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class Sources:
    """What the parts of a gateway tell of themselves at the moment they are asked."""

    now: Callable[[], Instant]
    summary: Callable[[], Summary]
    held: Callable[[], dict[str, int]]
    signals: Callable[[], EngineSignals]
    scaling: Callable[[], Sequence[PoolScaling]]
    cell: Callable[[], CellFigures | None]
    ledger: Callable[[], LedgerFigures | None]
    directory: Callable[[], DirectoryFigures | None]
    decide_s: Callable[[], float]
    """What the scheduler itself took since the process started."""
    decides: Callable[[], bool]
    """Whether it is decided in this process."""
    transport: Callable[[], Sequence[tuple[PoolName, Duration]]]
    """How long it takes to connect to the endpoints of each pool that there is news of."""
    name_problems: Callable[[], Sequence[str]]
    """Failures of name resolution that concern endpoints."""
    gateway: Callable[[], GatewayNow]
    engines: Callable[[], Sequence[Capabilities]]
    session: "aiohttp.ClientSession"


class Sight:
    """Made and run inside an event loop. It is a keeper of records."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.meters = Meters()
        self.meters.promise({str(name): each for name, each in settings.objectives.items()})
        self._costs = Costs(self.meters)
        self.decisions = Decisions()
        self.kept = KeptRecords(settings, self.decisions)
        self._traces = LiveTraces(settings)
        self._live = Live(settings, self.meters)
        self._diagnosis = LiveDiagnosis(operable=bool(settings.admin_keys))
        self._word: SchedulerWord | None = None
        """What whoever decides says of the pools, once this process runs."""
        self._loop_lag = Histogram()
        self.turns = TurnWatch(asyncio.get_running_loop().call_soon_threadsafe)
        self._tasks: set[asyncio.Task[None]] = set()

    # What it sees

    @property
    def of_requests(self) -> tuple[Observer, ...]:
        """Who sees the requests of this process."""
        return self.meters, self.decisions, self._live.tenants, LogObserver()

    @property
    def bookkeepers(self) -> tuple[Observer, ...]:
        """Who sees the same, but the end of a request only with its bills."""
        return (self._costs,)

    @property
    def of_scheduler(self) -> tuple[Observer, ...]:
        """Who sees what is decided, where that is done in this process."""
        return (self._diagnosis,)

    def take(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._live.take(record)
        self.kept.take(record)
        self._traces.take(record)

    # Its life

    def begin(self, sources: Sources, ended: Callable[["asyncio.Task[None]"], None]) -> None:
        """`ended` is told of whatever runs from here on and ends by itself."""
        self._run(measure_for_ever(self._loop_lag), ended)
        self.turns.start()
        self.kept.begin()
        self._traces.begin()
        self._run(self._live.run(), ended)
        looks = self._diagnosis.run(_host(sources), summary=sources.summary, decides=sources.decides, now=sources.now)
        self._run(looks, ended)
        self._word = SchedulerWord(sources.session, partial(_scheduler, sources), sources.now)
        self._run(self._word.run(), ended)

    def console(self, sources: Sources) -> AdminConsole:
        """The page for people, as of here."""
        return self._live.open(
            Watched(
                now=sources.now,
                gateway=sources.gateway,
                summary=sources.summary,
                engines=sources.engines,
                scaling=sources.scaling,
                verdicts=self.verdicts,
            )
        )

    def verdicts(self) -> Sequence[Verdict]:
        """What is the matter at this moment, the worst first."""
        heard = () if self._word is None else self._word.verdicts()
        return sorted((*self._diagnosis.verdicts, *heard), key=lambda each: each.cause is Cause.HEALTHY)

    def verdict(self, sources: Sources) -> Mapping[str, object]:
        """The same as a page, and in a cell who knows of its pools."""
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

    def let_go(self) -> None:
        """Whoever watches is let go, so that the listener need not wait for them."""
        self._live.close()

    def _run(self, work: Coroutine[object, object, None], ended: Callable[["asyncio.Task[None]"], None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ended)

    def change_to(self, settings: Settings) -> None:
        self._settings = settings
        self.meters.promise({str(name): each for name, each in settings.objectives.items()})
        self._live.change_to(settings)
        self.kept.change_to(settings)
        self._traces.change_to(settings)

    async def stop(self) -> None:
        self.turns.stop()
        for task in (running := tuple(self._tasks)):
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self.kept.stop()
        await self._traces.stop()

    # What it tells

    def metrics(self, sources: Sources) -> Callable[[], tuple[bytes, str]]:
        """What makes the page, in whichever thread; the picture of this moment is taken here."""
        return partial(
            render,
            self.meters,
            self._loop_lag,
            sources.summary(),
            sources.held(),
            sources.signals(),
            beside=Beside(
                scaling=sources.scaling(),
                cell=sources.cell(),
                ledger=sources.ledger(),
                directory=sources.directory(),
                process=process_figures(sources.decide_s()),
                verdicts=[Present(each.pool, each.cause, each.incident) for each in self._diagnosis.verdicts],
                more=self._more(),
            ),
        )

    def _more(self) -> Iterator[Family]:
        yield turn_metrics(self.turns)
        yield from stage_metrics(self.kept.stages)
        yield from records_metrics(self.kept.figures())
        if (traces := self._traces.figures()) is not None:
            yield from trace_metrics(traces)


def _scheduler(sources: Sources) -> str | None:
    """Where whoever decides listens for operators, where that is another process of the cell and is known."""
    cell = sources.gateway().cell
    return None if cell is None or cell.leads or cell.scheduler is None else cell.scheduler[1] or None


def _host(sources: Sources) -> HostSources:
    """What this process tells of itself."""

    def store() -> StoreSeen | None:
        cell = sources.cell()
        return None if cell is None else StoreSeen(Duration(round(cell.store_round_trip_s * SECOND)), cell.store_up)

    def database_up() -> bool | None:
        directory = sources.directory()
        return None if directory is None else directory.fresh

    def disk_problem() -> str | None:
        ledger = sources.ledger()
        return None if ledger is None else ledger.disk_problem

    return HostSources(
        process=lambda: sources.gateway().name,
        decide_s=sources.decide_s,
        transport=sources.transport,
        store=store,
        database_up=database_up,
        shortages=lambda: shortages(disk_problem(), sources.name_problems()),
    )
