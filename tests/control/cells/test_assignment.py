"""Shuffle sharding: even, stable, and pinned where the file says so."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.control.cells.assignment import cells_of
from headgate.control.cells.options import CellFleet, FleetCell, FleetCellState

TENANTS = [f"tenant-{number}" for number in range(1_000)]


def a_fleet(*names: str, cells_per_tenant: int = 2, **pins: tuple[str, ...]) -> CellFleet:
    cells = tuple(FleetCell(name, f"http://{name}:8080") for name in names)
    return CellFleet(cells, cells_per_tenant=cells_per_tenant, pins=pins)


def with_cell(fleet: CellFleet, cell: FleetCell) -> CellFleet:
    return replace(fleet, cells=(*(each for each in fleet.cells if each.name != cell.name), cell))


def test_tenant_has_the_configured_number_of_different_cells() -> None:
    fleet = a_fleet(*"abcdef", cells_per_tenant=3)
    assert all(len(set(cells_of(tenant, fleet))) == 3 for tenant in TENANTS)
    assert len(cells_of("acme", a_fleet("a", cells_per_tenant=3))) == 1


def test_projects_have_the_cells_of_their_organisation() -> None:
    fleet = a_fleet(*"abcdef")
    assert cells_of("acme/search/web", fleet) == cells_of("acme", fleet)


def test_tenants_are_spread_evenly_and_by_weight() -> None:
    fleet = a_fleet(*"abcd")
    first = Counter(cells_of(tenant, fleet)[0] for tenant in TENANTS)
    assert min(first.values()) > 200

    heavy = with_cell(fleet, FleetCell("d", "http://d", weight=300))
    first = Counter(cells_of(tenant, heavy)[0] for tenant in TENANTS)
    assert 430 < first["d"] < 570


def test_few_tenants_share_all_of_their_cells() -> None:
    fleet = a_fleet(*"abcdefghijkl")
    pairs = Counter(frozenset(cells_of(tenant, fleet)) for tenant in TENANTS)
    assert len(pairs) == 66
    assert max(pairs.values()) < 40


@given(st.sets(st.sampled_from("abcdefgh"), min_size=3), st.integers(1, 3))
def test_removed_cell_moves_only_its_own_tenants(names: set[str], cells_per_tenant: int) -> None:
    fleet = a_fleet(*sorted(names), cells_per_tenant=cells_per_tenant)
    gone = min(names)
    rest = replace(fleet, cells=tuple(each for each in fleet.cells if each.name != gone))
    for tenant in TENANTS[:100]:
        before, after = cells_of(tenant, fleet), cells_of(tenant, rest)
        kept = tuple(name for name in before if name != gone)
        assert after[: len(kept)] == kept
        if gone not in before:
            assert after == before


@given(st.sets(st.sampled_from("abcdefgh"), min_size=2), st.integers(1, 300))
def test_added_cell_takes_tenants_only_for_itself(names: set[str], weight: int) -> None:
    fleet = a_fleet(*sorted(names))
    more = with_cell(fleet, FleetCell("new", "http://new", weight=weight))
    for tenant in TENANTS[:100]:
        before, after = cells_of(tenant, fleet), cells_of(tenant, more)
        assert set(after) - set(before) <= {"new"}
        assert [name for name in after if name != "new"] == list(before[: len(after) - ("new" in after)])


def test_draining_and_lost_cells_have_no_tenants() -> None:
    fleet = a_fleet(*"abc")
    for state in (FleetCellState.DRAINING, FleetCellState.LOST):
        without = with_cell(fleet, replace(fleet.cells[0], state=state))
        assert not any("a" in cells_of(tenant, without) for tenant in TENANTS)


def test_pin_overrides_the_assignment_except_for_inactive_cells() -> None:
    fleet = a_fleet(*"abc", acme=("c", "a"))
    assert cells_of("acme", fleet) == cells_of("acme/search", fleet) == ("c", "a")

    draining = with_cell(fleet, replace(fleet.cells[2], state=FleetCellState.DRAINING))
    assert cells_of("acme", draining) == ("a",)
