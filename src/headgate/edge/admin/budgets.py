"""What may a tenant spend, and how much of it has it spent?

The paths of budgets below `/admin/v1/`. Dollars are decimal numbers, as JSON numbers or as text; they are told as text,
so that nobody's floating point changes them.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final

from msgspec import Meta

from headgate.edge.admin.api import KEYS, READ, Body, ListBelow, Route, TenantPath, at_text
from headgate.model.money import NANO_USD_PER_USD, BudgetLeft, NanoUsd, Period
from headgate.model.units import SECOND, TenantId
from headgate.ports.directory import Actor, BudgetRow, Directory, Unwritten

USD_MAX: Final = 1_000_000_000
Left = Callable[[TenantId | None], Sequence[BudgetLeft]]
"""Where the budgets of a tenant stand, or all of them."""


class BudgetBody(Body, frozen=True):
    tenant: TenantPath
    period: Period
    usd: Decimal
    kind: Annotated[str, Meta(pattern=r"^(hard|soft)\Z")] = "hard"


class BudgetNamed(Body, frozen=True):
    tenant: TenantPath
    period: Period


class ShownBudgets(Body, frozen=True):
    tenant: TenantPath | None = None


def budget_routes(directory: Directory, left: Left) -> Mapping[bytes, Route]:
    budgets = _Budgets(directory, left)
    return {
        b"/admin/v1/budgets/list": Route(READ, ListBelow, budgets.listed, writes=False),
        b"/admin/v1/budgets/show": Route(READ, ShownBudgets, budgets.shown, writes=False),
        b"/admin/v1/budgets/set": Route(KEYS, BudgetBody, budgets.set, writes=True),
        b"/admin/v1/budgets/remove": Route(KEYS, BudgetNamed, budgets.remove, writes=True),
    }


class _Budgets:
    def __init__(self, directory: Directory, left: Left) -> None:
        self._directory = directory
        self._left = left

    async def listed(self, asked: ListBelow, _: Actor) -> Mapping[str, object]:
        rows = await self._directory.budgets(below=asked.below or "", after=asked.after, limit=asked.limit)
        tenants = list(dict.fromkeys(each.tenant for each in rows))
        return {"data": [_budget(each) for each in rows], "next": tenants[-1] if len(tenants) == asked.limit else None}

    async def shown(self, asked: ShownBudgets, _: Actor) -> Mapping[str, object]:
        left = self._left(None if asked.tenant is None else TenantId(asked.tenant))
        return {"data": [_budget_left(each) for each in left]}

    async def set(self, asked: BudgetBody, actor: Actor) -> Mapping[str, object]:
        limit, hard = _nano_usd(asked.usd), asked.kind == "hard"
        return _budget(await self._directory.set_budget(asked.tenant, asked.period, limit, actor, hard=hard))

    async def remove(self, asked: BudgetNamed, actor: Actor) -> Mapping[str, object]:
        return {**_budget(await self._directory.remove_budget(asked.tenant, asked.period, actor)), "removed": True}


def _nano_usd(usd: Decimal) -> NanoUsd:
    if not usd.is_finite() or not 0 < usd <= USD_MAX:
        raise Unwritten(f"a budget is more than 0 and at most {USD_MAX} dollars; to stop a tenant, revoke its keys")
    nano = usd * NANO_USD_PER_USD
    if nano != int(nano):
        raise Unwritten("a budget is counted in billionths of a dollar; write no more than nine decimals")
    return NanoUsd(int(nano))


def usd_text(nano_usd: int) -> str:
    sign, (whole, part) = "-" if nano_usd < 0 else "", divmod(abs(nano_usd), NANO_USD_PER_USD)
    return f"{sign}{whole}.{part:09d}".rstrip("0").rstrip(".")


def _budget(row: BudgetRow) -> dict[str, object]:
    return {
        "tenant": row.tenant,
        "period": row.period,
        "usd": usd_text(row.limit),
        "kind": "hard" if row.hard else "soft",
        "since": at_text(row.created_at),
    }


def _budget_left(each: BudgetLeft) -> dict[str, object]:
    return {
        "scope": each.scope,
        "period": each.period,
        "kind": "hard" if each.hard else "soft",
        "usd": usd_text(each.limit),
        "spent_usd": usd_text(each.spent),
        "reserved_usd": usd_text(each.reserved),
        "left_usd": usd_text(max(0, each.limit - each.spent - each.reserved)),
        "resets_in_s": None if each.reset_ns is None else each.reset_ns // SECOND,
    }
