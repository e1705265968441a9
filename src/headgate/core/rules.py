"""What does the present policy say about this name?

The policy itself is plain tuples; this is the same policy, indexed.
"""

from dataclasses import replace

from headgate.core.queues.fair import WEIGHT
from headgate.core.routing.endpoints import Terms
from headgate.core.routing.rungs import rung_names
from headgate.model.policy import NO_TIER_CHOICE, Model, Policy, Pool, ServiceClass
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, ClassName, Duration, ModelName, PoolName, TenantId

_WARM_UP_UNKNOWN = Duration(30 * SECOND)
_SPEED_UNKNOWN = EngineSpeed()


class Rules:
    __slots__ = ("_accounts", "classes", "floors", "hash", "models", "policy", "pools", "tenants", "tiers")

    def __init__(self, policy: Policy, policy_hash: str) -> None:
        self.policy = policy
        self.hash = policy_hash
        self.classes: dict[ClassName, ServiceClass] = {each.name: each for each in policy.classes}
        self.tiers: dict[str, ServiceClass] = {
            tier: each for each in reversed(policy.classes) for tier in each.service_tiers
        }
        """The class that each value of `service_tier` selects: the first class that lists it."""
        self.tenants: dict[TenantId, Tenant] = {each.id: each for each in policy.tenants}
        self.models: dict[ModelName, Model] = {each.name: each for each in policy.models}
        self.pools: dict[PoolName, Pool] = {each.name: each for each in policy.pools}
        self.floors = _floors(policy)
        self._accounts: dict[TenantId, TenantId] = {}
        """Of the tenants that the policy names: nobody else comes in."""

    def warm_up_ns(self, pool: PoolName) -> Duration:
        return self.pools[pool].warm_up_ns if pool in self.pools else _WARM_UP_UNKNOWN

    def may_be_empty(self, pool: PoolName) -> bool:
        """Whether it is given an endpoint when it is asked for, and need not have one before."""
        return pool in self.pools and self.pools[pool].hold_max > 0

    def speed(self, pool: PoolName) -> EngineSpeed:
        return self.pools[pool].speed if pool in self.pools else _SPEED_UNKNOWN

    def terms(self, pool: PoolName) -> Terms:
        """What holds for the endpoints of a pool."""
        promised = [
            (each.tpot_ns, each.tpot_assumed)
            for each in self.policy.classes
            if each.tpot_ns is not None and (not each.pools or pool in each.pools)
        ]
        known = self.pools.get(pool)
        kv_tokens, assumed = (None, False) if known is None else (known.kv_tokens, known.speed_assumed)
        reserves = tuple(
            (each.name, each.reserve_percent)
            for each in self.policy.classes
            if each.reserve_percent and (not each.pools or pool in each.pools)
        )
        return Terms(
            self.speed(pool),
            kv_tokens,
            min((tpot_ns for tpot_ns, _ in promised), default=None),
            self.policy.headroom,
            reserves,
            self.policy.routing.other_zone_ns,
            min((tpot_ns for tpot_ns, is_default in promised if not is_default), default=None),
            assumed,
            kv_tokens is not None,
        )

    def account(self, tenant: TenantId) -> TenantId:
        """Whose turns a tenant takes."""
        account = self._accounts.get(tenant)
        if account is None:
            steps = tenant.split("/")[: self.policy.fairness_depth]
            account = self._accounts[tenant] = TenantId("/".join(steps))
        return account

    def weight(self, account: TenantId) -> int:
        return self.tenants[account].weight if account in self.tenants else WEIGHT

    def without_gone_names(self, ticket: Ticket) -> Ticket:
        """The ticket without the class, tier or rung that it named, if that name does not exist any more."""
        if ticket.class_named is not None and ticket.class_named not in self.classes:
            ticket = replace(ticket, class_named=None)
        if ticket.service_tier not in self.tiers and ticket.service_tier not in (None, *NO_TIER_CHOICE):
            ticket = replace(ticket, service_tier=None)
        model = self.models.get(ticket.model)
        if ticket.rung is not None and model is not None and ticket.rung not in rung_names(model):
            ticket = replace(ticket, rung=None)
        return ticket


def _floors(policy: Policy) -> dict[int, int]:
    """The floor of each band that has one."""
    floors: dict[int, int] = {}
    for each in policy.classes:
        if each.floor_percent:
            floors[each.band] = max(floors.get(each.band, 0), each.floor_percent)
    return floors
