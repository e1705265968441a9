"""When is a silent attempt worth a second one elsewhere?

When it has been silent for longer than nineteen in twenty of its class are at its pool. How long that is comes from
what was seen: how long streamed answers took to begin, from their dispatch, in buckets at most an eighth apart, half of
them forgotten now and then. Before enough have been seen nobody is hedged.

An attempt that is let go because its hedge spoke first never says how long it would have taken. Leaving it out would
make the slow ones vanish from what is known, and each hedge would bring the next one sooner. So it counts as long as it
was silent, which is more than nineteen in twenty and keeps it among the slow.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from headgate.core.alarms import Agenda, Alarms
from headgate.core.counters import FirstTokensCounter
from headgate.core.state import Attempt, Request
from headgate.model.policy import Policy
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, PoolName, RequestId, after

SEEN_MIN: Final = 100
"""So many first tokens of a class at a pool must have been seen before anything there is hedged."""
WAIT_NS_MIN: Final = Duration(50 * MILLISECOND)
WAIT_NS_MAX: Final = Duration(30 * SECOND)
"""Bounds of the silence after which a second attempt is made, whatever was seen."""
_PERCENT: Final = 95
_PARTS: Final = 8
_BOUNDS: Final = tuple(
    (MILLISECOND << octave) * (_PARTS + part) // _PARTS for octave in range(16) for part in range(_PARTS)
)
"""Upper bounds of the buckets, from a millisecond to about a minute."""
FIRST_TOKEN_BUCKETS: Final = len(_BOUNDS) + 1
"""The last bucket counts all longer times."""
_FORGET_AFTER: Final = 1_024
_LOOK_EVERY: Final = 16
"""How many are seen between two looks at all buckets."""


class FirstTokens:
    """How long answers took to begin, of one class at one pool."""

    __slots__ = ("_counts", "_seen", "wait_ns")

    def __init__(self) -> None:
        self._counts = [0] * FIRST_TOKEN_BUCKETS
        self._seen = 0
        self.wait_ns: Duration | None = None
        """How long to be silent is unusual; None while that is not known."""

    def learn(self, took_ns: Duration) -> None:
        self._counts[bisect_left(_BOUNDS, took_ns)] += 1
        self._seen += 1
        if self._seen >= SEEN_MIN and (self.wait_ns is None or not self._seen % _LOOK_EVERY):
            self.wait_ns = Duration(min(max(WAIT_NS_MIN, self._quantile()), WAIT_NS_MAX))
        if self._seen >= _FORGET_AFTER:
            self._counts = [count // 2 for count in self._counts]
            self._seen = sum(self._counts)

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Those that are not empty."""
        return tuple((bucket, count) for bucket, count in enumerate(self._counts) if count)

    def restore(self, buckets: Iterable[tuple[int, int]], wait_ns: Duration | None) -> None:
        for bucket, count in buckets:
            self._counts[bucket] = count
            self._seen += count
        self.wait_ns = wait_ns

    def _quantile(self) -> int:
        """The bound of the bucket up to which most of them are."""
        wanted = -(-self._seen * _PERCENT // 100)
        bucket = -1
        while wanted > 0:
            bucket += 1
            wanted -= self._counts[bucket]
        return _BOUNDS[min(bucket, len(_BOUNDS) - 1)]


class Hedging:
    """What is known of first tokens, and which attempts are to be looked at when."""

    __slots__ = ("_first_tokens", "silent")

    def __init__(self, agenda: Agenda) -> None:
        self._first_tokens: dict[tuple[ClassName, PoolName], FirstTokens] = {}
        self.silent: Alarms[RequestId] = Alarms(agenda)
        """Requests with one attempt under way that may be hedged, and when its silence becomes unusual."""

    def learn(self, request: Request, pool: PoolName, took_ns: Duration) -> None:
        """An attempt at this pool was silent for so long. What is not streamed says nothing about it."""
        if not _concerns(request):
            return
        key = (request.service_class.name, pool)
        if (first_tokens := self._first_tokens.get(key)) is None:
            first_tokens = self._first_tokens[key] = FirstTokens()
        first_tokens.learn(took_ns)

    def watch(self, request: Request, pool: PoolName, now: Instant) -> None:
        """It is silent at this pool and nothing has been sent beside it: when is that to be looked at?"""
        if not _concerns(request):
            return
        first_tokens = self._first_tokens.get((request.service_class.name, pool))
        if first_tokens is not None and first_tokens.wait_ns is not None:
            self.silent.set(request.ticket.request_id, after(now, first_tokens.wait_ns))

    def unwatch(self, request: Request) -> None:
        """It has spoken, or is over."""
        if request.service_class.hedges:
            self.silent.clear(request.ticket.request_id)

    def spoke(self, request: Request, attempt: Attempt, now: Instant) -> Attempt | None:
        """This attempt answers the request; the other one, if there are two, is let go."""
        self.unwatch(request)
        other = request.beside(attempt)
        if other is not None:
            if other is request.running:
                self.learn(request, other.endpoint.pool, Duration(now - other.heard_at))
            other.let_go = True
        request.running, request.hedge = attempt, None
        return other

    def change_policy(self, policy: Policy) -> None:
        """Forgets what is gone. What is under way stays as it was sent: alone."""
        self.silent.clear_all()
        classes, pools = [each.name for each in policy.classes if each.hedges], [each.name for each in policy.pools]
        self._first_tokens = {
            (name, pool): known
            for (name, pool), known in self._first_tokens.items()
            if name in classes and pool in pools
        }

    def counters(self) -> tuple[FirstTokensCounter, ...]:
        return tuple(
            FirstTokensCounter(name, pool, known.wait_ns, known.buckets())
            for (name, pool), known in self._first_tokens.items()
        )

    def restore(self, counters: Iterable[FirstTokensCounter]) -> None:
        for each in counters:
            known = self._first_tokens[each.service_class, each.pool] = FirstTokens()
            known.restore(each.buckets, each.wait_ns)


def _concerns(request: Request) -> bool:
    """Whether the caller waits for the first token: if the answer comes whole, the caller waits for its end."""
    return request.service_class.hedges and request.ticket.stream
