"""Leaky bucket for a limit per minute (`limits`)."""

from headgate.model.units import MINUTE, Duration, Instant


class LeakyBucket:
    """Leaky bucket for a limit per minute.

    One unit is divided into as many parts as a minute has nanoseconds, so exactly `limit` parts drain per nanosecond.
    The bucket stores the level at which it is empty; current usage follows from that level and the time.
    """

    __slots__ = ("_added", "_up_to", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._up_to = 0
        self._added = 0
        """Total amount ever used, in whole units."""

    def change_limit(self, limit: int, now: Instant) -> None:
        """Changes the limit. Current usage stays and drains at the new rate."""
        self._up_to = limit * now + self.used(now)
        self.limit = limit

    def change_share(self, limit: int, now: Instant) -> None:
        """Changes the limit because the tenant's share has changed. What fits now does not increase."""
        free = self.limit * MINUTE - self.used(now)
        self._up_to = limit * now + limit * MINUTE - min(free, limit * MINUTE)
        self.limit = limit

    def wait_ns(self, amount: int, now: Instant) -> Duration:
        """Returns the time until `amount` fits if nothing else is used, or 0 if it fits now.

        `amount` must not exceed the limit.
        """
        missing = self._up_to + (amount - self.limit) * MINUTE - self.limit * now
        return Duration(-(-missing // max(1, self.limit))) if missing > 0 else Duration(0)

    def use(self, amount: int, now: Instant) -> int:
        """Uses `amount` and returns a mark for `settle`."""
        drained = self.limit * now
        self._up_to = max(drained, self._up_to) + amount * MINUTE
        self._added += amount
        return self._added

    def settle(self, mark: int, now: Instant, *, reserved: int, actual: int) -> None:
        if actual >= reserved:
            self.use(actual - reserved, now)
        else:
            not_drained = self.used(now) - (self._added - mark) * MINUTE
            self._up_to -= max(0, min((reserved - actual) * MINUTE, not_drained))

    def restore(self, used: int, now: Instant) -> None:
        """Sets the usage at `now`, in parts."""
        self._up_to = self.limit * now + used

    def used(self, now: Instant) -> int:
        """Returns the current usage, in parts."""
        return max(0, self._up_to - self.limit * now)

    def left(self, now: Instant) -> tuple[int, int, int]:
        """Returns the remaining amount in whole units (negative if overdrawn), the usage in parts, and the limit."""
        limit, used = self.limit, self._up_to - self.limit * now
        return (limit - -(-used // MINUTE), used, limit) if used > 0 else (limit, 0, limit)

    def fits(self, amount: int, now: Instant) -> bool:
        """Whether `amount` fits now."""
        return self._up_to + (amount - self.limit) * MINUTE <= self.limit * now
