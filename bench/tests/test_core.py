"""Does the benchmark of the scheduler measure whole lives, and is the scheduler quick enough to be used?"""

import pytest

from bench.core import ENDPOINTS_RATIO_MAX, LIVES_MIN, Bench, Size, lives_per_s
from headgate.model.units import ClassName


def test_every_life_is_whole_and_the_queue_stays_as_long() -> None:
    bench = Bench(Size(tenants=20, endpoints=4, queued=300), lives=400)
    before = bench.scheduler.summary()
    bench.live(400)
    after = bench.scheduler.summary()

    assert before.queued == after.queued == {ClassName("interactive"): 300}
    assert [each.in_flight for each in after.endpoints] == [16] * 4
    assert after.requests == 300 + 4 * 16


@pytest.mark.timing
def test_scheduler_decides_quickly_and_hardly_slower_with_many_endpoints() -> None:
    """A quarter of the bar itself, which `just bench-core` holds on a quiet machine."""
    few, many = (lives_per_s(Size(endpoints=endpoints, queued=2_000), 300, runs=4) for endpoints in (8, 512))

    assert few > LIVES_MIN / 4
    assert few / many < ENDPOINTS_RATIO_MAX
