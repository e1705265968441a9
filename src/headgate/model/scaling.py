"""Scaling rules for a pool."""

from dataclasses import dataclass

from headgate.model.units import SECOND, Duration, Instant


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """Scheduled event, such as a launch, that requires a minimum number of endpoints regardless of the forecast."""

    name: str
    starts_at: Instant
    ends_at: Instant
    endpoints_min: int


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Scaling rules for one pool."""

    endpoints_min: int = 1
    """Minimum number of endpoints. 0 requires a class whose requests may wait for a cold start."""
    endpoints_max: int = 1
    warm_endpoints_min: int = 1
    """Minimum number of endpoints until the pool has had no demand for `scale_to_zero_after_ns`."""
    target_utilization_percent: int = 100
    """Target for the mean load of an endpoint, in percent of its capacity. The forecast adds headroom for bursts."""
    target_kv_percent: int = 85
    """Target utilization of the KV cache and of the slots, in percent."""
    period_ns: Duration = Duration(10 * SECOND)
    cold_start_ns: Duration = Duration(120 * SECOND)
    """Cold start duration, from a scale-up decision to the first response. Used until one has been measured."""
    scale_down_stabilization_ns: Duration = Duration(300 * SECOND)
    """How long an endpoint must have gone unneeded before it is removed.

    The autoscaler also waits for at least twice the lead time.
    """
    scale_down_percent: int = 10
    """Maximum share of the pool removed in one step, in percent. At least one endpoint may be removed."""
    panic_threshold_percent: int = 130
    """Demand, in percent of the capacity of the ready endpoints, that starts panic mode.

    In panic mode the autoscaler uses the latest demand without averaging and removes no endpoints.
    """
    scale_to_zero_after_ns: Duration = Duration(1_800 * SECOND)
    """Time without demand after which a pool with `endpoints_min` 0 is scaled to zero."""
    held_requests_max: int = 100
    """Maximum number of requests held while the first endpoint of a pool that is scaled to zero starts."""
    endpoint_microdollars_per_hour: int = 0
    """Cost of one endpoint per hour. With a budget, it limits the number of endpoints."""
    microdollars_per_hour_max: int | None = None
    """Maximum cost of all endpoints of the pool per hour."""
    calendar: tuple[ScheduledEvent, ...] = ()
    objective_ppm: int = 990_000
    """Share of requests that should meet their time-to-first-token target, in millionths."""
    correction_percent_min: int = 60
    correction_percent_max: int = 200
    """Bounds on the correction factor for predicted work, which is derived from measured SLO attainment.

    If both bounds are 100, there is no correction.
    """

    @property
    def affordable_endpoints(self) -> int | None:
        """Number of endpoints that the budget covers. None if there is no such limit."""
        if self.microdollars_per_hour_max is None or not self.endpoint_microdollars_per_hour:
            return None
        return self.microdollars_per_hour_max // self.endpoint_microdollars_per_hour

    @property
    def most_endpoints(self) -> int:
        """Maximum number of endpoints that the limit and the budget allow."""
        affordable = self.affordable_endpoints
        return self.endpoints_max if affordable is None else min(self.endpoints_max, affordable)
