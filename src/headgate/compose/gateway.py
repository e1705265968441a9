"""Builds and runs one gateway process.

Components receive plain arguments and never read the configuration themselves.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.compose.accounts import TenantAccounts
from headgate.compose.cell import open_cell, open_registry
from headgate.compose.engines import EjectionObserver, Engines
from headgate.compose.fleets import Fleets
from headgate.compose.keda import start_scaler
from headgate.compose.listener_tls import ListenerCertificates
from headgate.compose.observability import Observability
from headgate.compose.parts import Configuration, GatewayParts
from headgate.compose.reload import Reloader, open_access
from headgate.compose.rollouts import open_rollouts
from headgate.compose.status import GatewayStatus
from headgate.compose.supervised_tasks import SupervisedTasks
from headgate.compose.trials import open_trials
from headgate.config.settings import Settings
from headgate.control.autoscaling import AutoscalingService
from headgate.control.learned_speeds import open_learned_speeds
from headgate.control.request_search import RequestSearch
from headgate.core.events import BudgetsSynced
from headgate.core.scheduler import Scheduler
from headgate.core.summary import EndpointSummary
from headgate.edge import request_record
from headgate.edge.admin.app import AdminApp
from headgate.edge.admin.health import HealthCheck
from headgate.edge.app import GatewayApp
from headgate.edge.connections import OnRejected
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.large_bodies.client import LargeBodyReader
from headgate.edge.listener import Listener, bind
from headgate.edge.open_attempts import OpenAttempts
from headgate.edge.request_head import HttpRejection
from headgate.engines.batching.batcher import Batchers
from headgate.engines.dns_cache import DnsCache
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.page import open_session
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Duration, EndpointId, PoolName, RequestId
from headgate.ports.fleet import Phase
from headgate.ports.observer import Observer
from headgate.telemetry.log import log_event

if TYPE_CHECKING:
    from headgate.hosts.cell.redis.registry import CellMember, MemberRegistry

_EXIT_INTERNAL_ERROR = 70


class Gateway:
    """One gateway process, with its own scheduler or a shared one. Must run inside an event loop.

    If `serves` is false, the process is only a candidate for its cell's scheduler role. With `watches_files`, it
    reloads changed configuration files.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        *,
        observers: Sequence[Observer] = (),
        serves: bool = True,
        worker: int | None = None,
        watches_files: bool = False,
        open_watch: Callable[..., EngineWatch] = EngineWatch,
    ) -> None:
        self._configuration = Configuration(settings)
        self._serves, self._shutdown = serves, asyncio.Event()
        self._tasks = SupervisedTasks(self._on_fault)
        self._clock = SystemClock()
        # Create these first: they may raise, and at this point there is nothing to close.
        self._certificates = ListenerCertificates(settings, serves=serves)
        self._observability = Observability(settings)
        self._meters = self._observability.meters
        self._accounts = TenantAccounts(settings, self._clock.now, self._report_budgets, self._on_directory_change)
        names = DnsCache()
        self._session = open_session(names)
        self._accounts.open_clients(self._session)
        self._scaling = AutoscalingService(settings.scaling_rules)
        self._rollouts = open_rollouts(settings, self._clock)
        self._trials = open_trials(settings, self._clock, self._rollouts.changing)
        self._cell: CellHost | None = None
        self._ejections = EjectionObserver()
        self._host = self._open_host((*self._observability.request_observers, *observers), worker)
        self._accounts.open_share_leases(self._host.report, self._meters.activities)
        self._engines = Engines(
            self._session, self._host.report, self._host.summary, names=names, open_watch=open_watch
        )
        self._ejections.watch = self._engines.watch
        if self._cell is not None:
            self._engines.pause_probes()
        self._batchers = Batchers(self._engines.by_endpoint, self._meters.count_batch)
        self._fleets = Fleets(
            self._session,
            self._endpoint_summary,
            self._follow_fleets,
            on_start=self._on_start,
            on_drain=self._meters.count_endpoint_drain,
        )
        self._scaling.phases = self._fleets.phases
        self._attempts = OpenAttempts(self._host.report)
        self._large_bodies = LargeBodyReader()
        self._app = self._open_app(settings)
        self._shares_port = worker is not None
        self._parts = self._open_parts()
        self._status = GatewayStatus(self._configuration, self._parts, serves=serves)
        self._admin = _open_admin(self._parts, self._status)
        self._reload = Reloader(
            self._configuration,
            self._parts,
            self._admin,
            load,
            is_shutting_down=self._shutdown.is_set,
            run=self._tasks.run_in_background,
            watches_files=watches_files,
        )
        self._reload.apply(settings)

    @property
    def _settings(self) -> Settings:
        """The configuration in force."""
        return self._configuration.settings

    def _open_parts(self) -> GatewayParts:
        return GatewayParts(
            clock=self._clock,
            session=self._session,
            observability=self._observability,
            accounts=self._accounts,
            scaling=self._scaling,
            rollouts=self._rollouts,
            trials=self._trials,
            host=self._host,
            engines=self._engines,
            batchers=self._batchers,
            fleets=self._fleets,
            attempts=self._attempts,
            large_bodies=self._large_bodies,
            app=self._app,
            certificates=self._certificates,
            cell=self._cell,
            registry=self._open_registry(),
            speeds=open_learned_speeds(self._host, lambda: self._settings),
        )

    def _open_app(self, settings: Settings) -> GatewayApp:
        return GatewayApp(
            host=self._host,
            engines=self._batchers,
            attempts=self._attempts,
            access=open_access(self._accounts, self._host, settings, self._engines),
            limits=settings.limits,
            replies=ErrorReplies(settings.error_docs_url, settings.quote_engine_errors),
            on_rejected=self._meters.count_rejected,
            read_large=self._large_bodies.read,
            cap_large=self._large_bodies.cap,
            zone=settings.zone,
            metadata_names=settings.metadata_names,
            session_fields=settings.session_fields,
            route_inputs=settings.route_inputs,
            records=self._observability,
            sample_ppm=settings.sample_ppm,
            journal=self._accounts.journal,
        )

    def _open_registry(self) -> "MemberRegistry | None":
        cell = self._settings.cell
        if self._cell is None or cell is None:
            return None
        https = self._certificates.uses_https_for_admin
        return open_registry(
            self._cell, cell, lambda: self._parts.listeners[-1].address, self._shutdown.set, https=https
        )

    def members(self) -> "list[CellMember]":
        """Returns the cell members that have been seen in the last few seconds. Empty without a cell."""
        return [] if self._parts.registry is None else self._parts.registry.members()

    def _open_host(self, observers: Sequence[Observer], worker: int | None) -> LocalHost | CellHost:
        cell, accounts, observability = self._settings.cell, self._accounts, self._observability
        own = (self._scaling, *self._rollouts.observers, *self._trials.observers, self._ejections)
        deciding = (*own, *accounts.scheduler_observers, *observability.scheduler_observers)
        billing = (*accounts.request_observers, *observability.billing_observers)
        if cell is None:
            return LocalHost(Scheduler(), self._clock, (*observers, *billing, *deciding), self._tasks.on_fault)
        self._cell = open_cell(
            self._settings,
            cell,
            self._clock,
            observers,
            self._tasks.on_fault,
            scheduler_observers=deciding,
            on_engine_watch=self._on_engine_watch,
            on_policy_agreed=self._on_policy_agreed,
            serves=self._serves,
            worker=worker,
            billing_observers=billing,
        )
        return self._cell

    async def run(self, on_started: Callable[[tuple[str, int] | None, tuple[str, int]], None]) -> int:
        """Serves until `shut_down` is called, then drains. Returns the exit code."""
        try:
            await self._serve(on_started)
        except Exception:
            # One internal error can cause others. The first one is logged and determines the exit code.
            if self._tasks.fault is None:
                raise
        finally:
            self._shutdown.set()
            await self._fleets.stop()
            await self._engines.watch.stop()
            self._host.stop()
            await self._accounts.stop()
            await self._observability.stop()
            if self._cell is not None:
                await self._cell.store.stop()
            self._engines.close()
            await self._large_bodies.stop()
            await self._session.close()
        if self._tasks.fault is not None:
            return _EXIT_INTERNAL_ERROR
        return int(self._cell is not None and self._cell.lost_name)

    def _on_rejected(self, request_id: str, refused: HttpRejection) -> None:
        """Counts and records a request that was rejected while its head was being read. The request gets no trace."""
        self._meters.count_rejected(Outcome.INVALID_REQUEST)
        record = request_record.for_rejected(RequestId(request_id), refused.status, str(refused))
        self._observability.records.add(record)

    async def _serve(self, started: Callable[[tuple[str, int] | None, tuple[str, int]], None]) -> None:
        if self._parts.registry is not None:
            await self._parts.registry.claim_name()
        self._parts.listeners = _listen(
            self._parts,
            self._admin,
            self._settings,
            ready=self._status.probe,
            on_rejected=self._on_rejected,
            serves=self._serves,
            shared=self._shares_port,
        )
        *doors, admin = self._parts.listeners
        beside = [
            *(asyncio.create_task(listener.sweep_forever()) for listener in self._parts.listeners),
            asyncio.create_task(self._attempts.sweep_forever()),
            asyncio.create_task(self._reload.watch()),
            asyncio.create_task(self._engines.gpus.run()),
            asyncio.create_task(
                self._scaling.run(self._host.summary, self._clock.now, self._scale, lambda: self._parts.is_deciding)
            ),
            *self._parts.start_services(),
        ]
        for task in beside:
            task.add_done_callback(self._tasks.on_task_done)
        try:
            self._admin.console = self._observability.console(self._status.sources())
            self._observability.start(self._status.sources(), self._tasks.on_task_done)
            await self._accounts.start(self._tasks.on_task_done)
            await asyncio.gather(*(listener.start() for listener in self._parts.listeners))
            await self._fleets.start_first()
            if self._cell is not None:
                self._cell.start()
            # Endpoint times are known only if this process makes scheduling decisions.
            self._accounts.start_ledger(self._host.collect_endpoint_times)
            if self._settings.scaler_listen is not None:
                self._parts.keda = await start_scaler(self._settings.scaler_listen, self._scaling, self._host.summary)
            started(doors[0].address if doors else None, admin.address)
            await self._shutdown.wait()
            # Stop the scaler before the last requests end. The other gateways get the new requests and see the demand.
            await asyncio.gather(self._drain(), self._parts.stop_scaler())
        finally:
            await self._parts.stop_services()
            self._observability.close_console()
            await asyncio.gather(*(listener.stop() for listener in self._parts.listeners))
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def shut_down(self) -> None:
        """Starts draining. A second call terminates open requests immediately."""
        if self._shutdown.is_set():
            self._app.end_grace()
        self._shutdown.set()

    async def reload(self) -> None:
        """Applies the configuration file if it is valid. Otherwise the current configuration remains in force."""
        await self._reload.reload()

    def _on_engine_watch(self, looks: bool) -> None:  # noqa: FBT001  The new state.
        """Starts or stops probing. In a cell, one process probes the engines, as does each island."""
        assert self._cell is not None
        if looks:
            self._engines.watch.resume(self._cell.ready_endpoints())
        else:
            self._engines.pause_probes()

    def _follow_fleets(self) -> None:
        self._engines.follow(tuple(self._fleets.endpoints()))

    def _endpoint_summary(self, endpoint_id: EndpointId) -> EndpointSummary | None:
        return next((each for each in self._host.summary().endpoints if each.id == endpoint_id), None)

    async def _scale(self, pool: PoolName, endpoints: int) -> bool:
        if self._parts.keda is not None:
            self._parts.keda.changed()
        return not self._shutdown.is_set() and await self._fleets.scale(pool, endpoints)

    def _on_start(self, pool: PoolName, took_ns: Mapping[Phase, Duration]) -> None:
        self._meters.count_endpoint_start(pool, took_ns)
        self._scaling.started(pool, Duration(sum(took_ns.values())))

    async def _drain(self) -> None:
        if self._tasks.fault is not None:
            self._app.draining = True
            return
        if self._shares_port:
            # The other workers on this machine accept new connections.
            for door in self._parts.listeners[:-1]:
                await door.stop_accepting()
        if self._cell is not None:
            self._cell.step_down()
        grace_s = self._settings.drain_grace_ns / SECOND
        log_event(logging.INFO, "draining", open=self._app.open_requests, grace_s=grace_s)
        if self._app.mirrors is not None:
            await self._app.mirrors.stop()
        drained = await self._app.drain(grace_s)
        log_event(logging.INFO, "drained: all requests ended" if drained else "grace period over: aborting requests")
        if self._cell is not None:
            await self._cell.leave()

    def _on_fault(self) -> None:
        self._shutdown.set()
        self._app.end_grace()

    # Callbacks for components that are created before the ones they call

    def _on_directory_change(self) -> None:
        self._reload.on_directory_change()

    def _on_policy_agreed(self, policy_hash: str) -> None:
        self._reload.on_policy_agreed(policy_hash)

    def _report_budgets(self, told: BudgetsSynced) -> None:
        self._host.report(told)


def _open_admin(parts: GatewayParts, status: GatewayStatus) -> AdminApp:
    requests = _request_search(parts)
    return AdminApp(
        ready=status.ready,
        metrics=status.metrics,
        status=status.status,
        explain=requests.explain,
        requests=requests.search,
        verdict=status.verdict,
        reads=parts.observability.reads,
    )


def _request_search(parts: GatewayParts) -> RequestSearch:
    archive, now, cell, registry = parts.observability.records.archive, parts.clock.now, parts.cell, parts.registry
    if cell is None or registry is None:
        return RequestSearch(archive, parts.session, now)
    get = parts.certificates.get_member_page
    return RequestSearch(archive, parts.session, now, member=cell.name, members=registry.members, get=get)


def _listen(
    parts: GatewayParts,
    admin: AdminApp,
    settings: Settings,
    *,
    ready: HealthCheck,
    on_rejected: OnRejected,
    serves: bool,
    shared: bool,
) -> tuple[Listener, ...]:
    """Binds the client listener, if the process serves clients, and then the admin listener."""
    limits, certificates = settings.limits, parts.certificates

    def for_admin(listening: socket.socket) -> Listener:
        health, tls = parts.observability.turns.health, certificates.context("admin_listen")
        listener = Listener(admin, listening, limits, health=health, ready=ready, tls=tls)
        return certificates.attach("admin_listen", listener)

    if not serves:
        return (for_admin(bind(*settings.admin_listen)),)
    for_callers = bind(*settings.listen, shared=shared)
    try:
        for_operators = bind(*settings.admin_listen)
    except OSError:
        for_callers.close()
        raise
    tls = certificates.context("listen")
    door = Listener(parts.app, for_callers, limits, on_rejected=on_rejected, tls=tls)
    return certificates.attach("listen", door), for_admin(for_operators)
