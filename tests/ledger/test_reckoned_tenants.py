"""Incremental tenant updates give the same result as a full computation."""

import random
from dataclasses import replace

import pytest

from headgate.control.directory_sync import tenants_to_rebuild, with_rebuilt
from headgate.ledger.directory.directory_replica import DirectorySnapshot
from headgate.model.money import NanoUsd, Period
from headgate.model.persistent_map import PersistentMap
from headgate.model.tenant import Tenant
from headgate.model.units import Instant, TenantId
from headgate.ports.directory import BudgetRow, TenantRow, TenantSettings

Tenants = PersistentMap[TenantId, Tenant]
NOTHING: Tenants = PersistentMap()


def a_row(name: str, plan: str | None = None, *classes: str) -> TenantRow:
    return TenantRow(name, TenantSettings(classes=classes, plan=plan), Instant(0))


def tree(organisations: int) -> dict[str, TenantRow]:
    names = [f"o{number}" for number in range(organisations)]
    names += [f"{name}/p" for name in names] + [f"{name}/p/k{number}" for name in names for number in range(3)]
    return {name: a_row(name) for name in names}


def tenants_of(picture: DirectorySnapshot, known: Tenants) -> Tenants:
    kept, names = tenants_to_rebuild(picture, known)
    return with_rebuilt(tuple(names), picture, kept)


def test_first_computation_builds_each_tenant_once() -> None:
    rows = PersistentMap(tree(100))
    _, names = tenants_to_rebuild(DirectorySnapshot("x", 1, tenants=rows), NOTHING)

    assert list(names) == list(rows)


def test_change_rebuilds_only_the_affected_tenant_and_its_descendants() -> None:
    before = PersistentMap(tree(100))
    known = tenants_of(DirectorySnapshot("x", 1, tenants=before), NOTHING)
    for changed, concerned in (("o7/p/k1", {"o7/p/k1"}), ("o7/p", {"o7/p", *(f"o7/p/k{each}" for each in range(3))})):
        rows = before.updated({changed: a_row(changed, "critical")})
        picture = DirectorySnapshot("x", 2, tenants=rows, changed_tenants=(changed,))
        assert set(tenants_to_rebuild(picture, known)[1]) == concerned
        after = tenants_of(picture, known)
        assert {name for name, tenant in after.items() if tenant is not known[name]} == concerned


@pytest.mark.parametrize("seed", range(20))
def test_incremental_result_equals_full_computation(seed: int) -> None:
    chance = random.Random(seed)
    rows, budgets = tree(3 if seed % 2 else 100), {}
    known = tenants_of(DirectorySnapshot("x", 1, tenants=PersistentMap(rows)), NOTHING)
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
        picture = DirectorySnapshot("x", version, tenants=PersistentMap(rows), budgets=PersistentMap(budgets))
        known = tenants_of(replace(picture, changed_tenants=tuple(changed)), known)
        assert known == tenants_of(picture, NOTHING)
