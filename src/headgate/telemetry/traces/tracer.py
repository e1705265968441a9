"""How do requests that have ended become traces, without holding up those that have not?

On the event loop a record is put into a bounded line, and that is all. A thread takes them from there: it decides which
are kept, makes spans of those, and posts them. It works in short turns with pauses in between, since it shares one
interpreter with the loop: what it did in one go the loop would have to wait for.

A collector that is away costs traces, never requests. Spans wait for it up to a bound, then the oldest go; it is asked
again after longer and longer pauses; the log has one line when it goes and one when it is back. At the end what is left
is posted once, within a bound too. A record that no trace can be made of costs that one trace.
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
from headgate.telemetry.log import tell
from headgate.telemetry.traces.figures import Dropped, Kept, TraceFigures
from headgate.telemetry.traces.keeping import Keeping
from headgate.telemetry.traces.known import Known
from headgate.telemetry.traces.messages import envelope
from headgate.telemetry.traces.options import TracingOptions
from headgate.telemetry.traces.posting import Collector, Posted
from headgate.telemetry.traces.spans import trace

RECORDS_MAX: Final = 10_000
"""So many requests that have ended wait to be looked at."""
TRACES_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much of kept traces waits for the collector."""
POST_BYTES_MAX: Final = 1024 * 1024
"""So much goes in one post, and one trace more."""
LOOK_EVERY_S: Final = 0.2
POST_EVERY_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""A collector that is away is asked again after twice as long each time, up to this."""
STOP_S_MAX: Final = 2.0
_TURN_NS: Final = 500_000
_REST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class TracerLimits:
    """How much a tracer holds and how often it looks and posts."""

    records_max: int = RECORDS_MAX
    traces_bytes_max: int = TRACES_BYTES_MAX
    look_every_s: float = LOOK_EVERY_S
    post_every_s: float = POST_EVERY_S
    stop_s_max: float = STOP_S_MAX


DEFAULT_LIMITS: Final = TracerLimits()


class Tracer:
    """A keeper of records. Made and stopped inside an event loop; `begin` starts its thread."""

    def __init__(
        self,
        options: TracingOptions,
        *,
        known: Known,
        version: str,
        instance: str,
        limits: TracerLimits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self._records: deque[RequestRecord] = deque()
        self._behind = 0
        self._keeping = Keeping(slowest_ppm=options.slowest_ppm, per_second_max=options.kept_per_second_max)
        self.known = known
        """Replaced as a whole when it changes."""
        collector = Collector(options.endpoint, options.headers)
        self._outbox = _Outbox(collector, partial(envelope, version=version, instance=instance), limits)
        self._kept = dict.fromkeys(Kept, 0)
        self._too_many = self._mistakes = 0
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-traces", daemon=True)

    def take(self, record: RequestRecord) -> None:
        records = self._records
        if len(records) >= self.limits.records_max:
            records.popleft()
            self._behind += 1
        records.append(record)

    def begin(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Has what is left posted, and the thread end by itself."""
        self._leaving.set()

    def abandon(self) -> None:
        """Has it end without that, and the post that is under way be cut."""
        self._outbox.abandon()
        self.leave()

    def has_left(self) -> bool:
        return not self._thread.is_alive()

    async def stop(self) -> None:
        """Waits for that, for a moment at most."""
        self.leave()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, self.limits.stop_s_max)

    def figures(self) -> TraceFigures:
        outbox = self._outbox
        dropped = {
            Dropped.TOO_MANY: self._too_many,
            Dropped.BEHIND: self._behind,
            Dropped.COLLECTOR: outbox.dropped,
            Dropped.MISTAKE: self._mistakes,
        }
        return TraceFigures(dict(self._kept), dropped, outbox.sent, outbox.posts_failed, len(outbox))

    # In the thread

    def _run(self) -> None:
        try:
            while not self._leaving.wait(self.limits.look_every_s):
                self._look()
                self._outbox.post_due(time.monotonic())
            self._look()
            self._outbox.post_rest(time.monotonic() + self.limits.stop_s_max)
        except Exception:
            # Contained here: whoever serves requests must not stop for what only watches them.
            logging.getLogger("headgate").exception("this is a mistake in Headgate; no more traces are sent")
        finally:
            self._outbox.close()

    def _look(self) -> None:
        records, turn_ends = self._records, time.monotonic_ns() + _TURN_NS
        while records:
            self._consider(records.popleft())
            if time.monotonic_ns() > turn_ends:
                time.sleep(_REST_S)
                turn_ends = time.monotonic_ns() + _TURN_NS

    def _consider(self, record: RequestRecord) -> None:
        try:
            self._keep(record)
        except Exception:
            if not self._mistakes:
                logging.getLogger("headgate").exception("this is a mistake in Headgate; a request has no trace")
            self._mistakes += 1

    def _keep(self, record: RequestRecord) -> None:
        why = self._keeping.why(record)
        if why is None:
            return
        if not self._keeping.allows(why, record.ended_at):
            self._too_many += 1
            return
        self._outbox.add(trace(record, self.known))
        self._kept[why] += 1


class _Outbox:
    """Traces on their way to the collector."""

    def __init__(self, collector: Collector, wrap: Callable[[bytes], bytes], limits: TracerLimits) -> None:
        self._collector = collector
        self._limits = limits
        self._wrap = wrap
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._under_way = 0
        """Of a post that has yet to be answered."""
        self._due_s = 0.0
        self._abandoned = False
        self._pause_s = 0.0
        """Since how long it has not been asked; 0 while it takes what it is given."""
        self.sent = self.dropped = self.posts_failed = 0

    def __len__(self) -> int:
        return len(self._waiting) + self._under_way

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
        self._due_s = time.monotonic() + (self._pause_s or self._limits.post_every_s)

    def post_rest(self, until_s: float) -> None:
        """All that is left, unless the collector is away or time is up."""
        while self._waiting and time.monotonic() < until_s and not self._abandoned and self._post():
            pass
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def abandon(self) -> None:
        self._abandoned = True
        self._collector.cut()

    def close(self) -> None:
        self._collector.close()

    def _post(self) -> bool:
        """Whether the next may follow."""
        batch: list[bytes] = []
        size = 0
        while self._waiting and size < POST_BYTES_MAX:
            batch.append(self._waiting.popleft())
            size += len(batch[-1])
        self._under_way = len(batch)
        posted, why = self._collector.post(self._wrap(b"".join(batch)))
        self._under_way = 0
        if posted is Posted.LATER:
            self._waiting.extendleft(reversed(batch))
        else:
            self._bytes -= size
        if posted is Posted.TAKEN:
            self.sent += len(batch)
            self._is_back()
            return True
        if posted is Posted.NEVER:
            self.dropped += len(batch)
        self.posts_failed += 1
        self._is_away(why)
        return False

    def _is_away(self, why: str) -> None:
        if not self._pause_s:
            what = "the collector does not take traces; requests are served all the same"
            tell(logging.WARNING, what, why=why, next="see that tracing.endpoint is reachable and takes OTLP over HTTP")
        self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2 or self._limits.post_every_s)

    def _is_back(self) -> None:
        if self._pause_s:
            tell(logging.INFO, "the collector takes traces again", dropped=self.dropped)
        self._pause_s = 0.0
