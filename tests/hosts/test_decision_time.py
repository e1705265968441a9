"""Tests for measuring decision time."""

from headgate.core.events import EndpointJoined
from headgate.core.scheduler import Scheduler
from headgate.hosts.decision_time import SAMPLE_EVERY, DecisionTime
from headgate.hosts.local.clock import SystemClock
from headgate.hosts.local.host import LocalHost
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, PoolName


def test_sampled_decision_times_are_scaled_to_all_decisions() -> None:
    clock = iter(range(1, 10_000_000, 5))
    measured = DecisionTime(lambda: next(clock))

    for _ in range(10 * SAMPLE_EVERY):
        measured.end(measured.begin())

    assert measured.total_ns == 10 * SAMPLE_EVERY * 5


async def test_host_measures_its_scheduler_time() -> None:
    scheduler = Scheduler()
    host = LocalHost(scheduler, SystemClock(), (), lambda mistake: None)
    # This clock advances only while the scheduler handles an event, by 1 ns.
    host.decision_time = DecisionTime(lambda: 1 + len(scheduler.summary().endpoints))
    for number in range(2 * SAMPLE_EVERY):
        host.report(EndpointJoined(Endpoint(EndpointId(f"e{number}"), PoolName("small"), 1)))
    host.stop()

    assert host.decision_time.total_ns == 2 * SAMPLE_EVERY
