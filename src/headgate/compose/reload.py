"""Applies a new configuration or changed database rows to a running gateway.

A new configuration is read on SIGHUP, and when the watch notices that one of its files has changed. Both use `reload`.

A single gateway applies a change immediately. A gateway in a cell stages the change, and applies it when the whole cell
has agreed on it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from headgate.compose.accounts import TenantAccounts
from headgate.compose.engines import Engines
from headgate.compose.operators import console_login, operator_auth
from headgate.compose.parts import Configuration, GatewayParts
from headgate.compose.restart import restart_needed
from headgate.compose.rollouts import connect
from headgate.compose.trials import connect_trials
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.control.file_watch import FileWatch
from headgate.control.handover import HandoverService
from headgate.control.options import ReloadTrigger
from headgate.core.events import PolicyChanged
from headgate.edge.admin.allowed_hosts import AllowedHosts
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.app import AdminApp
from headgate.edge.admin.cell import handover_routes
from headgate.edge.admin.operator_auth import OperatorAuth
from headgate.edge.app import Access
from headgate.edge.error_replies import ErrorReplies
from headgate.edge.mirroring import Mirrors
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.model.tenant import tenant_table
from headgate.model.units import EndpointId
from headgate.ports.read_audit import ReadAudit
from headgate.telemetry.log import log_event


class Reloader:
    def __init__(
        self,
        configuration: Configuration,
        parts: GatewayParts,
        admin: AdminApp,
        load: Callable[[], Settings],
        *,
        is_shutting_down: Callable[[], bool],
        run: Callable[[Coroutine[object, object, None]], None],
        watches_files: bool,
    ) -> None:
        """`is_shutting_down` returns true once the gateway is draining. `run` runs a coroutine in the background."""
        self._configuration = configuration
        self._parts = parts
        self._admin = admin
        self._load = load
        self._leaves = is_shutting_down
        self._run = run
        self._reading = asyncio.Lock()
        self._watches_files = watches_files
        configuration.files = configuration.settings.files
        self._watch = FileWatch(self._watched_files, self._on_file_change)
        # A file may have changed after it was read.
        self._watch.record(configuration.files)

    # The file

    async def watch(self) -> None:
        """Reloads the configuration whenever one of its files changes, unless `reload` is `signal`."""
        if self._watches_files:
            await self._watch.run()

    def _watched_files(self) -> Collection[Path]:
        newest = self._configuration.staged or self._configuration.settings
        return self._configuration.files.keys() if newest.reload is ReloadTrigger.WATCH else ()

    async def _on_file_change(self) -> None:
        log_event(logging.INFO, "a configuration file has changed; reloading")
        await self.reload()

    async def reload(self) -> None:
        """Applies the configuration file if it is valid. Otherwise the current configuration remains in force."""
        async with self._reading:
            try:
                # Loading a large file takes a while, and streams must keep running in the meantime.
                settings = await asyncio.to_thread(self._load_sharing)
            except ConfigErrors as errors:
                # Watch the earlier files too: a change to one of them may correct the configuration.
                self._configuration.files = {**self._configuration.files, **errors.files}
                self._watch.record(errors.files)
                self._reject(errors)
                return
            self._configuration.files = settings.files
            self._watch.record(settings.files)
            self._configuration.problems = ()
            # A draining gateway does not need the change, and its parts may already be closed.
            if not self._leaves():
                await self._adopt(settings)

    def _load_sharing(self) -> Settings:
        """Loads the file, and shares the tenants that are the same with the settings in force.

        The event loop then has to compare only those that differ.
        """
        settings, before = self._load(), self._configuration.settings
        tenants = tenant_table(settings.policy.tenants).sharing(tenant_table(before.policy.tenants))
        return replace(settings, policy=replace(settings.policy, tenants=tenants))

    async def _adopt(self, settings: Settings) -> None:
        configuration, cell = self._configuration, self._parts.cell
        # Certificates belong to this process, so they do not wait for the rest of the cell.
        await self._parts.certificates.change_to(settings)
        # All members of the cell change at the same time, except for settings that belong to one process.
        configuration.staged = None if settings == configuration.settings else settings
        if cell is None or not cell.stage(self._parts.accounts.policy_hash(settings)):
            configuration.staged = None
            self._apply_settings(settings)
            await self._parts.fleets.start()
        elif configuration.staged is not None:
            log_event(logging.INFO, "configuration staged until all cell members have read it", hash=settings.hash)

    def _reject(self, errors: ConfigErrors) -> None:
        self._configuration.problems = tuple(str(problem) for problem in errors.problems)
        for problem in self._configuration.problems:
            log_event(logging.WARNING, "the new configuration is invalid", problem=problem)
        in_force = self._configuration.settings.hash
        log_event(logging.WARNING, "the previous configuration stays active", hash=in_force)

    def on_policy_agreed(self, policy_hash: str) -> None:
        """Applies the configuration that the cell has agreed on."""
        configuration = self._configuration
        staged = configuration.staged or configuration.settings
        if self._parts.accounts.policy_hash(staged) != policy_hash or self._leaves():
            return
        if configuration.staged is None:
            self._apply_policy(configuration.settings)
        else:
            configuration.staged = None
            self._apply_settings(staged)
            self._run(self._parts.fleets.start())

    def on_directory_change(self) -> None:
        """Applies changed tenants or overrides, either immediately or when all cell members have them."""
        if self._leaves():
            return
        configuration, parts = self._configuration, self._parts
        if parts.cell is None:
            self._apply_policy(configuration.settings)
        else:
            parts.cell.stage(parts.accounts.policy_hash(configuration.staged or configuration.settings))

    def _apply_settings(self, settings: Settings) -> None:
        configuration, parts = self._configuration, self._parts
        before, configuration.settings = configuration.settings, settings
        if settings != before:
            configuration.in_force_since = datetime.now(UTC)
            log_event(logging.INFO, "configuration applied", hash=settings.hash, before=before.hash)
        else:
            log_event(logging.INFO, "configuration unchanged", hash=settings.hash)
        if parts.keda is not None:
            parts.keda.changed()
        configuration.restart_needed = restart_needed(configuration.started, settings)
        for name in configuration.restart_needed:
            log_event(logging.WARNING, f"changing {name} requires a restart")
        parts.accounts.change_to(settings)
        parts.observability.change_to(settings)
        door = parts.app
        door.limits = settings.limits
        door.replies = ErrorReplies(settings.error_docs_url, settings.quote_engine_errors)
        door.zone = settings.zone
        door.metadata_names = settings.metadata_names
        door.session_fields = settings.session_fields
        door.route_inputs = settings.route_inputs
        door.sample_ppm = settings.sample_ppm
        for listener in parts.listeners:
            listener.connections.limits = settings.limits
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Applies the settings to the request handler, scheduler, fleets, engines and probes."""
        parts = self._parts
        self._admin.hosts = AllowedHosts(
            (*settings.admin_allowed_hosts, settings.admin_listen.host, *_login_host(settings))
        )
        login = self._admin.login = console_login(settings, parts.accounts.identity)
        auth = self._admin.auth = operator_auth(settings, parts.accounts.identity, login)
        parts.certificates.member_headers = dict if login is None else login.member_headers
        self._admin.api = open_admin_api(parts.accounts, parts.host, settings, parts.observability.reads, auth)
        connect(parts.rollouts, self._admin.api)
        connect_trials(parts.trials, self._admin.api, parts.fleets)
        parts.trials.configuration_applied()
        if self._admin.api is not None:
            self._admin.api.add_routes(parts.observability.traffic_routes(parts.host, parts.clock.now))
            if parts.cell is not None and settings.cell is not None:
                candidates = settings.cell.gateways_are_candidates
                handover = HandoverService(parts.cell, self._admin.api.overrides, gateways_are_candidates=candidates)
                self._admin.api.add_routes(handover_routes(handover.hand_over))
        self._apply_policy(settings)
        self._apply_mirrors(settings)
        parts.scaling.change_rules(settings.scaling_rules)
        parts.batchers.set_rules(settings.batch_rules, settings.latency_targets_ns)
        parts.fleets.change_to(settings.pools)
        parts.engines.follow(tuple(parts.fleets.endpoints()))

    def _apply_mirrors(self, settings: Settings) -> None:
        door, models = self._parts.app, settings.mirrored_models
        if door.mirrors is None and models is not None:
            on_result = self._parts.observability.meters.routes.count_mirror
            door.mirrors = Mirrors(door.host, door.engines, door.attempts, door.records, on_result, door.journal)
        if door.mirrors is not None:
            door.mirrors.models, door.mirrors.open_max = models, settings.limits.mirrors_open_max

    def _apply_policy(self, settings: Settings) -> None:
        parts = self._parts
        policy = parts.rollouts.policy = parts.trials.policy = parts.accounts.apply_policy(settings)
        parts.app.access = open_access(parts.accounts, parts.host, settings, parts.engines)
        parts.scaling.change_overrides(policy.overrides)
        parts.host.report(PolicyChanged(policy, parts.accounts.policy_hash(settings)))


def _login_host(settings: Settings) -> tuple[str, ...]:
    """Returns the host name at which browsers reach the login."""
    login = None if settings.operators is None else settings.operators.login
    return () if login is None else (urlsplit(login.redirect_url).hostname or "",)


def open_access(accounts: TenantAccounts, host: LocalHost | CellHost, settings: Settings, engines: Engines) -> Access:
    return accounts.access(settings, host.limits_left, host.budgets_left, engines.discovered_models)


def open_admin_api(
    accounts: TenantAccounts,
    host: LocalHost | CellHost,
    settings: Settings,
    reads: ReadAudit,
    auth: OperatorAuth,
) -> AdminApi | None:
    def endpoints() -> list[EndpointId]:
        return [each.id for each in host.summary().endpoints]

    return accounts.admin_api(settings, host.budgets_left, endpoints, reads, auth)
