"""In-memory operator overrides for a gateway without a database.

A change takes effect before the response is sent. Overrides survive a reload of the configuration file, but not a
restart. A cell requires a database, because its members must agree on the overrides in force, and only the database
reaches all of them.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headgate.control.rollouts.plan import rollout_of
from headgate.control.trials.plan import BLOCK_VERB, setting_override
from headgate.model.limits import Limits
from headgate.model.overrides import (
    DrainEndpoint,
    HoldClass,
    MinimumEndpoints,
    OperatorOverride,
    PinDegradation,
    SetRouteWeights,
    SetSetting,
    Throttle,
)
from headgate.model.policy import Policy
from headgate.model.units import SECOND, ClassName, EndpointId, Instant, PoolName, TenantId
from headgate.ports.directory import Actor, AuditRow, ChangeRejected, NotFound, OverrideRow
from headgate.telemetry.log import log_event

OVERRIDES_MAX: Final = 200
"""Maximum number of overrides in force."""
AUDIT_MAX: Final = 1_000
"""Maximum number of audit entries kept in memory. The log contains all entries."""
NO_DATABASE_HINT: Final = (
    "tenants, keys, budgets and cost reports require a database: add database.url to the configuration, or edit the "
    "tenants and keys in the file (`headgate keys new --write`) and send SIGHUP; without a database "
)
"""Beginning of the admin API's response to an unknown path, if there is no database."""
_CELL_NEEDS_DATABASE: Final = (
    "this gateway belongs to a cell, which shares overrides through a database, but the configuration has none; "
    "add database.url"
)


def override_of(row: OverrideRow) -> OperatorOverride | None:
    """Converts a row to an override for the scheduler. Returns None if this version does not know the verb."""
    until, terms = Instant(row.expires_at), row.parameters
    match row.verb:
        case "throttle":
            limits = Limits(terms.get("requests_per_minute"), terms.get("tokens_per_minute"), terms.get("concurrency"))
            return Throttle(TenantId(row.target), limits, until)
        case "hold":
            return HoldClass(ClassName(row.target), until)
        case "drain":
            return DrainEndpoint(EndpointId(row.target), until, interrupt=bool(terms.get("interrupt")))
        case "pin":
            return PinDegradation(PoolName(row.target), terms.get("level", 0), until)
        case "scale":
            return MinimumEndpoints(PoolName(row.target), terms.get("endpoints", 0), until)
        case "rollout":
            rollout = rollout_of(row.target, terms)
            return None if rollout is None else SetRouteWeights(rollout.model, rollout.weights(), until)
        case "trial" | "trial_block":
            return setting_override(row.verb, row.target, terms, until)
        case _:
            return None


def overrides_status(orders: Iterable[OperatorOverride], now: Instant) -> list[dict[str, object]]:
    """Returns the overrides in force, in the form used by /status."""
    return [
        {"verb": verb, "target": target, "remaining_s": (order.until - now) // SECOND}
        for order in orders
        if order.until > now
        for verb, target in [_verb_and_target(order)]
    ]


def _verb_and_target(order: OperatorOverride) -> tuple[str, str]:
    match order:
        case Throttle():
            return "throttle", order.tenant
        case HoldClass():
            return "hold", order.service_class
        case DrainEndpoint():
            return "drain", order.endpoint_id
        case PinDegradation():
            return "pin", order.pool
        case SetRouteWeights():
            return "rollout", order.model
        case MinimumEndpoints():
            return "scale", order.pool
        case SetSetting():
            return "trial", order.setting


class MemoryOverrides:
    """`OverrideStore` for a gateway without a database."""

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
        self._overrides: dict[str, OverrideRow] = {}
        self._audit: deque[AuditRow] = deque(maxlen=audit_max)
        self._changes = self._entries = 0

    @property
    def name(self) -> str:
        """Identifies the overrides in the policy hash; empty if there have never been any."""
        return f"orders.{self._changes}" if self._changes else ""

    def apply(self, policy: Policy) -> Policy:
        """Returns the policy from the file with the overrides in force applied."""
        orders = tuple(order for row in self._in_force() if (order := override_of(row)) is not None)
        return replace(policy, overrides=(*policy.overrides, *orders)) if orders else policy

    async def overrides(self, *, limit: int) -> Sequence[OverrideRow]:
        return self._in_force()[:limit]

    async def create_override(
        self, verb: str, target: str, terms: Mapping[str, int], actor: Actor, *, reason: str, duration_s: int
    ) -> OverrideRow:
        if self._in_cell:
            raise ChangeRejected(_CELL_NEEDS_DATABASE)
        if (count := len(self._in_force())) >= OVERRIDES_MAX:
            raise ChangeRejected(f"{count} overrides are active, which is the limit; end one first")
        now = self._now()
        row = OverrideRow(
            id=f"ovr_{secrets.token_hex(6)}",
            verb=verb,
            target=target,
            parameters=dict(terms),
            reason=reason,
            created_by=actor.name,
            created_at=now,
            expires_at=Instant(now + duration_s * SECOND),
        )
        self._overrides[row.id] = row
        self._changed(row, actor, f"override.{verb}", target, before=None, after=_audit_fields(row))
        return row

    async def end_override(self, order_id: str, actor: Actor) -> OverrideRow:
        row = next((each for each in self._in_force() if each.id == order_id), None)
        if row is None:
            raise NotFound(f'no active override "{order_id}"; run `headgate operate list`')
        del self._overrides[order_id]
        self._changed(row, actor, "override.end", order_id, before=_audit_fields(row), after=None)
        return replace(row, ended_at=self._now())

    async def add_audit_entry(
        self, actor: Actor, action: str, target: str, *, after: Mapping[str, object] | None
    ) -> None:
        self._add_entry(actor, action, target, before=None, after=after)
        log_event(logging.INFO, "operator action", actor=actor.name, origin=actor.origin, action=action, on=target)

    async def audit(self, *, before: int | None, limit: int) -> Sequence[AuditRow]:
        newest_first = [row for row in reversed(self._audit) if before is None or row.number < before]
        return newest_first[:limit]

    def _in_force(self) -> list[OverrideRow]:
        now = self._now()
        self._overrides = {name: row for name, row in self._overrides.items() if row.expires_at > now}
        return list(self._overrides.values())

    def _changed(
        self,
        row: OverrideRow,
        actor: Actor,
        action: str,
        target: str,
        *,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        self._changes += 1
        if row.verb != BLOCK_VERB or actor.name != row.created_by:
            # The blocks of a trial would displace the actions of operators. The log contains them.
            self._add_entry(actor, action, target, before=before, after=after)
        log_event(
            logging.INFO, "operator changed override", actor=actor.name, origin=actor.origin, action=action, on=target
        )
        self._on_change()

    def _add_entry(
        self,
        actor: Actor,
        action: str,
        target: str,
        *,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        self._entries += 1
        row = AuditRow(self._entries, self._now(), actor.name, actor.origin, action, target, before=before, after=after)
        self._audit.append(row)


def _audit_fields(row: OverrideRow) -> dict[str, object]:
    return {"verb": row.verb, "target": row.target, "terms": dict(row.parameters), "reason": row.reason}
