"""Maintains the sums by business unit, from which reports by unit are made.

A trigger adds the amounts of inserted usage rows to a queue (migration 0005). From time to time, one process moves the
queue to the sums in slices, and adds the rows of days before the registration of the key. Each step is one transaction,
and an amount is always either in the queue or in the sums. A process that is killed between steps therefore loses
nothing and counts nothing twice, and any other process continues.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.reports.queries import LINE_COLUMNS, SINGLE_ROWS

log = logging.getLogger("headgate")

UNIT_SUMS_INTERVAL_S: Final = 10.0
SLICE_ROWS: Final = 4_000
"""Maximum number of queue rows that are moved in one transaction."""
STEPS_S_MAX: Final = 2.0
"""Time after which no further slice is begun until the next interval, so that the writer's own rows do not wait."""
DAY_S_MAX: Final = 600.0
"""Timeout for adding the rows of one day."""
WARNINGS_KNOWN_MAX: Final = 20
KEPT_DAYS: Final = 400
"""Shortest retention time of the sums, so that a month can be compared with the same month of the previous year."""
DELETED_ROWS: Final = 5_000
"""Maximum number of rows that are deleted in one transaction."""

UNIT_AMOUNTS: Final = (
    *("requests", "unsent", "attempts", "engine_us", "tokens_in", "tokens_cached", "tokens_out"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "retries_nano_usd", "charged_nano_usd"),
    "cost_nano_usd",
)
_NAMES: Final = ", ".join(UNIT_AMOUNTS)
_SUMS: Final = ", ".join(f"sum({name}) as {name}" for name in UNIT_AMOUNTS)
_NEGATED: Final = ", ".join(f"-{name}" for name in UNIT_AMOUNTS)
_NOT_ZERO: Final = " or ".join(f"sum({name}) <> 0" for name in UNIT_AMOUNTS)


def _added_to(table: str) -> str:
    return ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in UNIT_AMOUNTS)


_IS_MIGRATED: Final = "select to_regclass('headgate.usage_unit_days') is not null"
_TRY_LOCK: Final = "select pg_try_advisory_xact_lock(hashtext('headgate.unit_sums'))"
"""Only one process at a time changes the sums, so they are never locked in different orders."""
_LOCK: Final = "select pg_advisory_xact_lock(hashtext('headgate.unit_sums'))"
"""The same lock. Waits for another process, at most as long as the transaction's lock timeout."""
_SET_LOCK_TIMEOUT: Final = "set local lock_timeout = '200ms'"
_SET_MEMORY: Final = "set local work_mem = '64MB'; set local jit = off"
_REGISTER: Final = "select headgate.register_unit_key($1)"
# xmax is 0 in inserted rows, but not in updated ones.
_MOVE: Final = f"""
    with moved as (
        delete from headgate.usage_unit_queue
        where ctid = any(array(select ctid from headgate.usage_unit_queue order by added_at limit $1))
        returning *
    ), days as (
        insert into headgate.usage_unit_days as d (key, day, tenant, class, model, unit, {_NAMES})
            select key, day, tenant, class, model, unit, {_SUMS} from moved group by 1, 2, 3, 4, 5, 6
        on conflict (key, day, tenant, class, model, unit) do update set {_added_to("d")}
    ), scoped as (
        select key, date_trunc('month', day::timestamp)::date as month, scope, unit, {_SUMS}
        from moved cross join lateral unnest(
            case when tenant = '' then array[''] else array['', split_part(tenant, '/', 1)] end
        ) as scopes (scope)
        group by 1, 2, 3, 4
    ), months as (
        insert into headgate.usage_unit_months as m (key, month, scope, unit, {_NAMES}) select * from scoped
        on conflict (key, month, scope, unit) do update set {_added_to("m")}
        returning key, month, scope, (xmax = 0)::integer as added
    ), counts as (
        select key, month, scope, sum(added) as units from months group by 1, 2, 3
    ), totals as (
        insert into headgate.usage_unit_totals as t (key, month, scope, units, {_NAMES})
            select key, month, scope, max(units), {_SUMS} from scoped join counts using (key, month, scope)
            group by 1, 2, 3
        on conflict (key, month, scope) do update set units = t.units + excluded.units, {_added_to("t")}
    )
    select count(*) from moved"""  # noqa: S608
_NEXT_DAY: Final = "select key, day from headgate.usage_unit_backlog order by day, key limit 1"
_DAY_KEYS: Final = "select key from headgate.usage_unit_backlog where day = $1"
_QUEUE_DAY: Final = f"""
    insert into headgate.usage_unit_queue (key, day, tenant, class, model, unit, {_NAMES})
    select $3, $4, tenant, class, model, unit, {_SUMS} from (
        select tenant, class, model, coalesce(metadata ->> $3, '') collate "C" as unit, {LINE_COLUMNS},
            false as is_known
        from ({SINGLE_ROWS}) as rows group by 1, 2, 3, 4
        union all
        select tenant, class, model, unit, {_NEGATED}, true from headgate.usage_unit_days where key = $3 and day = $4
        union all
        select tenant, class, model, unit, {_NEGATED}, true from headgate.usage_unit_queue where key = $3 and day = $4
    ) as parts group by tenant, class, model, unit having not bool_or(is_known) or {_NOT_ZERO}"""  # noqa: S608
"""Adds the amounts of a day's rows that are missing from the sums and the queue.

One statement sees one snapshot, in which the sums and the queue contain exactly the rows inserted since the
registration. Rows that are inserted at the same time are added by their own transactions.
"""
_DAY_DONE: Final = "delete from headgate.usage_unit_backlog where key = $1 and day = $2"
_FORGET_DAYS: Final = """
    delete from headgate.usage_unit_backlog where to_regclass('headgate.usage_' || to_char(day, 'YYYYMMDD')) is null"""
"""Days whose rows were dropped by a gateway of an earlier version, which does not add them first."""
_LAG: Final = """
    select (select count(*) from headgate.usage_unit_backlog) as days, coalesce((
        select greatest(extract(epoch from clock_timestamp() - added_at), 0.000001)
        from headgate.usage_unit_queue order by added_at limit 1
    ), 0)::float8 as age_s"""
_HAS_KEYS: Final = "select exists (select from headgate.usage_unit_keys)"
_MONTH: Final = "date_trunc('month', $1::date::timestamp)::date"
_DELETE_EXPIRED: Final = tuple(
    f"delete from headgate.{table} where ctid = any(array(select ctid from headgate.{table}"  # noqa: S608
    f" where key = any(array(select key from headgate.usage_unit_keys)) and {is_expired} limit $2))"
    for table, is_expired in (
        ("usage_unit_days", "day < $1::date"),
        ("usage_unit_months", f"month < {_MONTH}"),
        ("usage_unit_totals", f"month < {_MONTH}"),
    )
)
_REMOVED_KEY: Final = "select key from headgate.usage_unit_removed_keys order by key limit 1"
_DELETE_REMOVED: Final = tuple(
    f"delete from headgate.{table}"  # noqa: S608
    f" where ctid = any(array(select ctid from headgate.{table} where key = $1 limit $2))"
    # The queue is first, because its rows would be moved to the other tables.
    for table in ("usage_unit_queue", "usage_unit_days", "usage_unit_months", "usage_unit_totals")
)
_REMOVAL_DONE: Final = "delete from headgate.usage_unit_removed_keys where key = $1"
_IS_BEING_REMOVED: Final = "select exists (select from headgate.usage_unit_removed_keys where key = $1)"


@dataclass(frozen=True, slots=True)
class UnitSumsLag:
    days: int = 0
    """Number of days, counted per key, whose earlier rows are not in the sums yet."""
    age_s: float = 0.0
    """Age of the oldest row in the queue."""


class UnitSums:
    """One process's part in maintaining the sums."""

    def __init__(
        self,
        unit_key: Callable[[], str | None],
        *,
        interval_s: float = UNIT_SUMS_INTERVAL_S,
        steps_s_max: float = STEPS_S_MAX,
        day_s_max: float = DAY_S_MAX,
        slice_rows: int = SLICE_ROWS,
    ) -> None:
        self._unit_key = unit_key
        self._interval_s = interval_s
        self._steps_s_max = steps_s_max
        self._day_s_max = day_s_max
        self._slice_rows = slice_rows
        self._ran_at: float | None = None
        self._registered: str | None = None
        self._warned: set[str] = set()
        self._is_measured = False
        self.lag = UnitSumsLag()

    async def run_if_due(self, link: DatabaseConnection) -> None:
        """Runs the next steps if the interval has passed. A failed step is repeated after another interval."""
        now = time.monotonic()
        if self._ran_at is not None and now - self._ran_at < self._interval_s:
            return
        self._ran_at = now
        if not await is_migrated(link):
            return
        for step in (self._register, self._measure, self._advance, self._delete_removed, self._measure):
            await self._try(step, link)

    async def _try(self, step: Callable[[DatabaseConnection], Awaitable[None]], link: DatabaseConnection) -> None:
        """Runs a step. Its failure must not stop the other steps."""
        try:
            await step(link)
        except (asyncpg.PostgresError, TimeoutError) as error:
            # The step may have taken longer than the interval.
            self._ran_at = time.monotonic()
            if link.is_closed():
                raise
            self._warn(f"sums by business unit could not be updated and will be tried again: {type(error).__name__}")

    async def _register(self, link: DatabaseConnection) -> None:
        key = self._unit_key()
        if key is None or key == self._registered:
            return
        async with link.transaction():
            await link.execute(_SET_LOCK_TIMEOUT)
            if await link.fetchval(_REGISTER, key):
                self._registered = key
                return
            if await link.fetchval(_IS_BEING_REMOVED, key):
                return
        self._warn(
            f'reports by "{key}" read individual rows, because the database already sums by other metadata keys; remove'
            " one that is no longer used (docs/concepts/cost.md#sums-by-business-unit)"
        )

    async def _measure(self, link: DatabaseConnection) -> None:
        self._is_measured = False
        row = await link.fetchrow(_LAG)
        assert row is not None
        self._is_measured = True
        self.lag = UnitSumsLag(row["days"], row["age_s"])

    async def _advance(self, link: DatabaseConnection) -> None:
        """Moves the queue, and adds another day to it whenever it is almost empty, so that it stays short."""
        if self._is_measured and self.lag == UnitSumsLag():
            return
        until = time.monotonic() + self._steps_s_max
        while (moved := await move_slice(link, rows_max=self._slice_rows)) is not None:
            if moved < self._slice_rows and not await queue_next_day(link, day_s_max=self._day_s_max):
                return
            if time.monotonic() >= until:
                return

    async def _delete_removed(self, link: DatabaseConnection) -> None:
        if await link.fetchval(_REMOVED_KEY) is None:
            return
        until = time.monotonic() + self._steps_s_max
        while await delete_removed_key(link) and time.monotonic() < until:
            pass

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            log.warning("%s", message)
        if len(self._warned) >= WARNINGS_KNOWN_MAX:
            self._warned.clear()
        self._warned.add(message)


async def is_migrated(link: DatabaseConnection) -> bool:
    return await link.fetchval(_IS_MIGRATED)


async def move_slice(link: DatabaseConnection, *, rows_max: int = SLICE_ROWS) -> int | None:
    """Moves up to `rows_max` rows of the queue to the sums. Returns their number; None if another process does so."""
    async with link.transaction():
        if not await link.fetchval(_TRY_LOCK):
            return None
        await link.execute(_SET_MEMORY)
        return await link.fetchval(_MOVE, rows_max)


async def queue_next_day(link: DatabaseConnection, *, day_s_max: float = DAY_S_MAX) -> bool:
    """Adds the rows of the oldest day in the backlog to the queue. Returns whether there may be another day."""
    async with link.transaction():
        if not await link.fetchval(_TRY_LOCK):
            return False
        await link.execute(_FORGET_DAYS)
        row = await link.fetchrow(_NEXT_DAY)
        if row is None:
            return False
        await _queue_day(link, row["key"], row["day"], day_s_max)
    return True


async def queue_before_drop(link: DatabaseConnection, day: date) -> None:
    """Adds the rows of a day that is about to be dropped in the same transaction.

    Waits for a process that is adding the same day, so that the day is not added twice.
    """
    if await is_migrated(link):
        await link.execute(_LOCK)
        for row in await link.fetch(_DAY_KEYS, day):
            await _queue_day(link, row["key"], day, DAY_S_MAX)


async def delete_removed_key(link: DatabaseConnection, *, rows_max: int = DELETED_ROWS) -> bool:
    """Deletes up to `rows_max` amounts of a removed key. Returns whether there may be more."""
    async with link.transaction():
        if not await link.fetchval(_TRY_LOCK):
            return False
        key = await link.fetchval(_REMOVED_KEY)
        if key is None:
            return False
        for statement in _DELETE_REMOVED:
            if await link.execute(statement, key, rows_max) != "DELETE 0":
                return True
        await link.execute(_REMOVAL_DONE, key)
    return True


async def delete_expired_sums(
    link: DatabaseConnection, today: date, *, retention_days: int, rows_max: int = DELETED_ROWS
) -> None:
    """Deletes expired sums in batches, so that no statement takes long. Months expire by their last day."""
    if not await is_migrated(link) or not await link.fetchval(_HAS_KEYS):
        return
    kept_from = today - timedelta(days=max(KEPT_DAYS, retention_days))
    for statement in _DELETE_EXPIRED:
        deleted = ""
        while deleted != "DELETE 0":
            async with link.transaction():
                await link.execute(_SET_LOCK_TIMEOUT)
                await link.execute(_LOCK)
                deleted = await link.execute(statement, kept_from, rows_max)


async def _queue_day(link: DatabaseConnection, key: str, day: date, day_s_max: float) -> None:
    if await link.execute(_DAY_DONE, key, day) != "DELETE 1":
        return
    await link.execute(_SET_MEMORY)
    await link.execute("set local statement_timeout = 0")
    since = datetime.combine(day, datetime.min.time(), UTC)
    await link.execute(_QUEUE_DAY, since, since + timedelta(days=1), key, day, timeout=day_s_max)
