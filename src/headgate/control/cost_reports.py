"""What do reports need to know of the policy, and where do they read?"""

from collections.abc import Callable, Mapping

from headgate.core.queues.fair import WEIGHT
from headgate.ledger.database import Database
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.ledger.reports.accounts import path_of
from headgate.ledger.reports.reports import QUERY_S_MAX, PostgresReports, Terms
from headgate.model.money import Period
from headgate.model.policy import Policy
from headgate.model.units import TenantId


def open_reports(
    database: DatabaseOptions, ledger: Callable[[], LedgerOptions | None], policy: Callable[[], Policy]
) -> PostgresReports:
    """With connections of their own, so that a long question keeps nobody waiting."""
    return PostgresReports(Database(database.url, query_s_max=QUERY_S_MAX), lambda: terms_of(policy(), ledger()))


def terms_of(policy: Policy, ledger: LedgerOptions | None) -> Terms:
    shares_idle = ledger is not None and ledger.shares_idle
    return Terms(
        unit=policy.unit or "",
        retention_days=30 if ledger is None else ledger.retention_days,
        prices={pool.name: pool.prices for pool in policy.pools},
        idle_weights=_idle_weights(policy) if shares_idle else None,
        month_budgets={
            tenant.id: (budget.limit, budget.hard)
            for tenant in policy.tenants
            for budget in tenant.budgets
            if budget.period is Period.MONTH
        },
    )


def _idle_weights(policy: Policy) -> Mapping[str, Mapping[str, int]]:
    """Pool -> tenant -> weight: of all who may use it, whether they do or not, by what is held for them."""
    weights = {tenant.id: tenant.weight for tenant in policy.tenants}
    serves = {model.name: model.pools for model in policy.models}
    every = frozenset(pool for pools in serves.values() for pool in pools)
    pools: dict[str, dict[str, int]] = {pool.name: {} for pool in policy.pools}
    for tenant in policy.tenants:
        account = TenantId(path_of(tenant.id, policy.fairness_depth))
        mine = every if not tenant.models else {pool for name in tenant.models for pool in serves.get(name, ())}
        for pool in mine:
            pools[pool][account] = weights.get(account, WEIGHT)
    return pools
