"""Applies the rate limits that hosted providers report to their endpoints (`provider_quota`)."""

from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.core.routing.provider_quota import ProviderQuota
from headgate.core.timers import NEVER, TimerHeap, Timers
from headgate.model.endpoint import EndpointState
from headgate.model.provider_limits import ProviderLimits
from headgate.model.units import EndpointId, Instant, PoolName


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

    def exhausted_until(self, pools: tuple[PoolName, ...]) -> Instant | None:
        """Returns when the first live endpoint of these pools accepts requests again.

        None if one accepts them now or none is live. If an ejected endpoint may serve again before that, returns when.
        """
        soonest: Instant | None = None
        ejected_until = NEVER
        for name in pools:
            pool = self._placement.pools.get(name)
            for endpoint in () if pool is None else pool.endpoints.values():
                if endpoint.state is EndpointState.EJECTED:
                    ejected_until = min(ejected_until, endpoint.ejected_until)
                if not endpoint.live:
                    continue
                until = None if endpoint.quota is None else endpoint.quota.exhausted_until
                if until is None:
                    return None
                soonest = until if soonest is None else min(soonest, until)
        return None if soonest is None else min(soonest, ejected_until)

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
