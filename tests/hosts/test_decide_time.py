"""Is what deciding takes measured about right, and where it is done?"""

import asyncio
import time

from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.hosts.decide_time import SAMPLED, DecideTime
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost


def test_one_decision_in_so_many_is_measured_and_counts_for_all() -> None:
    clock = iter(range(1, 10_000_000, 5))
    measured = DecideTime(lambda: next(clock))

    for _ in range(10 * SAMPLED):
        measured.end(measured.begin())

    assert measured.total_ns == 10 * SAMPLED * 5


async def test_a_host_measures_what_its_scheduler_takes() -> None:
    class Slow(Scheduler):
        def handle(self, *told: object) -> list[object]:
            time.sleep(0.001)
            return []

    host = LocalHost(Slow(), SystemClock(), (), lambda mistake: None)
    for _ in range(2 * SAMPLED):
        host.tell(TimerFired())
    await asyncio.sleep(0)
    host.stop()

    assert host.decide_time.total_ns >= 2 * SAMPLED * 1_000_000
