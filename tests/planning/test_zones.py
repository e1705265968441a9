"""Tests for the loss of a zone."""

import pytest

from headgate.model.units import PoolName
from headgate.planning.zones import enough_without_a_zone, zone_losses

MAIN, SMALL = PoolName("main"), PoolName("small")


def test_zones_with_equal_losses_are_combined() -> None:
    larger, smaller = zone_losses(((MAIN, 5),), {MAIN: ("a", "b", "c")})

    assert (larger.zones, larger.lost, larger.left) == (("a", "b"), ((MAIN, 2),), ((MAIN, 3),))
    assert larger.endpoints == ("main/0", "main/3")
    assert (smaller.zones, smaller.left, smaller.endpoints) == (("c",), ((MAIN, 4),), ("main/2",))


def test_zone_takes_endpoints_of_all_its_pools() -> None:
    first, second = zone_losses(((MAIN, 4), (SMALL, 1)), {MAIN: ("a", "b"), SMALL: ("b",)})

    assert (first.lost, second.lost) == (((MAIN, 2), (SMALL, 0)), ((MAIN, 2), (SMALL, 1)))
    assert second.endpoints == ("main/1", "main/3", "small/0")


def test_zone_without_endpoints_loses_nothing() -> None:
    [loss] = zone_losses(((MAIN, 1),), {MAIN: ("a", "b")})

    assert loss.zones == ("a",)
    assert zone_losses(((MAIN, 1),), {}) == []


@pytest.mark.parametrize(("needed", "zones", "enough"), [(3, "abc", 5), (4, "abc", 6), (3, "ab", 6), (1, "ab", 2)])
def test_enough_endpoints_remain_after_the_loss_of_any_zone(needed: int, zones: str, enough: int) -> None:
    endpoints = enough_without_a_zone(((MAIN, needed),), {MAIN: tuple(zones)})

    assert endpoints == ((MAIN, enough),)
    assert min(dict(each.left)[MAIN] for each in zone_losses(endpoints, {MAIN: tuple(zones)})) >= needed
    fewer = zone_losses(((MAIN, enough - 1),), {MAIN: tuple(zones)})
    assert min(dict(each.left)[MAIN] for each in fewer) < needed


def test_pools_without_zones_stay_as_they_are() -> None:
    assert enough_without_a_zone(((MAIN, 3), (SMALL, 2)), {SMALL: ("a",)}) == ((MAIN, 3), (SMALL, 2))
