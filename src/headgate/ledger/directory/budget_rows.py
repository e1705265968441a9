"""Tenant budgets in the database.

Changes run in a directory transaction (`directory.py`) and get its version number, so that replicas receive them in the
same way as changes to tenants and keys. A removed budget is marked as removed rather than deleted.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from headgate.ledger.connection import DatabaseConnection, DatabaseRow
from headgate.model.money import NanoUsd, Period
from headgate.model.units import SECOND, Instant
from headgate.ports.directory import BudgetRow

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_budgets(link: DatabaseConnection, *, below: str, after: str, limit: int) -> Sequence[BudgetRow]:
    rows = await link.fetch(
        "select tenant, period, limit_nano_usd, hard, created_at, removed_at from headgate.budgets"
        " where removed_at is null and tenant in (select id from headgate.tenants"
        " where id > $1 and ($2 = '' or id = $2 or starts_with(id, $2 || '/')) and exists"
        " (select from headgate.budgets where tenant = id and removed_at is null) order by id limit $3)"
        " order by tenant, period",
        after,
        below,
        limit,
    )
    return [budget_row(row) for row in rows]


async def get_budget(link: DatabaseConnection, tenant_id: str, period: Period) -> BudgetRow | None:
    row = await link.fetchrow(
        "select tenant, period, limit_nano_usd, hard, created_at, removed_at from headgate.budgets"
        " where tenant = $1 and period = $2 and removed_at is null",
        tenant_id,
        period.value,
    )
    return None if row is None else budget_row(row)


async def upsert_budget(
    link: DatabaseConnection, tenant_id: str, period: Period, limit: NanoUsd, version: int, *, hard: bool
) -> BudgetRow:
    row = await link.fetchrow(
        "insert into headgate.budgets (tenant, period, limit_nano_usd, hard, changed_version)"
        " values ($1, $2, $3, $4, $5)"
        " on conflict (tenant, period) do update set limit_nano_usd = excluded.limit_nano_usd, hard = excluded.hard,"
        " created_at = now(), removed_at = null, changed_version = excluded.changed_version"
        " returning tenant, period, limit_nano_usd, hard, created_at, removed_at",
        tenant_id,
        period.value,
        limit,
        hard,
        version,
    )
    assert row is not None
    return budget_row(row)


async def remove_budgets(
    link: DatabaseConnection, tenants: Sequence[str], periods: Sequence[Period], version: int
) -> int:
    """Marks the budgets as removed and returns their number."""
    rows = await link.fetch(
        "update headgate.budgets set removed_at = now(), changed_version = $3"
        " where tenant = any($1::text[]) and period = any($2::text[]) and removed_at is null returning tenant",
        list(tenants),
        [each.value for each in periods],
        version,
    )
    return len(rows)


def budget_row(row: DatabaseRow) -> BudgetRow:
    return BudgetRow(
        row["tenant"],
        Period(row["period"]),
        NanoUsd(row["limit_nano_usd"]),
        hard=row["hard"],
        created_at=_to_instant(row["created_at"]),
        removed_at=None if row["removed_at"] is None else _to_instant(row["removed_at"]),
    )


def audit_value(row: BudgetRow) -> dict[str, object]:
    """The budget as an audit log entry."""
    return {"limit_nano_usd": row.limit, "kind": "hard" if row.hard else "soft"}


def _to_instant(moment: datetime) -> Instant:
    since = moment - _EPOCH
    return Instant((since.days * 86_400 + since.seconds) * SECOND + since.microseconds * 1_000)
