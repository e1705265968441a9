"""Keys, budgets and ledger for one gateway process.

This includes the tenant directory in the database, budgets and their notifications, the ledger, and cost reports.
Without a database, most of these components are absent. The rest of the gateway does not depend on them.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.compose.cell_shares import open_share_leases, routes_of
from headgate.config.settings import Settings
from headgate.control.budget_sync import BudgetSync
from headgate.control.cells.share_leases import ShareLeases
from headgate.control.notifications import Notifier
from headgate.control.operator_overrides import NO_DATABASE_HINT, MemoryOverrides, overrides_status
from headgate.core.events import BudgetsSynced, SharesAssigned
from headgate.edge.admin.api import AdminApi
from headgate.edge.admin.budgets import budget_routes
from headgate.edge.admin.cost import cost_routes
from headgate.edge.admin.operator_auth import OperatorAuth
from headgate.edge.admin.override_targets import override_targets
from headgate.edge.admin.tenants import tenant_routes
from headgate.edge.app import Access
from headgate.edge.auth import CallerKeys, KeyRing, SecretUse, TokenKeyRing, secret_uses_status
from headgate.edge.tenant_usage import TenantSalts, budget_rows, usage_report
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetStatus, EndpointTime
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.units import EndpointId, Instant, ModelName, TenantId
from headgate.ports.identity import InvalidToken, TokenFault
from headgate.ports.ledger import AttemptJournal
from headgate.ports.observer import Observer
from headgate.ports.read_audit import ReadAudit
from headgate.telemetry.directory_metrics import DirectoryStats
from headgate.telemetry.identity_metrics import IdentityStats
from headgate.telemetry.ledger_metrics import LedgerStats
from headgate.telemetry.tenant_activity import TenantActivity

if TYPE_CHECKING:
    import aiohttp

    from headgate.compose.identity import Identity
    from headgate.control.directory_sync import DirectorySync
    from headgate.control.ledger_sync import LedgerSync
    from headgate.ledger.reports.postgres_reports import PostgresReports

_FIRST_READ_S_MAX: Final = 3.0
"""Maximum time in seconds to wait at startup for the first read of the directory from the database."""


class TenantAccounts:
    """Keys, budgets and ledger for one process. Must be created and run inside an event loop.

    Raises `OSError` with the next step if a component is missing or unusable.
    """

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], Instant],
        report: Callable[[BudgetsSynced], None],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when tenants or overrides have changed and the policy must be applied again."""
        self._settings = settings
        self._now = now
        self._on_change = on_change
        # Create the ledger first: it raises if its spool is unusable, and at this point there is nothing to close.
        self._ledger = _open_ledger(settings, lambda: self._settings.policy.unit_key)
        self._directory = _open_directory(settings, self._changed, on_change)
        self._overrides = MemoryOverrides(on_change, now, in_cell=settings.cell is not None)
        """Operator overrides for a gateway without a database."""
        self._in_force = settings.policy
        database = None if settings.database is None else settings.database.url
        self._budgets = BudgetSync(database, report, lambda: self._in_force, now)
        self._reports = self._open_reports()
        self._notifier: Notifier | None = None
        self.identity: Identity | None = None
        """Token issuers. None if there were none at startup."""
        self.share_leases: ShareLeases | None = None
        """Shares of limits, if several cells serve the same tenants."""
        self._preparing: asyncio.Task[None] | None = None
        """Task that reads the amounts already spent against new budgets."""
        self.secret_uses: dict[str, SecretUse] = {}
        """Uses of the key secrets in force, by fingerprint."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_task_done: Callable[[asyncio.Task[None]], None] = _ignore_task

    def _open_reports(self) -> "PostgresReports | None":
        if self._settings.database is None:
            return None
        from headgate.control.cost_reports import open_reports

        return open_reports(self._settings.database, lambda: self._settings.ledger, lambda: self._in_force)

    def open_clients(self, session: "aiohttp.ClientSession") -> None:
        """Creates the components that send HTTP requests."""
        if self._settings.notifications is not None:
            url = None if self._settings.database is None else self._settings.database.url
            self._notifier = Notifier(self._settings.notifications, session, url)
        if self._settings.issuers:
            from headgate.compose.identity import Identity

            self.identity = Identity(self._settings.issuers, self._settings.operators, session)

    def open_share_leases(self, assign: Callable[[SharesAssigned], None], activities: Iterable[TenantActivity]) -> None:
        """`assign` passes the shares to the scheduler. Does nothing if the cell is the only one."""
        self.share_leases = open_share_leases(self._settings, self._now, assign, lambda: self._in_force, activities)

    # Lifecycle

    @property
    def request_observers(self) -> tuple[Observer, ...]:
        """Observers for this process's requests."""
        return () if self._ledger is None else (self._ledger.observer,)

    @property
    def journal(self) -> AttemptJournal | None:
        return None if self._ledger is None else self._ledger.observer

    @property
    def scheduler_observers(self) -> tuple[Observer, ...]:
        """Observers for scheduling decisions, if this process makes them."""
        return () if self._notifier is None else (self._notifier,)

    async def start(self, on_task_done: Callable[["asyncio.Task[None]"], None]) -> None:
        """Reads tenants and spent amounts before requests are accepted, if the database responds quickly.

        `on_task_done` is called for every background task that ends from here on.
        """
        self._on_task_done = on_task_done
        if self._directory is not None:
            self._directory.start().add_done_callback(on_task_done)
            await self._directory.wait_first_read(_FIRST_READ_S_MAX)
            if self._preparing is not None:
                await asyncio.wait([self._preparing])
        if self.identity is not None:
            await self.identity.start(on_task_done)
        await self._budgets.start()
        self._run(self._budgets.run())
        if self._notifier is not None:
            self._run(self._notifier.run())

    def start_ledger(self, collect_endpoint_times: Callable[[], Sequence[EndpointTime]]) -> None:
        """Starts writing the ledger. `collect_endpoint_times` returns the endpoint time, if this process makes
        scheduling decisions.
        """
        if self._ledger is not None:
            for task in self._ledger.start(collect_endpoint_times, lambda: self._settings.policy.pools, self._now):
                task.add_done_callback(self._on_task_done)

    def _run(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._on_task_done)
        return task

    async def stop(self) -> None:
        if self._ledger is not None:
            await self._ledger.stop()
        for task in (running := tuple(self._tasks)):
            task.cancel()
        if running:
            await asyncio.wait(running)
        if self.identity is not None:
            await self.identity.stop()
        if self._directory is not None:
            await self._directory.stop()
        await self._budgets.stop()
        if self._notifier is not None:
            await self._notifier.stop()
        if self._reports is not None:
            await self._reports.stop()

    # Policy

    def change_to(self, settings: Settings) -> None:
        self._settings = settings
        if self._notifier is not None and settings.notifications is not None:
            self._notifier.change_to(settings.notifications)
        if self.identity is not None:
            self.identity.change_to(settings.issuers, settings.operators)

    def apply_policy(self, settings: Settings) -> Policy:
        """Returns the policy from the file combined with the database rows, and marks it as in force."""
        self._in_force = (self._directory or self._overrides).apply(settings.policy)
        self._budgets.policy_changed()
        return self._in_force

    def policy_hash(self, settings: Settings) -> str:
        """Identifier of the policy, which covers the configuration and the database rows."""
        rows = (self._directory or self._overrides).name
        return f"{settings.hash}+{rows}" if rows else settings.hash

    def _changed(self) -> None:
        """Applies changed rows. The amounts spent against new budgets are read first, because the budgets would
        otherwise count as unspent.
        """
        if self._preparing is not None:
            return
        if self._budgets.has_unread_budgets(self._preview()):
            self._preparing = self._run(self._prepare())
        else:
            self._on_change()

    async def _prepare(self) -> None:
        try:
            # More changes may arrive in the meantime. If the database does not respond, the local counts are used.
            while self._budgets.has_unread_budgets(policy := self._preview()) and await self._budgets.prepare(policy):
                pass
        finally:
            self._preparing = None
        self._on_change()

    def _preview(self) -> Policy:
        assert self._directory is not None
        return self._directory.preview(self._settings.policy)

    async def _wait_applied(self) -> None:
        """Waits briefly for the rows that were just written to take effect here."""
        if self._directory is not None:
            await self._directory.wait_applied()
        if self._preparing is not None:
            await asyncio.wait([self._preparing], timeout=_FIRST_READ_S_MAX)

    # Access

    def access(
        self,
        settings: Settings,
        limits_left: Callable[[TenantId], LimitsLeft | None],
        budgets_left: Callable[[TenantId | None], Sequence[BudgetStatus] | None],
        discovered: Callable[[], Iterable[ModelName]],
    ) -> Access:
        tenants = tenant_table(settings.policy.tenants).by_id
        configured = tuple(model.name for model in settings.policy.models)
        directory, secret = self._directory, settings.key_secret or b""

        def tenant(tenant_id: TenantId) -> Tenant | None:
            found = tenants.get(tenant_id)
            return found if found is not None or directory is None else directory.tenant(tenant_id)

        def models(tenant_id: TenantId) -> tuple[ModelName, ...]:
            found, names = tenant(tenant_id), (*configured, *discovered())
            # There is no await between the key lookup and this call, so the tenant is rarely missing.
            allowed = () if found is None else found.models
            return tuple(name for name in names if name in allowed) if allowed else names

        def budgets(tenant_id: TenantId) -> Sequence[Mapping[str, object]]:
            left, by_ledger = self._budgets_left(budgets_left, tenant_id)
            return budget_rows(left, self._now(), from_ledger=by_ledger, as_of=self._budgets.as_of)

        usage = partial(usage_report, tenant, models, settings.policy.classes, limits_left, budgets=budgets)
        has_tokens = self.identity is not None
        ring = KeyRing(
            self._uses_of(settings), settings.keys, settings.anonymous_tenant, directory, has_tokens=has_tokens
        )
        keys: CallerKeys = ring
        if self.identity is not None:
            keys = TokenKeyRing(ring, self.identity.tokens(partial(self._is_known, tenant)))
        return Access(keys, models, TenantSalts(secret), usage)

    def _is_known(self, tenant: Callable[[TenantId], Tenant | None], tenant_id: TenantId) -> bool:
        """Whether a tenant exists. Raises `InvalidToken` if that is not known at present."""
        if tenant(tenant_id) is not None:
            return True
        if self._directory is not None and not self._directory.figures().fresh:
            raise InvalidToken(TokenFault.UNVERIFIED, f"tenant {tenant_id!r} may be in the unreachable database")
        return False

    def _uses_of(self, settings: Settings) -> Mapping[bytes, SecretUse]:
        """Returns the key secrets and their uses, which are kept across reloads."""
        self.secret_uses = {name: self.secret_uses.get(name, SecretUse()) for name in settings.key_secret_ids}
        return dict(zip(settings.key_secrets, self.secret_uses.values(), strict=True))

    def _budgets_left(
        self, decided: Callable[[TenantId | None], Sequence[BudgetStatus] | None], tenant_id: TenantId | None
    ) -> tuple[Sequence[BudgetStatus], bool]:
        """Returns the scheduler's amounts, or the ledger's last amounts if the scheduler is another process."""
        left = decided(tenant_id)
        return (self._budgets.budgets_left(tenant_id), True) if left is None else (left, False)

    def admin_api(
        self,
        settings: Settings,
        budgets_left: Callable[[TenantId | None], Sequence[BudgetStatus] | None],
        endpoints: Callable[[], Collection[EndpointId]],
        reads: ReadAudit,
        auth: OperatorAuth,
    ) -> AdminApi | None:
        """Returns the admin API for overrides and, with a database, for tenants, keys and budgets.

        None if no operator can authenticate.
        """
        directory = self._directory
        if not settings.admin_keys and settings.operators is None:
            return None
        scaled, secrets = settings.scaling_rules.keys(), settings.key_secrets or (b"",)
        names = partial(override_targets, settings.policy, lambda: self._in_force, endpoints, scaled)
        shares = {} if self.share_leases is None else routes_of(self.share_leases)
        if directory is None:
            return AdminApi(
                self._overrides,
                auth,
                self._wait_applied,
                names,
                reads,
                hint=NO_DATABASE_HINT,
                more_routes=shares,
            )
        budgets = budget_routes(directory.writer, lambda name: self._budgets_left(budgets_left, name)[0])
        others = {**tenant_routes(directory.writer, secrets[0]), **budgets, **shares}
        if self._reports is not None:
            others |= cost_routes(self._reports)
        return AdminApi(directory.writer, auth, self._wait_applied, names, reads, more_routes=others)

    # Status

    def ready(self, *, serves: bool) -> tuple[bool, str]:
        if self._ledger is not None and not (ready := self._ledger.ready())[0]:
            return ready
        if self._directory is None:
            return True, "ready"
        # A process that serves no requests does not need keys.
        others = bool(self._settings.keys) or self._settings.anonymous_tenant is not None or not serves
        return self._directory.ready(has_other_keys=others)

    @property
    def notifications_waiting(self) -> int:
        return 0 if self._notifier is None else len(self._notifier)

    def ledger_figures(self) -> LedgerStats | None:
        return None if self._ledger is None else self._ledger.figures()

    def directory_figures(self) -> DirectoryStats | None:
        return None if self._directory is None else self._directory.figures()

    def identity_figures(self) -> IdentityStats | None:
        return None if self.identity is None else self.identity.stats()

    def status(self) -> Mapping[str, object]:
        return {
            "overrides": overrides_status(self._in_force.overrides, self._now()),
            "key_secrets": secret_uses_status(self.secret_uses),
            **({} if self.share_leases is None else {"shares": self.share_leases.status()}),
            **({} if self._directory is None else {"database": self._directory.status()}),
            **({} if self.identity is None else {"issuers": self.identity.status()}),
            **({} if self._ledger is None else {"ledger": self._ledger.status()}),
        }


def _open_directory(
    settings: Settings, on_change: Callable[[], None], on_progress: Callable[[], None]
) -> "DirectorySync | None":
    if settings.database is None:
        return None
    try:
        from headgate.control.directory_sync import DirectorySync
    except ImportError as error:
        raise OSError(0, f"database: {error}; install headgate[ledger]") from error
    return DirectorySync(settings.database, on_change, on_progress)


def _open_ledger(settings: Settings, unit_key: Callable[[], str | None]) -> "LedgerSync | None":
    if settings.database is None or settings.ledger is None:
        return None
    try:
        from headgate.control.ledger_sync import LedgerSync
    except ImportError as error:
        raise OSError(0, f"ledger: {error}; install headgate[ledger]") from error
    return LedgerSync(settings.database, settings.ledger, unit_key=unit_key)


def _ignore_task(_: "asyncio.Task[None]") -> None:
    """Does nothing. Used until the background tasks are running."""
