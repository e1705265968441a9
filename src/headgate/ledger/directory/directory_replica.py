"""Each process's replica of the directory, so that keys can be verified without a query.

The replica follows the database. It is notified of each change with NOTIFY, and it polls every few seconds in case a
notification was lost. Only changed rows are read, selected by version number. Changes are applied atomically: readers
see an immutable snapshot, which is replaced as a whole. The new snapshot shares the unchanged rows with the old one, so
applying a change takes time in proportion to the change, not to the directory.

While the database is unreachable, the last snapshot stays in use. Known keys keep working until they expire. The
replica is then no longer `fresh`, which means that a key may exist even if it is not in the replica.

Limitation: if the local clock is behind the database's clock, keys expire late by the difference.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from headgate.ledger.connection import DatabaseConnection, DatabaseRow
from headgate.ledger.database import DATABASE_ERRORS, Database, close
from headgate.ledger.directory.budget_rows import budget_row
from headgate.ledger.directory.postgres_directory import TENANTS_MAX, key_row, override_row, tenant_row
from headgate.ledger.schema_migration import Migration, migrations, schema_mismatch
from headgate.model.persistent_map import PersistentMap
from headgate.ports.directory import BudgetRow, KeyRow, OverrideRow, TenantRow

log = logging.getLogger("headgate")

CHANNEL: Final = "headgate_directory"
POLL_INTERVAL_S: Final = 5.0
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0
PAGE_ROWS: Final = 1_000
"""Number of rows read and applied before yielding to the event loop."""
KEYS_MAX: Final = 2 * TENANTS_MAX

_SELECT_STATE: Final = "select incarnation::text as incarnation, version from headgate.directory_state"
_SELECT_PAGE: Final = {
    "tenants": (
        "select id, classes, models, weight, plan, requests_per_minute, tokens_per_minute, concurrency, created_at,"
        " removed_at, changed_version, id as name from headgate.tenants where (changed_version, id) > ($1, $2)"
        " order by changed_version, id limit $3"
    ),
    "keys": (
        "select digest, tenant, created_at, expires_at, revoked_at, changed_version, digest as name from headgate.keys"
        " where (changed_version, digest) > ($1, $2) order by changed_version, digest limit $3"
    ),
    "budgets": (
        "select tenant, period, limit_nano_usd, hard, created_at, removed_at, changed_version,"
        " tenant || ' ' || period as name from headgate.budgets"
        " where (changed_version, tenant || ' ' || period) > ($1, $2) order by changed_version, name limit $3"
    ),
    "overrides": (
        "select id, verb, target, parameters, reason, created_by, created_at, expires_at, ended_at, changed_version,"
        " id as name from headgate.overrides"
        " where (changed_version, id) > ($1, $2) order by changed_version, id limit $3"
    ),
}


def _empty_mapping() -> Mapping[Any, Any]:
    return MappingProxyType({})


def _empty_rows() -> PersistentMap[Any, Any]:
    return PersistentMap()


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """Snapshot of the directory, excluding removed tenants and revoked keys. It may contain expired keys."""

    incarnation: str = ""
    """ID of the database that `version` refers to; empty until the first read."""
    version: int = 0
    tenants: PersistentMap[str, TenantRow] = field(default_factory=_empty_rows)
    keys: PersistentMap[bytes, KeyRow] = field(default_factory=_empty_rows, repr=False)
    key_expiries: PersistentMap[tuple[int, bytes], bytes] = field(default_factory=_empty_rows, repr=False)
    """Digests of the keys that expire, by time and digest, so that expired keys are found without a search."""
    overrides: Mapping[str, OverrideRow] = field(default_factory=_empty_mapping)
    budgets: PersistentMap[str, tuple[BudgetRow, ...]] = field(default_factory=_empty_rows)
    """Budgets by tenant."""
    changed_tenants: tuple[str, ...] | None = None
    """Tenants that were added, removed or changed, or whose budgets changed; None if all may have changed."""

    @property
    def version_text(self) -> str:
        """Name of the version, which is the same in all processes that have the same rows."""
        return f"{self.incarnation[:8]}.{self.version}"


class DirectoryTooLarge(Exception):
    """The directory has more rows than a process may keep in memory."""


class DirectoryReplica:
    """Follows the directory while `run` is running."""

    def __init__(
        self,
        database: Database,
        on_change: Callable[[DirectorySnapshot], Awaitable[None] | None],
        *,
        poll_s: float = POLL_INTERVAL_S,
        known_migrations: tuple[Migration, ...] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.snapshot = DirectorySnapshot()
        self.problem: str | None = "not connected yet"
        """Why the snapshot may be out of date; None if it is up to date."""
        self.mismatch: str | None = None
        """Why this version cannot use the database; None if it can, or if compatibility is unknown."""
        self.loaded = False
        self.reconnects = 0
        self._database = database
        self._on_change = on_change
        self._poll_s = poll_s
        self._known = migrations() if known_migrations is None else known_migrations
        self._monotonic = monotonic
        self._confirmed_at: float | None = None
        self._wake = asyncio.Event()
        self._refreshed = asyncio.Condition()

    @property
    def fresh(self) -> bool:
        """Whether the snapshot was confirmed as up to date a moment ago.

        If so, a key that is not in it does not exist.
        """
        return self.problem is None and self.age_s < 2 * self._poll_s + 1.0

    @property
    def age_s(self) -> float:
        """Seconds since the snapshot was last confirmed as up to date; infinite if it never has been."""
        return float("inf") if self._confirmed_at is None else self._monotonic() - self._confirmed_at

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        wait_s = RETRY_S_MIN
        while True:
            began_at = self._monotonic()
            try:
                await self._follow_connection()
            except (*DATABASE_ERRORS, DirectoryTooLarge) as error:
                self._mark_unavailable(self._database.describe(error))
            if self._monotonic() - began_at > RETRY_S_MAX:
                wait_s = RETRY_S_MIN
            # Adds jitter, so that gateways do not all reconnect at the same time.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(RETRY_S_MAX, 2 * wait_s)
            self.reconnects += 1

    def wake(self) -> None:
        """Triggers an immediate poll."""
        self._wake.set()

    async def wait_refreshed(self, limit_s: float) -> bool:
        """Waits for the next poll to complete. Returns false after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s), self._refreshed:
                await self._refreshed.wait()
        except TimeoutError:
            return False
        return True

    def _mark_unavailable(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("the key database is unavailable: %s; known keys still work", problem)
        self.problem = problem

    async def _follow_connection(self) -> None:
        """Follows the directory over one connection until it is closed."""
        link = await self._database.connect()
        try:
            link.add_termination_listener(self._on_notify)
            await link.add_listener(CHANNEL, self._on_notify)
            self.mismatch = await schema_mismatch(link, self._known)
            if self.mismatch is not None:
                self._mark_unavailable(self.mismatch)
                return
            while not link.is_closed():
                self._wake.clear()
                await self._refresh(link)
                try:
                    async with asyncio.timeout(self._poll_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._mark_unavailable("the connection was closed")
        finally:
            await close(link)

    def _on_notify(self, *_: object) -> None:
        self._wake.set()

    async def _refresh(self, link: DatabaseConnection) -> None:
        """Applies changes and records that the snapshot is up to date."""
        asked_at = self._monotonic()
        state = await link.fetchrow(_SELECT_STATE)
        assert state is not None
        known = self.snapshot
        # A lower version or another id means that the database was restored or replaced, so read everything again.
        if (state["incarnation"], known.version) != (known.incarnation, state["version"]):
            follows = state["incarnation"] == known.incarnation and state["version"] >= known.version
            async with link.transaction(isolation="repeatable_read", readonly=True):
                picture = await _read_changes(link, known if follows else DirectorySnapshot())
            self.snapshot = picture
            if (applying := self._on_change(picture)) is not None:
                await applying
        self._confirmed_at = asked_at
        if self.problem is not None:
            log.info(
                "the key database is available: %d tenants, %d keys",
                len(self.snapshot.tenants),
                len(self.snapshot.keys),
            )
        self.problem, self.loaded = None, True
        async with self._refreshed:
            self._refreshed.notify_all()


async def _read_changes(link: DatabaseConnection, known: DirectorySnapshot) -> DirectorySnapshot:
    """The known snapshot with all subsequent changes applied."""
    state = await link.fetchrow(_SELECT_STATE)
    assert state is not None
    now = time.time_ns()
    tenants, budgets = known.tenants, known.budgets
    # Drop expired keys. Otherwise rotated keys would stay forever.
    keys, expiries = _changed_keys(known.keys, known.key_expiries, dict.fromkeys(_expired(known.key_expiries, now)))
    orders = {name: order for name, order in known.overrides.items() if order.expires_at > now}
    changed: dict[str, None] = {}
    async for rows in _changed_rows(link, "tenants", known.version, ""):
        changed.update(dict.fromkeys(row["id"] for row in rows))
        tenants = tenants.updated(
            {row["id"]: None if row["removed_at"] is not None else tenant_row(row) for row in rows}
        )
    async for rows in _changed_rows(link, "keys", known.version, b""):
        found = [key_row(row) for row in rows]
        keys, expiries = _changed_keys(
            keys, expiries, {each.digest: each if _is_valid(each, now) else None for each in found}
        )
    async for rows in _changed_rows(link, "budgets", known.version, ""):
        changed.update(dict.fromkeys(row["tenant"] for row in rows))
        budgets = _with_budgets(budgets, [budget_row(row) for row in rows])
    async for rows in _changed_rows(link, "overrides", known.version, ""):
        for order in map(override_row, rows):
            if order.ended_at is not None or order.expires_at < now:
                orders.pop(order.id, None)
            else:
                orders[order.id] = order
    if len(tenants) > TENANTS_MAX or len(keys) > KEYS_MAX:
        raise DirectoryTooLarge(
            f"{len(tenants)} tenants (limit {TENANTS_MAX}) and {len(keys)} keys (limit {KEYS_MAX}); remove some"
        )
    return replace(
        known,
        incarnation=state["incarnation"],
        version=state["version"],
        tenants=tenants,
        keys=keys,
        key_expiries=expiries,
        overrides=orders,
        budgets=budgets,
        changed_tenants=tuple(changed) if known.incarnation else None,
    )


async def _changed_rows(
    link: DatabaseConnection, table: str, version: int, first: str | bytes
) -> AsyncIterator[Sequence[DatabaseRow]]:
    """Yields the changed rows in pages. Between pages, other coroutines run."""
    count = PAGE_ROWS
    # Start after the last row in the known version.
    version, name = version + 1, first
    while count == PAGE_ROWS:
        rows = await link.fetch(_SELECT_PAGE[table], version, name, PAGE_ROWS)
        yield rows
        count = len(rows)
        if rows:
            version, name = rows[-1]["changed_version"], rows[-1]["name"]
        # Yield to the event loop between pages.
        await asyncio.sleep(0)


def _expired(expiries: PersistentMap[tuple[int, bytes], bytes], now: int) -> list[bytes]:
    return [digest for _, digest in takewhile(lambda each: each[0] <= now, expiries)]


def _is_valid(key: KeyRow, now: int) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at >= now)


def _changed_keys(
    keys: PersistentMap[bytes, KeyRow],
    expiries: PersistentMap[tuple[int, bytes], bytes],
    changes: Mapping[bytes, KeyRow | None],
) -> tuple[PersistentMap[bytes, KeyRow], PersistentMap[tuple[int, bytes], bytes]]:
    """Returns the keys with these changes, and their expiry times. A key with the value None is removed."""
    moved: dict[tuple[int, bytes], bytes | None] = {}
    for digest, key in changes.items():
        if (before := keys.get(digest)) is not None and before.expires_at is not None:
            moved[before.expires_at, digest] = None
        if key is not None and key.expires_at is not None:
            moved[key.expires_at, digest] = digest
    return keys.updated(changes), expiries.updated(moved)


def _with_budgets(
    budgets: PersistentMap[str, tuple[BudgetRow, ...]], rows: Sequence[BudgetRow]
) -> PersistentMap[str, tuple[BudgetRow, ...]]:
    changes: dict[str, tuple[BudgetRow, ...] | None] = {}
    for row in rows:
        known = changes[row.tenant] if row.tenant in changes else budgets.get(row.tenant)
        kept = [each for each in known or () if each.period is not row.period]
        if row.removed_at is None:
            kept.append(row)
        # Sorted, so that all processes derive the same policy.
        changes[row.tenant] = tuple(sorted(kept, key=lambda each: each.period)) or None
    return budgets.updated(changes)
