"""Periodic reports on the load and resources of a process."""

import asyncio
import time

import pytest

from headgate.model.units import SECOND, Duration, PoolName
from headgate.model.verdict import HostReport, Shortage
from headgate.telemetry.host_report import HostReporter, HostSources, StoreHealth, processor_wait_s, run_reporter


def test_report_covers_the_time_since_the_last_report() -> None:
    cpu_s, decide_s, now_s = iter((1.0, 1.5, 1.6)), iter((0.1, 0.2, 0.2)), iter((10.0, 11.0, 12.0))
    wait_s = iter((0.0, 0.3, 0.3))
    sources = HostSources(
        process=lambda: "g",
        cpu_s=lambda: next(cpu_s),
        cpu_wait_s=lambda: next(wait_s),
        scheduler_busy_s=lambda: next(decide_s),
    )
    reporter = HostReporter(sources, now_s=lambda: next(now_s))

    assert reporter.report(Duration(7)) == HostReport("g", Duration(7), 50, 10, cpu_wait_percent=30)
    assert reporter.report(Duration(0)) == HostReport("g", Duration(0), 10, 0)


def test_cpu_wait_time_never_decreases() -> None:
    before = processor_wait_s()
    time.sleep(0)

    assert 0.0 <= before <= processor_wait_s()


def test_report_includes_transport_store_and_database_state() -> None:
    way = (PoolName("p"), Duration(5))
    sources = HostSources(
        process=lambda: "g",
        cpu_s=lambda: 0.0,
        scheduler_busy_s=lambda: 0.0,
        transport=lambda: [way],
        store=lambda: StoreHealth(Duration(3), up=False),
        database_up=lambda: True,
    )
    told = HostReporter(sources).report(Duration(0))

    assert (told.connect_ns, told.store_ns, told.store_up, told.database_up) == ((way,), 3, False, True)


def test_shortage_appears_only_in_the_next_report() -> None:
    short = Shortage("no file descriptors are left", "Raise the limit.")
    seen = iter([(short,), (short,), (), ()])
    sources = HostSources(process=lambda: "g", scheduler_busy_s=lambda: 0.0, shortages=lambda: next(seen))
    reporter = HostReporter(sources)

    reporter.sample_shortages()
    reporter.sample_shortages()

    assert reporter.report(Duration(0)).shortages == (short,)
    assert reporter.report(Duration(0)).shortages == ()


@pytest.mark.timing
async def test_report_includes_the_lag_of_a_blocked_event_loop() -> None:
    told: asyncio.Queue[HostReport] = asyncio.Queue()
    sources = HostSources(process=lambda: "g", scheduler_busy_s=lambda: 0.0)
    task = asyncio.create_task(run_reporter(HostReporter(sources), told.put_nowait))
    await asyncio.sleep(0.15)
    # Only a synchronous sleep blocks the loop.
    time.sleep(0.4)  # noqa: ASYNC251
    report = await told.get()
    task.cancel()

    assert report.loop_lag_ns > 0.25 * SECOND
