"""Incremental tenant updates give the same result as a full computation."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from headgate.control.directory_sync import _tenants
from headgate.ledger.directory.directory_replica import DirectorySnapshot
from headgate.model.money import NanoUsd, Period
from headgate.model.tenant import Tenant
from headgate.model.units import Instant, TenantId
from headgate.ports.directory import BudgetRow, TenantRow, TenantSettings


class Counted(dict[str, TenantRow]):
    """Rows that count their lookups by name."""

    def __init__(self, rows: Mapping[str, TenantRow]) -> None:
        super().__init__(rows)
        self.looked: Counter[str] = Counter()

    def __getitem__(self, name: str) -> TenantRow:
        self.looked[name] += 1
        return super().__getitem__(name)


def a_row(name: str, plan: str | None = None, *classes: str) -> TenantRow:
    return TenantRow(name, TenantSettings(classes=classes, plan=plan), Instant(0))


def tree(organisations: int) -> dict[str, TenantRow]:
    names = [f"o{number}" for number in range(organisations)]
    names += [f"{name}/p" for name in names] + [f"{name}/p/k{number}" for name in names for number in range(3)]
    return {name: a_row(name) for name in names}


def test_first_computation_reads_each_row_once() -> None:
    rows = Counted(tree(100))
    _tenants(DirectorySnapshot("x", 1, tenants=rows), {})

    assert set(rows.looked.values()) == {1}
    assert rows.looked.keys() == rows.keys()


def test_change_recomputes_only_the_affected_tenant_and_its_descendants() -> None:
    before = tree(100)
    known = _tenants(DirectorySnapshot("x", 1, tenants=before), {})
    for changed, concerned in (("o7/p/k1", {"o7/p/k1"}), ("o7/p", {"o7/p", *(f"o7/p/k{each}" for each in range(3))})):
        rows = Counted({**before, changed: a_row(changed, "critical")})
        after = _tenants(DirectorySnapshot("x", 2, tenants=rows, changed_tenants=(changed,)), known)
        assert dict(rows.looked) == dict.fromkeys(concerned, 1)
        assert {name for name, tenant in after.items() if tenant is not known[name]} == concerned


@pytest.mark.parametrize("seed", range(20))
def test_incremental_result_equals_full_computation(seed: int) -> None:
    chance = random.Random(seed)
    rows, budgets = tree(3 if seed % 2 else 100), {}
    known: Mapping[TenantId, Tenant] = _tenants(DirectorySnapshot("x", 1, tenants=rows), {})
    for version in range(2, 12):
        rows, budgets = dict(rows), dict(budgets)
        names = [*rows, "new", "new/p"]
        changed = chance.sample(names, k=min(len(names), chance.choice((1, 2, 5, 200))))
        for name in changed:
            match chance.randrange(3):
                case 0:
                    rows.pop(name, None)
                case 1:
                    budgets[name] = (BudgetRow(name, Period.DAY, NanoUsd(version), True, Instant(0)),)
                case _:
                    rows[name] = a_row(
                        name, chance.choice((None, "free")), *chance.sample("abc", k=chance.randrange(3))
                    )
        picture = DirectorySnapshot("x", version, tenants=rows, budgets=budgets, changed_tenants=tuple(changed))
        known = _tenants(picture, known)
        assert known == _tenants(DirectorySnapshot("x", version, tenants=rows, budgets=budgets), {})
