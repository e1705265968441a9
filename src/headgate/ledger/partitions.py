"""Creates the daily partitions of the usage and endpoint time tables, and deletes old data.

Both tables have one partition per day (UTC). A writer creates the partitions for today and tomorrow in advance. It
creates a partition for any other day when it has rows for that day, for example from the spool. Once an hour, one
process deletes old data from every table that grows with traffic or with changes. Daily totals are small and are kept.

Before schema 3, the endpoint time was one table. Migration 0003 turns it into a partition (`endpoint_time_before`),
which shrinks and is dropped once it is empty.

With `ledger.roll_up: hourly`, the usage rows of a day are added to the hourly sums when the day is dropped. If the sums
by business unit lack rows of the day, these are added as well.
"""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.rows import MODEL_OR_EMPTY, SUM_AMOUNTS, SUM_KEYS
from headgate.ledger.unit_sums import delete_expired_sums, queue_before_drop

log = logging.getLogger("headgate")

DIRECTORY_DAYS: Final = 400
"""Retention time of the audit log, removed tenants, revoked keys and ended overrides.

The database also protects the audit log for this long.
"""
DAYS_KNOWN_MAX: Final = 1_000
_LOCK: Final = 0x68656165
"""Advisory lock ID for deletion. The value is arbitrary but must be the same in all processes."""
_SET_LOCK_TIMEOUT: Final = "set local lock_timeout = '200ms'"
_ROLL_UP_S_MAX: Final = 600.0
_HOUR_KEYS: Final = ("hour", *SUM_KEYS[1:])
_ROLL_UP: Final = (
    f"insert into headgate.usage_hourly ({', '.join((*_HOUR_KEYS, *SUM_AMOUNTS))})"  # noqa: S608
    f" select date_trunc('hour', at, 'UTC'), tenant, class, {MODEL_OR_EMPTY}, pool, payer, cause, outcome,"
    " sum((attempt <= 1 and correction = 0)::integer), sum((attempt > 0 and correction = 0)::integer),"
    " sum(tokens_in), sum(tokens_cached), sum(tokens_out), sum(tokens_reasoning),"
    " sum(input_us + output_us + overhead_us), sum(input_nano_usd), sum(output_nano_usd), sum(overhead_nano_usd)"
    " from headgate.usage where at >= $1 and at < $2 group by 1, 2, 3, 4, 5, 6, 7, 8"
    f" on conflict ({', '.join(_HOUR_KEYS)}) do update set "
    + ", ".join(f"{name} = usage_hourly.{name} + excluded.{name}" for name in SUM_AMOUNTS)
)

_PARTITIONS: Final = (
    "select child.relname as name, right(child.relname, 8) as day"
    " from pg_inherits join pg_class child on child.oid = inhrelid"
    " where inhparent in ('headgate.usage'::regclass, 'headgate.endpoint_time'::regclass)"
    " and child.relname ~ '^(usage|endpoint_time)_[0-9]{8}$' and right(child.relname, 8) < $1 order by 2, 1"
)
_DELETE_EXPIRED: Final = (
    "delete from headgate.budget_notifications where period_start < $1::timestamptz - interval '31 days'",
)
_DELETE_EXPIRED_DIRECTORY: Final = (
    "delete from headgate.audit where at < $1",
    # By then, all replicas have seen that they have ended.
    "delete from headgate.overrides where expires_at < $1",
    "delete from headgate.keys where revoked_at < $1 or expires_at < $1",
    "delete from headgate.budgets where removed_at < $1",
    (
        "delete from headgate.tenants as gone where removed_at < $1"
        " and not exists (select from headgate.keys where tenant = gone.id)"
        " and not exists (select from headgate.budgets where tenant = gone.id)"
    ),
)


class Partitions:
    """Partitions that a writer knows exist."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._known: set[date] = set()

    async def ensure(self, link: DatabaseConnection, days: set[date]) -> None:
        """Creates any missing partitions for these days, for today and for tomorrow."""
        today = self._now().date()
        wanted = days | {today, today + timedelta(days=1)}
        missing = sorted(wanted - self._known)
        for day in missing:
            await link.execute("select headgate.create_usage_partition($1)", day)
        if len(self._known) > DAYS_KNOWN_MAX:
            self._known.clear()
        self._known.update(missing)

    def invalidate(self) -> None:
        """Forgets all partitions. Called after a failure, because partitions may have been dropped."""
        self._known.clear()


def first_kept(now: datetime, retention_days: int) -> date:
    """First day that is kept; earlier days are dropped."""
    return (now - timedelta(days=retention_days)).date()


async def drop_expired(
    link: DatabaseConnection, *, retention_days: int, roll_up: bool = False, now: datetime | None = None
) -> int | None:
    """Deletes old data. Returns the number of days dropped, or None if another process is deleting.

    With `roll_up`, usage rows are added to the hourly sums before they are dropped.
    """
    now = now or datetime.now(UTC)
    if not await link.fetchval("select pg_try_advisory_lock($1)", _LOCK):
        return None
    try:
        kept_from = first_kept(now, retention_days)
        dropped = await _drop_days(link, kept_from, roll_up=roll_up)
        await _delete_undated(link, datetime.combine(kept_from, datetime.min.time(), UTC))
        for statement in _DELETE_EXPIRED:
            await link.execute(statement, now - timedelta(days=retention_days))
        for statement in _DELETE_EXPIRED_DIRECTORY:
            await link.execute(statement, now - timedelta(days=DIRECTORY_DAYS + 1))
        await _delete_sums(link, now.date(), retention_days)
        return dropped
    finally:
        await link.execute("select pg_advisory_unlock($1)", _LOCK)


async def _drop_days(link: DatabaseConnection, before: date, *, roll_up: bool) -> int:
    """Drops one day at a time with a short lock timeout.

    If a report is reading a day, that day is dropped an hour later.
    """
    if roll_up and not await link.fetchval("select to_regclass('headgate.usage_hourly') is not null"):
        log.warning("ledger.roll_up needs migration 0004; no usage rows are dropped until it has been applied")
        return 0
    rows = await link.fetch(_PARTITIONS, f"{before:%Y%m%d}")
    dropped = 0
    for day, of_day in groupby(rows, key=lambda row: row["day"]):
        try:
            async with link.transaction():
                await link.execute(_SET_LOCK_TIMEOUT)
                for name in [row["name"] for row in of_day]:
                    if name.startswith("usage_"):
                        # Before the roll-up locks the partition, which another process may be adding to the sums.
                        await queue_before_drop(link, datetime.strptime(day, "%Y%m%d").date())  # noqa: DTZ007
                    if roll_up and name.startswith("usage_"):
                        await _roll_up(link, name, day)
                    # Safe to interpolate: `_PARTITIONS` only matches names that consist of letters, digits and _.
                    await link.execute(f"drop table headgate.{name}")
        except asyncpg.LockNotAvailableError:
            log.info("%s is older than the retention time but in use; will try again in an hour", day)
        else:
            dropped += 1
            log.info("dropped %s, which is older than the retention time", day)
    return dropped


async def _roll_up(link: DatabaseConnection, name: str, day: str) -> None:
    """Adds the partition's rows to the hourly sums. The caller drops the partition in the same transaction."""
    # No row may be added between the summing and the drop.
    await link.execute(f"lock table headgate.{name} in access exclusive mode")
    await link.execute("set local statement_timeout = 0")
    since = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC)
    await link.execute(_ROLL_UP, since, since + timedelta(days=1), timeout=_ROLL_UP_S_MAX)


async def _delete_sums(link: DatabaseConnection, today: date, retention_days: int) -> None:
    try:
        await delete_expired_sums(link, today, retention_days=retention_days)
    except (asyncpg.PostgresError, TimeoutError) as error:
        if link.is_closed():
            raise
        log.info("expired sums by business unit will be deleted in an hour: %s", type(error).__name__)


async def _delete_undated(link: DatabaseConnection, before: datetime) -> None:
    """Deletes endpoint time that has no daily partition."""
    if not await link.fetchval("select to_regclass('headgate.endpoint_time_default') is not null"):
        await link.execute("delete from headgate.endpoint_time where at < $1", before)
        return
    await link.execute("delete from headgate.endpoint_time_default where at < $1", before)
    if await link.fetchval("select to_regclass('headgate.endpoint_time_before') is not null"):
        await link.execute("delete from headgate.endpoint_time_before where at < $1", before)
        await _drop_before_if_empty(link)


async def _drop_before_if_empty(link: DatabaseConnection) -> None:
    """Drops the partition for the rows from before schema 3. Later rows for its days get partitions of their own."""
    try:
        async with link.transaction():
            await link.execute(_SET_LOCK_TIMEOUT)
            await link.execute("lock table headgate.endpoint_time_before in access exclusive mode")
            if not await link.fetchval("select exists (select from headgate.endpoint_time_before)"):
                await link.execute("drop table headgate.endpoint_time_before")
                log.info("dropped endpoint_time_before, which was empty")
    except asyncpg.LockNotAvailableError:
        log.info("endpoint_time_before is in use; will try again in an hour")
