"""Tests that the scheduler benchmark measures complete request lifecycles, and that the scheduler is fast enough."""

import gc
from heapq import heappop, heappush
from random import Random
from time import process_time

import pytest

from bench.python_yardstick import Yardstick
from bench.scheduler_speed import ENDPOINTS_RATIO_MAX, LoadedScheduler, Size, speed_of
from headgate.hosts.garbage_collection import tune_garbage_collector
from headgate.model.units import ClassName

LIVES, RUNS = 300, 4
PLAIN_RATIO_MAX = 4.0
"""Limit for the CPU time relative to `plain_s`. The two are about equal, so a ratio of several is a regression."""


def test_request_lifecycles_are_complete_and_queue_length_is_constant() -> None:
    bench = LoadedScheduler(Size(tenants=20, endpoints=4, queued=300), requests=400)
    before = bench.scheduler.summary()
    bench.run_requests(400)
    after = bench.scheduler.summary()

    assert before.queued == after.queued == {ClassName("interactive"): 300}
    assert [each.in_flight for each in after.endpoints] == [16] * 4
    assert after.requests == 300 + 4 * 16


def test_speed_is_relative_to_yardstick() -> None:
    speed = speed_of(Size(tenants=20, endpoints=4, queued=300), requests=20, runs=3)
    round_s = Yardstick().run_rounds(100) / 100

    assert speed.requests_per_s > 0
    # Other load can change either speed between the two measurements, but hardly tenfold.
    assert 0.1 < speed.over_yardstick / (speed.requests_per_s * round_s) < 10


def plain_s() -> float:
    """Return the CPU time of plain work on heaps and dictionaries, which scales with CPU speed like the scheduler's."""
    chance, heap, found = Random(1), list[tuple[int, int]](), dict[int, tuple[int, int]]()
    began = process_time()
    for number in range(LIVES * 250):
        heappush(heap, (chance.randrange(1 << 30), number))
        found[number] = heap[0]
        if number % 2:
            found.pop(heappop(heap)[1], None)
    return process_time() - began


@pytest.mark.timing
def test_scheduler_is_fast_and_hardly_slower_with_many_endpoints() -> None:
    """Measured alternately with plain work. `just bench-core` checks the ratio to its yardstick."""
    few, many = (LoadedScheduler(Size(endpoints=each, queued=2_000), (1 + RUNS) * LIVES) for each in (8, 512))
    tune_garbage_collector()
    for bench in (few, many):
        bench.run_requests(LIVES)
    took = [(few.run_requests(LIVES), many.run_requests(LIVES), plain_s()) for _ in range(RUNS)]
    gc.unfreeze()
    few_s, many_s, plainly_s = (min(each) for each in zip(*took, strict=True))
    print(f"{1e6 * few_s / LIVES:.0f} µs of CPU per request, with 512 endpoints {1e6 * many_s / LIVES:.0f} µs")
    print(f"{few_s / plainly_s:.2f} times as long as plain work")

    assert many_s / few_s < ENDPOINTS_RATIO_MAX
    assert few_s < PLAIN_RATIO_MAX * plainly_s
