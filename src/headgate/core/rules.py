"""What does the present policy say about this name?

The policy itself is plain tuples; this is the same policy, indexed.
"""

from dataclasses import replace

from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, ClassName, Duration, ModelName, PoolName, TenantId

_WARM_UP_UNKNOWN = Duration(30 * SECOND)


class Rules:
    __slots__ = ("classes", "hash", "models", "policy", "pools", "tenants")

    def __init__(self, policy: Policy, policy_hash: str) -> None:
        self.policy = policy
        self.hash = policy_hash
        self.classes: dict[ClassName, ServiceClass] = {each.name: each for each in policy.classes}
        self.tenants: dict[TenantId, Tenant] = {each.id: each for each in policy.tenants}
        self.models: dict[ModelName, Model] = {each.name: each for each in policy.models}
        self.pools: dict[PoolName, Pool] = {each.name: each for each in policy.pools}

    def route(self, model: Model, service_class: ServiceClass) -> tuple[PoolName, ...]:
        """The pools that a request for this model may use in this class."""
        if not service_class.pools:
            return model.pools
        return tuple(pool for pool in model.pools if pool in service_class.pools)

    def warm_up_ns(self, pool: PoolName) -> Duration:
        return self.pools[pool].warm_up_ns if pool in self.pools else _WARM_UP_UNKNOWN

    def without_gone_class(self, ticket: Ticket) -> Ticket:
        """The ticket as if it had not named its class, where that class exists no more."""
        if ticket.class_named is None or ticket.class_named in self.classes:
            return ticket
        return replace(ticket, class_named=None)
