"""How do rows come into the database, each of them once?

One batch is one transaction: the rows by COPY, and what they add to the sums of their days. A batch that nobody has
tried before goes straight in. After any doubt, such as a connection that broke while it was being committed, it is
copied beside the table first, and only rows that are not there yet go in and are summed: rows are named by arrival,
request, attempt and correction, so a second time changes nothing.

A database that is away costs nothing but waiting: rows stay in the spool. A row that it refuses for what is in it is
left out, counted and logged, with its batch cut in halves until it stands alone, or it would hold up all others for
ever. So is a doubtful one of a day that has been dropped: what the sums have of it cannot be told any more.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.copying import COLUMNS, Unfit, chunks
from headgate.ledger.database import FAILURES, Database, close
from headgate.ledger.link import Link
from headgate.ledger.migrate import Migration, migrations, mismatch
from headgate.ledger.partitions import Partitions, first_kept, retire
from headgate.ledger.rows import (
    SUM_AMOUNTS,
    SUM_KEYS,
    TIME_COLUMNS,
    USAGE_COLUMNS,
    Batch,
    Sums,
    day_of,
    days_of,
    key_of,
    time_record,
)
from headgate.ledger.spool.segment import Segment
from headgate.ledger.spool.spool import Spool
from headgate.ports.ledger import EndpointTimeRow, UsageRow

log = logging.getLogger("headgate")

FLUSH_S: Final = 0.5
QUERY_S_MAX: Final = 30.0
AGAIN_S_MIN: Final = 0.1
AGAIN_S_MAX: Final = 5.0
RETIRE_S: Final = 3600.0
KEEP_S: Final = 1.0
TAKE_OVER_S: Final = 30.0
ROWS_PER_TURN: Final = 200
"""So many are made ready for the database in one turn of the loop: two or three milliseconds, for streams wait."""

_TYPES: Final = {"day": "date", "at": "timestamptz"}
_TEXTS: Final = (*SUM_KEYS[1:], "source", "endpoint", "price_kind")


def _arrays(columns: Sequence[str]) -> str:
    """The columns as parameters, each an array of all its values."""
    kinds = [_TYPES.get(name, "text" if name in _TEXTS else "bigint") for name in columns]
    return ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))


_ADD_SUMS: Final = (
    f"insert into headgate.usage_days ({', '.join((*SUM_KEYS, *SUM_AMOUNTS))})"  # noqa: S608
    f" select * from unnest({_arrays((*SUM_KEYS, *SUM_AMOUNTS))}) on conflict ({', '.join(SUM_KEYS)}) do update set "
    + ", ".join(f"{name} = usage_days.{name} + excluded.{name}" for name in SUM_AMOUNTS)
)
_ADD_TIMES: Final = (
    f"insert into headgate.endpoint_time ({', '.join(TIME_COLUMNS)})"  # noqa: S608
    f" select * from unnest({_arrays(TIME_COLUMNS)}) on conflict do nothing"
)
_BESIDE: Final = "create temporary table usage_beside (like headgate.usage) on commit drop"
_ADD_NEW: Final = (
    f"insert into headgate.usage ({', '.join(USAGE_COLUMNS)}) select {', '.join(USAGE_COLUMNS)}"  # noqa: S608
    " from usage_beside on conflict do nothing returning at, request, attempt, correction"
)


class Writer:
    """Empties the spool into the database for as long as `run` runs."""

    def __init__(
        self,
        database: Database,
        spool: Spool,
        *,
        retention_days: int,
        flush_s: float = FLUSH_S,
        keep_s: float = KEEP_S,
        take_over_s: float = TAKE_OVER_S,
        known: tuple[Migration, ...] | None = None,
    ) -> None:
        self._database = database
        self._spool = spool
        self._retention_days = retention_days
        self._flush_s = flush_s
        self._keep_s = keep_s
        self._take_over_s = take_over_s
        self._known = migrations() if known is None else known
        self._partitions = Partitions()
        self._retired_at: float | None = None
        self._emptied = asyncio.Event()
        self.problem: str | None = "it has not been reached yet"
        self.mismatch: str | None = None
        """Why this version cannot work with the database; None where it can, or it could not be asked."""
        self.written = 0
        self.known_already = 0
        """Rows that a doubtful batch turned out to have in the database."""
        self.refused = 0
        """Rows that the database refuses for what is in them."""
        self.batches = 0
        self.reconnects = 0

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_spool())
            group.create_task(self._reach())

    async def flush(self, limit_s: float) -> bool:
        """Whether all that waits was written in this time."""
        try:
            async with asyncio.timeout(limit_s):
                while self._spool.waiting:
                    self._emptied.clear()
                    self._spool.wake.set()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    async def _keep_spool(self) -> None:
        looked_at: float | None = None
        while True:
            look = looked_at is None or time.monotonic() - looked_at > self._take_over_s
            if await self._spool.keep(look=look) and look:
                looked_at = time.monotonic()
            await asyncio.sleep(self._keep_s)

    async def _reach(self) -> None:
        wait_s = AGAIN_S_MIN
        while True:
            began_at = time.monotonic()
            try:
                await self._follow()
            except FAILURES as error:
                self._lost(self._database.problem(error))
            self._partitions.forget()
            if time.monotonic() - began_at > AGAIN_S_MAX:
                wait_s = AGAIN_S_MIN
            # Not all gateways come back in the same moment.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
            wait_s = min(AGAIN_S_MAX, 2 * wait_s)
            self.reconnects += 1

    def _lost(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("the database of the ledger is away: %s; rows wait in the spool", problem)
        self.problem = problem

    async def _follow(self) -> None:
        """Over one connection, until it ends."""
        link = await self._database.connect()
        try:
            self.mismatch = await mismatch(link, self._known)
            if self.mismatch is not None:
                self._lost(self.mismatch)
                return
            await self._partitions.make(link, set())
            if self.problem is not None:
                log.info("the database of the ledger answers; %d rows wait", self._spool.waiting)
                self.problem = None
            while not link.is_closed():
                await self._empty(link)
                await self._retire(link)
                await self._rest()
            self._lost("the connection was closed")
        finally:
            await close(link)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._flush_s):
                await self._spool.wake.wait()
        except TimeoutError:
            pass
        self._spool.wake.clear()

    async def _retire(self, link: Link) -> None:
        now = time.monotonic()
        if self._retired_at is None or now - self._retired_at > RETIRE_S:
            self._retired_at = now
            # Tomorrow is made ready by the way, also where nothing is written.
            self._partitions.forget()
            await self._partitions.make(link, set())
            try:
                await retire(link, retention_days=self._retention_days)
            except asyncpg.PostgresError as error:
                log.warning("what is too old could not be dropped: %s", self._database.problem(error))

    # One batch

    async def _empty(self, link: Link) -> None:
        while (taken := await self._take()) is not None:
            segment, batch = taken
            try:
                await self._write(link, segment, batch)
            except BaseException:
                self._spool.give_back(segment)
                raise
            self._spool.done(segment)
            self.batches += 1
        if not self._spool.waiting:
            self._emptied.set()

    async def _take(self) -> tuple[Segment, Batch] | None:
        try:
            return await self._spool.take()
        except OSError as error:
            # That is no trouble of the database's.
            self._spool.failed(error)
            return None

    async def _write(self, link: Link, segment: Segment, batch: Batch) -> None:
        if not segment.sure:
            batch = self._without_retired(batch)
        days = days_of(batch.usage)
        await self._partitions.make(link, days)
        if segment.sure:
            try:
                await _add(link, batch)
            except (asyncpg.UniqueViolationError, *_POISON) as error:
                if not _refuses(error):
                    raise
            else:
                self.written += len(batch)
                return
        # Should a day's partition have gone meanwhile, its rows are not to blame.
        self._partitions.forget()
        await self._partitions.make(link, days)
        await self._write_doubtful(link, batch.usage, batch.times)

    def _without_retired(self, batch: Batch) -> Batch:
        """Whether a row of a day that has been dropped was there, and is in the sums for good, nobody can tell."""
        kept_from = first_kept(datetime.now(UTC), self._retention_days)
        usage = tuple(row for row in batch.usage if day_of(row.at) >= kept_from)
        if gone := len(batch.usage) - len(usage):
            self.refused += gone
            log.error("%d rows are older than ledger.retention and may have been counted; they are left out", gone)
        return Batch(usage, batch.times)

    async def _write_doubtful(self, link: Link, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]) -> None:
        try:
            added = await _add_new(link, usage, times)
        except _POISON as error:
            if not _refuses(error):
                raise
            if len(usage) + len(times) > 1:
                middle, middle_time = (len(usage) + 1) // 2, len(times) // 2
                await self._write_doubtful(link, usage[:middle], times[:middle_time])
                await self._write_doubtful(link, usage[middle:], times[middle_time:])
                return
            self.refused += 1
            name = f"{usage[0].request}/{usage[0].attempt}" if usage else times[0].endpoint
            # The error itself may tell what is in the row.
            log.error("the database refuses row %s (%s); it is left out", name, type(error).__name__)  # noqa: TRY400
        else:
            self.written += added
            self.known_already += len(usage) + len(times) - added


_POISON: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError, OverflowError, Unfit)


def _refuses(error: BaseException) -> bool:
    """Whether it is about what is in the rows, and would be the same next time."""
    if isinstance(error, asyncpg.PostgresError):
        # "Data exception", and "integrity constraint violation".
        return str(getattr(error, "sqlstate", ""))[:2] in ("22", "23")
    return isinstance(error, ValueError | TypeError | OverflowError | Unfit)


async def _add(link: Link, batch: Batch) -> None:
    async with link.transaction():
        await _copy(link, batch.usage, "usage", "headgate")
        await _add_beside(link, batch.usage, batch.times)


async def _add_new(link: Link, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]) -> int:
    """How many usage rows were not there, and all times, which are never in the way."""
    async with link.transaction():
        await link.execute(_BESIDE)
        await _copy(link, usage, "usage_beside", None)
        added = {(row["at"], row["request"], row["attempt"], row["correction"]) for row in await link.fetch(_ADD_NEW)}
        await _add_beside(link, [row for row in usage if key_of(row) in added], times)
        return len(added) + len(times)


async def _copy(link: Link, rows: Sequence[UsageRow], table: str, schema: str | None) -> None:
    if rows:
        source = chunks(rows, ROWS_PER_TURN)
        await link.copy_to_table(table, source=source, columns=COLUMNS, schema_name=schema, format="binary")


async def _add_beside(link: Link, usage: Sequence[UsageRow], times: Sequence[EndpointTimeRow]) -> None:
    """The sums, and how endpoints spent their time."""
    summed = Sums()
    for first in range(0, len(usage), ROWS_PER_TURN):
        summed.add(usage[first : first + ROWS_PER_TURN])
        await asyncio.sleep(0)
    sums = summed.records()
    for first in range(0, len(sums), ROWS_PER_TURN):
        some = sums[first : first + ROWS_PER_TURN]
        await link.execute(_ADD_SUMS, *(list(column) for column in zip(*some, strict=True)))
    if times:
        await link.execute(_ADD_TIMES, *(list(column) for column in zip(*map(time_record, times), strict=True)))
