"""Tail sampling: decides which requests are kept as traces.

It keeps rejected and failed requests, the slowest requests in each class, and requests that were sampled on arrival,
either at the configured rate or because the client's own trace is sampled. The decision is made when the request has
ended and its outcome is known.

The number of traces per second is limited. Clients can cause any number of rejections and sampled requests, so together
these get at most half of the limit, and rejections at most a quarter. A flood of either therefore cannot displace
failed or slow requests, and rejections, which do not even require a valid key, cannot displace sampled requests.

A request is slow relative to recent requests in its class. Until there are enough of those, no request counts as slow.
If all requests become slower, each is slower than those before it. Each class therefore also has a credit that grows
with its requests and pays for slow traces, so that in the long run their share stays at the configured value.
"""

from collections import OrderedDict, deque
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName
from headgate.ports.records import RequestRecord
from headgate.telemetry.traces.stats import KeepReason

SAMPLES_MIN: Final = 100
SAMPLES_MAX: Final = 1_024
"""Number of recent requests in a class with which each request is compared."""
CLASSES_MAX: Final = 64
"""Maximum number of tracked classes. When the limit is reached, the least recently used class is dropped."""
SLOW_BURST_MAX: Final = 10
"""Maximum credit per class: the number of consecutive slow requests that are kept."""
_THRESHOLD_UPDATE_EVERY: Final = 32
"""Number of requests in a class after which its threshold is recalculated."""
_MILLION: Final = 1_000_000

FAILED_OUTCOMES: Final = (None, Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.INTERNAL_ERROR)
"""Outcomes that count as failures. None means a bug in the gateway."""
_NORMAL_OUTCOMES: Final = (Outcome.COMPLETED, Outcome.CANCELLED)
_CALLER_CONTROLLED: Final = (KeepReason.REJECTED, KeepReason.SAMPLED)


class TailSampler:
    def __init__(self, *, slowest_ppm: int, per_second_max: int) -> None:
        self._slowest_ppm = slowest_ppm
        self._latencies: OrderedDict[ClassName, _ClassLatencies] = OrderedDict()
        self._total_bucket = _TokenBucket(per_second_max)
        self._caller_bucket = _TokenBucket(max(1, per_second_max // 2))
        self._rejection_bucket = _TokenBucket(max(1, per_second_max // 4))

    def keep_reason(self, record: RequestRecord) -> KeepReason | None:
        """Why the request should be kept, regardless of the rate limits; None if it should not."""
        if not record.span_seed:
            # The request began before tracing was enabled.
            return None
        slow = record.outcome is Outcome.COMPLETED and self._is_slow(record)
        if record.outcome in FAILED_OUTCOMES:
            return KeepReason.FAILED
        if record.outcome not in _NORMAL_OUTCOMES:
            return KeepReason.REJECTED
        if slow:
            return KeepReason.SLOW
        return KeepReason.SAMPLED if record.trace_sampled else None

    def try_acquire(self, why: KeepReason, now: int) -> bool:
        """Returns whether the rate limits allow one more trace, and consumes one unit of each limit that applies."""
        if why is KeepReason.REJECTED and not self._rejection_bucket.try_acquire(now):
            return False
        if why in _CALLER_CONTROLLED and not self._caller_bucket.try_acquire(now):
            return False
        return self._total_bucket.try_acquire(now)

    def _is_slow(self, record: RequestRecord) -> bool:
        name = record.class_name
        if not self._slowest_ppm or name is None:
            return False
        latest = self._latencies.get(name)
        if latest is None:
            if len(self._latencies) >= CLASSES_MAX:
                self._latencies.popitem(last=False)
            latest = self._latencies[name] = _ClassLatencies(self._slowest_ppm)
        self._latencies.move_to_end(name)
        return latest.is_slow(record.ended_at - record.started_at)


class _ClassLatencies:
    """Durations of recent requests in one class."""

    __slots__ = ("_credit", "_durations_ns", "_slowest_ppm", "_threshold_ns", "_until_update")

    def __init__(self, slowest_ppm: int) -> None:
        self._slowest_ppm = slowest_ppm
        self._durations_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._threshold_ns: int | None = None
        """Duration above which a request is slow; None until there are enough requests."""
        self._until_update = SAMPLES_MIN
        self._credit = 0
        """Credit for slow traces, in millionths of a trace."""

    def is_slow(self, length: int) -> bool:
        self._credit = min(self._credit + self._slowest_ppm, SLOW_BURST_MAX * _MILLION)
        slow = self._threshold_ns is not None and length > self._threshold_ns and self._credit >= _MILLION
        if slow:
            self._credit -= _MILLION
        self._durations_ns.append(length)
        self._until_update -= 1
        if self._until_update <= 0:
            self._until_update = _THRESHOLD_UPDATE_EVERY
            # The number of samples that may exceed the threshold.
            longer = len(self._durations_ns) * self._slowest_ppm // _MILLION
            self._threshold_ns = sorted(self._durations_ns)[
                len(self._durations_ns) - 1 - min(longer, len(self._durations_ns) - 1)
            ]
        return slow


class _TokenBucket:
    """Token bucket that refills at `per_second` and allows a burst of the same size."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = per_second * SECOND
        self._at = 0

    def try_acquire(self, now: int) -> bool:
        earned = max(0, now - self._at) * self._per_second
        self._left = min(self._left + earned, self._per_second * SECOND)
        self._at = max(now, self._at)
        if self._left < SECOND:
            return False
        self._left -= SECOND
        return True
