"""Rate limits that a hosted provider reported with a response."""

from dataclasses import dataclass
from typing import Final

from headgate.model.units import MILLISECOND, MINUTE, Duration

LEFT_MAX: Final = 1 << 40
"""Maximum number of requests or tokens. Larger reported numbers are lowered to it."""
WAIT_NS_MAX: Final = Duration(10 * MINUTE)
"""Maximum wait. A longer one is lowered to it, so that an absurd value does not disable the endpoint for long."""


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What the provider accepts from now on. None if it did not report a number."""

    requests_left: int | None = None
    requests_reset_ns: Duration = Duration(0)
    """Time until `requests_left` no longer applies."""
    tokens_left: int | None = None
    tokens_reset_ns: Duration = Duration(0)
    blocked_ns: Duration = Duration(0)
    """Time for which the provider accepts nothing, because it has rejected a request. 0 if it has not."""

    def aged(self, passed_ns: Duration) -> "ProviderLimits":
        """Returns the limits as of a later time."""
        return ProviderLimits(
            self.requests_left,
            Duration(max(0, self.requests_reset_ns - passed_ns)),
            self.tokens_left,
            Duration(max(0, self.tokens_reset_ns - passed_ns)),
            # A rejection stays one after its wait has passed. Otherwise it would count as a failure of the endpoint.
            Duration(max(MILLISECOND, self.blocked_ns - passed_ns) if self.blocked_ns else 0),
        )

    @property
    def valid(self) -> bool:
        """Whether all values are within their bounds. Always true for values that this process has read."""
        left = (each for each in (self.requests_left, self.tokens_left) if each is not None)
        waits = (self.requests_reset_ns, self.tokens_reset_ns, self.blocked_ns)
        return all(0 <= each <= LEFT_MAX for each in left) and all(0 <= each <= WAIT_NS_MAX for each in waits)
