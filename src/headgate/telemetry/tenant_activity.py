"""Number of queued and in-flight requests for each tenant.

A request is in flight while one of its attempts is running, and queued before the first attempt and between attempts.
Requests that arrived before this process started observing are not counted. `meters.py` updates the counts, because it
tracks the open requests.
"""

from collections.abc import Iterator
from typing import Final

from headgate.telemetry.meter_types import OTHER

TENANTS_MAX: Final = 1_000
"""Maximum number of tenants. New tenants replace idle ones. If no tenant is idle, new tenants count as `other`."""
_SMOOTHING: Final = 8
"""Each completed request moves the mean output by 1/8 of the difference."""


class TenantActivity:
    __slots__ = ("arrived", "in_flight", "name", "open_tokens", "output_tokens", "queued", "tokens")

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrived = 0
        """Requests received since tracking of the tenant began."""
        self.tokens = 0
        """Estimated tokens of these requests: prompt tokens plus the mean output of earlier requests."""
        self.open_tokens = 0
        """Estimated tokens of queued and in-flight requests."""
        self.output_tokens = 0
        """Moving average of the output tokens of a completed request."""
        self.queued = 0
        self.in_flight = 0

    def request_arrived(self, prompt_tokens: int) -> int:
        """Counts a request as queued. Returns its estimated tokens."""
        tokens = prompt_tokens + self.output_tokens
        self.arrived += 1
        self.queued += 1
        self.tokens += tokens
        self.open_tokens += tokens
        return tokens

    def request_completed(self, output_tokens: int) -> None:
        self.output_tokens += (output_tokens - self.output_tokens) // _SMOOTHING


class TenantActivities:
    """Activity of each tenant."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX) -> None:
        self._tenants_max = tenants_max
        self._tenants: dict[str, TenantActivity] = {}

    def __iter__(self) -> Iterator[TenantActivity]:
        return iter(self._tenants.values())

    def of_tenant(self, name: str) -> TenantActivity:
        if (found := self._tenants.get(name)) is not None:
            return found
        if len(self._tenants) >= self._tenants_max and not self._evict_idle():
            name = OTHER
        return self._tenants.setdefault(name, TenantActivity(name))

    def _evict_idle(self) -> bool:
        idle = next((each for each in self if not each.queued and not each.in_flight and each.name != OTHER), None)
        if idle is not None:
            del self._tenants[idle.name]
        return idle is not None
