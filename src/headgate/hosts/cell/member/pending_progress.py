"""Progress of a member's streams that has not been reported to the scheduler.

A gateway measures the progress of every stream several times per second. Reporting each measurement of thousands of
streams would take most of the scheduler's time. A member with many streams therefore adds up the tokens of a stream and
reports the streams of one endpoint together, at most once per interval. A report covers all of the member's streams on
the endpoint, so that the scheduler can compare their speed with the endpoint's load. The interval grows with the number
of streams up to `_INTERVAL_NS_MAX`. A member with few streams reports every measurement.

Whoever ends a stream reports its remaining tokens first, because they are charged to the tenant.
"""

from typing import Final

from headgate.core.events import AttemptProgress, AttemptsProgressed
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, Instant, RequestId, after

_INTERVAL_NS_PER_STREAM: Final = Duration(4 * MILLISECOND)
_INTERVAL_NS_MAX: Final = SECOND
"""Maximum interval. Far below the time after which an endpoint without progress counts as stalled."""
_CHECK_NS: Final = Duration(250 * MILLISECOND)
"""Interval between two checks for due reports if no progress is added. Gateways measure progress as often."""
_ATTEMPTS_MAX: Final = 1_000
"""Maximum number of attempts in one message, because a member's attempts may not all fit into one entry."""


class _Pending:
    __slots__ = ("endpoint_id", "late", "tokens")

    def __init__(self, endpoint_id: EndpointId) -> None:
        self.endpoint_id = endpoint_id
        self.tokens = 0
        self.late = False
        """Whether any of the progress was measured late by this process."""


class PendingProgress:
    __slots__ = ("_added", "_checked_at", "_pending", "_reported_at")

    def __init__(self) -> None:
        self._pending: dict[tuple[RequestId, int], _Pending] = {}
        self._reported_at: dict[EndpointId, Instant] = {}
        """Time of the last report about each endpoint, unless it is more than `_INTERVAL_NS_MAX` ago."""
        self._added = False
        """Whether progress was added since the last check for due reports."""
        self._checked_at = Instant(0)

    def clear(self) -> None:
        self._pending.clear()
        self._reported_at.clear()

    def add(self, progress: AttemptProgress, endpoint_id: EndpointId, *, late: bool) -> None:
        key = (progress.request_id, progress.attempt)
        if (pending := self._pending.get(key)) is None:
            pending = self._pending[key] = _Pending(endpoint_id)
        pending.tokens += progress.tokens
        pending.late = pending.late or late
        self._added = True

    def forget(self, request_id: RequestId, attempt: int) -> None:
        self._pending.pop((request_id, attempt), None)

    def pop(self, request_id: RequestId, attempt: int) -> AttemptsProgressed | None:
        """Returns the report about one attempt, or None if there is nothing to report."""
        pending = self._pending.pop((request_id, attempt), None)
        if pending is None:
            return None
        return AttemptsProgressed((AttemptProgress(request_id, attempt, pending.tokens),), pending.late)

    def pop_due(self, now: Instant) -> list[AttemptsProgressed]:
        """Returns the reports that are due."""
        if not self._pending or not (self._added or now >= after(self._checked_at, _CHECK_NS)):
            return []
        self._added, self._checked_at = False, now
        interval_ns = Duration(min(_INTERVAL_NS_MAX, len(self._pending) * _INTERVAL_NS_PER_STREAM))
        waits = {each: None for each, at in self._reported_at.items() if now < after(at, interval_ns)}
        due = [(key, pending) for key, pending in self._pending.items() if pending.endpoint_id not in waits]
        for key, _ in due:
            del self._pending[key]
        self._reported_at = {each: at for each, at in self._reported_at.items() if now < after(at, _INTERVAL_NS_MAX)}
        self._reported_at.update((pending.endpoint_id, now) for _, pending in due)
        return [
            AttemptsProgressed(
                tuple(AttemptProgress(*key, pending.tokens) for key, pending in part),
                any(pending.late for _, pending in part),
            )
            for start in range(0, len(due), _ATTEMPTS_MAX)
            for part in (due[start : start + _ATTEMPTS_MAX],)
        ]
