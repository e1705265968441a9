"""How long does each part of a cell wait for the others?

Clocks of two machines are never compared. Each waits by its own, and what one says to another is a duration, or a stamp
that only comes back to whoever made it. That clocks run at different rates is in `drift_percent`: whoever relies on
another's waiting takes it to be over so much earlier, or later, whichever is safe.
"""

from dataclasses import dataclass

from headgate.model.units import MILLISECOND, SECOND, Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    beat_ns: Duration = Duration(150 * MILLISECOND)
    """Between two signs of life, in both directions."""
    resend_ns: Duration = Duration(250 * MILLISECOND)
    """What nobody has acknowledged after so long is sent again."""
    start_within_ns: Duration = Duration(700 * MILLISECOND)
    """A grant that may be older than this is declined, never started."""
    answer_ns_max: Duration = Duration(500 * MILLISECOND)
    """A scheduler is heard only where it has heard the member, at most so long ago."""
    island_after_ns: Duration = Duration(950 * MILLISECOND)
    """A member that has heard no scheduler for so long decides by itself."""
    lease_ns: Duration = Duration(600 * MILLISECOND)
    """How long a scheduler is one without renewing it."""
    renew_ns: Duration = Duration(150 * MILLISECOND)
    stand_by_ns: Duration = Duration(40 * MILLISECOND)
    """Between two looks of a candidate at a lease that another holds."""
    gather_ns_min: Duration = Duration(200 * MILLISECOND)
    """A new scheduler that knows of no members waits so long for their signs of life."""
    gather_ns_max: Duration = Duration(300 * MILLISECOND)
    """A new scheduler waits no longer than this for the reports of those that it knows of."""
    snapshot_ns: Duration = SECOND
    lost_ns: Duration = Duration(10 * SECOND)
    """What a silent member had and may take stays reserved for so long, unless the engines show before that it is gone.
    """
    settle_ns: Duration = SECOND
    """What ended at an engine has been told by all that talk after so long."""
    stage_ns_max: Duration = Duration(30 * SECOND)
    """The scheduler waits no longer than this for all members to have read rules that it has read."""
    drift_percent: int = 1
    """By so much the rates of two clocks differ at most."""

    def at_least(self, length: Duration) -> Duration:
        """As long as another's clock needs at the very least to count so much."""
        return Duration(length * (100 - self.drift_percent) // 100)

    def at_most(self, length: Duration) -> Duration:
        """As long as another's clock needs at the very most to count so much."""
        return Duration(length * (100 + self.drift_percent) // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What each side keeps at most."""

    window: int = 4_096
    """Messages that the other side has not acknowledged; a member with more takes no new requests."""
    entry_messages: int = 256
    """In one entry."""
    held: int = 20_000
    """Requests that a member holds."""
    unsettled: int = 10_000
    """Ends that no confirmed snapshot covers; beyond these the oldest are forgotten, and stay counted as predicted."""


USUAL_TIMING = Timing()
USUAL_BOUNDS = Bounds()
