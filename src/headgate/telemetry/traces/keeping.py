"""Which requests are worth a trace?

Those that were refused or failed, the slowest of each class, and of all others those of which engines were told so when
they were asked: by our rate, or because the caller's trace is kept. It is decided when a request has ended, since only
then is it known what became of it.

Only so many a second are kept. Callers can bring about as many refusals as they like and have as many sampled as they
like, so both together may take half of that, and refusals half of this half: a flood of either becomes no flood of
traces, does not push out what failed or was slow, and refusals, which need no key, do not push out what is sampled.

What is slow is measured against the latest requests of the same class. Until there are enough of them nothing is. When
all become slower every one is slower than those before, so beside that each class has a credit, which grows with its
requests and of which each slow one takes a whole: over time there are never more of them than were asked for.
"""

from collections import OrderedDict, deque
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName
from headgate.ports.records import RequestRecord
from headgate.telemetry.traces.figures import Kept

SEEN_MIN: Final = 100
LATEST_MAX: Final = 1_024
"""So many of a class tell what is slow in it."""
CLASSES_MAX: Final = 64
"""Beyond that the one goes that has been asked for the least lately: names change with the configuration."""
SLOW_AT_ONCE_MAX: Final = 10
"""So many of one class are kept for being slow, one after another, before its credit has to grow again."""
_LOOKED_EVERY: Final = 32
"""After so many of a class it is reckoned anew what is slow."""
_MILLION: Final = 1_000_000

FAILED: Final = (None, Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.GATEWAY_FAILED)
"""None: a mistake of our own."""
_ORDINARY: Final = (Outcome.COMPLETED, Outcome.CANCELLED)
_BY_CALLERS: Final = (Kept.REFUSED, Kept.SAMPLED)


class Keeping:
    def __init__(self, *, slowest_ppm: int, per_second_max: int) -> None:
        self._slowest_ppm = slowest_ppm
        self._latest: OrderedDict[ClassName, _Latest] = OrderedDict()
        self._all = _Allowance(per_second_max)
        self._by_callers = _Allowance(max(1, per_second_max // 2))
        self._refusals = _Allowance(max(1, per_second_max // 4))

    def why(self, record: RequestRecord) -> Kept | None:
        """Why this one is to be kept, bounds aside; None if it is not."""
        if not record.span:
            # It began before traces were sent.
            return None
        slow = record.outcome is Outcome.COMPLETED and self._is_slow(record)
        if record.outcome in FAILED:
            return Kept.FAILED
        if record.outcome not in _ORDINARY:
            return Kept.REFUSED
        if slow:
            return Kept.SLOW
        return Kept.SAMPLED if record.trace_sampled else None

    def allows(self, why: Kept, now: int) -> bool:
        """Whether there is room for one more in the second up to now."""
        if why is Kept.REFUSED and not self._refusals.take(now):
            return False
        if why in _BY_CALLERS and not self._by_callers.take(now):
            return False
        return self._all.take(now)

    def _is_slow(self, record: RequestRecord) -> bool:
        name = record.class_name
        if not self._slowest_ppm or name is None:
            return False
        latest = self._latest.get(name)
        if latest is None:
            if len(self._latest) >= CLASSES_MAX:
                self._latest.popitem(last=False)
            latest = self._latest[name] = _Latest(self._slowest_ppm)
        self._latest.move_to_end(name)
        return latest.is_slow(record.ended_at - record.started_at)


class _Latest:
    """How long the latest requests of one class took."""

    __slots__ = ("_bound", "_credit", "_due", "_lengths", "_slowest_ppm")

    def __init__(self, slowest_ppm: int) -> None:
        self._slowest_ppm = slowest_ppm
        self._lengths: deque[int] = deque(maxlen=LATEST_MAX)
        self._bound: int | None = None
        """What takes longer is slow; None where it is not known."""
        self._due = SEEN_MIN
        self._credit = 0
        """In millionths of a trace."""

    def is_slow(self, length: int) -> bool:
        self._credit = min(self._credit + self._slowest_ppm, SLOW_AT_ONCE_MAX * _MILLION)
        slow = self._bound is not None and length > self._bound and self._credit >= _MILLION
        if slow:
            self._credit -= _MILLION
        self._lengths.append(length)
        self._due -= 1
        if self._due <= 0:
            self._due = _LOOKED_EVERY
            # So many of them took longer.
            longer = len(self._lengths) * self._slowest_ppm // _MILLION
            self._bound = sorted(self._lengths)[len(self._lengths) - 1 - min(longer, len(self._lengths) - 1)]
        return slow


class _Allowance:
    """So many a second, and as many at once."""

    __slots__ = ("_at", "_left", "_per_second")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = per_second * SECOND
        self._at = 0

    def take(self, now: int) -> bool:
        earned = max(0, now - self._at) * self._per_second
        self._left = min(self._left + earned, self._per_second * SECOND)
        self._at = max(now, self._at)
        if self._left < SECOND:
            return False
        self._left -= SECOND
        return True
