"""Timeouts and bounds for a cell.

Clocks on different machines are never compared. Processes exchange durations, and timestamps that only their creator
evaluates. `drift_percent` accounts for clocks that run at different rates: a process that relies on another's timeout
assumes that the timeout ends earlier or later by this percentage, whichever is safe.
"""

from dataclasses import dataclass

from headgate.model.units import MILLISECOND, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    heartbeat_ns: Duration = Duration(150 * MILLISECOND)
    """Heartbeat interval, in both directions."""
    ack_ns: Duration = Duration(20 * MILLISECOND)
    """Maximum delay of acknowledgements and of messages that no decision depends on. Most of them share an entry with a
    later message."""
    resend_ns: Duration = Duration(250 * MILLISECOND)
    """Time after which unacknowledged messages are sent again."""
    start_within_ns: Duration = Duration(700 * MILLISECOND)
    """Maximum age of a grant. Older grants are declined."""
    answer_ns_max: Duration = Duration(500 * MILLISECOND)
    """A scheduler's message counts as an answer only if the member's own timestamp in it is at most this old."""
    island_after_ns: Duration = Duration(950 * MILLISECOND)
    """Time without an answer from a scheduler after which a member becomes an island."""
    lease_ns: Duration = Duration(600 * MILLISECOND)
    """How long the scheduler's lease lasts if it is not renewed."""
    renew_ns: Duration = Duration(150 * MILLISECOND)
    lease_poll_ns: Duration = Duration(40 * MILLISECOND)
    """Interval at which a candidate checks a lease held by another process."""
    gather_ns_min: Duration = Duration(200 * MILLISECOND)
    """Time that a new scheduler without known members waits for heartbeats."""
    gather_ns_max: Duration = Duration(300 * MILLISECOND)
    """Maximum time that a new scheduler waits for the reports of known members."""
    snapshot_ns: Duration = SECOND
    lost_after_ns: Duration = Duration(10 * SECOND)
    """Time for which the attempts and the share of a silent member stay reserved.

    Engine metrics may show earlier that the attempts have ended.
    """
    settle_ns: Duration = SECOND
    """Time within which all connected members have reported attempts that ended on an engine."""
    stage_ns_max: Duration = Duration(30 * SECOND)
    """Maximum time that the scheduler waits for all members to read a configuration that it has read."""
    drift_percent: int = 1
    """Maximum difference between the rates of two clocks, in percent."""

    def min_elapsed(self, length: Duration) -> Duration:
        """Returns the minimum local time in which another clock advances by `length`."""
        return Duration(length * (100 - self.drift_percent) // 100)

    def max_elapsed(self, length: Duration) -> Duration:
        """Returns the maximum local time in which another clock advances by `length`."""
        return Duration(length * (100 + self.drift_percent) // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBounds:
    """Maximum sizes of queues and tables."""

    unacknowledged_max: int = 4_096
    """Maximum number of unacknowledged messages. A member that exceeds it rejects new requests."""
    entry_messages_max: int = 256
    """Maximum number of messages in one entry."""
    held_max: int = 20_000
    """Maximum number of requests held by a member."""
    unsettled_max: int = 10_000
    """Maximum number of finished requests that no stored snapshot includes. When it is exceeded, the oldest are
    dropped, and their predicted usage is counted instead."""
    adoption_steps_max: int = 150
    """Maximum number of requests that a new scheduler adopts in one turn of the event loop."""


DEFAULT_TIMING = Timing()
DEFAULT_BOUNDS = CellBounds()
