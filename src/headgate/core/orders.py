"""Which orders of operators are in force?

They come with the policy and end at a moment of their own, which is an alarm like any other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headgate.core.alarms import Agenda, Alarms
from headgate.model.limits import Limits
from headgate.model.orders import DrainEndpoint, HoldClass, OperatorOrder, PinLadder, Throttle
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, TenantId


class Orders:
    __slots__ = ("_all", "_ends", "in_force")

    def __init__(self, agenda: Agenda) -> None:
        self._all: tuple[OperatorOrder, ...] = ()
        self._ends: Alarms[str] = Alarms(agenda)
        self.in_force: tuple[OperatorOrder, ...] = ()

    def change(self, orders: tuple[OperatorOrder, ...], now: Instant) -> None:
        self._all = orders
        self._ends.clear_all()
        self._look(now)
        for number, order in enumerate(self.in_force):
            self._ends.set(str(number), order.until)

    def end_due(self, now: Instant) -> bool:
        """Whether any has ended at this moment."""
        if not self._ends.take():
            return False
        self._look(now)
        return True

    def _look(self, now: Instant) -> None:
        self.in_force = tuple(order for order in self._all if order.until > now)

    def held(self) -> tuple[ClassName, ...]:
        return tuple(order.service_class for order in self.in_force if isinstance(order, HoldClass))

    def drained(self) -> tuple[EndpointId, ...]:
        return tuple(order.endpoint_id for order in self.in_force if isinstance(order, DrainEndpoint))

    def pinned(self) -> dict[PoolName, int]:
        """Of several for one pool the last counts."""
        return {order.pool: order.level for order in self.in_force if isinstance(order, PinLadder)}

    def throttled(self, tenants: Sequence[Tenant]) -> Iterable[Tenant]:
        """The tenants with the limits that they have while these orders last."""
        orders: dict[TenantId, Limits] = {}
        for order in self.in_force:
            if isinstance(order, Throttle):
                orders[order.tenant] = stricter(orders.get(order.tenant, Limits()), order.limits)
        if not orders:
            return tenants
        named = [
            replace(each, limits=stricter(each.limits, orders.pop(each.id))) if each.id in orders else each
            for each in tenants
        ]
        # A level of a path of which the policy says nothing may be throttled all the same.
        return [*named, *(Tenant(tenant_id, limits=limits) for tenant_id, limits in orders.items())]


def stricter(one: Limits, other: Limits) -> Limits:
    return Limits(
        _least(one.requests_per_minute, other.requests_per_minute),
        _least(one.tokens_per_minute, other.tokens_per_minute),
        _least(one.concurrency, other.concurrency),
        _least(one.tokens_whole, other.tokens_whole),
        _least(one.concurrency_whole, other.concurrency_whole),
    )


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
