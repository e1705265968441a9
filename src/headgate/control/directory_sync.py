"""Applies the tenants, keys and overrides in the database to a gateway.

A local replica follows the directory in the database (`ledger/directory/directory_replica.py`). Its rows become tenants
and overrides in the policy, in addition to those in the configuration file. If both define a tenant with the same ID,
the file takes precedence, and the database's tenant is ignored along with its keys. Keys are looked up in memory, so no
request ever waits for the database.

Keys take effect as soon as they are read, and a revoked key stops working immediately. A tenant takes effect when the
policy that includes it is in force. In a cell, that is when all members have read the tenant. Until then, its keys are
reported as not *yet* known, which is a different error from that for an invalid key.
"""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from typing import Final

from headgate.control.operator_overrides import override_of
from headgate.edge.auth import KeyUnverified
from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.database import DATABASE_ERRORS, Database, close
from headgate.ledger.directory.directory_replica import DirectoryReplica, DirectorySnapshot
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.ledger.options import DatabaseOptions
from headgate.ledger.schema_migration import Migration, SchemaState, migrate, migrations, schema_state
from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Plan, Tenant, TenantTable, tenant_table
from headgate.model.units import SECOND, ClassName, ModelName, TenantId
from headgate.ports.directory import BudgetRow, TenantRow
from headgate.telemetry.directory_metrics import DirectoryStats

_SHADOWED_SHOWN_MAX: Final = 20
_APPLY_S_MAX: Final = 2.0
_TENANTS_PER_TURN: Final = 500
"""Number of tenants that are built before other coroutines run."""


class DirectorySync:
    """A process's directory of tenants and keys. Must be created and run inside an event loop."""

    def __init__(
        self,
        settings: DatabaseOptions,
        on_change: Callable[[], None],
        on_progress: Callable[[], None],
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`on_change` is called when the rows have changed. During the first read, `on_progress` is called whenever
        more tenants are known, so that they can be applied in small steps. Their keys are not valid before the end.
        """
        self._shown = settings.url_redacted
        self._database = Database(settings.url)
        self._on_change, self._on_progress = on_change, on_progress
        self._now_ns = now_ns
        self._copy = DirectoryReplica(self._database, self._changed, poll_s=settings.poll_interval_ns / SECOND)
        self.writer = PostgresDirectory(self._database, lambda name: TenantId(name) in self._file)
        self._snapshot = DirectorySnapshot()
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        """Tenants in the latest database snapshot."""
        self._in_force = self._tenants
        """Database tenants in the policy in force, including those that the file overrides."""
        self._file: PersistentMap[TenantId, Tenant] = PersistentMap()
        """Tenants in the file in force."""
        self._merged = _MergedTenants()
        self._running: asyncio.Task[None] | None = None

    # Lifecycle

    def start(self) -> asyncio.Task[None]:
        self._running = asyncio.create_task(self._copy.run(), name="follow the directory")
        return self._running

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self._database.stop()

    async def wait_first_read(self, limit_s: float) -> None:
        """Waits up to `limit_s` for the database to be read once."""
        await self._copy.wait_refreshed(limit_s)

    async def wait_applied(self) -> None:
        """Waits briefly until the rows that were just written are known here."""
        self._copy.wake()
        await self._copy.wait_refreshed(_APPLY_S_MAX)

    # Policy

    @property
    def name(self) -> str:
        """Identifier of the rows. It is the same in every process that has read the same rows."""
        return self._snapshot.version_text if self._copy.loaded else ""

    def apply(self, policy: Policy) -> Policy:
        """Returns the policy from the file with the rows known here, and marks them as in force."""
        if self._copy.loaded:
            self._in_force = self._tenants
        self._file = tenant_table(policy.tenants).by_id
        return self.preview(policy)

    def preview(self, policy: Policy) -> Policy:
        """Returns the policy that would be in force."""
        orders = tuple(order for row in self._snapshot.overrides.values() if (order := override_of(row)) is not None)
        return replace(
            policy,
            tenants=self._merged.of(policy.tenants, self._tenants),
            overrides=(*policy.overrides, *orders),
            tenants_loaded=self._copy.loaded,
        )

    def tenant(self, tenant_id: TenantId) -> Tenant | None:
        return self._in_force.get(tenant_id)

    async def _changed(self, picture: DirectorySnapshot) -> None:
        tenants, names = tenants_to_rebuild(picture, self._tenants)
        while page := tuple(islice(names, _TENANTS_PER_TURN)):
            tenants = with_rebuilt(page, picture, tenants)
            if len(page) < _TENANTS_PER_TURN:
                break
            if not self._copy.loaded:
                self._tenants = tenants
                self._on_progress()
                # The garbage collector would otherwise scan the new tenants several times, for 0.1 s and more.
                gc.freeze()
            await asyncio.sleep(0)
        self._tenants, self._snapshot = tenants, picture
        # The replica sets this flag only once its first read is complete, but the rows are already complete here.
        self._copy.loaded = True
        self._on_change()

    # Key lookup

    def find(self, digest: bytes) -> TenantId | None:
        row = self._snapshot.keys.get(digest)
        if row is not None and (row.expires_at is None or row.expires_at > self._now_ns()):
            tenant_id = TenantId(row.tenant)
            if tenant_id in self._file:
                return None
            if tenant_id in self._in_force:
                return tenant_id
            raise KeyUnverified("this key is new and not known to all gateways yet; retry")
        if row is None and not self._copy.fresh:
            raise KeyUnverified(f"this key cannot be verified: {self._unavailable_reason()}; retry")
        return None

    def _unavailable_reason(self) -> str:
        return f"the key database is unreachable ({self._copy.problem or 'no response for a while'})"

    # Status

    def ready(self, *, has_other_keys: bool) -> tuple[bool, str]:
        """Returns whether requests can be accepted. `has_other_keys` is true if callers that are not in the database
        are allowed.
        """
        if self._copy.loaded:
            return True, "ready"
        if self._copy.mismatch is not None:
            return False, self._copy.mismatch
        if has_other_keys:
            return True, f"ready with only the keys of the configuration file: {self._unavailable_reason()}"
        return (
            False,
            f"no key is known: {self._unavailable_reason()}; start the database or add a key to the configuration file",
        )

    def figures(self) -> DirectoryStats:
        copy = self._copy
        return DirectoryStats(
            copy.fresh, copy.age_s, len(self._snapshot.tenants), len(self._snapshot.keys), copy.reconnects
        )

    def status(self) -> Mapping[str, object]:
        copy, shadowed = self._copy, self._shadowed()
        return {
            "url": self._shown,
            "fresh": copy.fresh,
            "age_s": None if copy.age_s == float("inf") else round(copy.age_s, 1),
            "version": self._snapshot.version,
            "tenants": len(self._snapshot.tenants),
            "keys": len(self._snapshot.keys),
            "budgets": sum(len(each) for each in self._snapshot.budgets.values()),
            "overrides": sum(order.expires_at > self._now_ns() for order in self._snapshot.overrides.values()),
            "problem": copy.problem,
            "reconnects": copy.reconnects,
            "shadowed_by_file": shadowed,
        }

    def _shadowed(self) -> list[TenantId]:
        fewer, more = sorted((self._file, self._tenants), key=len)
        return list(islice((name for name in fewer if name in more), _SHADOWED_SHOWN_MAX))


class _MergedTenants:
    """The tenants of the file and of the database. Only those that have changed since the last call are visited."""

    def __init__(self) -> None:
        self._file: Collection[Tenant] = ()
        self._database: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._table = TenantTable(PersistentMap())

    def of(self, file: Collection[Tenant], database: PersistentMap[TenantId, Tenant]) -> TenantTable:
        """Returns the tenants. Where both define a tenant, the file takes precedence."""
        own, before, table = tenant_table(file).by_id, tenant_table(self._file).by_id, self._table.by_id
        changes: dict[TenantId, Tenant | None] = dict(database.changes_since(self._database))
        for name, tenant in own.changes_since(before).items():
            changes[name] = database.get(name) if tenant is None else tenant
        table = table.updated({name: own.get(name) or tenant for name, tenant in changes.items()})
        self._file, self._database, self._table = TenantTable(own), database, TenantTable(table)
        return self._table


def tenants_to_rebuild(
    picture: DirectorySnapshot, known: PersistentMap[TenantId, Tenant]
) -> tuple[PersistentMap[TenantId, Tenant], Iterator[str]]:
    """Returns the known tenants that can be kept, and the names of those to build from the rows.

    Only tenants that changed, or are below one that did, are rebuilt.
    """
    rows, changed = picture.tenants, picture.changed_tenants
    if changed is None:
        return PersistentMap(), iter(rows)
    names = dict.fromkeys(changed)
    for name in changed:
        names.update(dict.fromkeys(rows.between(f"{name}/", f"{name}0")))
    return known, iter(names)


def with_rebuilt(
    names: Iterable[str], picture: DirectorySnapshot, tenants: PersistentMap[TenantId, Tenant]
) -> PersistentMap[TenantId, Tenant]:
    """Returns the tenants, of which those with these names are built from the rows."""
    rows, budgets = picture.tenants, picture.budgets
    return tenants.updated(
        {TenantId(name): _tenant(name, rows, budgets.get(name) or ()) if name in rows else None for name in names}
    )


def _tenant(name: str, rows: PersistentMap[str, TenantRow], budgets: Sequence[BudgetRow]) -> Tenant:
    """Builds a tenant. Missing terms are inherited, and lists allow only entries that every level allows."""
    terms = rows[name].settings
    classes, models, plan = terms.classes, terms.models, terms.plan
    above = name.rpartition("/")[0]
    while above:
        if (whole := rows.get(above)) is not None:
            classes, models = (
                _intersection(classes, whole.settings.classes),
                _intersection(models, whole.settings.models),
            )
            plan = plan or whole.settings.plan
        above = above.rpartition("/")[0]
    return Tenant(
        TenantId(name),
        classes=tuple(ClassName(each) for each in classes),
        models=tuple(ModelName(each) for each in models),
        weight=terms.weight or 100,
        plan=Plan(plan or Plan.STANDARD),
        limits=Limits(terms.requests_per_minute, terms.tokens_per_minute, terms.concurrency),
        budgets=tuple(Budget(each.period, each.limit, each.hard) for each in budgets),
    )


def _intersection(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the entries that both lists allow. An empty list allows everything, so if no entry is allowed, the result
    is `[""]`.
    """
    if not one or not other:
        return one or other
    return tuple(each for each in one if each in other) or ("",)


# Command line


async def migrate_database(url: str, on_step: Callable[[Migration], None]) -> int:
    """Applies migrations and returns how many were applied. Raises `OSError` with the problem."""
    async with _connection(url) as link:
        return await migrate(link, migrations(), on_step)


async def check_migrations(url: str) -> SchemaState:
    """Schema of the database. Raises `OSError` with the problem."""
    async with _connection(url) as link:
        return await schema_state(link, migrations())


@asynccontextmanager
async def _connection(url: str) -> AsyncGenerator[DatabaseConnection]:
    database = Database(url)
    try:
        link = await database.connect()
        try:
            yield link
        finally:
            await close(link)
    except DATABASE_ERRORS as error:
        raise OSError(0, database.describe(error)) from error
