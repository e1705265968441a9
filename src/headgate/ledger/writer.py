"""Writes rows from the spool to the database, each exactly once.

Each batch is one transaction: a COPY for the rows, and an update of the daily totals. A new batch is copied directly
into the table. If it is uncertain whether a batch was committed, for example because the connection broke, it is copied
into a temporary table first, and only missing rows are inserted and summed. The primary key (arrival, request, attempt,
correction) makes this idempotent.

While the database is unreachable, rows stay in the spool. A row that the database rejects would block all others
forever, so it is skipped, counted and logged; it is found by repeatedly splitting its batch in half. An uncertain row
for a day that has been dropped is skipped as well, because the totals may already include it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.database import DATABASE_ERRORS, Database, close
from headgate.ledger.partitions import Partitions, drop_expired, first_kept
from headgate.ledger.pg_copy import COLUMNS, PackError, copy_chunks
from headgate.ledger.rows import (
    ENDPOINT_TIME_COLUMNS,
    SUM_AMOUNTS,
    SUM_KEYS,
    USAGE_COLUMNS,
    DailySums,
    RowBatch,
    day_of,
    days_of,
    endpoint_time_values,
    key_of,
)
from headgate.ledger.schema_migration import Migration, migrations, schema_state
from headgate.ledger.spool.segment import Segment
from headgate.ledger.spool.spool import Spool
from headgate.ledger.unit_sums import UNIT_SUMS_INTERVAL_S, UnitSums, UnitSumsLag
from headgate.ports.ledger import EndpointTimeRow, UsageRow

log = logging.getLogger("headgate")

FLUSH_INTERVAL_S: Final = 0.5
QUERY_S_MAX: Final = 30.0
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0
EXPIRE_INTERVAL_S: Final = 3600.0
MAINTAIN_INTERVAL_S: Final = 1.0
TAKE_OVER_INTERVAL_S: Final = 30.0
ROWS_PER_ITERATION: Final = 200
"""Number of rows encoded before yielding to the event loop. Encoding them takes two to three milliseconds."""

_TYPES: Final = {"day": "date", "at": "timestamptz"}
_TEXTS: Final = (*SUM_KEYS[1:], "source", "endpoint", "price_kind")


def _arrays(columns: Sequence[str]) -> str:
    """SQL parameters: one array per column, containing all of its values."""
    kinds = [_TYPES.get(name, "text" if name in _TEXTS else "bigint") for name in columns]
    return ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))


_ADD_SUMS: Final = (
    f"insert into headgate.usage_daily ({', '.join((*SUM_KEYS, *SUM_AMOUNTS))})"  # noqa: S608
    f" select * from unnest({_arrays((*SUM_KEYS, *SUM_AMOUNTS))}) on conflict ({', '.join(SUM_KEYS)}) do update set "
    + ", ".join(f"{name} = usage_daily.{name} + excluded.{name}" for name in SUM_AMOUNTS)
)
_ADD_TIMES: Final = (
    f"insert into headgate.endpoint_time ({', '.join(ENDPOINT_TIME_COLUMNS)})"  # noqa: S608
    f" select * from unnest({_arrays(ENDPOINT_TIME_COLUMNS)}) on conflict do nothing"
)
_CREATE_STAGING: Final = "create temporary table usage_staging (like headgate.usage) on commit drop"
_ADD_NEW: Final = (
    f"insert into headgate.usage ({', '.join(USAGE_COLUMNS)}) select {', '.join(USAGE_COLUMNS)}"  # noqa: S608
    " from usage_staging on conflict do nothing returning at, request, attempt, correction"
)


class LedgerWriter:
    """Moves rows from the spool to the database while `run` is running."""

    def __init__(
        self,
        database: Database,
        spool: Spool,
        *,
        retention_days: int,
        roll_up: bool = False,
        unit_key: Callable[[], str | None] = lambda: None,
        flush_s: float = FLUSH_INTERVAL_S,
        maintain_interval_s: float = MAINTAIN_INTERVAL_S,
        take_over_s: float = TAKE_OVER_INTERVAL_S,
        unit_sums_s: float = UNIT_SUMS_INTERVAL_S,
        known_migrations: tuple[Migration, ...] | None = None,
    ) -> None:
        """`unit_key` returns the metadata key whose values are summed as business units."""
        self._database = database
        self._spool = spool
        self._retention_days = retention_days
        self._roll_up = roll_up
        self._flush_s = flush_s
        self._keep_s = maintain_interval_s
        self._take_over_s = take_over_s
        self._known = migrations() if known_migrations is None else known_migrations
        self._partitions = Partitions()
        self._unit_sums = UnitSums(unit_key, interval_s=unit_sums_s)
        self._retired_at: float | None = None
        self._emptied = asyncio.Event()
        self.problem: str | None = "not connected yet"
        """Why the database is unavailable; None if it is available."""
        self.mismatch: str | None = None
        """Why this version cannot use the database; None if it can, or if compatibility is unknown."""
        self.rows_written = 0
        self.duplicates = 0
        """Number of rows in uncertain batches that were already in the database."""
        self.rows_rejected = 0
        """Number of rows dropped because they were too old or the database rejected them."""
        self.batches = 0
        self.reconnects = 0

    @property
    def unit_sums_lag(self) -> UnitSumsLag:
        return self._unit_sums.lag

    async def run(self) -> None:
        """Writes rows until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._maintain_spool())
            group.create_task(self._reconnect_loop())

    async def flush(self, limit_s: float) -> bool:
        """Returns whether all waiting rows were written within `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while self._spool.rows_waiting:
                    self._emptied.clear()
                    self._spool.wake.set()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    async def _maintain_spool(self) -> None:
        looked_at: float | None = None
        while True:
            look = looked_at is None or time.monotonic() - looked_at > self._take_over_s
            if await self._spool.maintain(take_over=look) and look:
                looked_at = time.monotonic()
            await asyncio.sleep(self._keep_s)

    async def _reconnect_loop(self) -> None:
        wait_s = RETRY_S_MIN
        while True:
            began_at = time.monotonic()
            try:
                await self._write_until_closed()
            except DATABASE_ERRORS as error:
                self._mark_unavailable(self._database.describe(error))
            self._partitions.invalidate()
            if time.monotonic() - began_at > RETRY_S_MAX:
                wait_s = RETRY_S_MIN
            # Adds jitter, so that gateways do not all reconnect at the same time.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(RETRY_S_MAX, 2 * wait_s)
            self.reconnects += 1

    def _mark_unavailable(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("the ledger database is unavailable: %s; rows are kept in the spool", problem)
        self.problem = problem

    async def _write_until_closed(self) -> None:
        """Writes rows over one connection until it is closed."""
        link = await self._database.connect()
        try:
            schema = await schema_state(link, self._known)
            self.mismatch = schema.problem
            if self.mismatch is not None:
                self._mark_unavailable(self.mismatch)
                return
            if self.problem is not None and schema.hint is not None:
                log.warning("%s", schema.hint)
            await self._partitions.ensure(link, set())
            if self.problem is not None:
                log.info("the ledger database is available; %d rows are waiting", self._spool.rows_waiting)
                self.problem = None
            while not link.is_closed():
                await self._empty(link)
                await self._unit_sums.run_if_due(link)
                await self._drop_expired(link)
                await self._wait_for_rows()
            self._mark_unavailable("the connection was closed")
        finally:
            await close(link)

    async def _wait_for_rows(self) -> None:
        try:
            async with asyncio.timeout(self._flush_s):
                await self._spool.wake.wait()
        except TimeoutError:
            pass
        self._spool.wake.clear()

    async def _drop_expired(self, link: DatabaseConnection) -> None:
        now = time.monotonic()
        if self._retired_at is None or now - self._retired_at > EXPIRE_INTERVAL_S:
            self._retired_at = now
            # Create tomorrow's partition as well, even if nothing is written.
            self._partitions.invalidate()
            await self._partitions.ensure(link, set())
            try:
                await drop_expired(link, retention_days=self._retention_days, roll_up=self._roll_up)
            except (asyncpg.PostgresError, TimeoutError) as error:
                log.warning("old ledger data could not be deleted: %s", self._database.describe(error))

    # Batches

    async def _empty(self, link: DatabaseConnection) -> None:
        while (taken := await self._next_batch()) is not None:
            segment, batch = taken
            try:
                await self._write(link, segment, batch)
            except BaseException:
                self._spool.return_batch(segment)
                raise
            self._spool.commit(segment)
            self.batches += 1
        if not self._spool.rows_waiting:
            self._emptied.set()

    async def _next_batch(self) -> tuple[Segment, RowBatch] | None:
        try:
            return await self._spool.next_batch()
        except OSError as error:
            # A disk error is not a database problem.
            self._spool.report_error(error)
            return None

    async def _write(self, link: DatabaseConnection, segment: Segment, batch: RowBatch) -> None:
        if not segment.untried:
            batch = self._without_expired(batch)
        days = days_of(batch.usage) | days_of(batch.endpoint_times)
        await self._partitions.ensure(link, days)
        if segment.untried:
            try:
                await _add(link, batch)
            except (asyncpg.UniqueViolationError, *_WRITE_ERRORS) as error:
                if not _is_data_error(error):
                    raise
            else:
                self.rows_written += len(batch)
                return
        # The error may mean that a partition has been dropped, so create missing partitions and retry.
        self._partitions.invalidate()
        await self._partitions.ensure(link, days)
        await self._write_if_missing(link, batch.usage, batch.endpoint_times)

    def _without_expired(self, batch: RowBatch) -> RowBatch:
        """Removes rows for days that have been dropped, because it is unknown whether the daily totals already include
        them.
        """
        kept_from = first_kept(datetime.now(UTC), self._retention_days)
        usage = tuple(row for row in batch.usage if day_of(row.at) >= kept_from)
        if gone := len(batch.usage) - len(usage):
            self.rows_rejected += gone
            log.error("dropped %d rows older than ledger.retention, which may already be in the sums", gone)
        return RowBatch(usage, batch.endpoint_times)

    async def _write_if_missing(
        self, link: DatabaseConnection, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]
    ) -> None:
        try:
            added = await _add_missing(link, usage, times)
        except _WRITE_ERRORS as error:
            if not _is_data_error(error):
                raise
            if len(usage) + len(times) > 1:
                middle, middle_time = (len(usage) + 1) // 2, len(times) // 2
                await self._write_if_missing(link, usage[:middle], times[:middle_time])
                await self._write_if_missing(link, usage[middle:], times[middle_time:])
                return
            self.rows_rejected += 1
            name = f"{usage[0].request}/{usage[0].attempt}" if usage else times[0].endpoint
            # The error text may contain data from the row.
            log.error("dropped row %s, which the database rejects (%s)", name, type(error).__name__)  # noqa: TRY400
        else:
            self.rows_written += added
            self.duplicates += len(usage) + len(times) - added


_WRITE_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError, OverflowError, PackError)


def _is_data_error(error: BaseException) -> bool:
    """Whether the error was caused by the content of the rows, so that a retry would fail again."""
    if isinstance(error, asyncpg.PostgresError):
        # SQLSTATE classes "data exception" and "integrity constraint violation".
        return str(getattr(error, "sqlstate", ""))[:2] in ("22", "23")
    return isinstance(error, ValueError | TypeError | OverflowError | PackError)


async def _add(link: DatabaseConnection, batch: RowBatch) -> None:
    async with link.transaction():
        await _copy(link, batch.usage, "usage", "headgate")
        await _add_sums_and_times(link, batch.usage, batch.endpoint_times)


async def _add_missing(link: DatabaseConnection, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]) -> int:
    """Inserts the missing rows. Returns the number of usage rows inserted plus all endpoint time rows."""
    async with link.transaction():
        await link.execute(_CREATE_STAGING)
        await _copy(link, usage, "usage_staging", None)
        added = {(row["at"], row["request"], row["attempt"], row["correction"]) for row in await link.fetch(_ADD_NEW)}
        await _add_sums_and_times(link, [row for row in usage if key_of(row) in added], times)
        return len(added) + len(times)


async def _copy(link: DatabaseConnection, rows: Sequence[UsageRow], table: str, schema: str | None) -> None:
    if rows:
        source = copy_chunks(rows, ROWS_PER_ITERATION)
        await link.copy_to_table(table, source=source, columns=COLUMNS, schema_name=schema, format="binary")


async def _add_sums_and_times(
    link: DatabaseConnection, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]
) -> None:
    """Adds the daily totals and the endpoint times."""
    summed = DailySums()
    for first in range(0, len(usage), ROWS_PER_ITERATION):
        summed.add(usage[first : first + ROWS_PER_ITERATION])
        await asyncio.sleep(0)
    sums = summed.records()
    for first in range(0, len(sums), ROWS_PER_ITERATION):
        some = sums[first : first + ROWS_PER_ITERATION]
        await link.execute(_ADD_SUMS, *(list(column) for column in zip(*some, strict=True)))
    if times:
        await link.execute(
            _ADD_TIMES, *(list(column) for column in zip(*map(endpoint_time_values, times), strict=True))
        )
