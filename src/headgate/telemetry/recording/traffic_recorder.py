"""Recordings of the requests of this process, for `headgate record`.

While a recording is running, an observer keeps the prefix hashes of each request that arrives, and the record of the
request completes the row when the request ends. Otherwise there is no observer, and requests cost nothing more.

A recording has a bounded buffer. Its reader fetches rows and thereby confirms the earlier ones. If the reader is too
slow, new rows are dropped and counted. If it stops reading, the recording ends. Requests never wait for a recording.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from headgate.core.commands import Command
from headgate.core.events import Event, RequestArrived
from headgate.model.routes import MIRROR_TENANT
from headgate.model.units import SECOND, Duration, Instant, RequestId
from headgate.ports.directory import ChangeRejected, NotFound
from headgate.ports.observer import Observer
from headgate.ports.records import RequestRecord
from headgate.ports.traffic import TrafficPage, TrafficRow

RECORDINGS_MAX: Final = 4
ROWS_MAX: Final = 10_000
"""Maximum number of rows in a recording's buffer. A row takes up to 2 kB."""
PAGE_ROWS_MAX: Final = 1_000
PENDING_MAX: Final = 50_000
"""Maximum number of open requests that are being recorded."""
UNREAD_S_MAX: Final = 60.0
"""Time after which a recording that is not read ends."""
_US: Final = 1_000
NO_CALLERS: Final = (None, "", MIRROR_TENANT)
"""Tenants of records that are not traffic of callers: rejected before authentication, or copies of other requests."""
MODELS_MAX: Final = 1_000
"""Maximum number of model names in recordings."""


class ServedModels:
    """Names of models that have served a request. Any other name may be text from a caller."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: set[str] = set()

    def known_name(self, model: str | None, *, attempted: bool) -> str:
        """Returns the model of a request. Empty if no request for it has been sent to an engine so far."""
        if model and attempted and len(self._names) < MODELS_MAX:
            self._names.add(model)
        return model if model in self._names else ""


class _Recording:
    __slots__ = ("backlog", "dropped", "ends_at", "first", "id", "open", "read_at_s", "rows", "started_at")

    def __init__(self, started_at: Instant, ends_at: Instant, read_at_s: float) -> None:
        self.id = secrets.token_hex(16)
        self.started_at = started_at
        self.ends_at = ends_at
        """Requests that arrive from then on are not recorded."""
        self.read_at_s = read_at_s
        self.rows: deque[TrafficRow] = deque()
        self.backlog: deque[RequestRecord] = deque()
        """Records of requests that had ended before the start, from which rows are made as they are read."""
        self.first = 0
        """Number of the first row in the buffer."""
        self.open = 0
        self.dropped = 0

    def add(self, row: TrafficRow, rows_max: int) -> None:
        if len(self.rows) < rows_max:
            self.rows.append(row)
        else:
            self.dropped += 1


class _Pending:
    """An open request that is being recorded."""

    __slots__ = ("bytes_before_prefix", "prefix", "recordings")

    def __init__(self, prefix: bytes, bytes_before_prefix: int, recordings: tuple[_Recording, ...]) -> None:
        self.prefix = prefix
        self.bytes_before_prefix = bytes_before_prefix
        self.recordings = recordings


class TrafficRecorder:
    def __init__(
        self,
        now: Callable[[], Instant],
        attach: Callable[[Observer], Callable[[], None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        rows_max: int = ROWS_MAX,
        pending_max: int = PENDING_MAX,
    ) -> None:
        """`attach` adds an observer of this process's requests and returns a function that removes it."""
        self._now = now
        self._attach = attach
        self._clock = clock
        self._rows_max = rows_max
        self._pending_max = pending_max
        self._recordings: dict[str, _Recording] = {}
        self._collecting: tuple[_Recording, ...] = ()
        """Recordings that new requests are added to."""
        self._pending: dict[RequestId, _Pending] = {}
        self._detach: Callable[[], None] | None = None
        """Function that removes the observer. None if it is not attached."""
        self._update_at = Instant(0)
        """Time at which a recording may have ended."""
        self._models = ServedModels()

    @property
    def recordings(self) -> int:
        return len(self._recordings)

    @property
    def requests(self) -> int:
        """Number of requests in all buffers, including open ones."""
        buffered = sum(len(each.rows) + len(each.backlog) for each in self._recordings.values())
        return buffered + len(self._pending)

    # Requests

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if type(event) is not RequestArrived:
            return
        if now >= self._update_at:
            self._update()
        ticket = event.ticket
        if not self._collecting or ticket.mirror_route:
            return
        if len(self._pending) >= self._pending_max:
            for each in self._collecting:
                each.dropped += 1
            return
        self._pending[ticket.request_id] = _Pending(
            ticket.prefix_hashes, ticket.prompt_bytes_before_prefix, self._collecting
        )
        for each in self._collecting:
            each.open += 1

    def add(self, record: RequestRecord) -> None:
        """Receives the record of a request that has ended."""
        pending = self._pending.pop(record.request_id, None) if self._pending else None
        if pending is None:
            return
        row = traffic_row(record, self._models, pending.prefix, pending.bytes_before_prefix)
        for each in pending.recordings:
            each.open -= 1
            each.add(row, self._rows_max)

    # The reader

    def start(self, duration_ns: Duration) -> TrafficPage:
        """Starts a recording of the requests that arrive from now on. Raises `ChangeRejected`."""
        now = self._now()
        return self._page(self._open(now, Instant(now + duration_ns), ()))

    def start_with(self, records: Iterable[RequestRecord]) -> TrafficPage:
        """Starts a recording that consists of these records. They have no prefix hashes."""
        kept = [each for each in records if each.tenant not in NO_CALLERS and each.api is not None]
        start = min((each.arrived_at for each in kept), default=self._now())
        return self._page(self._open(start, start, kept))

    def read(self, name: str, *, after: int, end: bool) -> TrafficPage:
        """Returns the rows from number `after` on, and discards the earlier ones. Raises `NotFound`.

        With `end`, requests that arrive from now on are not recorded, and the recording ends once it has no more rows.
        """
        self._update()
        recording = self._recordings.get(name)
        if recording is None:
            raise NotFound(
                f"no such recording; a recording ends if it is not read for {UNREAD_S_MAX:g} s; start another"
            )
        recording.read_at_s = self._clock()
        while recording.rows and recording.first < after:
            recording.rows.popleft()
            recording.first += 1
        if end:
            recording.ends_at = min(recording.ends_at, self._now())
            self._update()
        page = self._page(recording)
        if end and not page.rows:
            del self._recordings[name]
            self._update()
        return page

    def _open(self, started_at: Instant, ends_at: Instant, backlog: Iterable[RequestRecord]) -> _Recording:
        self._update()
        if len(self._recordings) >= RECORDINGS_MAX:
            hint = f"end one, or wait {UNREAD_S_MAX:g} s for abandoned ones to end"
            raise ChangeRejected(f"{RECORDINGS_MAX} recordings are running; {hint}")
        recording = _Recording(started_at, ends_at, self._clock())
        recording.backlog.extend(backlog)
        self._recordings[recording.id] = recording
        self._update()
        return recording

    def _page(self, recording: _Recording) -> TrafficPage:
        while recording.backlog and len(recording.rows) < PAGE_ROWS_MAX:
            recording.rows.append(traffic_row(recording.backlog.popleft(), self._models))
        start_us = recording.started_at // _US
        page = [recording.rows[place] for place in range(min(PAGE_ROWS_MAX, len(recording.rows)))]
        return TrafficPage(
            recording=recording.id,
            age_us=max(0, self._now() - recording.started_at) // _US,
            first=recording.first,
            # The head of a request may have started to arrive before the recording.
            rows=[replace(each, at_us=max(0, each.at_us - start_us)) for each in page],
            open=recording.open,
            ended=recording not in self._collecting,
            dropped=recording.dropped,
        )

    # Attaching the observer

    def _update(self) -> None:
        """Drops abandoned recordings, and attaches the observer while any recording takes new requests."""
        unread_since_s, now = self._clock() - UNREAD_S_MAX, self._now()
        kept = {name: each for name, each in self._recordings.items() if each.read_at_s >= unread_since_s}
        self._recordings = kept
        self._collecting = tuple(each for each in kept.values() if now < each.ends_at)
        if not kept:
            self._pending.clear()
        unread_at = now + round(UNREAD_S_MAX * SECOND)
        self._update_at = Instant(min((unread_at, *(each.ends_at for each in self._collecting))))
        if self._collecting and self._detach is None:
            self._detach = self._attach(self)
        elif self._detach is not None and not self._collecting:
            self._detach()
            self._detach = None


def traffic_row(
    record: RequestRecord, models: ServedModels, prefix: bytes = b"", bytes_before_prefix: int = 0
) -> TrafficRow:
    """Row of an ended request. Its time is Unix time in microseconds."""
    outcome = "" if record.outcome is None else record.outcome.value
    return TrafficRow(
        at_us=record.arrived_at // _US,
        api="" if record.api is None else record.api.value,
        model=models.known_name(record.model, attempted=bool(record.attempts)),
        service_class=record.class_name or "",
        tenant=record.tenant or "",
        stream=record.stream,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        prompt_bytes=record.prompt_bytes,
        outcome=outcome,
        retries=record.client_retries,
        stages=tuple((name, length // _US) for name, length in record.caller_stages),
        prefix=prefix,
        bytes_before_prefix=bytes_before_prefix,
    )
