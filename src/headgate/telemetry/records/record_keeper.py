"""Collects the records of finished requests.

The event loop only appends a record to a queue. A thread updates the stage metrics and, if a directory is configured,
writes the record to a file. It works in small slices with pauses, so that streams are not delayed. The most recent
records are also kept in memory.

Both the queue and the records in memory are bounded. Records beyond a bound are dropped and counted. Requests never
wait for their records, and never fail because of them.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from headgate.model.units import Instant, RequestId
from headgate.ports.records import RequestRecord
from headgate.telemetry.decision_history import DecisionHistory, RequestHistory
from headgate.telemetry.records.row import ContextEvents, RecordRow, row_of
from headgate.telemetry.records.segment_writer import FolderUsage, SegmentWriter
from headgate.telemetry.records.stats import RecordsStats
from headgate.telemetry.stages.stage_meters import StageMeters
from headgate.telemetry.stages.stage_times import stage_times

log = logging.getLogger("headgate")

WAITING_MAX: Final = 20_000
RECENT_MAX: Final = 6_000
"""Maximum number of records in memory, the same as the number of histories in decisions.py. Each takes about 1 kB."""
WRITE_INTERVAL_S: Final = 0.5
"""Interval between writes, in seconds."""
CLEAN_INTERVAL_S: Final = 10.0
_SLICE: Final = 8
"""Number of records processed between two pauses."""
_PAUSE_S: Final = 0.0005
_STOP_S_MAX: Final = 5.0

_Waiting = tuple[RequestRecord, RequestHistory | None, ContextEvents]
_NO_CONTEXT: Final[ContextEvents] = ((), ())


class RecordKeeper:
    def __init__(
        self,
        decisions: DecisionHistory,
        meters: StageMeters,
        now: Callable[[], Instant],
        writer: SegmentWriter | None = None,
        *,
        waiting_max: int = WAITING_MAX,
        recent_max: int = RECENT_MAX,
    ) -> None:
        """`writer` is None if records are not written to files."""
        self._waiting_max = waiting_max
        self._recent_max = recent_max
        self._decisions = decisions
        self._meters = meters
        self._now = now
        self._writer = writer
        self._waiting: deque[_Waiting] = deque()
        self._recent: OrderedDict[RequestId, RequestRecord] = OrderedDict()
        self._stop_requested = threading.Event()
        self._worker: threading.Thread | None = None
        self._usage = FolderUsage(0, 0.0)
        self._clean_at = 0.0
        self._problem: str | None = None
        self._error_logged = False
        self.complete_since = 0
        """Unix time in nanoseconds. The records of all requests that arrived since then are in memory."""
        self.written = 0
        self.dropped = 0

    # Runs on the event loop

    def add(self, record: RequestRecord) -> None:
        recent = self._recent
        recent[record.request_id] = record
        if len(recent) > self._recent_max:
            _, forgotten = recent.popitem(last=False)
            if forgotten.arrived_at >= self.complete_since:
                self.complete_since = forgotten.arrived_at + 1
        if len(self._waiting) >= self._waiting_max:
            self.dropped += 1
            return
        decisions = self._decisions
        history = decisions.history(record.request_id)
        around = _NO_CONTEXT if history is None else decisions.context_events(history)
        self._waiting.append((record, history, around))

    def recent(self, request_id: RequestId) -> RequestRecord | None:
        return self._recent.get(request_id)

    def recent_records(self, records_max: int = RECENT_MAX) -> list[RequestRecord]:
        """Records of the most recently finished requests, newest first."""
        return list(islice(reversed(self._recent.values()), records_max))

    def stats(self) -> RecordsStats:
        usage = self._usage
        return RecordsStats(
            self.written,
            self.dropped,
            len(self._waiting),
            usage.bytes,
            usage.oldest_age_s,
            self._problem,
            in_files=self._writer is not None,
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Lifecycle

    def start(self) -> None:
        assert self._worker is None, "start() may only be called once"
        self._worker = threading.Thread(target=self._run, name="headgate-records", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Writes the queued records and ends the thread. Blocks, so call it from outside the event loop."""
        self._stop_requested.set()
        if self._worker is not None:
            self._worker.join(_STOP_S_MAX)

    def _run(self) -> None:
        while not self._stop_requested.wait(WRITE_INTERVAL_S):
            self._process_safely()
        self._process_safely()
        if self._writer is not None:
            self._try_disk(self._writer.close)

    # Runs in the thread

    def _process_safely(self) -> None:
        try:
            self.process_waiting()
        except Exception as error:  # noqa: BLE001 (the thread must not end before the process)
            self._log_internal_error(error)

    def process_waiting(self) -> None:
        """Processes and writes the queued records."""
        rows: list[RecordRow] = []
        for number in range(1, len(self._waiting) + 1):
            waiting = self._waiting.popleft()
            try:
                row = self._process(waiting)
            except Exception as error:  # noqa: BLE001 (a bug must not affect other records)
                self.dropped += 1
                self._log_internal_error(error)
            else:
                rows += () if row is None else (row,)
            if number % _SLICE == 0:
                time.sleep(_PAUSE_S)
        if self._writer is not None:
            self._write(self._writer, rows)

    def _process(self, waiting: _Waiting) -> RecordRow | None:
        record, history, around = waiting
        times = stage_times(record)
        self._meters.add(record, times)
        return None if self._writer is None else row_of(record, history, around, times)

    def _log_internal_error(self, error: Exception) -> None:
        """Logs only the first error, because the same bug may affect every record."""
        if not self._error_logged:
            self._error_logged = True
            log.error("internal error; affected records are dropped and counted", exc_info=error)

    def _write(self, writer: SegmentWriter, rows: list[RecordRow]) -> None:
        if rows:
            before = self.written
            if self._try_disk(lambda: self._add(writer, rows)):
                self._problem = None
            self.dropped += len(rows) - (self.written - before)
        self._try_disk(writer.close_if_old)
        if time.monotonic() >= self._clean_at:
            self._clean_at = time.monotonic() + CLEAN_INTERVAL_S
            self._try_disk(lambda: self._clean(writer))

    def _add(self, writer: SegmentWriter, rows: list[RecordRow]) -> None:
        self.written += writer.add(rows, self._now())

    def _clean(self, writer: SegmentWriter) -> None:
        self._usage = writer.delete_expired()

    def _try_disk(self, work: Callable[[], None]) -> bool:
        """Returns whether `work` succeeded. A disk error is logged once, and the work is retried later."""
        try:
            work()
        except OSError as error:
            problem = f"records cannot be written: {error.strerror}; check the disk or correct records.directory"
            if problem != self._problem:
                log.warning("%s", problem)
            self._problem = problem
            return False
        return True
