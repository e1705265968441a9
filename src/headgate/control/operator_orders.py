"""Operators' orders of one gateway without a database, kept in its memory.

A change takes effect before the response is sent. Orders survive a reload of the file but not a restart. A cell needs a
database: its members must agree on the orders in force, and only the database reaches all of them.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headgate.model.limits import Limits
from headgate.model.orders import DrainEndpoint, HoldClass, OperatorOrder, PinLadder, Throttle
from headgate.model.policy import Policy
from headgate.model.units import SECOND, ClassName, EndpointId, Instant, PoolName, TenantId
from headgate.ports.directory import Actor, AuditRow, OrderRow, Unknown, Unwritten
from headgate.telemetry.log import tell

ORDERS_MAX: Final = 200
"""Maximum number of orders in force."""
AUDIT_MAX: Final = 1_000
"""Maximum number of changes kept in memory. The log has all of them."""
NO_DATABASE: Final = (
    "tenants, keys, budgets and cost reports need a database: add database.url to the configuration, or change the "
    "tenants and keys of the file (`headgate keys new --write`) and send SIGHUP; without a database "
)
"""Hint in the admin API's response for an unknown path, without a database."""
_OF_A_CELL: Final = (
    "this gateway belongs to a cell, whose gateways share orders through a database, and the configuration has none; "
    "add database.url to it"
)


def operator_order(row: OrderRow) -> OperatorOrder | None:
    """Converts a row to an order for the scheduler; None if only a newer version knows its verb."""
    until, terms = Instant(row.expires_at), row.terms
    match row.verb:
        case "throttle":
            limits = Limits(terms.get("requests_per_minute"), terms.get("tokens_per_minute"), terms.get("concurrency"))
            return Throttle(TenantId(row.target), limits, until)
        case "hold":
            return HoldClass(ClassName(row.target), until)
        case "drain":
            return DrainEndpoint(EndpointId(row.target), until)
        case "pin":
            return PinLadder(PoolName(row.target), terms.get("level", 0), until)
        case _:
            return None


def orders_shown(orders: Iterable[OperatorOrder], now: Instant) -> list[dict[str, object]]:
    """The orders in force, for /status."""
    return [
        {"verb": verb, "target": target, "left_s": (order.until - now) // SECOND}
        for order in orders
        if order.until > now
        for verb, target in [_verb_and_target(order)]
    ]


def _verb_and_target(order: OperatorOrder) -> tuple[str, str]:
    match order:
        case Throttle():
            return "throttle", order.tenant
        case HoldClass():
            return "hold", order.service_class
        case DrainEndpoint():
            return "drain", order.endpoint_id
        case PinLadder():
            return "pin", order.pool


class MemoryOrders:
    """The `OrderBook` of a gateway without a database."""

    def __init__(
        self,
        on_change: Callable[[], None],
        now: Callable[[], Instant],
        *,
        in_cell: bool = False,
        audit_max: int = AUDIT_MAX,
    ) -> None:
        """`on_change` updates the policy."""
        self._on_change = on_change
        self._in_cell = in_cell
        self._now = now
        self._orders: dict[str, OrderRow] = {}
        self._audit: deque[AuditRow] = deque(maxlen=audit_max)
        self._changes = 0

    @property
    def name(self) -> str:
        """Identifies the orders in the hash of the policy; empty if there were never any."""

        return f"orders.{self._changes}" if self._changes else ""

    def take(self, policy: Policy) -> Policy:
        """The policy of the file with the orders in force."""
        orders = tuple(order for row in self._in_force() if (order := operator_order(row)) is not None)
        return replace(policy, orders=(*policy.orders, *orders)) if orders else policy

    async def orders(self, *, limit: int) -> Sequence[OrderRow]:
        return self._in_force()[:limit]

    async def place_order(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, lasts_s: int
    ) -> OrderRow:
        if self._in_cell:
            raise Unwritten(_OF_A_CELL)
        if (count := len(self._in_force())) >= ORDERS_MAX:
            raise Unwritten(f"{count} orders are in force, the maximum; end one first")
        now = self._now()
        row = OrderRow(
            id=f"ord_{secrets.token_hex(6)}",
            verb=verb,
            target=target,
            terms=dict(terms),
            reason=reason,
            ordered_by=actor.name,
            created_at=now,
            expires_at=Instant(now + lasts_s * SECOND),
        )
        self._orders[row.id] = row
        self._changed(actor, f"order.{verb}", target, before=None, after=_shown(row))
        return row

    async def end_order(self, order_id: str, actor: Actor) -> OrderRow:
        row = next((each for each in self._in_force() if each.id == order_id), None)
        if row is None:
            raise Unknown(f'no order "{order_id}" is in force; `headgate operate list` shows those that are')
        del self._orders[order_id]
        self._changed(actor, "order.end", order_id, before=_shown(row), after=None)
        return replace(row, ended_at=self._now())

    async def audit(self, *, before: int | None, limit: int) -> Sequence[AuditRow]:
        newest_first = [row for row in reversed(self._audit) if before is None or row.number < before]
        return newest_first[:limit]

    def _in_force(self) -> list[OrderRow]:
        now = self._now()
        self._orders = {name: row for name, row in self._orders.items() if row.expires_at > now}
        return list(self._orders.values())

    def _changed(
        self,
        actor: Actor,
        action: str,
        target: str,
        *,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        self._changes += 1
        row = AuditRow(self._changes, self._now(), actor.name, actor.origin, action, target, before=before, after=after)
        self._audit.append(row)
        tell(logging.INFO, "operator changed an order", actor=actor.name, origin=actor.origin, action=action, on=target)
        self._on_change()


def _shown(row: OrderRow) -> dict[str, object]:
    return {"verb": row.verb, "target": row.target, "terms": dict(row.terms), "reason": row.reason}
