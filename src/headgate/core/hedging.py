"""Hedging: decides when a silent attempt is backed up by a second attempt on another endpoint.

An attempt is hedged once it has been silent for longer than the 95th percentile for its class in its pool. The
percentile comes from a histogram of the time between dispatch and first token for streamed responses. Adjacent bucket
bounds differ by at most an eighth, and the counts are halved from time to time. There are no hedges until the histogram
has enough samples.

A caller that does not stream waits for the end of the response. Such a request is hedged only if its class has an e2e
target, by a separate histogram of the time between dispatch and response. Snapshots do not include that histogram, so a
new scheduler has to learn it again.

The time to first token of an attempt that loses to its hedge is unknown. If such attempts were excluded, slow attempts
would disappear from the histogram and hedges would be sent earlier and earlier. A losing attempt is therefore recorded
with the time for which it was silent. That time is above the 95th percentile, so the attempt still counts as slow.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from headgate.core.counters import TtftCounter
from headgate.core.request_state import Attempt, Request
from headgate.core.timers import TimerHeap, Timers
from headgate.model.policy import Policy
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, PoolName, RequestId, after

SAMPLES_MIN: Final = 100
"""Minimum number of first tokens observed for a class in a pool before its attempts are hedged."""
WAIT_NS_MIN: Final = Duration(50 * MILLISECOND)
WAIT_NS_MAX: Final = Duration(30 * SECOND)
"""Minimum and maximum silence after which an attempt is hedged."""
_QUANTILE_PERCENT: Final = 95
_BUCKETS_PER_OCTAVE: Final = 8
_BOUNDS: Final = tuple(
    (MILLISECOND << octave) * (_BUCKETS_PER_OCTAVE + part) // _BUCKETS_PER_OCTAVE
    for octave in range(16)
    for part in range(_BUCKETS_PER_OCTAVE)
)
"""Upper bucket bounds in nanoseconds, from one millisecond to about one minute."""
FIRST_TOKEN_BUCKETS: Final = len(_BOUNDS) + 1
"""Number of buckets. The last bucket counts all longer times."""
_FORGET_AFTER: Final = 1_024
_RECOMPUTE_EVERY: Final = 16
"""Number of samples between two computations of the percentile."""


class TtftHistogram:
    """Histogram of the time to first token, or to the complete response, for one class in one pool."""

    __slots__ = ("_count", "_counts", "wait_ns")

    def __init__(self) -> None:
        self._counts = [0] * FIRST_TOKEN_BUCKETS
        self._count = 0
        self.wait_ns: Duration | None = None
        """Silence after which an attempt is hedged. None if there are too few samples."""

    def learn(self, took_ns: Duration) -> None:
        self._counts[bisect_left(_BOUNDS, took_ns)] += 1
        self._count += 1
        if self._count >= SAMPLES_MIN and (self.wait_ns is None or not self._count % _RECOMPUTE_EVERY):
            self.wait_ns = Duration(min(max(WAIT_NS_MIN, self._quantile()), WAIT_NS_MAX))
        if self._count >= _FORGET_AFTER:
            self._counts = [count // 2 for count in self._counts]
            self._count = sum(self._counts)

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Returns the non-empty buckets as (bucket, count)."""
        return tuple((bucket, count) for bucket, count in enumerate(self._counts) if count)

    def restore(self, buckets: Iterable[tuple[int, int]], wait_ns: Duration | None) -> None:
        for bucket, count in buckets:
            self._counts[bucket] = count
            self._count += count
        self.wait_ns = wait_ns

    def _quantile(self) -> int:
        """Returns the upper bound of the bucket that contains the 95th percentile."""
        wanted = -(-self._count * _QUANTILE_PERCENT // 100)
        bucket = -1
        while wanted > 0:
            bucket += 1
            wanted -= self._counts[bucket]
        return _BOUNDS[min(bucket, len(_BOUNDS) - 1)]


class Hedging:
    """Histograms of the times to the first token and to the complete response, and the timers of hedgeable attempts."""

    __slots__ = ("_first_tokens", "_responses", "silence_timers")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self._first_tokens: dict[tuple[ClassName, PoolName], TtftHistogram] = {}
        self._responses: dict[tuple[ClassName, PoolName], TtftHistogram] = {}
        """Histograms of the time to the complete response, for requests that are not streamed."""
        self.silence_timers: Timers[RequestId] = Timers(timer_heap)
        """Timers of requests with one running attempt. A timer is due when the silence becomes unusual."""

    def learn(self, request: Request, attempt: Attempt, now: Instant) -> None:
        """Records how long an attempt was silent. Requests that cannot be hedged are ignored."""
        if not _is_hedgeable(request):
            return
        histograms, began = self._first_tokens, attempt.last_progress_at
        if not request.ticket.stream:
            # Progress is reported if the engine streams the response, but the caller receives only the whole.
            histograms, began = self._responses, attempt.sent_at
        key = (request.service_class.name, attempt.endpoint.pool)
        if (known := histograms.get(key)) is None:
            known = histograms[key] = TtftHistogram()
        known.learn(Duration(now - began))

    def watch(self, request: Request, pool: PoolName, now: Instant) -> None:
        """Sets the hedge timer for a request whose only attempt in this pool is silent."""
        if not _is_hedgeable(request):
            return
        histograms = self._first_tokens if request.ticket.stream else self._responses
        known = histograms.get((request.service_class.name, pool))
        if known is not None and known.wait_ns is not None:
            self.silence_timers.set(request.ticket.request_id, after(now, known.wait_ns))

    def unwatch(self, request: Request) -> None:
        """Clears the hedge timer because the request has responded or ended."""
        if request.service_class.hedging:
            self.silence_timers.clear(request.ticket.request_id)

    def responded_first(self, request: Request, attempt: Attempt, now: Instant) -> Attempt | None:
        """Keeps the attempt that responded first and returns the other one, if any, as superseded."""
        self.unwatch(request)
        other = request.other_attempt(attempt)
        if other is not None:
            if other is request.running:
                self.learn(request, other, now)
            other.superseded = True
        request.running, request.hedge = attempt, None
        return other

    def change_policy(self, policy: Policy) -> None:
        """Drops classes and pools that are no longer in the policy. Running attempts are no longer hedged."""
        self.silence_timers.clear_all()
        classes, pools = [each.name for each in policy.classes if each.hedging], [each.name for each in policy.pools]
        for histograms in (self._first_tokens, self._responses):
            for name, pool in tuple(histograms):
                if name not in classes or pool not in pools:
                    del histograms[name, pool]

    def counters(self) -> tuple[TtftCounter, ...]:
        return tuple(
            TtftCounter(name, pool, known.wait_ns, known.buckets())
            for (name, pool), known in self._first_tokens.items()
        )

    def restore(self, counters: Iterable[TtftCounter]) -> None:
        for each in counters:
            known = self._first_tokens[each.service_class, each.pool] = TtftHistogram()
            known.restore(each.buckets, each.wait_ns)


def _is_hedgeable(request: Request) -> bool:
    """Returns whether a hedge can help the request.

    The usual time of a response that is not streamed is measured only if the class has an e2e target.
    """
    return request.service_class.hedging and (request.ticket.stream or request.e2e_ns is not None)
