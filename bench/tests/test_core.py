"""Does the benchmark of the scheduler measure whole lives, and is the scheduler quick enough to be used?"""

import gc
from heapq import heappop, heappush
from random import Random
from time import process_time

import pytest

from bench.core import ENDPOINTS_RATIO_MAX, Bench, Size
from headgate.cli.serve import calm_the_collector
from headgate.model.units import ClassName

LIVES, RUNS = 300, 4
PLAIN_RATIO_MAX = 4.0
"""One life takes about as long as `plain_s`; several times as long would be a regression."""


def test_every_life_is_whole_and_the_queue_stays_as_long() -> None:
    bench = Bench(Size(tenants=20, endpoints=4, queued=300), lives=400)
    before = bench.scheduler.summary()
    bench.live(400)
    after = bench.scheduler.summary()

    assert before.queued == after.queued == {ClassName("interactive"): 300}
    assert [each.in_flight for each in after.endpoints] == [16] * 4
    assert after.requests == 300 + 4 * 16


def plain_s() -> float:
    """CPU time of plain work on heaps and dictionaries, which grows as the scheduler's does on a slower processor."""
    chance, heap, found = Random(1), list[tuple[int, int]](), dict[int, tuple[int, int]]()
    began = process_time()
    for number in range(LIVES * 250):
        heappush(heap, (chance.randrange(1 << 30), number))
        found[number] = heap[0]
        if number % 2:
            found.pop(heappop(heap)[1], None)
    return process_time() - began


@pytest.mark.timing
def test_scheduler_decides_quickly_and_hardly_slower_with_many_endpoints() -> None:
    """Compared with plain work in turns; `just bench-core` checks lives per second on a quiet machine."""
    few, many = (Bench(Size(endpoints=each, queued=2_000), (1 + RUNS) * LIVES) for each in (8, 512))
    calm_the_collector()
    for bench in (few, many):
        bench.live(LIVES)
    took = [(few.live(LIVES), many.live(LIVES), plain_s()) for _ in range(RUNS)]
    gc.unfreeze()
    few_s, many_s, plainly_s = (min(each) for each in zip(*took, strict=True))
    print(f"{1e6 * few_s / LIVES:.0f} µs of CPU a life, with 512 endpoints {1e6 * many_s / LIVES:.0f} µs")
    print(f"{few_s / plainly_s:.2f} times as long as plain work")

    assert many_s / few_s < ENDPOINTS_RATIO_MAX
    assert few_s < PLAIN_RATIO_MAX * plainly_s
