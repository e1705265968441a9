"""Apply another configuration, or other rows of the database, to a running gateway.

A gateway of its own changes at once. One of a cell stages the change and applies it when the whole cell has agreed on
it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from headgate.compose.accounts import Accounts
from headgate.compose.parts import Configuration, Parts
from headgate.config.problems import ConfigErrors
from headgate.config.settings import Settings
from headgate.core.events import PolicyChanged
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.app import AdminApp
from headgate.edge.admin.hosts import AllowedHosts
from headgate.edge.door import Access
from headgate.edge.replies import Replies
from headgate.hosts.cell.host import CellHost
from headgate.hosts.local.host import LocalHost
from headgate.model.units import EndpointId
from headgate.telemetry.log import tell


class Reload:
    def __init__(
        self,
        configuration: Configuration,
        parts: Parts,
        admin: AdminApp,
        load: Callable[[], Settings],
        *,
        leaves: Callable[[], bool],
        run: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """`leaves` is true once the gateway drains; `run` runs something beside everything else."""
        self._configuration = configuration
        self._parts = parts
        self._admin = admin
        self._load = load
        self._leaves = leaves
        self._run = run
        self._reading = asyncio.Lock()

    async def reload(self) -> None:
        """Takes the configuration anew if it is right, and otherwise keeps the one in force."""
        async with self._reading:
            try:
                # A large file takes a while; streams go on meanwhile.
                settings = await asyncio.to_thread(self._load)
            except ConfigErrors as errors:
                self._reject(errors)
                return
            self._configuration.problems = ()
            # A gateway that leaves has nothing to gain from it, and may no longer have what it would change.
            if self._leaves():
                return
            if self._parts.cell is not None:
                # All of the cell go over to it together.
                self._configuration.staged = settings
                self._parts.cell.stage(self._parts.accounts.policy_hash(settings))
            else:
                self._change_to(settings)
                await self._parts.fleets.start()

    def _reject(self, errors: ConfigErrors) -> None:
        self._configuration.problems = tuple(str(problem) for problem in errors.problems)
        for problem in self._configuration.problems:
            tell(logging.WARNING, "the new configuration is wrong", problem=problem)
        in_force = self._configuration.settings.hash
        tell(logging.WARNING, "the last good configuration stays in force", hash=in_force)

    def on_agreed(self, policy_hash: str) -> None:
        """The cell goes by this configuration from here on."""
        configuration = self._configuration
        staged = configuration.staged or configuration.settings
        if self._parts.accounts.policy_hash(staged) != policy_hash or self._leaves():
            return
        if configuration.staged is None:
            self._take_policy(configuration.settings)
        else:
            configuration.staged = None
            self._change_to(staged)
            self._run(self._parts.fleets.start())

    def on_directory(self) -> None:
        """Tenants or orders of the database have changed: they count at once, or when all of the cell have them."""
        if self._leaves():
            return
        configuration, parts = self._configuration, self._parts
        if parts.cell is None:
            self._take_policy(configuration.settings)
        else:
            parts.cell.stage(parts.accounts.policy_hash(configuration.staged or configuration.settings))

    def _change_to(self, settings: Settings) -> None:
        before, self._configuration.settings = self._configuration.settings, settings
        parts = self._parts
        if parts.keda is not None:
            parts.keda.changed()
        if _listeners(before) != _listeners(settings):
            tell(logging.WARNING, "another listen address needs a restart")
        for name in ("cell", "state_folder"):
            if getattr(before, name) != getattr(settings, name):
                tell(logging.WARNING, f"another {name} needs a restart")
        parts.accounts.change_to(settings)
        parts.sight.change_to(settings)
        door = parts.door
        door.limits = settings.limits
        door.replies = Replies(settings.error_docs, settings.quote_engine_errors)
        door.zone = settings.zone
        door.metadata_names = settings.metadata_names
        door.sample_ppm = settings.sample_ppm
        for listener in parts.listeners:
            listener.connections.limits = settings.limits
        self.take_over(settings)

    def take_over(self, settings: Settings) -> None:
        """Brings door, scheduler, fleets, engines and probes to what the settings say."""
        parts = self._parts
        self._admin.hosts = AllowedHosts((*settings.admin_hosts, settings.admin_listen.host))
        self._admin.api = open_admin_api(parts.accounts, parts.host, settings)
        self._take_policy(settings)
        parts.scaling.change_rules(settings.scaling_rules)
        parts.batchers.change(settings.batch_rules, settings.first_token_ns)
        parts.fleets.change_to(settings.pools)
        parts.engines.follow(tuple(parts.fleets.endpoints()))

    def _take_policy(self, settings: Settings) -> None:
        parts = self._parts
        policy = parts.accounts.policy(settings)
        parts.door.access = open_access(parts.accounts, parts.host, settings)
        parts.host.tell(PolicyChanged(policy, parts.accounts.policy_hash(settings)))


def open_access(accounts: Accounts, host: LocalHost | CellHost, settings: Settings) -> Access:
    return accounts.access(settings, host.limits_left, host.budgets_left)


def open_admin_api(accounts: Accounts, host: LocalHost | CellHost, settings: Settings) -> AdminApi | None:
    def endpoints() -> list[EndpointId]:
        return [each.id for each in host.summary().endpoints]

    return accounts.admin_api(settings, host.budgets_left, endpoints)


def _listeners(settings: Settings) -> tuple[object, ...]:
    return settings.listen, settings.admin_listen, settings.scaler_listen
