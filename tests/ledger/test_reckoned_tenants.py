"""Is what the rows of the database come to the same, whether all are reckoned or only those that changed?"""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from headgate.control.directory_sync import _tenants
from headgate.ledger.directory.copy import Picture
from headgate.model.money import NanoUsd, Period
from headgate.model.tenant import Tenant
from headgate.model.units import Instant, TenantId
from headgate.ports.directory import BudgetRow, TenantRow, TenantTerms


class Counted(dict[str, TenantRow]):
    """How often each was looked at by its name."""

    def __init__(self, rows: Mapping[str, TenantRow]) -> None:
        super().__init__(rows)
        self.looked: Counter[str] = Counter()

    def __getitem__(self, name: str) -> TenantRow:
        self.looked[name] += 1
        return super().__getitem__(name)


def a_row(name: str, plan: str | None = None, *classes: str) -> TenantRow:
    return TenantRow(name, TenantTerms(classes=classes, plan=plan), Instant(0))


def tree(organisations: int) -> dict[str, TenantRow]:
    names = [f"o{number}" for number in range(organisations)]
    names += [f"{name}/p" for name in names] + [f"{name}/p/k{number}" for name in names for number in range(3)]
    return {name: a_row(name) for name in names}


def test_at_first_each_is_reckoned_once() -> None:
    rows = Counted(tree(100))
    _tenants(Picture("x", 1, tenants=rows), {})

    assert set(rows.looked.values()) == {1}
    assert rows.looked.keys() == rows.keys()


def test_a_change_concerns_nobody_but_who_is_below_it() -> None:
    before = tree(100)
    known = _tenants(Picture("x", 1, tenants=before), {})
    for changed, concerned in (("o7/p/k1", {"o7/p/k1"}), ("o7/p", {"o7/p", *(f"o7/p/k{each}" for each in range(3))})):
        rows = Counted({**before, changed: a_row(changed, "critical")})
        after = _tenants(Picture("x", 2, tenants=rows, changed=(changed,)), known)
        assert dict(rows.looked) == dict.fromkeys(concerned, 1)
        assert {name for name, tenant in after.items() if tenant is not known[name]} == concerned


@pytest.mark.parametrize("seed", range(20))
def test_after_any_changes_it_is_as_if_all_had_been_reckoned(seed: int) -> None:
    chance = random.Random(seed)
    rows, budgets = tree(3 if seed % 2 else 100), {}
    known: Mapping[TenantId, Tenant] = _tenants(Picture("x", 1, tenants=rows), {})
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
        picture = Picture("x", version, tenants=rows, budgets=budgets, changed=tuple(changed))
        known = _tenants(picture, known)
        assert known == _tenants(Picture("x", version, tenants=rows, budgets=budgets), {})
