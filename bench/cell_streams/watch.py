"""Measures the CPU time for watching many engines: probing them, scraping their metrics and scheduling by them.

The engines are simulated by another process (engine_pages.py). This process runs the watch of a scheduler's process and
passes its events to a scheduler, but has no other work.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop

from bench.cell_streams.engine_pages import MODEL, metrics_page
from bench.cell_streams.member_streams import PLACES, TENANTS
from bench.cpu_cores import Cores, started_on
from bench.scheduler_workload import workload_endpoints, workload_policy
from bench.targets import ROOT
from headgate.core.events import EndpointJoined, EndpointMetricsReported, Event, PolicyChanged
from headgate.core.scheduler import Scheduler
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.metrics_page import read_metrics
from headgate.engines.page import open_session
from headgate.engines.vllm import VLLM
from headgate.hosts.local.clock import SystemClock

READY_S_MAX = 60.0
PARSES = 50


class UnwatchedEngines(Exception):
    """Some engines were not ready or not scraped in time."""


@dataclass(frozen=True, slots=True)
class WatchCost:
    watched: int
    watch_cores: float
    watch_us_per_scrape: float
    """CPU time per scrape, including the endpoint's probes and the scheduler's work."""
    scrapes_per_s: float
    parse_us: float
    """Part of it that is spent on reading the metrics page."""
    page_bytes: int
    oldest_s: float
    """Age of the oldest load values at the end."""


class _Recipient:
    """Passes the watch's events to a scheduler."""

    def __init__(self, engines: int) -> None:
        self._clock, self._scheduler = SystemClock(), Scheduler()
        policy = PolicyChanged(workload_policy(TENANTS, kv_tokens=500_000), "bench")
        for event in (policy, *(EndpointJoined(each) for each in workload_endpoints(engines, PLACES))):
            self._scheduler.handle(event, self._clock.now())
        self.scrapes = 0

    def report(self, event: Event) -> None:
        self.scrapes += isinstance(event, EndpointMetricsReported)
        self._scheduler.handle(event, self._clock.now())


@contextmanager
def _engine_process(core: int) -> Generator[int]:
    """Start the engines. Yield their port."""
    with started_on(core):
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.cell_streams.engine_pages"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _watch(port: int, engines: int, seconds: float) -> WatchCost:
    recipient = _Recipient(engines)
    async with open_session() as session:
        watch = EngineWatch(session, recipient.report)
        for number, endpoint in enumerate(workload_endpoints(engines, PLACES)):
            # Every engine has its own address, so that no connections are shared.
            url = f"http://127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}:{port}"
            watch.watch(endpoint.id, url, dialect=VLLM, served_model=MODEL, api_key=None)
        give_up_s = time.monotonic() + READY_S_MAX
        while len(watch.telemetry()) < engines:
            if time.monotonic() > give_up_s:
                raise UnwatchedEngines(f"{len(watch.telemetry())} of {engines} engines reported their load")
            await asyncio.sleep(0.1)
        # The first scrapes also read versions and limits.
        await asyncio.sleep(seconds)
        before, cpu_s, start_s = recipient.scrapes, time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cpu_s, took_s = time.process_time() - cpu_s, time.monotonic() - start_s
        scrapes = recipient.scrapes - before
        oldest_s = max(watch.telemetry_ages_s().values())
        await watch.stop()
    page = metrics_page()
    return WatchCost(
        watched=engines,
        watch_cores=round(cpu_s / took_s, 3),
        watch_us_per_scrape=round(cpu_s * 1e6 / max(1, scrapes), 1),
        scrapes_per_s=round(scrapes / took_s, 1),
        parse_us=round(_parse_us(page), 1),
        page_bytes=len(page),
        oldest_s=round(oldest_s, 1),
    )


def _parse_us(page: bytes) -> float:
    names = [*(name for aliases in VLLM.metrics.values() for name in aliases), *VLLM.extra_metrics.values()]
    start = time.process_time()
    for _ in range(PARSES):
        read_metrics(page, names)
    return (time.process_time() - start) * 1e6 / PARSES


def measure(cores: Cores, *, engines: int, seconds: float) -> WatchCost:
    with _engine_process(cores.instruments) as port, started_on(cores.target):
        return uvloop.run(_watch(port, engines, seconds))
