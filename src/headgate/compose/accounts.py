"""Who may call a gateway, what may they spend, and where is it written down?

Everything of one process that has to do with keys and money: the directory of tenants beside the file, budgets and
their notices, the ledger, and the reports from it. Without a database most of it is absent, and nothing else of the
gateway has to know.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.config.settings import Settings
from headgate.control.budget_sync import BudgetNews
from headgate.control.notifications import Notices
from headgate.control.operator_orders import NO_DATABASE, MemoryOrders, orders_shown
from headgate.core.events import BudgetsTold
from headgate.edge.admin.api import AdminApi, Operator
from headgate.edge.admin.budgets import budget_routes
from headgate.edge.admin.cost import cost_routes
from headgate.edge.admin.override_targets import override_targets
from headgate.edge.admin.tenants import tenant_routes
from headgate.edge.auth import KeyRing
from headgate.edge.door import Access
from headgate.edge.key_usage import Salts, budget_rows, usage_of
from headgate.model.limits import LimitsLeft
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, Instant, ModelName, TenantId
from headgate.ports.ledger import AttemptJournal
from headgate.ports.observer import Observer
from headgate.telemetry.directory import DirectoryFigures
from headgate.telemetry.ledger import LedgerFigures
from headgate.telemetry.log import tell

if TYPE_CHECKING:
    import aiohttp

    from headgate.control.directory_sync import LiveDirectory
    from headgate.control.ledger_sync import LiveLedger
    from headgate.ledger.reports.reports import PostgresReports

_FIRST_LOOK_S_MAX: Final = 3.0
"""So long a gateway that starts waits for the database to say who may call."""


class Accounts:
    """Made and run inside an event loop. Raises `OSError` where a part is missing or unfit, with the next step."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], Instant],
        tell_host: Callable[[BudgetsTold], None],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is told when the database has other tenants or orders, and the policy is to be taken anew."""
        self._settings = settings
        self._now = now
        self._on_change = on_change
        # First, since it may refuse its folder, and needs no closing then.
        self._ledger = _open_ledger(settings)
        self._directory = _open_directory(settings, self._changed)
        self._orders = MemoryOrders(on_change, now, in_cell=settings.cell is not None)
        """Operators' orders of a gateway without a database."""
        self._in_force = settings.policy
        database = None if settings.database is None else settings.database.url
        self._budgets = BudgetNews(database, tell_host, lambda: self._in_force, now)
        self._reports = self._open_reports()
        self._notices: Notices | None = None
        self._preparing: asyncio.Task[None] | None = None
        """Reads what is spent of budgets that came just now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: Callable[[asyncio.Task[None]], None] = _nobody_asks

    def _open_reports(self) -> "PostgresReports | None":
        if self._settings.database is None:
            return None
        from headgate.control.cost_reports import open_reports

        return open_reports(self._settings.database, lambda: self._settings.ledger, lambda: self._in_force)

    def open_notices(self, session: "aiohttp.ClientSession") -> None:
        if self._settings.notices is not None:
            url = None if self._settings.database is None else self._settings.database.url
            self._notices = Notices(self._settings.notices, session, url)

    # Its life

    @property
    def of_requests(self) -> tuple[Observer, ...]:
        """Who sees the requests of this process."""
        return () if self._ledger is None else (self._ledger.observer,)

    @property
    def journal(self) -> AttemptJournal | None:
        return None if self._ledger is None else self._ledger.observer

    @property
    def of_scheduler(self) -> tuple[Observer, ...]:
        """Who sees what is decided, where that is done in this process."""
        return () if self._notices is None else (self._notices,)

    async def begin(self, ended: Callable[["asyncio.Task[None]"], None]) -> None:
        """Before anybody is let in: who may call, and what they have spent, if the database says so soon.

        `ended` is told of whatever runs from here on and ends by itself."""
        self._ended = ended
        if self._directory is not None:
            self._directory.start().add_done_callback(ended)
            await self._directory.looked(_FIRST_LOOK_S_MAX)
            if self._preparing is not None:
                await asyncio.wait([self._preparing])
        await self._budgets.begin()
        self._run(self._budgets.run())
        if self._notices is not None:
            self._run(self._notices.run())

    def write(self, take_times: Callable[[], Sequence[EndpointTime]]) -> None:
        """Begins to write down what is seen; `take_times` gives how endpoints spent theirs, where it is known here."""
        if self._ledger is not None:
            for task in self._ledger.start(take_times, lambda: self._settings.policy.pools, self._now):
                task.add_done_callback(self._ended)

    def _run(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        if self._ledger is not None:
            await self._ledger.stop()
        for task in (running := tuple(self._tasks)):
            task.cancel()
        if running:
            await asyncio.wait(running)
        if self._directory is not None:
            await self._directory.stop()
        await self._budgets.stop()
        if self._notices is not None:
            await self._notices.stop()
        if self._reports is not None:
            await self._reports.stop()

    # The policy

    def change_to(self, settings: Settings) -> None:
        before, self._settings = self._settings, settings
        if self._notices is not None and settings.notices is not None:
            self._notices.change_to(settings.notices)
        elif before.notices != settings.notices:
            tell(logging.WARNING, "notices to nobody, or to somebody for the first time, need a restart")
        if before.database != settings.database:
            tell(logging.WARNING, "another database needs a restart")
        if _ledger_terms(before) != _ledger_terms(settings):
            tell(logging.WARNING, "another spool or retention of the ledger needs a restart")

    def policy(self, settings: Settings) -> Policy:
        """The one of the file with what is known of the database: it is in force from here on."""
        self._in_force = (self._directory or self._orders).take(settings.policy)
        self._budgets.ring()
        return self._in_force

    def policy_hash(self, settings: Settings) -> str:
        """Names the policy: the configuration, and what was read of the database beside it."""
        rows = (self._directory or self._orders).name
        return f"{settings.hash}+{rows}" if rows else settings.hash

    def _changed(self) -> None:
        """Where budgets come with it, what is spent of them is told first, or they would be as good as new."""
        if self._preparing is not None:
            return
        if self._budgets.lacks(self._preview()):
            self._preparing = self._run(self._prepare())
        else:
            self._on_change()

    async def _prepare(self) -> None:
        try:
            # More may come meanwhile. Where the database does not answer, what is counted here has to do.
            while self._budgets.lacks(policy := self._preview()) and await self._budgets.prepare(policy):
                pass
        finally:
            self._preparing = None
        self._on_change()

    def _preview(self) -> Policy:
        assert self._directory is not None
        return self._directory.preview(self._settings.policy)

    async def _taken_over(self) -> None:
        """Waits a little until what was just written is in force here too."""
        if self._directory is not None:
            await self._directory.taken_over()
        if self._preparing is not None:
            await asyncio.wait([self._preparing], timeout=_FIRST_LOOK_S_MAX)

    # Who may ask for what

    def access(
        self,
        settings: Settings,
        limits_left: Callable[[TenantId], LimitsLeft | None],
        budgets_left: Callable[[TenantId | None], Sequence[BudgetLeft] | None],
    ) -> Access:
        tenants = {tenant.id: tenant for tenant in settings.policy.tenants}
        names = tuple(model.name for model in settings.policy.models)
        directory, secret = self._directory, settings.key_secret or b""

        def tenant(tenant_id: TenantId) -> Tenant | None:
            found = tenants.get(tenant_id)
            return found if found is not None or directory is None else directory.tenant(tenant_id)

        def models(tenant_id: TenantId) -> tuple[ModelName, ...]:
            found = tenant(tenant_id)
            # Between a key's being known and its tenant's removal nothing waits, so it has hardly ever gone.
            allowed = () if found is None else found.models
            return tuple(name for name in names if name in allowed) if allowed else names

        def budgets(tenant_id: TenantId) -> Sequence[Mapping[str, object]]:
            left, by_ledger = self._budgets_left(budgets_left, tenant_id)
            return budget_rows(left, self._now(), told_by_ledger=by_ledger, as_of=self._budgets.as_of)

        usage = partial(usage_of, tenant, models, settings.policy.classes, limits_left, budgets=budgets)
        keys = KeyRing(secret, settings.keys, settings.anonymous_tenant, directory)
        return Access(keys, models, Salts(secret), usage)

    def _budgets_left(
        self, decided: Callable[[TenantId | None], Sequence[BudgetLeft] | None], tenant_id: TenantId | None
    ) -> tuple[Sequence[BudgetLeft], bool]:
        """What the scheduler would say, or, where it is another process, what the ledger told last."""
        left = decided(tenant_id)
        return (self._budgets.left(tenant_id), True) if left is None else (left, False)

    def admin_api(
        self,
        settings: Settings,
        budgets_left: Callable[[TenantId | None], Sequence[BudgetLeft] | None],
        endpoints: Callable[[], Collection[EndpointId]],
    ) -> AdminApi | None:
        """API for orders, and with a database for tenants, keys and budgets. None without an operator key."""
        directory = self._directory
        if not settings.admin_keys:
            return None
        operators = {each.digest: Operator(each.name, each.permissions) for each in settings.admin_keys}
        secret = settings.key_secret or b""
        names = partial(override_targets, settings.policy, lambda: self._in_force, endpoints)
        if directory is None:
            return AdminApi(self._orders, secret, operators, self._taken_over, names, hint=NO_DATABASE)
        budgets = budget_routes(directory.writer, lambda name: self._budgets_left(budgets_left, name)[0])
        others = {**tenant_routes(directory.writer, secret), **budgets}
        if self._reports is not None:
            others |= cost_routes(self._reports)
        return AdminApi(directory.writer, secret, operators, self._taken_over, names, others=others)

    # What the admin listener shows

    def ready(self, *, serves: bool) -> tuple[bool, str]:
        if self._ledger is not None and not (ready := self._ledger.ready())[0]:
            return ready
        if self._directory is None:
            return True, "ready"
        # Who schedules for a cell and serves nobody needs no key.
        others = bool(self._settings.keys) or self._settings.anonymous_tenant is not None or not serves
        return self._directory.ready(others=others)

    @property
    def notices_waiting(self) -> int:
        return 0 if self._notices is None else len(self._notices)

    def ledger_figures(self) -> LedgerFigures | None:
        return None if self._ledger is None else self._ledger.figures()

    def directory_figures(self) -> DirectoryFigures | None:
        return None if self._directory is None else self._directory.figures()

    def status(self) -> Mapping[str, object]:
        return {
            "orders": orders_shown(self._in_force.orders, self._now()),
            **({} if self._directory is None else {"database": self._directory.status()}),
            **({} if self._ledger is None else {"ledger": self._ledger.status()}),
        }


def _open_directory(settings: Settings, on_change: Callable[[], None]) -> "LiveDirectory | None":
    if settings.database is None:
        return None
    try:
        from headgate.control.directory_sync import LiveDirectory
    except ImportError as error:
        raise OSError(0, f"database: {error}; install headgate[ledger]") from error
    return LiveDirectory(settings.database, on_change)


def _open_ledger(settings: Settings) -> "LiveLedger | None":
    if settings.database is None or settings.ledger is None:
        return None
    try:
        from headgate.control.ledger_sync import LiveLedger
    except ImportError as error:
        raise OSError(0, f"ledger: {error}; install headgate[ledger]") from error
    return LiveLedger(settings.database, settings.ledger)


def _ledger_terms(settings: Settings) -> tuple[object, ...]:
    ledger = settings.ledger
    return () if ledger is None else (ledger.spool, ledger.spool_bytes_max, ledger.retention_days)


def _nobody_asks(_: "asyncio.Task[None]") -> None:
    """As long as nothing runs."""
