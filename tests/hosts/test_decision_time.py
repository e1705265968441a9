"""Tests for measuring decision time."""

import asyncio
import time

from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.hosts.decision_time import SAMPLE_EVERY, DecisionTime
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost


def test_sampled_decision_times_are_scaled_to_all_decisions() -> None:
    clock = iter(range(1, 10_000_000, 5))
    measured = DecisionTime(lambda: next(clock))

    for _ in range(10 * SAMPLE_EVERY):
        measured.end(measured.begin())

    assert measured.total_ns == 10 * SAMPLE_EVERY * 5


async def test_host_measures_its_scheduler_time() -> None:
    class Slow(Scheduler):
        def handle(self, *told: object) -> list[object]:
            time.sleep(0.001)
            return []

    host = LocalHost(Slow(), SystemClock(), (), lambda mistake: None)
    for _ in range(2 * SAMPLE_EVERY):
        host.report(TimerFired())
    await asyncio.sleep(0)
    host.stop()

    assert host.decision_time.total_ns >= 2 * SAMPLE_EVERY * 1_000_000
