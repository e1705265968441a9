"""Where do rows of a day go, and when do they go away?

Usage has a partition for each day (UTC). Whoever writes makes those of today and tomorrow beforehand, and that of any
other day when rows of it come, as they do from a spool. Once an hour one process drops what is too old, of every table
that grows with traffic or with changes; sums by the day are few, and stay.
"""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.link import Link

log = logging.getLogger("headgate")

DIRECTORY_DAYS: Final = 400
"""So long the audit log, removed tenants, revoked keys and ended orders are kept; the database itself keeps the audit
log as long."""
DAYS_KNOWN_MAX: Final = 1_000
_LOCK: Final = 0x68656165
"""Any number, the same in all who look for what is too old."""
_LOCK_WAIT: Final = "set local lock_timeout = '200ms'"

_PARTITIONS: Final = (
    "select child.relname as name from pg_inherits join pg_class child on child.oid = inhrelid"
    " where inhparent = 'headgate.usage'::regclass and child.relname ~ '^usage_[0-9]{8}$' order by 1"
)
_TOO_OLD: Final = (
    "delete from headgate.endpoint_time where at < $1",
    "delete from headgate.notices where period_began < $1::timestamptz - interval '31 days'",
)
_OF_DIRECTORY: Final = (
    "delete from headgate.audit where at < $1",
    # By then whoever follows the directory has heard of their end.
    "delete from headgate.orders where expires_at < $1",
    "delete from headgate.keys where revoked_at < $1 or expires_at < $1",
    "delete from headgate.budgets where removed_at < $1",
    (
        "delete from headgate.tenants as gone where removed_at < $1"
        " and not exists (select from headgate.keys where tenant = gone.id)"
        " and not exists (select from headgate.budgets where tenant = gone.id)"
    ),
)


class Partitions:
    """Of one writer, which asks before it writes."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._known: set[date] = set()

    async def make(self, link: Link, days: set[date]) -> None:
        """Sees to it that rows of these days can be written, and of tomorrow."""
        today = self._now().date()
        wanted = days | {today, today + timedelta(days=1)}
        missing = sorted(wanted - self._known)
        for day in missing:
            await link.execute("select headgate.make_usage_day($1)", day)
        if len(self._known) > DAYS_KNOWN_MAX:
            self._known.clear()
        self._known.update(missing)

    def forget(self) -> None:
        """After a failure: what was there may be gone."""
        self._known.clear()


def first_kept(now: datetime, retention_days: int) -> date:
    """Days before this one are dropped."""
    return (now - timedelta(days=retention_days)).date()


async def retire(link: Link, *, retention_days: int, now: datetime | None = None) -> int | None:
    """Drops what is too old; how many days' rows those were. None where another process is at it."""
    now = now or datetime.now(UTC)
    if not await link.fetchval("select pg_try_advisory_lock($1)", _LOCK):
        return None
    try:
        dropped = await _drop_days(link, first_kept(now, retention_days))
        for statement in _TOO_OLD:
            await link.execute(statement, now - timedelta(days=retention_days))
        for statement in _OF_DIRECTORY:
            await link.execute(statement, now - timedelta(days=DIRECTORY_DAYS + 1))
        return dropped
    finally:
        await link.execute("select pg_advisory_unlock($1)", _LOCK)


async def _drop_days(link: Link, before: date) -> int:
    """One at a time, each with little patience: a report that reads it has precedence, and it goes an hour later."""
    rows = await link.fetch(_PARTITIONS)
    names: list[str] = [row["name"] for row in rows if row["name"] < f"usage_{before:%Y%m%d}"]
    dropped = 0
    for name in names:
        try:
            async with link.transaction():
                await link.execute(_LOCK_WAIT)
                # The name was matched above, and holds nothing but letters and digits.
                await link.execute(f"drop table headgate.{name}")
        except asyncpg.LockNotAvailableError:
            log.info("rows of %s are too old, but somebody reads them; they go in an hour", name)
        else:
            dropped += 1
            log.info("dropped %s: older than the retention", name)
    return dropped
