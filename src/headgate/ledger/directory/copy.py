"""How does every process know all keys, without asking anybody when one is shown to it?

It holds a copy of the directory and follows the original: told of each change by NOTIFY, and asking every few seconds
whether it missed one. Only what changed is read, by its number; several changes are taken over together or not at all.
Whoever looks sees one picture, which is replaced as a whole.

When the database is away the last picture stays, for as long as that takes: what was known goes on being known, and
ends by its own expiry. What changes is that the copy is no longer `fresh`: nobody can say any more that a key which is
not in it does not exist.

What is not ideal: a clock that is behind the database's lets a key live longer by as much.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from headgate.ledger.database import FAILURES, Database, close
from headgate.ledger.directory.budgets import budget_row
from headgate.ledger.directory.directory import TENANTS_MAX, key_row, order_row, tenant_row
from headgate.ledger.link import Link, Row
from headgate.ledger.migrate import Migration, migrations, mismatch
from headgate.ports.directory import BudgetRow, KeyRow, OrderRow, TenantRow

log = logging.getLogger("headgate")

CHANNEL: Final = "headgate_directory"
POLL_S: Final = 5.0
AGAIN_S_MIN: Final = 0.1
AGAIN_S_MAX: Final = 5.0
PAGE: Final = 1_000
"""Rows that are read and taken over in one turn of the loop."""
KEYS_MAX: Final = 2 * TENANTS_MAX

_STATE: Final = "select incarnation::text as incarnation, version from headgate.directory_state"
_PAGES: Final = {
    "tenants": (
        "select id, classes, models, weight, plan, requests_per_minute, tokens_per_minute, concurrency, created_at,"
        " removed_at, changed, id as name from headgate.tenants where (changed, id) > ($1, $2)"
        " order by changed, id limit $3"
    ),
    "keys": (
        "select digest, tenant, created_at, expires_at, revoked_at, changed, digest as name from headgate.keys"
        " where (changed, digest) > ($1, $2) order by changed, digest limit $3"
    ),
    "budgets": (
        "select tenant, period, limit_nano_usd, hard, created_at, removed_at, changed, tenant || ' ' || period as name"
        " from headgate.budgets where (changed, tenant || ' ' || period) > ($1, $2) order by changed, name limit $3"
    ),
    "orders": (
        "select id, verb, target, terms, reason, ordered_by, created_at, expires_at, ended_at, changed, id as name"
        " from headgate.orders where (changed, id) > ($1, $2) order by changed, id limit $3"
    ),
}


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Picture:
    """All that can matter at some moment: who was removed and what was revoked is not in it, what expired may be."""

    incarnation: str = ""
    """Of the database: numbers of another one mean nothing here. Empty as long as nothing was read."""
    version: int = 0
    tenants: Mapping[str, TenantRow] = field(default_factory=_nothing)
    keys: Mapping[bytes, KeyRow] = field(default_factory=_nothing, repr=False)
    orders: Mapping[str, OrderRow] = field(default_factory=_nothing)
    budgets: Mapping[str, tuple[BudgetRow, ...]] = field(default_factory=_nothing)
    """By the tenant that has them."""
    changed: tuple[str, ...] | None = None
    """Tenants that are others than in the picture before, have other budgets, came or went; None where all may."""

    @property
    def name(self) -> str:
        """The same in all processes that have the same rows."""
        return f"{self.incarnation[:8]}.{self.version}"


class DirectoryTooLarge(Exception):
    """There are more rows than a process holds in memory."""


class Copy:
    """Follows the directory for as long as `run` runs."""

    def __init__(
        self,
        database: Database,
        on_change: Callable[[Picture], None],
        *,
        poll_s: float = POLL_S,
        known: tuple[Migration, ...] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.picture = Picture()
        self.problem: str | None = "it has not been reached yet"
        """Why the picture may be old; None while it is not."""
        self.mismatch: str | None = None
        """Why this version cannot work with the database; None where it can, or it could not be asked."""
        self.loaded = False
        self.reconnects = 0
        self._database = database
        self._on_change = on_change
        self._poll_s = poll_s
        self._known = migrations() if known is None else known
        self._monotonic = monotonic
        self._confirmed_at: float | None = None
        self._wake = asyncio.Event()
        self._looked = asyncio.Condition()

    @property
    def fresh(self) -> bool:
        """Whether what is not in the picture was not in the database a moment ago."""
        return self.problem is None and self.age_s < 2 * self._poll_s + 1.0

    @property
    def age_s(self) -> float:
        """Since the database last said that this is all there is."""
        return float("inf") if self._confirmed_at is None else self._monotonic() - self._confirmed_at

    async def run(self) -> None:
        """For ever."""
        wait_s = AGAIN_S_MIN
        while True:
            began_at = self._monotonic()
            try:
                await self._follow()
            except (*FAILURES, DirectoryTooLarge) as error:
                self._lost(self._database.problem(error))
            if self._monotonic() - began_at > AGAIN_S_MAX:
                wait_s = AGAIN_S_MIN
            # Not all gateways come back in the same moment.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(AGAIN_S_MAX, 2 * wait_s)
            self.reconnects += 1

    def ring(self) -> None:
        """Has it look at once."""
        self._wake.set()

    async def looked(self, limit_s: float) -> bool:
        """Waits until it has looked once more, but no longer than that."""
        try:
            async with asyncio.timeout(limit_s), self._looked:
                await self._looked.wait()
        except TimeoutError:
            return False
        return True

    def _lost(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("the database of keys is away: %s; known keys go on working", problem)
        self.problem = problem

    async def _follow(self) -> None:
        """Over one connection, until it ends."""
        link = await self._database.connect()
        try:
            link.add_termination_listener(self._rung)
            await link.add_listener(CHANNEL, self._rung)
            self.mismatch = await mismatch(link, self._known)
            if self.mismatch is not None:
                self._lost(self.mismatch)
                return
            while not link.is_closed():
                self._wake.clear()
                await self._look(link)
                try:
                    async with asyncio.timeout(self._poll_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._lost("the connection was closed")
        finally:
            await close(link)

    def _rung(self, *_: object) -> None:
        self._wake.set()

    async def _look(self, link: Link) -> None:
        """Takes over what has changed, and notes that this is all."""
        asked_at = self._monotonic()
        state = await link.fetchrow(_STATE)
        assert state is not None
        known = self.picture
        # A number that goes back, or another database: what is held here is of a time that never was.
        if (state["incarnation"], known.version) != (known.incarnation, state["version"]):
            follows = state["incarnation"] == known.incarnation and state["version"] >= known.version
            async with link.transaction(isolation="repeatable_read", readonly=True):
                picture = await _read(link, known if follows else Picture())
            self.picture = picture
            self._on_change(picture)
        self._confirmed_at = asked_at
        if self.problem is not None:
            log.info(
                "the database of keys answers: %d tenants, %d keys", len(self.picture.tenants), len(self.picture.keys)
            )
        self.problem, self.loaded = None, True
        async with self._looked:
            self._looked.notify_all()


async def _read(link: Link, known: Picture) -> Picture:
    """What was known, with all that has changed since."""
    state = await link.fetchrow(_STATE)
    assert state is not None
    now = time.time_ns()
    tenants, keys = dict(known.tenants), dict(known.keys)
    # What has run out since is left behind, or those that are rotated away would stay for ever.
    for digest in [each for each, key in keys.items() if key.expires_at is not None and key.expires_at <= now]:
        del keys[digest]
    orders = {name: order for name, order in known.orders.items() if order.expires_at > now}
    changed: dict[str, None] = {}
    async for row in _changed(link, "tenants", known.version, ""):
        changed[row["id"]] = None
        _keep(tenants, row["id"], tenant_row(row), gone=row["removed_at"] is not None)
    async for row in _changed(link, "keys", known.version, b""):
        key = key_row(row)
        _keep(keys, key.digest, key, gone=key.revoked_at is not None or (key.expires_at or now) < now)
    budgets = dict(known.budgets)
    async for row in _changed(link, "budgets", known.version, ""):
        changed[row["tenant"]] = None
        _take_budget(budgets, budget_row(row))
    async for row in _changed(link, "orders", known.version, ""):
        order = order_row(row)
        _keep(orders, order.id, order, gone=order.ended_at is not None or order.expires_at < now)
    if len(tenants) > TENANTS_MAX or len(keys) > KEYS_MAX:
        raise DirectoryTooLarge(f"it holds {len(tenants)} tenants and {len(keys)} keys, more than fit; remove some")
    return replace(
        known,
        incarnation=state["incarnation"],
        version=state["version"],
        tenants=tenants,
        keys=keys,
        orders=orders,
        budgets=budgets,
        changed=tuple(changed) if known.incarnation else None,
    )


async def _changed(link: Link, table: str, version: int, first: str | bytes) -> AsyncIterator[Row]:
    count = PAGE
    # After the last row of the version that is known.
    version, name = version + 1, first
    while count == PAGE:
        rows = await link.fetch(_PAGES[table], version, name, PAGE)
        for row in rows:
            yield row
        count = len(rows)
        if rows:
            version, name = rows[-1]["changed"], rows[-1]["name"]
        # Others have their turn between pages.
        await asyncio.sleep(0)


def _take_budget(budgets: dict[str, tuple[BudgetRow, ...]], row: BudgetRow) -> None:
    others = tuple(each for each in budgets.get(row.tenant, ()) if each.period is not row.period)
    # In one order, so that processes which read them in another come to the same policy.
    kept = others if row.removed_at is not None else tuple(sorted((*others, row), key=lambda each: each.period))
    _keep(budgets, row.tenant, kept, gone=not kept)


def _keep(rows: dict[Any, Any], name: Any, row: Any, *, gone: bool) -> None:
    if gone:
        rows.pop(name, None)
    else:
        rows[name] = row
