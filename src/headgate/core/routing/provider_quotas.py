"""Applies the rate limits that hosted providers report to their endpoints (`provider_quota`)."""

from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.core.routing.provider_quota import ProviderQuota
from headgate.core.timers import TimerHeap, Timers
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import EndpointId, Instant


class ProviderQuotas:
    """Quotas of all endpoints, with the timers of their resets."""

    __slots__ = ("_placement", "_timers")

    def __init__(self, placement: Placement, agenda: TimerHeap) -> None:
        self._placement = placement
        self._timers: Timers[EndpointId] = Timers(agenda)

    def record(self, endpoint: EndpointRecord, limits: ProviderLimits, now: Instant) -> None:
        """Applies the limits that an endpoint has reported. Unknown endpoints are ignored."""
        if self._placement.endpoints.get(endpoint.id) is not endpoint:
            return
        quota = endpoint.quota
        if quota is None:
            quota = endpoint.quota = ProviderQuota()
        quota.record(limits, now)
        self._update(endpoint, quota)

    def apply_due(self, now: Instant) -> None:
        """Ends the limits whose reset time has come."""
        for endpoint_id in self._timers.pop_fired():
            endpoint = self._placement.endpoints.get(endpoint_id)
            if endpoint is not None and endpoint.quota is not None:
                endpoint.quota.expire(now)
                self._update(endpoint, endpoint.quota)

    def _update(self, endpoint: EndpointRecord, quota: ProviderQuota) -> None:
        reset = quota.next_reset
        if reset is None:
            self._timers.clear(endpoint.id)
        else:
            self._timers.set(endpoint.id, reset)
        endpoint.quota_exhausted = quota.exhausted
        self._placement.place(endpoint)
