"""Budget paths of the administration API.

Requests give dollar amounts as JSON numbers or decimal strings. Responses use strings, to avoid floating-point
rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final

from msgspec import Meta

from headgate.edge.admin.api import AdminBody, AdminRoute, ListUnder, TenantPath, utc_text
from headgate.model.money import NANO_USD_PER_USD, BudgetStatus, NanoUsd, Period
from headgate.model.units import SECOND, TenantId
from headgate.ports.directory import Actor, BudgetRow, ChangeRejected, Directory

USD_MAX: Final = 1_000_000_000
BudgetsLeft = Callable[[TenantId | None], Sequence[BudgetStatus]]
"""Returns the state of one tenant's budgets, or of all budgets for None."""


class BudgetBody(AdminBody, frozen=True):
    tenant: TenantPath
    period: Period
    limit_usd: Decimal
    kind: Annotated[str, Meta(pattern=r"^(hard|soft)\Z")] = "hard"


class BudgetRef(AdminBody, frozen=True):
    tenant: TenantPath
    period: Period


class ShowBudgets(AdminBody, frozen=True):
    tenant: TenantPath | None = None


def budget_routes(directory: Directory, left: BudgetsLeft) -> Mapping[bytes, AdminRoute]:
    budgets = _Budgets(directory, left)
    return {
        b"/admin/v1/budgets/list": AdminRoute(ListUnder, budgets.list_budgets, writes=False),
        b"/admin/v1/budgets/show": AdminRoute(ShowBudgets, budgets.show_budgets, writes=False),
        b"/admin/v1/budgets/set": AdminRoute(BudgetBody, budgets.set_budget, writes=True),
        b"/admin/v1/budgets/remove": AdminRoute(BudgetRef, budgets.remove_budget, writes=True),
    }


class _Budgets:
    def __init__(self, directory: Directory, left: BudgetsLeft) -> None:
        self._directory = directory
        self._left = left

    async def list_budgets(self, asked: ListUnder, _: Actor) -> Mapping[str, object]:
        rows = await self._directory.budgets(below=asked.under or "", after=asked.after, limit=asked.limit)
        tenants = list(dict.fromkeys(each.tenant for each in rows))
        return {
            "data": [_budget_json(each) for each in rows],
            "next": tenants[-1] if len(tenants) == asked.limit else None,
        }

    async def show_budgets(self, asked: ShowBudgets, _: Actor) -> Mapping[str, object]:
        left = self._left(None if asked.tenant is None else TenantId(asked.tenant))
        return {"data": [_budget_left_json(each) for each in left]}

    async def set_budget(self, asked: BudgetBody, actor: Actor) -> Mapping[str, object]:
        limit, hard = _nano_usd(asked.limit_usd), asked.kind == "hard"
        return _budget_json(await self._directory.set_budget(asked.tenant, asked.period, limit, actor, hard=hard))

    async def remove_budget(self, asked: BudgetRef, actor: Actor) -> Mapping[str, object]:
        return {**_budget_json(await self._directory.remove_budget(asked.tenant, asked.period, actor)), "removed": True}


def _nano_usd(usd: Decimal) -> NanoUsd:
    if not usd.is_finite() or not 0 < usd <= USD_MAX:
        raise ChangeRejected(
            f"a budget must be above 0 and at most {USD_MAX} dollars; to stop a tenant, revoke its keys"
        )
    nano = usd * NANO_USD_PER_USD
    if nano != int(nano):
        raise ChangeRejected("a budget must not have more than nine decimal places")
    return NanoUsd(int(nano))


def usd_text(nano_usd: int) -> str:
    sign, (whole, part) = "-" if nano_usd < 0 else "", divmod(abs(nano_usd), NANO_USD_PER_USD)
    return f"{sign}{whole}.{part:09d}".rstrip("0").rstrip(".")


def _budget_json(row: BudgetRow) -> dict[str, object]:
    return {
        "tenant": row.tenant,
        "period": row.period,
        "limit_usd": usd_text(row.limit),
        "kind": "hard" if row.hard else "soft",
        "created_at": utc_text(row.created_at),
    }


def _budget_left_json(each: BudgetStatus) -> dict[str, object]:
    return {
        "scope": each.scope,
        "period": each.period,
        "kind": "hard" if each.hard else "soft",
        "limit_usd": usd_text(each.limit),
        "spent_usd": usd_text(each.spent),
        "reserved_usd": usd_text(each.reserved),
        "remaining_usd": usd_text(max(0, each.limit - each.spent - each.reserved)),
        "resets_in_s": None if each.reset_ns is None else each.reset_ns // SECOND,
    }
