"""Immutable sorted mapping whose changed copies share what did not change."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.persistent_map import LEAF_MAX, PersistentMap
from headgate.model.tenant import Tenant, TenantTable, below, levels_of, tenant_table
from headgate.model.units import TenantId

Changes = dict[int, int | None]

KEYS = st.integers(0, 40)
STEPS = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 2)), max_size=12), max_size=12)


class Counted:
    """Value that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other

    __hash__ = None  # type: ignore[assignment]


def plain(items: dict[int, int], changes: Changes) -> dict[int, int]:
    merged = {**items, **changes}
    return {key: value for key, value in merged.items() if value is not None}


@given(STEPS)
def test_updates_lookups_and_differences_equal_those_of_a_dictionary(steps: list[Changes]) -> None:
    versions: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(PersistentMap(), {})]
    for changes in steps:
        table, items = versions[-1]
        versions.append((table.updated(changes), plain(items, changes)))

    newest, expected = versions[-1]
    for table, items in versions:
        assert list(table.items()) == sorted(items.items())
        assert (list(table), list(table.values())) == (sorted(items), [items[key] for key in sorted(items)])
        assert (len(table), [table.get(key) for key in range(42)]) == (
            len(items),
            [items.get(key) for key in range(42)],
        )
        assert [key in table for key in range(42)] == [key in items for key in range(42)]
        changed = [key for key in sorted({*items, *expected}) if items.get(key) != expected.get(key)]
        differences = newest.changes_since(table)
        assert (list(differences), differences) == (changed, {key: expected.get(key) for key in changed})
        assert (table == newest) is (items == expected)
        assert table == PersistentMap(items)
        assert hash(table) == hash(PersistentMap(items))


def test_large_maps_are_divided_and_found_by_range() -> None:
    numbers = PersistentMap({number: str(number) for number in range(0, 6 * LEAF_MAX, 2)})
    grown = numbers.updated({number: str(number) for number in range(1, 2 * LEAF_MAX, 2)})
    emptied = grown.updated(dict.fromkeys(range(LEAF_MAX)))

    assert list(grown) == sorted({*range(0, 6 * LEAF_MAX, 2), *range(1, 2 * LEAF_MAX, 2)})
    assert list(emptied) == [number for number in grown if number >= LEAF_MAX]
    assert max(len(leaf.keys) for leaf in grown.leaves) <= LEAF_MAX
    assert all(leaf.keys for leaf in emptied.leaves)
    for low, high in ((-5, 3), (0, 0), (7, 5 * LEAF_MAX), (LEAF_MAX, 99 * LEAF_MAX)):
        assert list(grown.between(low, high)) == [number for number in grown if low <= number < high]
    assert list(PersistentMap[int, str]().between(0, 9)) == []
    assert numbers != "something else"


def test_missing_key_raises() -> None:
    table = PersistentMap({"a": 1})
    assert table["a"] == 1
    for missing in ("0", "b"):
        with pytest.raises(KeyError, match=missing):
            table[missing]


def test_work_of_a_change_does_not_grow_with_the_number_of_items() -> None:
    """A change copies one leaf, and the difference compares only the items of that leaf."""
    for count in (1_000, 100_000):
        before = PersistentMap({number: Counted() for number in range(count)})
        after = before.updated({count // 2: Counted()})
        Counted.compared = 0

        assert list(after.changes_since(before)) == [count // 2]
        assert Counted.compared == 1
        shared = {id(leaf) for leaf in before.leaves}
        copied = [leaf for leaf in after.leaves if id(leaf) not in shared]
        assert len(copied) == 1
        assert len(copied[0].keys) <= LEAF_MAX
        assert before.updated({}) is before


def test_tenants_are_found_by_path_and_shared_with_an_equal_table() -> None:
    names = ("acme", "acme/search", "acme/search/ci", "acme-2", "acme0", "bolt")
    table = tenant_table([Tenant(TenantId(name)) for name in names])

    assert levels_of(TenantId("acme/search/ci")) == ["acme", "acme/search", "acme/search/ci"]
    assert list(below(TenantId("acme"), table.by_id)) == ["acme/search", "acme/search/ci"]
    assert tenant_table(table) is table
    assert [each.id for each in table] == sorted(names)
    assert len(table) == 6
    assert Tenant(TenantId("bolt")) in table
    assert Tenant(TenantId("bolt"), weight=5) not in table
    assert "bolt" not in table

    other = tenant_table([Tenant(TenantId(name)) for name in names[:-1]])
    shared = other.sharing(table)
    assert shared == other
    assert hash(shared) == hash(other)
    assert shared != table
    assert table.sharing(table).by_id is table.by_id
    assert shared != TenantTable(table.by_id)


def test_tables_can_be_pickled_and_equal_ones_have_the_same_text_in_every_process() -> None:
    """Logs of events are written and compared by their text."""
    table = tenant_table([Tenant(TenantId("bolt")), Tenant(TenantId("acme"))])

    assert pickle.loads(pickle.dumps(table)) == table
    assert pickle.loads(pickle.dumps(table.by_id)) == table.by_id
    assert repr(PersistentMap({2: "two", 1: "one"})) == "PersistentMap({1: 'one', 2: 'two'})"

    assert repr(table) == f"TenantTable(({Tenant(TenantId('acme'))}, {Tenant(TenantId('bolt'))}))"
