"""Which real parts make a gateway, and how are they put together?

The only place that turns configuration into things that run. Every part gets plain `arguments`;
none of them sees the configuration.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.compose.accounts import Accounts
from headgate.compose.cell import open_cell, open_registry
from headgate.compose.engines import EjectionWatch, Engines
from headgate.compose.fleets import Fleets
from headgate.compose.keda import start_scaler
from headgate.compose.parts import Configuration, Parts
from headgate.compose.reload import Reload, open_access
from headgate.compose.sight import Sight
from headgate.compose.status import GatewayStatus
from headgate.config.settings import Settings
from headgate.control.autoscaling import Scaling
from headgate.control.learned_speeds import open_speeds
from headgate.control.request_search import Requests
from headgate.core.events import BudgetsTold
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary
from headgate.edge import request_record
from headgate.edge.admin.app import AdminApp
from headgate.edge.connections import OnRefused
from headgate.edge.door import Door
from headgate.edge.large_bodies.client import LargeBodies
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.replies import Replies
from headgate.edge.request_head import Refused
from headgate.edge.server import Listener, bind
from headgate.engines.batching.batcher import Batchers
from headgate.engines.host_names import HostNames
from headgate.engines.page import open_session
from headgate.engines.watch import EngineWatch
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, EndpointId, PoolName, RequestId
from headgate.ports.fleet import Phase
from headgate.ports.observer import Observer
from headgate.telemetry.log import log, tell

if TYPE_CHECKING:
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
        self._configuration = Configuration(settings)
        self._serves = serves
        self._leave = asyncio.Event()
        self._fault: BaseException | None = None
        self._clock = SystemClock()
        # Before anything that would have to be closed, should a part of it not be fit.
        self._sight = Sight(settings)
        self._meters = self._sight.meters
        self._accounts = Accounts(settings, self._clock.now, self._tell_budgets, self._on_directory)
        names = HostNames()
        self._session = open_session(names)
        self._accounts.open_notices(self._session)
        self._scaling = Scaling(settings.scaling_rules)
        self._cell: CellHost | None = None
        self._ejections = EjectionWatch()
        self._host = self._open_host((*self._sight.of_requests, *observers), worker)
        self._engines = Engines(self._session, self._host.tell, self._host.summary, names=names, open_watch=open_watch)
        self._ejections.watch = self._engines.watch
        if self._cell is not None:
            self._engines.watch.rest()
        self._batchers = Batchers(self._engines.asked, self._meters.batched)
        self._fleets = Fleets(
            self._session, self._known, self._follow_fleets, on_start=self._on_start, on_drain=self._meters.drained
        )
        self._scaling.phases = self._fleets.phases
        self._attempts = OpenAttempts(self._host.tell)
        self._large_bodies = LargeBodies()
        self._door = self._open_door(settings)
        self._beside: set[asyncio.Future[None]] = set()
        self._shared = worker is not None
        self._parts = self._open_parts()
        self._status = GatewayStatus(self._configuration, self._parts, serves=serves)
        self._admin = self._open_admin()
        self._reload = Reload(
            self._configuration, self._parts, self._admin, load, leaves=self._leave.is_set, run=self._later
        )
        self._reload.take_over(settings)

    @property
    def _settings(self) -> Settings:
        """In force."""
        return self._configuration.settings

    @property
    def _listeners(self) -> tuple[Listener, ...]:
        return self._parts.listeners

    def _open_parts(self) -> Parts:
        return Parts(
            clock=self._clock,
            session=self._session,
            sight=self._sight,
            accounts=self._accounts,
            scaling=self._scaling,
            host=self._host,
            engines=self._engines,
            batchers=self._batchers,
            fleets=self._fleets,
            attempts=self._attempts,
            large_bodies=self._large_bodies,
            door=self._door,
            cell=self._cell,
            registry=self._open_registry(),
            speeds=open_speeds(self._host, lambda: self._settings),
        )

    def _open_admin(self) -> AdminApp:
        requests, status = self._open_requests(), self._status
        return AdminApp(
            ready=status.ready,
            metrics=status.metrics,
            status=status.status,
            explain=requests.explain,
            requests=requests.search,
            verdict=status.verdict,
        )

    def _open_door(self, settings: Settings) -> Door:
        return Door(
            host=self._host,
            engines=self._batchers,
            attempts=self._attempts,
            access=open_access(self._accounts, self._host, settings),
            limits=settings.limits,
            replies=Replies(settings.error_docs, settings.quote_engine_errors),
            turned_away=self._meters.turned_away,
            read_large=self._large_bodies.read,
            cap_large=self._large_bodies.cap,
            zone=settings.zone,
            metadata_names=settings.metadata_names,
            records=self._sight,
            sample_ppm=settings.sample_ppm,
            journal=self._accounts.journal,
        )

    def _open_registry(self) -> "Registry | None":
        cell = self._settings.cell
        if self._cell is None or cell is None:
            return None
        return open_registry(self._cell, cell, lambda: self._listeners[-1].address, self._leave.set)

    def _open_requests(self) -> Requests:
        archive, now = self._sight.kept.archive, self._clock.now
        registry = self._parts.registry
        if self._cell is None or registry is None:
            return Requests(archive, self._session, now)
        return Requests(archive, self._session, now, own=self._cell.name, members=registry.members)

    def members(self) -> "list[CellMember]":
        """Of the cell, those that were heard of in the last seconds; none without a cell."""
        return [] if self._parts.registry is None else self._parts.registry.members()

    def _open_host(self, observers: Sequence[Observer], worker: int | None) -> LocalHost | CellHost:
        cell, accounts = self._settings.cell, self._accounts
        if cell is None:
            deciding = (self._scaling, *accounts.of_scheduler, *self._sight.of_scheduler, self._ejections)
            watching = (*observers, *accounts.of_requests, *self._sight.bookkeepers, *deciding)
            return LocalHost(Scheduler(), self._clock, watching, self._on_fault)
        self._cell = open_cell(
            self._settings,
            cell,
            self._clock,
            observers,
            self._on_fault,
            of_scheduler=(self._scaling, *accounts.of_scheduler, *self._sight.of_scheduler, self._ejections),
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
        return int(self._cell is not None and self._cell.nameless) if self._fault is None else _EXIT_MISTAKE

    def _refused(self, request_id: str, refused: Refused) -> None:
        """Before it became a request: it has a record by which its answer is explained, and no trace."""
        self._meters.turned_away(Outcome.INVALID)
        self._sight.kept.take(request_record.of_none(RequestId(request_id), refused.status, str(refused)))

    async def _serve(self, started: Callable[[tuple[str, int] | None, tuple[str, int]], None]) -> None:
        if self._parts.registry is not None:
            await self._parts.registry.claim_name()
        self._parts.listeners = _listen(
            self._parts, self._admin, self._settings, on_refused=self._refused, serves=self._serves, shared=self._shared
        )
        *doors, admin = self._listeners
        beside = [
            *(asyncio.create_task(listener.sweep_for_ever()) for listener in self._listeners),
            asyncio.create_task(self._attempts.sweep_for_ever()),
            asyncio.create_task(self._engines.gpus.run()),
            asyncio.create_task(
                self._scaling.run(self._host.summary, self._clock.now, self._scale, lambda: self._parts.decides)
            ),
            *self._parts.start_services(),
        ]
        for task in beside:
            task.add_done_callback(self._ended_beside)
        try:
            self._admin.console = self._sight.console(self._status.sources())
            self._sight.begin(self._status.sources(), self._ended_beside)
            await self._accounts.begin(self._ended_beside)
            await asyncio.gather(*(listener.start() for listener in self._listeners))
            await self._fleets.begin()
            if self._cell is not None:
                self._cell.start()
            # How endpoints spent their time is known where this process decides about them.
            self._accounts.write(self._host.take_endpoint_times)
            if self._settings.scaler_listen is not None:
                self._parts.keda = await start_scaler(self._settings.scaler_listen, self._scaling, self._host.summary)
            started(doors[0].address if doors else None, admin.address)
            await self._leave.wait()
            # Stop the scaler before the last requests end: new requests go to other gateways, which know the demand.
            await asyncio.gather(self._drain(), self._parts.stop_scaler())
        finally:
            await self._parts.stop_services()
            self._sight.let_go()
            await asyncio.gather(*(listener.stop() for listener in self._listeners))
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def leave(self) -> None:
        """Begins to drain; said once more, leaves at once."""
        if self._leave.is_set():
            self._door.hurry()
        self._leave.set()

    async def reload(self) -> None:
        """Takes the configuration anew if it is right, and otherwise keeps the one in force."""
        await self._reload.reload()

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

    def _follow_fleets(self) -> None:
        self._engines.follow(tuple(self._fleets.endpoints()))

    def _known(self, endpoint_id: EndpointId) -> EndpointSummary | None:
        return next((each for each in self._host.summary().endpoints if each.id == endpoint_id), None)

    async def _scale(self, pool: PoolName, endpoints: int) -> bool:
        if self._parts.keda is not None:
            self._parts.keda.changed()
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

    # Given to parts that are made before those they reach

    def _on_directory(self) -> None:
        self._reload.on_directory()

    def _on_agreed(self, policy_hash: str) -> None:
        self._reload.on_agreed(policy_hash)

    def _tell_budgets(self, told: BudgetsTold) -> None:
        self._host.tell(told)


def _listen(
    parts: Parts, admin: AdminApp, settings: Settings, *, on_refused: OnRefused, serves: bool, shared: bool
) -> tuple[Listener, ...]:
    """The one for callers, where there are any, and last the one for operators."""
    limits, health = settings.limits, parts.sight.turns.health
    if not serves:
        return (Listener(admin, bind(*settings.admin_listen), limits, health=health),)
    for_callers = bind(*settings.listen, shared=shared)
    try:
        for_operators = bind(*settings.admin_listen)
    except OSError:
        for_callers.close()
        raise
    door = Listener(parts.door, for_callers, limits, on_refused=on_refused)
    return door, Listener(admin, for_operators, limits, health=health)
