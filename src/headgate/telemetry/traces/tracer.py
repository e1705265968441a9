"""Turns finished requests into traces, in a separate thread.

The event loop only appends the record to a bounded queue. The thread selects the requests to keep, creates their spans,
and posts the spans. It works in short slices with pauses, because it shares the interpreter with the event loop.

If the collector is unreachable, traces are lost but requests are not affected. Spans are buffered up to a limit, beyond
which the oldest are dropped. The tracer retries with exponential backoff and logs one line when the collector becomes
unreachable and one when it is back. On shutdown, the tracer makes one attempt to post the remaining spans, with a
timeout. If a record cannot be converted, only its own trace is lost.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.ports.records import RequestRecord
from headgate.telemetry.log import log_event
from headgate.telemetry.traces.collector import Collector, PostResult
from headgate.telemetry.traces.options import TracingOptions
from headgate.telemetry.traces.otlp import traces_data
from headgate.telemetry.traces.span_settings import SpanSettings
from headgate.telemetry.traces.spans import build_trace
from headgate.telemetry.traces.stats import DropReason, KeepReason, TraceStats
from headgate.telemetry.traces.tail_sampling import TailSampler

RECORDS_MAX: Final = 10_000
"""Maximum number of finished requests in the queue."""
TRACES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum total size of the traces buffered for the collector, in bytes."""
POST_BYTES_MAX: Final = 1024 * 1024
"""Target batch size in bytes. A batch may exceed it by one trace."""
PROCESS_INTERVAL_S: Final = 0.2
POST_INTERVAL_S: Final = 1.0
BACKOFF_S_MAX: Final = 30.0
"""Cap on the exponential backoff while the collector is unreachable."""
STOP_S_MAX: Final = 2.0
_SLICE_NS: Final = 500_000
_PAUSE_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class TracerLimits:
    """Queue limits and intervals of a tracer."""

    records_max: int = RECORDS_MAX
    traces_bytes_max: int = TRACES_BYTES_MAX
    process_interval_s: float = PROCESS_INTERVAL_S
    post_interval_s: float = POST_INTERVAL_S
    stop_s_max: float = STOP_S_MAX


DEFAULT_LIMITS: Final = TracerLimits()


class Tracer:
    """Consumer of request records. Must be created and stopped inside an event loop; `start` starts its thread."""

    def __init__(
        self,
        options: TracingOptions,
        *,
        span_settings: SpanSettings,
        version: str,
        instance: str,
        limits: TracerLimits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self._records: deque[RequestRecord] = deque()
        self._queue_full = 0
        self._sampler = TailSampler(slowest_ppm=options.slowest_ppm, per_second_max=options.traces_per_second_max)
        self.span_settings = span_settings
        """Span settings. To change them, replace the whole object."""
        collector = Collector(options.endpoint, options.headers)
        self._outbox = _Outbox(collector, partial(traces_data, version=version, instance=instance), limits)
        self._kept = dict.fromkeys(KeepReason, 0)
        self._rate_limited = self._internal_errors = 0
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-traces", daemon=True)

    def add(self, record: RequestRecord) -> None:
        records = self._records
        if len(records) >= self.limits.records_max:
            records.popleft()
            self._queue_full += 1
        records.append(record)

    def start(self) -> None:
        self._thread.start()

    def request_stop(self) -> None:
        """Asks the thread to post the remaining traces and exit."""
        self._stop_requested.set()

    def abort(self) -> None:
        """Asks the thread to exit without posting, and aborts the post in progress."""
        self._outbox.abort()
        self.request_stop()

    def is_stopped(self) -> bool:
        return not self._thread.is_alive()

    async def stop(self) -> None:
        """Calls `request_stop` and waits up to `stop_s_max` for the thread to exit."""
        self.request_stop()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, self.limits.stop_s_max)

    def stats(self) -> TraceStats:
        outbox = self._outbox
        dropped = {
            DropReason.RATE_LIMITED: self._rate_limited,
            DropReason.QUEUE_FULL: self._queue_full,
            DropReason.EXPORT_FAILED: outbox.dropped,
            DropReason.INTERNAL_ERROR: self._internal_errors,
        }
        return TraceStats(dict(self._kept), dropped, outbox.exported, outbox.exports_failed, len(outbox))

    # Runs in the thread

    def _run(self) -> None:
        try:
            while not self._stop_requested.wait(self.limits.process_interval_s):
                self._process_records()
                self._outbox.post_due(time.monotonic())
            self._process_records()
            self._outbox.flush(time.monotonic() + self.limits.stop_s_max)
        except Exception:
            # Tracing errors must not keep the process from serving requests.
            logging.getLogger("headgate").exception("internal error; no more traces will be sent until a restart")
        finally:
            self._outbox.close()

    def _process_records(self) -> None:
        records, turn_ends = self._records, time.monotonic_ns() + _SLICE_NS
        while records:
            self._process(records.popleft())
            if time.monotonic_ns() > turn_ends:
                time.sleep(_PAUSE_S)
                turn_ends = time.monotonic_ns() + _SLICE_NS

    def _process(self, record: RequestRecord) -> None:
        try:
            self._keep(record)
        except Exception:
            if not self._internal_errors:
                logging.getLogger("headgate").exception("internal error; a request's trace was dropped")
            self._internal_errors += 1

    def _keep(self, record: RequestRecord) -> None:
        why = self._sampler.keep_reason(record)
        if why is None:
            return
        if not self._sampler.try_acquire(why, record.ended_at):
            self._rate_limited += 1
            return
        self._outbox.add(build_trace(record, self.span_settings))
        self._kept[why] += 1


class _Outbox:
    """Traces waiting to be sent to the collector."""

    def __init__(self, collector: Collector, encode: Callable[[bytes], bytes], limits: TracerLimits) -> None:
        self._collector = collector
        self._limits = limits
        self._wrap = encode
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._in_flight = 0
        """Number of traces in the current post."""
        self._due_s = 0.0
        self._aborted = False
        self._backoff_s = 0.0
        """Current backoff in seconds; 0 while the collector accepts traces."""
        self.exported = self.dropped = self.exports_failed = 0

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    def add(self, spans: bytes) -> None:
        self._waiting.append(spans)
        self._bytes += len(spans)
        while self._bytes > self._limits.traces_bytes_max:
            self._bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def post_due(self, now_s: float) -> None:
        if now_s < self._due_s or not self._waiting:
            return
        while self._waiting and self._post():
            pass
        self._due_s = time.monotonic() + (self._backoff_s or self._limits.post_interval_s)

    def flush(self, until_s: float) -> None:
        """Posts the waiting traces until `until_s` or until the first failure, and drops the rest."""
        while self._waiting and time.monotonic() < until_s and not self._aborted and self._post():
            pass
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def abort(self) -> None:
        self._aborted = True
        self._collector.abort()

    def close(self) -> None:
        self._collector.close()

    def _post(self) -> bool:
        """Posts one batch. Returns whether the batch was accepted, so that the next one may follow."""
        batch: list[bytes] = []
        size = 0
        while self._waiting and size < POST_BYTES_MAX:
            batch.append(self._waiting.popleft())
            size += len(batch[-1])
        self._in_flight = len(batch)
        posted, why = self._collector.post(self._wrap(b"".join(batch)))
        self._in_flight = 0
        if posted is PostResult.RETRY:
            self._waiting.extendleft(reversed(batch))
        else:
            self._bytes -= size
        if posted is PostResult.ACCEPTED:
            self.exported += len(batch)
            self._mark_available()
            return True
        if posted is PostResult.REJECTED:
            self.dropped += len(batch)
        self.exports_failed += 1
        self._mark_unavailable(why)
        return False

    def _mark_unavailable(self, why: str) -> None:
        if not self._backoff_s:
            what = "the collector is not accepting traces; requests are not affected"
            log_event(
                logging.WARNING, what, why=why, next="check that tracing.endpoint is reachable and accepts OTLP/HTTP"
            )
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2 or self._limits.post_interval_s)

    def _mark_available(self) -> None:
        if self._backoff_s:
            log_event(logging.INFO, "the collector is accepting traces again", dropped=self.dropped)
        self._backoff_s = 0.0
