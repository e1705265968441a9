"""Active operator overrides and their expiry.

Overrides are part of the policy. A timer is set for the end time of each override.
"""

from headgate.core.timers import TimerHeap, Timers
from headgate.model.limits import Limits, LimitShare
from headgate.model.overrides import DrainEndpoint, HoldClass, OperatorOverride, PinDegradation, SetSetting, Throttle
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, TenantId


class Overrides:
    __slots__ = ("_all", "_expiry_timers", "active")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self._all: tuple[OperatorOverride, ...] = ()
        self._expiry_timers: Timers[str] = Timers(timer_heap)
        self.active: tuple[OperatorOverride, ...] = ()

    def change(self, overrides: tuple[OperatorOverride, ...], now: Instant) -> None:
        self._all = overrides
        self._expiry_timers.clear_all()
        self._refresh(now)
        for number, order in enumerate(self.active):
            self._expiry_timers.set(str(number), order.until)

    def expire_due(self, now: Instant) -> bool:
        """Removes expired overrides and returns whether there were any."""
        if not self._expiry_timers.pop_fired():
            return False
        self._refresh(now)
        return True

    def _refresh(self, now: Instant) -> None:
        self.active = tuple(order for order in self._all if order.until > now)

    def settings(self) -> tuple[SetSetting, ...]:
        return tuple(order for order in self.active if isinstance(order, SetSetting))

    def held_classes(self) -> tuple[ClassName, ...]:
        return tuple(order.service_class for order in self.active if isinstance(order, HoldClass))

    def drained_endpoints(self) -> tuple[EndpointId, ...]:
        return tuple(order.endpoint_id for order in self.active if isinstance(order, DrainEndpoint))

    def interrupted_endpoints(self) -> tuple[EndpointId, ...]:
        return tuple(order.endpoint_id for order in self.active if isinstance(order, DrainEndpoint) and order.interrupt)

    def pinned_levels(self) -> dict[PoolName, int]:
        """Returns the pinned degradation levels. If a pool has several, the last one applies."""
        return {order.pool: order.level for order in self.active if isinstance(order, PinDegradation)}

    def throttles(self) -> dict[TenantId, Limits]:
        """Returns the limits that operators have set, by level of a tenant path."""
        orders: dict[TenantId, Limits] = {}
        for order in self.active:
            if isinstance(order, Throttle):
                orders[order.tenant] = stricter(orders.get(order.tenant, Limits()), order.limits)
        return orders


def stricter(one: Limits, other: Limits) -> Limits:
    return Limits(
        _min_of(one.requests_per_minute, other.requests_per_minute),
        _min_of(one.tokens_per_minute, other.tokens_per_minute),
        _min_of(one.concurrency, other.concurrency),
        _min_of(one.total_tokens_per_minute, other.total_tokens_per_minute),
        _min_of(one.total_concurrency, other.total_concurrency),
        LimitShare(*(min(each) for each in zip(one.share, other.share, strict=True))),
    )


def _min_of(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
