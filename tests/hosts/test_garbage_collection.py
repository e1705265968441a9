"""Objects in reference cycles are freed when memory has grown, and not while collections are paused."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from headgate.hosts.garbage_collection import FullCollections, GarbageCollectionPause, tune_garbage_collector

MIB = 1024 * 1024


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*before)
    gc.unfreeze()


def old_cycle() -> "weakref.ref[Cycle]":
    """Returns a reference to a cycle that small collections no longer visit."""
    cycle = Cycle()
    gc.collect(1)
    return weakref.ref(cycle)


def test_automatic_collections_visit_only_new_objects() -> None:
    tune_garbage_collector()
    full_before = gc.get_stats()[2]["collections"]
    kept: list[list[int]] = [[] for _ in range(200_000)]

    assert gc.get_stats()[2]["collections"] == full_before
    assert len(kept) == 200_000


def test_all_objects_are_collected_once_memory_has_grown() -> None:
    tune_garbage_collector()
    used = [400 * MIB]
    collections = FullCollections(lambda: used[0])
    leaked = old_cycle()

    used[0] = 590 * MIB
    assert not collections.collect_if_grown()
    assert leaked() is not None

    used[0] = 610 * MIB
    assert collections.collect_if_grown()
    assert leaked() is None
    assert not collections.collect_if_grown(), "the growth counts from the last collection"


def test_small_processes_may_grow_by_128_mib() -> None:
    used = [50 * MIB]
    collections = FullCollections(lambda: used[0])

    used[0] = 170 * MIB
    assert not collections.collect_if_grown()
    used[0] = 180 * MIB
    assert collections.collect_if_grown()


def test_nothing_is_collected_while_a_scheduler_starts() -> None:
    used = [100 * MIB]
    collections, pause = FullCollections(lambda: used[0]), GarbageCollectionPause()
    used[0] = 900 * MIB

    pause.pause()
    assert not collections.collect_if_grown()
    pause.resume()
    assert collections.collect_if_grown()


def test_nothing_is_collected_if_the_system_does_not_report_its_memory() -> None:
    assert not FullCollections(lambda: None).collect_if_grown()
