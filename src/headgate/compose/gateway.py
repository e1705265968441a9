"""Which real parts make a gateway, and how are they put together?

The only place that turns configuration into things that run. Every part gets plain `arguments`;
none of them sees the configuration.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headgate import __version__
from headgate.compose import arguments
from headgate.compose.accounts import Accounts
from headgate.compose.cell import cell_figures, cell_now, cell_status, open_cell, open_registry
from headgate.compose.engines import Engines
from headgate.compose.fleets import Fleets
from headgate.compose.keda import start_scaler
from headgate.compose.sight import Sight, Sources
from headgate.config.problems import ConfigErrors
from headgate.config.quantities import address_text
from headgate.config.settings import Settings
from headgate.control.autoscaling import Scaling
from headgate.control.request_search import Requests
from headgate.core.events import BudgetsTold, PolicyChanged
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary, held_by_pool
from headgate.edge import request_record
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.app import AdminApp
from headgate.edge.connection import Refused
from headgate.edge.door import Door
from headgate.edge.large_bodies.client import LargeBodies
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.replies import Replies
from headgate.edge.server import Listener, bind
from headgate.engines.batching.batcher import Batchers
from headgate.engines.page import open_session
from headgate.engines.watch import EngineWatch
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.limits import LimitsLeft
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, EndpointId, PoolName, RequestId, TenantId
from headgate.ports.fleet import Phase
from headgate.ports.observer import Observer
from headgate.telemetry.live.state import GatewayNow
from headgate.telemetry.log import log, tell

if TYPE_CHECKING:
    from headgate.fleets.keda.scaler import KedaScaler
    from headgate.hosts.cell.redis.registry import CellMember, Registry

_EXIT_MISTAKE = 70


class Gateway:
    """One gateway process, with a scheduler of its own or one shared with others. Made and run inside an event loop.

    One that `serves` nobody is a candidate to be the scheduler of its cell, and nothing else.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        *,
        observers: Sequence[Observer] = (),
        serves: bool = True,
        worker: int | None = None,
        open_watch: Callable[..., EngineWatch] = EngineWatch,
    ) -> None:
        self._settings = settings
        self._serves = serves
        self._staged: Settings | None = None
        """What was read anew and waits for the rest of the cell."""
        self._load = load
        self._reload_problems: tuple[str, ...] = ()
        self._reloading = asyncio.Lock()
        self._started_at = time.monotonic()
        self._leave = asyncio.Event()
        self._fault: BaseException | None = None
        self._clock = SystemClock()
        # Before anything that would have to be closed, should a part of it not be fit.
        self._sight = Sight(settings)
        self._meters = self._sight.meters
        self._accounts = Accounts(settings, self._clock.now, self._tell_budgets, self._directory_changed)
        self._session = open_session()
        self._accounts.open_notices(self._session)
        self._scaling = Scaling(arguments.scaling_rules(settings))
        self._cell: CellHost | None = None
        self._host = self._open_host((*self._sight.of_requests, *observers), worker)
        self._engines = Engines(self._session, self._host.tell, self._host.summary, open_watch=open_watch)
        if self._cell is not None:
            self._engines.watch.rest()
        self._batchers = Batchers(self._engines.asked, self._meters.batched)
        self._fleets = Fleets(
            self._session, self._known, self._follow_fleets, on_start=self._on_start, on_drain=self._meters.drained
        )
        self._attempts = OpenAttempts(self._host.tell)
        self._large_bodies = LargeBodies()
        self._door = self._open_door(settings)
        self._listeners: tuple[Listener, ...] = ()
        self._beside: set[asyncio.Future[None]] = set()
        self._shared = worker is not None
        self._keda: KedaScaler | None = None
        self._registry = self._open_registry()
        requests = self._open_requests()
        self._admin = AdminApp(
            ready=self._ready,
            metrics=self._metrics,
            status=self._status,
            explain=requests.explain,
            requests=requests.search,
            verdict=lambda: self._sight.verdict(self._sources()),
        )
        self._admin.api = self._open_admin_api(settings)
        self._take_over(settings)

    def _open_door(self, settings: Settings) -> Door:
        return Door(
            host=self._host,
            engines=self._batchers,
            attempts=self._attempts,
            access=self._accounts.access(settings, self._limits_left, self._host.budgets_left),
            limits=arguments.door_limits(settings),
            replies=Replies(settings.error_docs, settings.quote_engine_errors),
            turned_away=self._meters.turned_away,
            read_large=self._large_bodies.read,
            cap_large=self._large_bodies.cap,
            zone=settings.zone,
            metadata_names=arguments.metadata_names(settings),
            records=self._sight,
            sample_ppm=arguments.sample_ppm(settings),
        )

    def _open_registry(self) -> "Registry | None":
        cell = self._settings.cell
        if self._cell is None or cell is None:
            return None
        return open_registry(self._cell, cell, lambda: self._listeners[-1].address)

    def _open_requests(self) -> Requests:
        archive, now = self._sight.kept.archive, self._clock.now
        if self._cell is None or self._registry is None:
            return Requests(archive, self._session, now)
        return Requests(archive, self._session, now, own=self._cell.name, members=self._registry.members)

    def members(self) -> "list[CellMember]":
        """Of the cell, those that were heard of in the last seconds; none without a cell."""
        return [] if self._registry is None else self._registry.members()

    def _open_host(self, observers: Sequence[Observer], worker: int | None) -> LocalHost | CellHost:
        cell, accounts = self._settings.cell, self._accounts
        if cell is None:
            deciding = (self._scaling, *accounts.of_scheduler, *self._sight.of_scheduler)
            watching = (*observers, *accounts.of_requests, *self._sight.bookkeepers, *deciding)
            return LocalHost(Scheduler(), self._clock, watching, self._on_fault)
        self._cell = open_cell(
            self._settings,
            cell,
            self._clock,
            observers,
            self._on_fault,
            of_scheduler=(self._scaling, *accounts.of_scheduler, *self._sight.of_scheduler),
            on_duty=self._on_duty,
            on_agreed=self._on_agreed,
            serves=self._serves,
            worker=worker,
            bookkeepers=(*accounts.of_requests, *self._sight.bookkeepers),
        )
        return self._cell

    async def run(self, started: Callable[[tuple[str, int] | None, tuple[str, int]], None]) -> int:
        """Serves until `leave` is called, then drains. The exit code says whether all went well."""
        try:
            await self._serve(started)
        except Exception:
            # After one mistake others follow; the first is in the log, and the exit code says that there was one.
            if self._fault is None:
                raise
        finally:
            self._leave.set()
            await self._fleets.stop()
            await self._engines.watch.stop()
            self._host.stop()
            await self._accounts.stop()
            await self._sight.stop()
            if self._cell is not None:
                await self._cell.store.stop()
            self._engines.close()
            await self._large_bodies.stop()
            await self._session.close()
        return 0 if self._fault is None else _EXIT_MISTAKE

    def _listen(self) -> tuple[Listener, ...]:
        """The one for callers, where there are any, and last the one for operators."""
        bounds = arguments.bounds(self._settings)
        if not self._serves:
            return (Listener(self._admin, bind(*self._settings.admin_listen), bounds),)
        for_callers = bind(*self._settings.listen, shared=self._shared)
        try:
            for_operators = bind(*self._settings.admin_listen)
        except OSError:
            for_callers.close()
            raise
        door = Listener(self._door, for_callers, bounds, on_refused=self._refused)
        return door, Listener(self._admin, for_operators, bounds)

    def _refused(self, request_id: str, refused: Refused) -> None:
        """Before it became a request: it has a record by which its answer is explained, and no trace."""
        self._meters.turned_away(Outcome.INVALID)
        self._sight.kept.take(request_record.of_none(RequestId(request_id), refused.status, str(refused)))

    async def _serve(self, started: Callable[[tuple[str, int] | None, tuple[str, int]], None]) -> None:
        self._listeners = self._listen()
        *doors, admin = self._listeners
        beside = [
            *(asyncio.create_task(listener.sweep_for_ever()) for listener in self._listeners),
            asyncio.create_task(self._attempts.sweep_for_ever()),
            asyncio.create_task(self._engines.gpus.run()),
            asyncio.create_task(self._scaling.run(self._host.summary, self._clock.now, self._scale, self._decides)),
        ]
        if self._registry is not None:
            beside.append(asyncio.create_task(self._registry.run()))
        for task in beside:
            task.add_done_callback(self._ended_beside)
        try:
            self._admin.console = self._sight.console(self._sources())
            self._sight.begin(self._sources(), self._ended_beside)
            await self._accounts.begin(self._ended_beside)
            await asyncio.gather(*(listener.start() for listener in self._listeners))
            await self._fleets.begin()
            if self._cell is not None:
                self._cell.start()
            # How endpoints spent their time is known where this process decides about them.
            self._accounts.write(self._host.take_endpoint_times)
            if self._settings.scaler_listen is not None:
                self._keda = await start_scaler(self._settings.scaler_listen, self._scaling, self._host.summary)
            started(doors[0].address if doors else None, admin.address)
            await self._leave.wait()
            await asyncio.gather(self._drain(), self._stop_scaler())
        finally:
            await self._stop_scaler()
            self._sight.let_go()
            await asyncio.gather(*(listener.stop() for listener in self._listeners))
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _stop_scaler(self) -> None:
        """Before the last requests end: new ones go elsewhere, and only there it is known how many are wanted."""
        if self._keda is not None:
            await self._keda.stop()

    def leave(self) -> None:
        """Begins to drain; said once more, leaves at once."""
        if self._leave.is_set():
            self._door.hurry()
        self._leave.set()

    async def reload(self) -> None:
        """Takes the configuration anew if it is right, and otherwise keeps the one in force."""
        async with self._reloading:
            try:
                # A large file takes a while; streams go on meanwhile.
                settings = await asyncio.to_thread(self._load)
            except ConfigErrors as errors:
                self._reload_problems = tuple(str(problem) for problem in errors.problems)
                for problem in self._reload_problems:
                    tell(logging.WARNING, "the new configuration is wrong", problem=problem)
                tell(logging.WARNING, "the last good configuration stays in force", hash=self._settings.hash)
            else:
                self._reload_problems = ()
                # A gateway that leaves has nothing to gain from it, and may no longer have what it would change.
                if self._leave.is_set():
                    return
                if self._cell is not None:
                    # All of the cell go over to it together.
                    self._staged = settings
                    self._cell.stage(self._accounts.policy_hash(settings))
                else:
                    self._change_to(settings)
                    await self._fleets.start()

    def _on_agreed(self, policy_hash: str) -> None:
        """The cell goes by this configuration from here on."""
        staged = self._staged or self._settings
        if self._accounts.policy_hash(staged) != policy_hash or self._leave.is_set():
            return
        if self._staged is None:
            self._take_directory()
        else:
            self._staged = None
            self._change_to(staged)
            self._later(self._fleets.start())

    def _directory_changed(self) -> None:
        """Tenants or orders of the database have changed: they count at once, or when all of the cell have them."""
        if self._leave.is_set():
            return
        if self._cell is None:
            self._take_directory()
        else:
            self._cell.stage(self._accounts.policy_hash(self._staged or self._settings))

    def _take_directory(self) -> None:
        self._take_policy(self._settings)

    def _take_policy(self, settings: Settings) -> None:
        policy = self._accounts.policy(settings)
        self._door.access = self._accounts.access(settings, self._limits_left, self._host.budgets_left)
        self._host.tell(PolicyChanged(policy, self._accounts.policy_hash(settings)))

    def _later(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        task.add_done_callback(self._ended_beside)

    def _on_duty(self, looks: bool) -> None:  # noqa: FBT001  A state, told as it is.
        """Of a cell one process looks at the engines; an island looks for itself."""
        assert self._cell is not None
        if looks:
            self._engines.watch.resume(self._cell.ready_endpoints())
        else:
            self._engines.watch.rest()

    def _decides(self) -> bool:
        return self._cell is None or self._cell.leads

    def _change_to(self, settings: Settings) -> None:
        before, self._settings = self._settings, settings
        if self._keda is not None:
            self._keda.changed()
        if _listeners(before) != _listeners(settings):
            tell(logging.WARNING, "another listen address needs a restart")
        if before.cell != settings.cell:
            tell(logging.WARNING, "another cell needs a restart")
        self._accounts.change_to(settings)
        self._sight.change_to(settings)
        self._admin.api = self._open_admin_api(settings)
        self._door.limits = arguments.door_limits(settings)
        self._door.replies = Replies(settings.error_docs, settings.quote_engine_errors)
        self._door.zone = settings.zone
        self._door.metadata_names = arguments.metadata_names(settings)
        self._door.sample_ppm = arguments.sample_ppm(settings)
        for listener in self._listeners:
            listener.connections.bounds = arguments.bounds(settings)
        self._take_over(settings)

    def _take_over(self, settings: Settings) -> None:
        """Brings door, scheduler, fleets, engines and probes to what the settings say."""
        self._take_policy(settings)
        self._scaling.change_rules(arguments.scaling_rules(settings))
        self._batchers.change(arguments.batch_rules(settings), arguments.first_token_ns(settings))
        self._fleets.change_to(settings.pools)
        self._follow_fleets()

    def _follow_fleets(self) -> None:
        self._engines.follow(tuple(self._fleets.endpoints()))

    def _known(self, endpoint_id: EndpointId) -> EndpointSummary | None:
        return next((each for each in self._host.summary().endpoints if each.id == endpoint_id), None)

    async def _scale(self, pool: PoolName, endpoints: int) -> bool:
        if self._keda is not None:
            self._keda.changed()
        return not self._leave.is_set() and await self._fleets.scale(pool, endpoints)

    def _on_start(self, pool: PoolName, took_ns: Mapping[Phase, Duration]) -> None:
        self._meters.started(pool, took_ns)
        self._scaling.started(pool, Duration(sum(took_ns.values())))

    async def _drain(self) -> None:
        if self._fault is not None:
            self._door.draining = True
            return
        if self._shared:
            # The others of this machine take what comes from here on.
            for door in self._listeners[:-1]:
                await door.stop_taking()
        if self._cell is not None:
            self._cell.resign()
        grace_s = self._settings.drain_grace_ns / SECOND
        tell(logging.INFO, "leaving once every request has ended", open=self._door.open_requests, grace_s=grace_s)
        whole = await self._door.drain(grace_s)
        tell(logging.INFO, "leaving: every request ended" if whole else "leaving: the grace time is over")
        if self._cell is not None:
            await self._cell.leave()

    def _on_fault(self, mistake: BaseException) -> None:
        """A mistake of our own: nothing after it can be trusted, so the process ends and says so.

        The scheduler is asked no more how the open requests end. The server cuts them off: those that have got
        nothing yet with a status 500, the others in the middle, where it shows.
        """
        if self._fault is None:
            log.critical("this is a mistake in Headgate; leaving at once", exc_info=mistake)
            self._fault = mistake
        self._leave.set()
        self._door.hurry()

    def _ended_beside(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self._on_fault(mistake)

    # Who may ask for what

    def _tell_budgets(self, told: BudgetsTold) -> None:
        self._host.tell(told)

    def _limits_left(self, tenant_id: TenantId) -> LimitsLeft | None:
        """What the scheduler would say; in a cell that is mostly another process, and is told with every answer."""
        return self._host.limits_left(tenant_id) if isinstance(self._host, LocalHost) else None

    def _open_admin_api(self, settings: Settings) -> AdminApi | None:
        def endpoints() -> list[EndpointId]:
            return [each.id for each in self._host.summary().endpoints]

        return self._accounts.admin_api(settings, self._host.budgets_left, endpoints)

    # What the admin listener shows

    def _ready(self) -> tuple[bool, str]:
        if self._door.draining:
            return False, "leaving"
        return self._accounts.ready(serves=self._serves)

    def _sources(self) -> Sources:
        """What is asked when somebody wants to see this gateway."""
        cell, engines = self._cell, self._engines
        return Sources(
            now=self._clock.now,
            summary=self._host.summary,
            held=self._held,
            signals=engines.signals,
            scaling=self._scaling.told,
            cell=lambda: None if cell is None else cell_figures(cell),
            ledger=self._accounts.ledger_figures,
            directory=self._accounts.directory_figures,
            decide_s=lambda: self._host.decide_time.total_ns / SECOND,
            decides=self._decides,
            transport=engines.connect_times.medians,
            gateway=self._gateway_now,
            session=self._session,
            engines=engines.watch.capabilities,
        )

    def _gateway_now(self) -> GatewayNow:
        cell = self._cell
        return GatewayNow(
            name=address_text(*self._settings.listen) if cell is None else cell.name,
            version=__version__,
            uptime_s=time.monotonic() - self._started_at,
            config_hash=self._settings.hash,
            draining=self._door.draining,
            cell=None if cell is None else cell_now(cell, self.members()),
        )

    def _metrics(self) -> Callable[[], tuple[bytes, str]]:
        return self._sight.metrics(self._sources())

    def _held(self) -> dict[str, int]:
        """How much of everything that could pile up there is at this moment. All of it falls when traffic does.

        But for the process that reads large bodies, which stays from the first of them on."""
        return {
            "requests": self._door.open_requests,
            "body_bytes": self._door.bodies_bytes,
            "attempts": len(self._attempts),
            "lines": self._host.open_lines(),
            "metered_requests": self._meters.open_requests,
            "tasks": len(asyncio.all_tasks()),
            "connections": sum(len(listener.connections) for listener in self._listeners),
            "batched_inputs": self._batchers.waiting,
            "engine_connections": self._engines.connections,
            "reader_processes": self._large_bodies.processes,
            "notices": self._accounts.notices_waiting,
            "records": self._sight.kept.waiting,
            "open_files": _open_files(),
        }

    def _status(self) -> Mapping[str, object]:
        summary = self._host.summary()
        return {
            "version": __version__,
            "config_hash": self._settings.hash,
            "reload_problems": self._reload_problems,
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "draining": self._door.draining,
            "requests_open": self._door.open_requests,
            "attempts_open": len(self._attempts),
            "queued": summary.queued,
            "held_for_start": held_by_pool(summary),
            "counted": self._meters.figures(),
            "held": self._held(),
            "explainable": self._sight.decisions.reach().held,
            # Of a cell only the scheduler knows.
            "endpoints_wanted": self._scaling.wanted() if self._decides() else {},
            "endpoints": [asdict(endpoint) for endpoint in summary.endpoints],
            "engines": [asdict(found) for found in self._engines.watch.capabilities()],
            **self._cell_status(),
            **self._accounts.status(),
        }

    def _cell_status(self) -> Mapping[str, object]:
        if self._cell is None or self._settings.cell is None:
            return {}
        staged = None if self._staged is None else self._accounts.policy_hash(self._staged)
        return {"cell": cell_status(self._cell, self._settings.cell, staged)}


def _listeners(settings: Settings) -> tuple[object, ...]:
    return settings.listen, settings.admin_listen, settings.scaler_listen


def _open_files() -> int:
    """Sockets and files of this process, where the system tells."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are not wanted, only their number)
    except OSError:
        return 0
