"""Progress of a member's streams that has not been reported to the scheduler.

A gateway measures the progress of every stream several times per second. Reporting each measurement of thousands of
streams would take most of the scheduler's time. A member with many streams therefore adds up the tokens of a stream and
reports all streams together, at most once per interval. A report covers all of the member's streams on an endpoint, so
that the scheduler can compare their speed with the endpoint's load. The interval grows with the number of streams up to
`_INTERVAL_NS_MAX`. A member with few streams reports every measurement.

Whoever ends a stream reports its remaining tokens first, because they are charged to the tenant.
"""

from typing import Final

from headgate.core.events import AttemptProgress, AttemptsProgressed
from headgate.hosts.cell.member.held_requests import HeldAttempt, HeldRequests
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, after

_INTERVAL_NS_PER_STREAM: Final = Duration(4 * MILLISECOND)
_INTERVAL_NS_MAX: Final = SECOND
"""Maximum interval. Far below the time after which an endpoint without progress counts as stalled."""
_ATTEMPTS_MAX: Final = 1_000
"""Maximum number of attempts in one message, because a member's attempts may not all fit into one entry."""


class PendingProgress:
    __slots__ = ("_held", "_is_pending", "_reported_at", "_streams")

    def __init__(self, holdings: HeldRequests) -> None:
        self._held = holdings
        self._is_pending = False
        """Whether there may be progress that has not been reported."""
        self._reported_at: Instant | None = None
        """Time of the last report. None if there was none in this session."""
        self._streams = 0
        """Number of streams in the last report."""

    def clear(self) -> None:
        """Starts a session. Its first report includes all tokens of the open attempts."""
        self._is_pending, self._reported_at = False, None

    def note_added(self) -> None:
        """Notes that attempts have made progress."""
        self._is_pending = True

    def pop_due(self, now: Instant) -> list[AttemptsProgressed]:
        """Returns the reports that are due."""
        if not self._is_pending:
            return []
        interval_ns = Duration(min(_INTERVAL_NS_MAX, self._streams * _INTERVAL_NS_PER_STREAM))
        if self._reported_at is not None and now < after(self._reported_at, interval_ns):
            return []
        self._is_pending, self._reported_at = False, now
        pending = self._held.unreported_attempts()
        self._streams = len(pending)
        return [_report(pending[start : start + _ATTEMPTS_MAX]) for start in range(0, len(pending), _ATTEMPTS_MAX)]


def pop_progress(attempt: HeldAttempt) -> AttemptsProgressed | None:
    """Returns the report about one attempt, or None if there is nothing to report."""
    return _report([attempt]) if attempt.has_progress else None


def _report(attempts: list[HeldAttempt]) -> AttemptsProgressed:
    progress: list[AttemptProgress] = []
    late = False
    for attempt in attempts:
        tokens = attempt.tokens - attempt.reported_tokens
        progress.append(AttemptProgress(attempt.dispatch.request_id, attempt.dispatch.attempt, tokens))
        late = late or attempt.late
        attempt.mark_reported()
    return AttemptsProgressed(tuple(progress), late)
