"""Rate limits of hosted providers.

A provider reports with each response how many requests and tokens it still accepts, and when that number is reset. The
scheduler subtracts what it has sent since then. An endpoint with nothing left, or one that has rejected a request
because of its rate, receives nothing until its reset. That is not a failure of the endpoint.

A new scheduler does not know the limits. It learns them from the next response.
"""

from headgate.core.timers import NEVER
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import Instant, after


class ProviderQuota:
    """What one provider endpoint still accepts. None if unknown."""

    __slots__ = ("_requests_until", "_tokens_until", "blocked_until", "requests_left", "tokens_left")

    def __init__(self) -> None:
        self.requests_left: int | None = None
        self.tokens_left: int | None = None
        self.blocked_until: Instant | None = None
        """End of the time in which the provider accepts nothing. None if it has not rejected a request."""
        self._requests_until = self._tokens_until = NEVER

    @property
    def exhausted(self) -> bool:
        requests, tokens = self.requests_left, self.tokens_left
        nothing_left = (requests is not None and requests <= 0) or (tokens is not None and tokens <= 0)
        return nothing_left or self.blocked_until is not None

    def record(self, limits: ProviderLimits, now: Instant) -> None:
        if limits.requests_left is not None and limits.requests_reset_ns:
            self.requests_left, self._requests_until = limits.requests_left, after(now, limits.requests_reset_ns)
        if limits.tokens_left is not None and limits.tokens_reset_ns:
            self.tokens_left, self._tokens_until = limits.tokens_left, after(now, limits.tokens_reset_ns)
        if limits.blocked_ns:
            self.blocked_until = max(self.blocked_until or now, after(now, limits.blocked_ns))

    def spend(self, tokens: int) -> None:
        """Subtracts a request that is being sent."""
        if self.requests_left is not None:
            self.requests_left -= 1
        if self.tokens_left is not None:
            self.tokens_left -= tokens

    def expire(self, now: Instant) -> None:
        """Forgets the limits whose reset time has come."""
        if self._requests_until <= now:
            self.requests_left, self._requests_until = None, NEVER
        if self._tokens_until <= now:
            self.tokens_left, self._tokens_until = None, NEVER
        if self.blocked_until is not None and self.blocked_until <= now:
            self.blocked_until = None

    @property
    def exhausted_until(self) -> Instant | None:
        """When the provider accepts requests again. None if it accepts them now."""
        if not self.exhausted:
            return None
        until = self.blocked_until or Instant(0)
        if self.requests_left is not None and self.requests_left <= 0:
            until = max(until, self._requests_until)
        if self.tokens_left is not None and self.tokens_left <= 0:
            until = max(until, self._tokens_until)
        return until

    @property
    def next_reset(self) -> Instant | None:
        soonest = min(self._requests_until, self._tokens_until, self.blocked_until or NEVER)
        return None if soonest == NEVER else soonest
