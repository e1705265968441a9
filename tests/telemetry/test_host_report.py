"""Does a process tell how it is?"""

import asyncio
import time

import pytest

from headgate.model.units import SECOND, Duration, PoolName
from headgate.model.verdict import HostReport, Shortage
from headgate.telemetry.host_report import HostReporter, HostSources, StoreSeen, processor_wait_s, report_for_ever


def test_a_report_is_about_the_time_since_the_last_one() -> None:
    cpu_s, decide_s, now_s = iter((1.0, 1.5, 1.6)), iter((0.1, 0.2, 0.2)), iter((10.0, 11.0, 12.0))
    wait_s = iter((0.0, 0.3, 0.3))
    sources = HostSources(
        process=lambda: "g",
        cpu_s=lambda: next(cpu_s),
        wait_s=lambda: next(wait_s),
        decide_s=lambda: next(decide_s),
    )
    reporter = HostReporter(sources, now_s=lambda: next(now_s))

    assert reporter.report(Duration(7)) == HostReport("g", Duration(7), 50, 10, wait_percent=30)
    assert reporter.report(Duration(0)) == HostReport("g", Duration(0), 10, 0)


def test_time_that_a_thread_waits_for_a_processor_only_grows() -> None:
    before = processor_wait_s()
    time.sleep(0)

    assert 0.0 <= before <= processor_wait_s()


def test_what_others_know_is_in_it() -> None:
    way = (PoolName("p"), Duration(5))
    sources = HostSources(
        process=lambda: "g",
        cpu_s=lambda: 0.0,
        decide_s=lambda: 0.0,
        transport=lambda: [way],
        store=lambda: StoreSeen(Duration(3), up=False),
        database_up=lambda: True,
    )
    told = HostReporter(sources).report(Duration(0))

    assert (told.transport_ns, told.store_ns, told.store_up, told.database_up) == ((way,), 3, False, True)


def test_a_shortage_seen_between_two_reports_is_in_the_next_one_only() -> None:
    short = Shortage("no file descriptors are left", "Raise the limit.")
    seen = iter([(short,), (short,), (), ()])
    sources = HostSources(process=lambda: "g", decide_s=lambda: 0.0, shortages=lambda: next(seen))
    reporter = HostReporter(sources)

    reporter.look()
    reporter.look()

    assert reporter.report(Duration(0)).shortages == (short,)
    assert reporter.report(Duration(0)).shortages == ()


@pytest.mark.timing
async def test_a_loop_that_was_held_up_says_so_in_its_next_report() -> None:
    told: asyncio.Queue[HostReport] = asyncio.Queue()
    sources = HostSources(process=lambda: "g", decide_s=lambda: 0.0)
    task = asyncio.create_task(report_for_ever(HostReporter(sources), told.put_nowait))
    await asyncio.sleep(0.15)
    # Nothing else is what a held-up loop looks like.
    time.sleep(0.4)  # noqa: ASYNC251
    report = await told.get()
    task.cancel()

    assert report.loop_lag_ns > 0.25 * SECOND
