"""Rate limits for requests that this gateway rejects itself.

The cell's scheduler does not receive these requests, so each gateway counts them separately. Per minute, a gateway
reads and rejects as many of a tenant's request bodies as the tenant may send requests. After that, it rejects further
requests based on their heads alone.
"""

from headgate.core.admission.limits import QuotaShortage, TenantLimits
from headgate.model.policy import Policy
from headgate.model.tenant import tenant_table
from headgate.model.units import Instant, TenantId


class RejectedRequests:
    """Number of rejected requests, by tenant."""

    def __init__(self) -> None:
        self._limits = TenantLimits()

    def change_rules(self, policy: Policy, now: Instant) -> None:
        self._limits.change_rules(tenant_table(policy.tenants).by_id, {}, (), now)

    def count(self, tenant: TenantId, now: Instant) -> None:
        self._limits.count_rejected(tenant, now)

    def limit_reached(self, tenant: TenantId, now: Instant) -> QuotaShortage | None:
        return self._limits.reached(tenant, now)
