"""Who takes the record of a request when it has ended, and what is made of it?

On the event loop it is only put into line. A thread counts its stages and, where a folder is configured, writes it to a
file, a few at a time and with pauses, so that streams do not wait for it. Independently of files the last records stay
in memory for whoever asks.

Everything is bounded: how many wait, how many are kept. What cannot be kept is dropped and counted; no request waits
for it or fails by it.
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
from headgate.telemetry.decisions import Decisions, History
from headgate.telemetry.records.figures import RecordsFigures
from headgate.telemetry.records.folder import Usage, Writer
from headgate.telemetry.records.row import Around, Row, row_of
from headgate.telemetry.stages.meters import StageMeters
from headgate.telemetry.stages.times import stage_times

log = logging.getLogger("headgate")

WAITING_MAX: Final = 20_000
RECENT_MAX: Final = 6_000
"""As many as decisions.py has histories; about a kilobyte each."""
WRITE_S: Final = 0.5
"""So often what waits is written."""
CLEAN_S: Final = 10.0
_SLICE: Final = 8
"""Records that are looked at before others get their turn."""
_PAUSE_S: Final = 0.0005
_STOP_S_MAX: Final = 5.0

_Waiting = tuple[RequestRecord, History | None, Around]


class Keeper:
    def __init__(
        self,
        decisions: Decisions,
        meters: StageMeters,
        now: Callable[[], Instant],
        writer: Writer | None = None,
        *,
        waiting_max: int = WAITING_MAX,
        recent_max: int = RECENT_MAX,
    ) -> None:
        """`writer` is None where records end with the process."""
        self._waiting_max = waiting_max
        self._recent_max = recent_max
        self._decisions = decisions
        self._meters = meters
        self._now = now
        self._writer = writer
        self._waiting: deque[_Waiting] = deque()
        self._recent: OrderedDict[RequestId, RequestRecord] = OrderedDict()
        self._asked_to_stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._usage = Usage(0, 0.0)
        self._clean_at = 0.0
        self._problem: str | None = None
        self._told_of_mistake = False
        self.known_since = 0
        """No record of what arrived from then on has been forgotten, by the calendar."""
        self.written = 0
        self.dropped = 0

    # On the event loop

    def take(self, record: RequestRecord) -> None:
        recent = self._recent
        recent[record.request_id] = record
        if len(recent) > self._recent_max:
            _, forgotten = recent.popitem(last=False)
            if forgotten.arrived >= self.known_since:
                self.known_since = forgotten.arrived + 1
        if len(self._waiting) >= self._waiting_max:
            self.dropped += 1
            return
        history = self._decisions.history(record.request_id)
        around = ((), ()) if history is None else self._decisions.around(history)
        self._waiting.append((record, history, around))

    def recent(self, request_id: RequestId) -> RequestRecord | None:
        return self._recent.get(request_id)

    def recents(self, records_max: int = RECENT_MAX) -> list[RequestRecord]:
        """The last that ended, the newest first."""
        return list(islice(reversed(self._recent.values()), records_max))

    def figures(self) -> RecordsFigures:
        usage = self._usage
        return RecordsFigures(
            self.written,
            self.dropped,
            len(self._waiting),
            usage.bytes,
            usage.oldest_s,
            self._problem,
            in_files=self._writer is not None,
        )

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Its life

    def start(self) -> None:
        assert self._thread is None, "a keeper is started once"
        self._thread = threading.Thread(target=self._run, name="headgate-records", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits; called where one may wait for a moment, such as another thread."""
        self._asked_to_stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S_MAX)

    def _run(self) -> None:
        while not self._asked_to_stop.wait(WRITE_S):
            self._work_on()
        self._work_on()
        if self._writer is not None:
            self._trying(self._writer.close)

    # In the thread

    def _work_on(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 (the thread lives as long as the process)
            self._mistaken(error)

    def work(self) -> None:
        """Counts and writes what waits."""
        rows: list[Row] = []
        for number in range(1, len(self._waiting) + 1):
            waiting = self._waiting.popleft()
            try:
                row = self._counted(waiting)
            except Exception as error:  # noqa: BLE001 (one record that meets a mistake of ours costs no other)
                self.dropped += 1
                self._mistaken(error)
            else:
                rows += () if row is None else (row,)
            if number % _SLICE == 0:
                time.sleep(_PAUSE_S)
        if self._writer is not None:
            self._write(self._writer, rows)

    def _counted(self, waiting: _Waiting) -> Row | None:
        record, history, around = waiting
        times = stage_times(record)
        self._meters.add(record, times)
        return None if self._writer is None else row_of(record, history, around, times)

    def _mistaken(self, error: Exception) -> None:
        """Told once: what befalls one record may befall every one."""
        if not self._told_of_mistake:
            self._told_of_mistake = True
            said = "this is a mistake in Headgate; records that meet it are dropped and counted"
            log.error("%s", said, exc_info=error)

    def _write(self, writer: Writer, rows: list[Row]) -> None:
        if rows:
            before = self.written
            if self._trying(lambda: self._add(writer, rows)):
                self._problem = None
            self.dropped += len(rows) - (self.written - before)
        self._trying(writer.tidy)
        if time.monotonic() >= self._clean_at:
            self._clean_at = time.monotonic() + CLEAN_S
            self._trying(lambda: self._clean(writer))

    def _add(self, writer: Writer, rows: list[Row]) -> None:
        self.written += writer.add(rows, self._now())

    def _clean(self, writer: Writer) -> None:
        self._usage = writer.clean()

    def _trying(self, work: Callable[[], None]) -> bool:
        """Whether it could be done. A full disk passes; that it is full is said once."""
        try:
            work()
        except OSError as error:
            problem = f"records cannot be written: {error.strerror}; see to the disk, or correct records.folder"
            if problem != self._problem:
                log.warning("%s", problem)
            self._problem = problem
            return False
        return True
