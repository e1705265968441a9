"""Opens the cost reports with the parts of the policy that they need."""

from collections.abc import Callable, Mapping

from headgate.core.queues.fair_queue import DEFAULT_WEIGHT
from headgate.ledger.database import Database
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.ledger.reports.cost_breakdown import path_prefix
from headgate.ledger.reports.postgres_reports import QUERY_S_MAX, PostgresReports, ReportPolicy
from headgate.model.money import Period
from headgate.model.policy import Policy
from headgate.model.units import TenantId


def open_reports(
    database: DatabaseOptions, ledger: Callable[[], LedgerOptions | None], policy: Callable[[], Policy]
) -> PostgresReports:
    """Opens the reports with their own connections, so that a long-running query does not delay others."""
    return PostgresReports(Database(database.url, query_s_max=QUERY_S_MAX), lambda: terms_of(policy(), ledger()))


def terms_of(policy: Policy, ledger: LedgerOptions | None) -> ReportPolicy:
    shares_idle = ledger is not None and ledger.share_idle_cost
    return ReportPolicy(
        unit=policy.unit_key or "",
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
    """Returns the weight of every tenant that may use a pool, by pool and tenant, regardless of whether the tenant uses
    it.
    """
    weights = {tenant.id: tenant.weight for tenant in policy.tenants}
    serves = {model.name: model.all_pools for model in policy.models}
    every = frozenset(pool for pools in serves.values() for pool in pools)
    pools: dict[str, dict[str, int]] = {pool.name: {} for pool in policy.pools}
    for tenant in policy.tenants:
        account = TenantId(path_prefix(tenant.id, policy.fairness_depth))
        mine = every if not tenant.models else {pool for name in tenant.models for pool in serves.get(name, ())}
        for pool in mine:
            pools[pool][account] = weights.get(account, DEFAULT_WEIGHT)
    return pools
