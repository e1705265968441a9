"""How does a gateway come to write down what its requests took?

Its own requests are observed and made into rows, which wait in a spool on this machine and are written to the database
beside everything else: no request waits for either. Whoever decides, this process alone or the scheduler of its cell,
also writes down how the endpoints' time was spent.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headgate.ledger.database import Database
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.ledger.recorder import Recorder
from headgate.ledger.rows import bounded
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import QUERY_S_MAX, Writer
from headgate.model.money import EndpointTime, Price, price_at
from headgate.model.policy import Pool
from headgate.model.units import Instant, PoolName
from headgate.ports.ledger import EndpointTimeRow
from headgate.telemetry.ledger import LedgerFigures

ENDPOINT_TIMES_S: Final = 10.0
LEAVE_S_MAX: Final = 5.0
"""So long a process that leaves waits for the database; what is not written by then stays in the spool."""
_US: Final = 1_000
"""Nanoseconds."""
_FREE: Final = Price()

TakeTimes = Callable[[], Sequence[EndpointTime]]


class LiveLedger:
    """Of one process. Made and run inside an event loop. Raises `OSError` where the spool cannot be opened."""

    def __init__(
        self, database: DatabaseOptions, settings: LedgerOptions, *, endpoint_times_s: float = ENDPOINT_TIMES_S
    ) -> None:
        self._endpoint_times_s = endpoint_times_s
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._shown = settings.spool
        try:
            refuses, size = settings.refuses_unrecorded, settings.spool_bytes_max
            self._spool = Spool(settings.spool, bytes_max=size, name=self._name, refuses=refuses)
        except OSError as error:
            what = f"ledger.spool: {settings.spool} cannot be used ({error.strerror})"
            raise OSError(0, f"{what}; make it a folder that this process may write") from error
        self._database = Database(database.url, query_s_max=QUERY_S_MAX)
        self._writer = Writer(self._database, self._spool, retention_days=settings.retention_days)
        self.observer = Recorder(self._spool, self._spool, refuses=refuses)
        self._tasks: list[asyncio.Task[None]] = []

    # Its life

    def start(
        self, take_times: TakeTimes, pools: Callable[[], Sequence[Pool]], now: Callable[[], Instant]
    ) -> Sequence[asyncio.Task[None]]:
        """`take_times` gives how endpoints spent their time since it was last asked, where this process decides."""
        self._tasks = [
            asyncio.create_task(self._writer.run(), name="write the ledger"),
            asyncio.create_task(self._take_times(take_times, pools, now), name="take endpoint times"),
        ]
        return self._tasks

    async def _take_times(
        self, take_times: TakeTimes, pools: Callable[[], Sequence[Pool]], now: Callable[[], Instant]
    ) -> None:
        try:
            while True:
                await asyncio.sleep(self._endpoint_times_s)
                self.add_times(take_times(), pools(), now())
        finally:
            # What has passed since the last time, when this process leaves.
            self.add_times(take_times(), pools(), now())

    def add_times(self, times: Sequence[EndpointTime], pools: Sequence[Pool], now: Instant) -> None:
        prices = {pool.name: price_at(pool.prices, now) or _FREE for pool in pools}
        if times:
            self._spool.add_time([self._time_row(each, prices.get(PoolName(each.pool), _FREE), now) for each in times])

    def _time_row(self, time: EndpointTime, price: Price, now: Instant) -> EndpointTimeRow:
        return EndpointTimeRow(
            at=now,
            source=self._name,
            pool=time.pool,
            endpoint=bounded(time.endpoint_id),
            whole_us=time.whole_ns // _US,
            starting_us=time.starting_ns // _US,
            unready_us=time.unready_ns // _US,
            idle_us=time.idle_ns // _US,
            billed_us=time.billed_ns // _US,
            late_us=time.late_ns // _US,
            hour_nano_usd=price.hour,
            price_kind=price.kind.value,
        )

    async def stop(self, grace_s: float = LEAVE_S_MAX) -> None:
        """Writes what can be written in the time; the rest stays in the spool for whoever comes next."""
        self.observer.close()
        writing, *others = self._tasks or [None]
        for task in others:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if writing is not None:
            if not writing.done() and self._writer.problem is None:
                await self._writer.flush(min(grace_s, LEAVE_S_MAX))
            writing.cancel()
            await asyncio.wait([writing])
        await self._database.stop()
        self._spool.close()

    # For those who look

    def ready(self) -> tuple[bool, str]:
        """A database that is away is no reason to refuse anybody; one of another shape is."""
        mismatch = self._writer.mismatch
        return (True, "ready") if mismatch is None else (False, mismatch)

    def figures(self) -> LedgerFigures:
        return LedgerFigures(
            database_up=self._writer.problem is None,
            written=self._writer.written,
            waiting=self._spool.waiting,
            spooled_bytes=self._spool.size,
            oldest_s=self._spool.oldest_s,
            lost=self._spool.lost,
            refused=self._writer.refused,
            open_requests=self.observer.open_requests,
            unrecorded=self.observer.unrecorded,
            disk_problem=self._spool.unrecordable,
        )

    def status(self) -> Mapping[str, object]:
        return {
            "spool": self._shown,
            "problem": self._writer.problem,
            "spool_problem": self._spool.problem,
            "attempts_unrecorded": self.observer.unrecorded,
            "rows_written": self._writer.written,
            "rows_waiting": self._spool.waiting,
            "rows_known_already": self._writer.known_already,
            "rows_lost": self._spool.lost,
            "files_unread": self._spool.unread,
            "rows_refused": self._writer.refused,
            "oldest_s": round(self._spool.oldest_s, 1),
            "reconnects": self._writer.reconnects,
        }
