"""Applies a new configuration or changed database rows to a running gateway.

A single gateway applies a change immediately. A gateway in a cell stages the change, and applies it when the whole cell
has agreed on it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from headgate.compose.accounts import TenantAccounts
from headgate.compose.parts import Configuration, GatewayParts
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.core.events import PolicyChanged
from headgate.edge.admin.allowed_hosts import AllowedHosts
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.app import AdminApp
from headgate.edge.app import Access
from headgate.edge.error_replies import ErrorReplies
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.model.units import EndpointId
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
    ) -> None:
        """`is_shutting_down` returns true once the gateway is draining. `run` runs a coroutine in the background."""
        self._configuration = configuration
        self._parts = parts
        self._admin = admin
        self._load = load
        self._leaves = is_shutting_down
        self._run = run
        self._reading = asyncio.Lock()

    async def reload(self) -> None:
        """Applies the configuration file if it is valid. Otherwise the current configuration remains in force."""
        async with self._reading:
            try:
                # Loading a large file takes a while, and streams must keep running in the meantime.
                settings = await asyncio.to_thread(self._load)
            except ConfigErrors as errors:
                self._reject(errors)
                return
            self._configuration.problems = ()
            # A draining gateway does not need the change, and its parts may already be closed.
            if self._leaves():
                return
            # Certificates belong to this process, so it does not wait for the rest of its cell.
            await self._parts.certificates.change_to(settings)
            if self._parts.cell is not None:
                # All members of the cell change at the same time.
                self._configuration.staged = settings
                self._parts.cell.stage(self._parts.accounts.policy_hash(settings))
            else:
                self._apply_settings(settings)
                await self._parts.fleets.start()

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
        before, self._configuration.settings = self._configuration.settings, settings
        parts = self._parts
        if parts.keda is not None:
            parts.keda.changed()
        if _listeners(before) != _listeners(settings):
            log_event(logging.WARNING, "changing a listen address requires a restart")
        for name in ("cell", "state_directory"):
            if getattr(before, name) != getattr(settings, name):
                log_event(logging.WARNING, f"changing {name} requires a restart")
        parts.accounts.change_to(settings)
        parts.observability.change_to(settings)
        door = parts.app
        door.limits = settings.limits
        door.replies = ErrorReplies(settings.error_docs_url, settings.quote_engine_errors)
        door.zone = settings.zone
        door.metadata_names = settings.metadata_names
        door.sample_ppm = settings.sample_ppm
        for listener in parts.listeners:
            listener.connections.limits = settings.limits
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Applies the settings to the request handler, scheduler, fleets, engines and probes."""
        parts = self._parts
        self._admin.hosts = AllowedHosts((*settings.admin_allowed_hosts, settings.admin_listen.host))
        self._admin.api = open_admin_api(parts.accounts, parts.host, settings)
        self._apply_policy(settings)
        parts.scaling.change_rules(settings.scaling_rules)
        parts.batchers.set_rules(settings.batch_rules, settings.ttft_targets_ns)
        parts.fleets.change_to(settings.pools)
        parts.engines.follow(tuple(parts.fleets.endpoints()))

    def _apply_policy(self, settings: Settings) -> None:
        parts = self._parts
        policy = parts.accounts.apply_policy(settings)
        parts.app.access = open_access(parts.accounts, parts.host, settings)
        parts.host.report(PolicyChanged(policy, parts.accounts.policy_hash(settings)))


def open_access(accounts: TenantAccounts, host: LocalHost | CellHost, settings: Settings) -> Access:
    return accounts.access(settings, host.limits_left, host.budgets_left)


def open_admin_api(accounts: TenantAccounts, host: LocalHost | CellHost, settings: Settings) -> AdminApi | None:
    def endpoints() -> list[EndpointId]:
        return [each.id for each in host.summary().endpoints]

    return accounts.admin_api(settings, host.budgets_left, endpoints)


def _listeners(settings: Settings) -> tuple[object, ...]:
    return settings.listen, settings.admin_listen, settings.scaler_listen
