"""Records the usage of a gateway's requests in the ledger.

An observer turns the gateway's own requests into rows. The rows are spooled on this machine and written to the database
in the background, so no request waits for either. The process that makes scheduling decisions (this process or the
cell's scheduler) also records how endpoints spent their time.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headgate.ledger.database import Database
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.ledger.recorder import UsageRecorder
from headgate.ledger.rows import clamp_text
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import QUERY_S_MAX, UNIT_SUMS_INTERVAL_S, LedgerWriter
from headgate.model.money import EndpointTime, Price, price_at
from headgate.model.policy import Pool
from headgate.model.units import Instant, PoolName
from headgate.ports.ledger import EndpointTimeRow
from headgate.telemetry.ledger_metrics import LedgerStats

ENDPOINT_TIMES_EVERY_S: Final = 10.0
FLUSH_S_MAX: Final = 5.0
"""Maximum time in seconds to wait for the database when the process stops. Any remaining rows stay in the spool."""
_US: Final = 1_000
"""Nanoseconds per microsecond."""
_FREE: Final = Price()

CollectEndpointTimes = Callable[[], Sequence[EndpointTime]]


class LedgerSync:
    """A process's ledger. Must be created and run inside an event loop. Raises `OSError`."""

    def __init__(
        self,
        database: DatabaseOptions,
        settings: LedgerOptions,
        *,
        unit_key: Callable[[], str | None] = lambda: None,
        endpoint_times_s: float = ENDPOINT_TIMES_EVERY_S,
        unit_sums_s: float = UNIT_SUMS_INTERVAL_S,
    ) -> None:
        """`unit_key` returns the metadata key of business units. It may change when the configuration is reloaded."""
        self._endpoint_times_s = endpoint_times_s
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._shown = settings.spool_directory
        try:
            refuses, size = settings.reject_unrecorded, settings.spool_bytes_max
            self._spool = Spool(settings.spool_directory, bytes_max=size, name=self._name, reject_unrecorded=refuses)
        except OSError as error:
            what = f"ledger.spool_directory: cannot use {settings.spool_directory} ({error.strerror})"
            raise OSError(0, f"{what}; create it as a directory that this process can write to") from error
        self._database = Database(database.url, query_s_max=QUERY_S_MAX)
        self._writer = LedgerWriter(
            self._database,
            self._spool,
            retention_days=settings.retention_days,
            roll_up=settings.roll_up_hourly,
            unit_key=unit_key,
            unit_sums_s=unit_sums_s,
        )
        self.observer = UsageRecorder(self._spool, self._spool.journal, reject_unrecorded=refuses)
        self._tasks: list[asyncio.Task[None]] = []

    # Lifecycle

    def start(
        self, take_times: CollectEndpointTimes, pools: Callable[[], Sequence[Pool]], now: Callable[[], Instant]
    ) -> Sequence[asyncio.Task[None]]:
        """`take_times` returns the endpoint times since it was last called; none if another process schedules."""
        self._tasks = [
            asyncio.create_task(self._writer.run(), name="write the ledger"),
            asyncio.create_task(self._record_endpoint_times(take_times, pools, now), name="take endpoint times"),
        ]
        return self._tasks

    async def _record_endpoint_times(
        self, take_times: CollectEndpointTimes, pools: Callable[[], Sequence[Pool]], now: Callable[[], Instant]
    ) -> None:
        try:
            while True:
                await asyncio.sleep(self._endpoint_times_s)
                self.add_endpoint_times(take_times(), pools(), now())
        finally:
            # When the process stops, add the time since the last interval.
            self.add_endpoint_times(take_times(), pools(), now())

    def add_endpoint_times(self, times: Sequence[EndpointTime], pools: Sequence[Pool], now: Instant) -> None:
        prices = {pool.name: price_at(pool.prices, now) or _FREE for pool in pools}
        if times:
            self._spool.add_endpoint_times(
                [self._time_row(each, prices.get(PoolName(each.pool), _FREE), now) for each in times]
            )

    def _time_row(self, time: EndpointTime, price: Price, now: Instant) -> EndpointTimeRow:
        return EndpointTimeRow(
            at=now,
            source=self._name,
            pool=time.pool,
            endpoint=clamp_text(time.endpoint_id),
            total_us=time.total_ns // _US,
            starting_us=time.starting_ns // _US,
            unready_us=time.unready_ns // _US,
            idle_us=time.idle_ns // _US,
            billed_us=time.billed_ns // _US,
            abort_lag_us=time.abort_lag_ns // _US,
            hour_nano_usd=price.per_hour,
            price_kind=price.kind.value,
        )

    async def stop(self, grace_s: float = FLUSH_S_MAX) -> None:
        """Writes rows for up to `grace_s` seconds. Remaining rows stay in the spool for the next process."""
        self.observer.close()
        writing, *others = self._tasks or [None]
        for task in others:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if writing is not None:
            if not writing.done() and self._writer.problem is None:
                await self._writer.flush(min(grace_s, FLUSH_S_MAX))
            writing.cancel()
            await asyncio.wait([writing])
        await self._database.stop()
        self._spool.close()

    # Status

    def ready(self) -> tuple[bool, str]:
        """Returns readiness.

        A wrong database schema makes the gateway unready, but an unreachable database does not.
        """
        mismatch = self._writer.mismatch
        return (True, "ready") if mismatch is None else (False, mismatch)

    def figures(self) -> LedgerStats:
        lag = self._writer.unit_sums_lag
        return LedgerStats(
            database_up=self._writer.problem is None,
            rows_written=self._writer.rows_written,
            rows_waiting=self._spool.rows_waiting,
            spool_bytes=self._spool.size_bytes,
            oldest_row_age_s=self._spool.oldest_row_age_s,
            rows_lost=self._spool.rows_lost,
            rows_rejected=self._writer.rows_rejected,
            open_requests=self.observer.open_requests,
            unjournaled_attempts=self.observer.unjournaled_attempts,
            disk_problem=self._spool.write_problem,
            unit_sums_age_s=lag.age_s,
            unit_sums_days=lag.days,
        )

    def status(self) -> Mapping[str, object]:
        return {
            "spool": self._shown,
            "problem": self._writer.problem,
            "spool_problem": self._spool.problem,
            "attempts_unrecorded": self.observer.unjournaled_attempts,
            "rows_written": self._writer.rows_written,
            "rows_waiting": self._spool.rows_waiting,
            "rows_known_already": self._writer.duplicates,
            "rows_lost": self._spool.rows_lost,
            "files_unread": self._spool.unreadable_files,
            "rows_rejected": self._writer.rows_rejected,
            "oldest_s": round(self._spool.oldest_row_age_s, 1),
            "reconnects": self._writer.reconnects,
        }
