"""The share controller against simulated cells: the shares in use never add up to more than the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.cells.messages import ShareMessage
from headgate.control.cells.options import FleetCellState
from headgate.control.cells.share_controller import ShareController
from headgate.control.cells.share_split import MILLION, split_by_demand
from testing.cells_world import PAIR, SECOND, World, a_fleet, violations_under_faults

FLOOR = 250_000


def a_world(cells: int = 2) -> World:
    world = World(a_fleet(cells))
    world.change_fleet(pins=PAIR)
    return world


# Division


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**9), min_size=1), st.integers(0, 500_000))
def test_split_divides_the_whole_in_proportion_and_above_the_floor(demand: dict[str, int], floor: int) -> None:
    shares = split_by_demand(demand, floor)
    assert shares.keys() == demand.keys()
    assert all(share >= floor for share in shares.values())
    if floor * len(demand) <= MILLION:
        assert MILLION - len(demand) <= sum(shares.values()) <= MILLION
    if sum(demand.values()):
        above = [name for name in demand if shares[name] > floor]
        for one in above:
            for other in above:
                assert abs(shares[one] * demand[other] - shares[other] * demand[one]) <= demand[one] + demand[other]


def test_split_without_demand_is_even() -> None:
    assert split_by_demand({"a": 0, "b": 0}, 100_000) == {"a": 500_000, "b": 500_000}
    assert split_by_demand({}, 100_000) == {}


# Behaviour without faults


def test_shares_follow_demand() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    world.start_controller()
    world.run(10)
    assert world.shares("acme") == {"a": 750_000, "b": 250_000}

    world.demand("acme", a=100, b=300)
    world.run(20)
    assert world.believed("b", "acme") > 700_000


def test_token_limits_follow_the_demand_in_tokens() -> None:
    world = a_world()
    world.tokens_per_request = {"a": 1, "b": 9}
    world.demand("acme", a=300, b=100)
    world.start_controller()
    world.run(10)
    assert world.shares("acme") == {"a": 750_000, "b": 250_000}
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [250_000, 750_000]


def test_all_limits_follow_requests_while_a_process_is_too_old_for_token_shares() -> None:
    world = a_world()
    world.tokens_per_request = {"a": 1, "b": 9}
    world.demand("acme", a=300, b=100)
    old = world.processes["http://b1"]
    old.is_old = True
    world.start_controller()
    world.run(10)
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [750_000, 250_000]

    old.is_old = False
    old.restart()
    world.run(20)
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [250_000, 750_000]

    old.is_old = True
    old.restart()
    totals = list[int]()
    world.on_step = lambda: totals.append(world.total("acme"))
    world.run(20)
    assert max(totals) <= MILLION
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [750_000, 250_000]


def test_older_controller_lowers_token_shares_before_it_raises_others() -> None:
    world = a_world()
    world.tokens_per_request = {"a": 1, "b": 9}
    world.demand("acme", a=300, b=100)
    controller = world.start_controller()
    world.run(20)
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [250_000, 750_000]

    world.stop_controller(controller)
    totals = list[int]()
    world.on_step = lambda: totals.append(world.total("acme"))
    controller = world.start_old_controller()
    world.run(40)
    assert max(totals) <= MILLION
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [750_000, 250_000]

    world.stop_controller(controller)
    world.start_controller()
    world.run(40)
    assert max(totals) <= MILLION
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [250_000, 750_000]


def test_raised_token_share_applies_before_the_lease_of_the_lower_one_expires() -> None:
    world = a_world()
    world.tokens_per_request = {"a": 1, "b": 9}
    world.demand("acme", a=300, b=100)
    world.start_controller()
    world.run(20)
    assert world.believed_tokens("a", "acme") == 250_000
    old = world.processes["http://b1"]
    old.is_old = True
    old.restart()
    # The other cell's share falls within two rounds, and a lease lasts 15 s.
    world.run(12)
    assert [world.believed_tokens(cell, "acme") for cell in "ab"] == [750_000, 250_000]


def test_small_changes_of_demand_change_no_share() -> None:
    world = a_world()
    world.demand("acme", a=100, b=100)
    world.start_controller()
    world.run(10)
    world.demand("acme", a=104, b=100)
    world.run(30)
    assert world.shares("acme") == {"a": 500_000, "b": 500_000}


def test_dead_controller_leaves_every_cell_with_the_floor() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    controller = world.start_controller()
    world.run(10)
    world.stop_controller(controller)
    world.run(world.fleet.lease_ns / SECOND + 1)
    assert world.shares("acme") == {"a": FLOOR, "b": FLOOR}


def test_other_cells_take_over_the_share_of_a_lost_cell() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    world.start_controller()
    world.run(10)
    world.lose("a")
    world.demand("acme", b=400)
    world.run((world.fleet.lease_ns + 3 * world.fleet.interval_ns) / SECOND)
    assert world.believed("b", "acme") == MILLION - FLOOR

    world.restore("a")
    assert world.believed("a", "acme") == FLOOR
    world.demand("acme", a=300, b=100)
    world.run(30)
    assert world.believed("a", "acme") > 700_000


def test_restarted_controller_keeps_the_shares_in_force() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    first = world.start_controller()
    world.run(10)
    before = world.shares("acme")
    world.stop_controller(first)
    world.start_controller()
    lowest = [MILLION]
    world.on_step = lambda: lowest.append(world.believed("a", "acme"))
    world.run(20)
    assert min(lowest) >= before["a"] - 50_000


def test_earlier_controller_stops_once_a_later_one_has_taken_over() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    first = world.start_controller()
    world.run(10)
    second = world.start_controller()
    world.run(10)
    assert (first.superseded, second.superseded) == (True, False)
    assert first.next_round(world.now) == []
    assert world.shares("acme") == {"a": 750_000, "b": 250_000}


def test_controller_whose_clock_was_set_back_takes_over_too() -> None:
    world = a_world()
    world.demand("acme", a=1, b=1)
    for url, process in world.processes.items():
        process.leases.handle(ShareMessage(url, 77, 0, "", 0, 0, {}))
    controller = world.start_controller()
    world.run(10)
    assert not controller.superseded
    assert controller.epoch > 77
    assert world.shares("acme") == {"a": 500_000, "b": 500_000}


def test_moved_tenant_gives_up_its_old_cells_when_its_requests_stop_there() -> None:
    world = a_world(4)
    world.demand("acme", a=100, b=100)
    controller = world.start_controller()
    world.run(10)
    world.change_fleet(pins={"acme": ("c", "d")})
    world.run(10)
    assert controller.is_settled("acme", world.now)
    world.demand("acme", c=100, d=100)
    world.run(30 * 2 + 40)
    assert world.shares("acme") == {"a": FLOOR, "b": FLOOR, "c": 500_000, "d": 500_000}


@pytest.mark.parametrize("state", [FleetCellState.DRAINING, FleetCellState.LOST])
def test_cell_that_is_not_active_loses_its_share(state: FleetCellState) -> None:
    world = a_world(3)
    world.demand("acme", a=100, b=100)
    world.start_controller()
    world.run(10)
    cells = tuple(each if each.name != "a" else type(each)(each.name, each.url, each.admin_urls, state=state)
                  for each in world.fleet.cells)  # fmt: skip
    world.change_fleet(cells=cells, pins={"acme": ("b",)})
    world.demand("acme", b=100)
    world.run(120)
    assert world.believed("b", "acme") >= MILLION - FLOOR


def test_cell_with_one_unreachable_process_still_gets_its_demand() -> None:
    world = a_world()
    world.demand("acme", a=300, b=100)
    world.processes["http://b1"].up = False
    world.start_controller()
    world.run(40)
    assert world.believed("a", "acme") == 750_000


def test_gateway_with_a_higher_floor_than_the_file_blocks_raises() -> None:
    world = a_world()
    world.processes["http://a0"].floor_ppm = MILLION
    world.processes["http://a0"].restart()
    world.demand("acme", a=300, b=100)
    world.start_controller()
    world.run(40)
    assert world.believed("b", "acme") == FLOOR


# Faults


@pytest.mark.parametrize("block", range(5))
def test_shares_in_use_never_exceed_the_whole(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        assert violations_under_faults(seed) == []


def test_a_controller_that_does_not_wait_for_acknowledgements_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareController, "_bound", lambda *_: 0)
    assert any(violations_under_faults(seed) for seed in range(10))
