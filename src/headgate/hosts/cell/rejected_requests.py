"""Request rates of the requests that this gateway rejects itself.

The scheduler of the cell does not receive them, so each gateway counts them on its own. One gateway rejects as many
bodies of a tenant per minute as the tenant may send requests; after that it rejects further requests by their heads.
"""

from headgate.core.admission.limits import Shortage, TenantLimits
from headgate.model.policy import Policy
from headgate.model.units import Instant, TenantId


class RejectedRequests:
    """Rejected requests, by tenant."""

    def __init__(self) -> None:
        self._limits = TenantLimits()

    def change_rules(self, policy: Policy, now: Instant) -> None:
        self._limits.change_rules(policy.tenants, (), now)

    def count(self, tenant: TenantId, now: Instant) -> None:
        self._limits.take_rejected(tenant, now)

    def limit_reached(self, tenant: TenantId, now: Instant) -> Shortage | None:
        return self._limits.reached(tenant, now)
