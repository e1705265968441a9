"""A gateway that cannot scrape engine load keeps dispatching and reports the problem.

Routers that use scraped load send everything to an endpoint with stale metrics, or stop if all metrics are stale.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from headgate.engines.engine_watch import EngineWatch
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_in_loop
from testing.stalls import rerun_if_stalled
from tests.lessons.scraped import STALE_AFTER_S, ScrapedEngine, quick_gateway, series_of

ENGINES = 3
Break = Callable[[ScrapedEngine], None]


def fail(engine: ScrapedEngine) -> None:
    engine.metrics_status, engine.metrics = 500, b"no"


def hang(engine: ScrapedEngine) -> None:
    engine.pages.hang = True


def talk_garbage(engine: ScrapedEngine) -> None:
    engine.metrics = b"\xff\x00{}{" * 5_000 + b"\nvllm:num_requests_running{\nvllm:num_requests_waiting NaN\n"


def talk_of_numbers_beyond_all_measure(engine: ScrapedEngine) -> None:
    line = b'vllm:num_requests_running{engine="%d"} 1.7e308\n'
    engine.metrics = b"".join(line % number for number in range(3)) + b"vllm:kv_cache_usage_perc -1e999\n"


def dawdle(engine: ScrapedEngine) -> None:
    engine.pages.slow_s = 0.15  # Longer than the scrape timeout.


OUTAGES = (fail, hang, talk_garbage, talk_of_numbers_beyond_all_measure, dawdle)


@asynccontextmanager
async def a_fleet(folder: Path) -> AsyncIterator[tuple[list[ScrapedEngine], RunningGateway]]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScrapedEngine()) for _ in range(ENGINES)]
        config = a_config(*(engine.url for engine in engines))
        gateway = await stack.enter_async_context(quick_gateway(config, folder))
        await gateway.wait_for_status(
            lambda status: all(each["telemetry_age_s"] is not None for each in status["engines"])
        )
        yield engines, gateway


async def seconds_for(gateway: RunningGateway, count: int = 60) -> float:
    """Return how many seconds `count` sequential requests take. Every request must succeed."""
    started = time.monotonic()
    for _ in range(count):
        async with gateway.post(chat(max_tokens=1)) as answer:
            assert answer.status == 200, await answer.text()
    return time.monotonic() - started


def served(engines: Sequence[ScrapedEngine]) -> list[int]:
    return [len(engine.requests) for engine in engines]


def is_stale(status: Config, number: int) -> bool:
    engine = status["engines"][number]
    return "has reported no load for" in str(engine["problems"]) and engine["telemetry_age_s"] > STALE_AFTER_S


def stale(status: Config) -> list[bool]:
    return [is_stale(status, number) for number in range(ENGINES)]


@asynccontextmanager
async def an_outage(
    folder: Path, outage: Break, broken: int
) -> AsyncIterator[tuple[list[ScrapedEngine], RunningGateway, Config]]:
    """Start a fleet, break the metrics pages of `broken` engines, and yield the status that reports it."""
    async with a_fleet(folder) as (engines, gateway):
        for engine in engines[:broken]:
            outage(engine)
        others = f"other endpoints that report theirs: {ENGINES - broken}"
        status = await gateway.wait_for_status(
            lambda status: all(stale(status)[:broken]) and others in str(status["engines"][0]["problems"])
        )
        yield engines, gateway, status


@pytest.mark.parametrize("broken", [1, ENGINES], ids=["one", "all"])
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
async def test_load_stays_balanced_during_a_scrape_outage(tmp_path: Path, outage: Break, broken: int) -> None:
    async with an_outage(tmp_path, outage, broken) as (engines, gateway, status):
        await seconds_for(gateway, 10 * ENGINES)
        # On a busy machine, a late scrape makes an endpoint stale for a short time.
        after = await gateway.wait_for_status(
            lambda status: stale(status) == [True] * broken + [False] * (ENGINES - broken)
        )

    assert min(served(engines)) > 0.9 * max(served(engines)), "the load must be spread by requests in flight"
    assert [each["state"] for each in after["endpoints"]] == ["ready"] * ENGINES
    assert "routing uses the gateway's own in-flight counts" in str(status["engines"][0]["problems"])


@pytest.mark.timing
@rerun_if_stalled
async def test_dispatch_is_not_slower_while_every_scrape_hangs(tmp_path: Path) -> None:
    (tmp_path / "well").mkdir()
    async with a_fleet(tmp_path / "well") as (_, gateway):
        before_s = min([await seconds_for(gateway), await seconds_for(gateway)])
    async with an_outage(tmp_path, hang, ENGINES) as (_, gateway, _):
        during_s = min([await seconds_for(gateway), await seconds_for(gateway)])

    # A single wait for a hanging page would take 0.1 s, and there are 60 requests.
    assert during_s < 3 * before_s + 2, f"{before_s:.3f} s before, {during_s:.3f} s during the outage"


async def test_endpoint_that_never_reported_its_load_is_flagged(tmp_path: Path) -> None:
    async with ScrapedEngine() as silent, ScrapedEngine() as other:
        hang(silent)
        # The timeout is long enough for the other engine's page on a busy machine.
        watch = partial(EngineWatch, interval_s=0.05, timeout_s=2.0, stale_after_s=60.0)
        async with gateway_in_loop(a_config(silent.url, other.url), tmp_path, open_watch=watch) as gateway:
            status = await gateway.wait_for_status(
                lambda status: (
                    "never reported its load" in str(status["engines"][0]) and status["engines"][1]["problems"] == []
                )
            )
            names = [each["id"] for each in status["endpoints"]]
            signals = [f"headgate_engine_metric_missing{{endpoint={name},metric=running}}" for name in names]
            async with asyncio.timeout(30):
                while [(await series_of(gateway))[signal] for signal in signals] != [1, 0]:
                    await asyncio.sleep(0.02)
            await seconds_for(gateway, 10)

    assert served([silent, other]) == [5, 5]
    assert status["engines"][0]["telemetry_age_s"] is None


async def test_staleness_ends_when_scrapes_recover(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as (engines, gateway):
        fail(engines[0])
        await gateway.wait_for_status(lambda status: is_stale(status, 0))
        name = (await gateway.status())["endpoints"][0]["id"]
        age = f"headgate_engine_metrics_age_seconds{{endpoint={name}}}"
        stale_s = (await series_of(gateway))[age]
        engines[0].metrics_status, engines[0].metrics = 200, None
        status = await gateway.wait_for_status(lambda status: not status["engines"][0]["problems"])
        async with asyncio.timeout(30):
            while (await series_of(gateway))[age] >= STALE_AFTER_S:
                await asyncio.sleep(0.02)

    assert status["engines"][0]["signals_missing"] == []
    assert stale_s > STALE_AFTER_S


async def test_new_engine_becomes_ready_while_every_scrape_hangs(tmp_path: Path) -> None:
    """The number of hanging pages exceeds the scrape concurrency, and each hangs for longer than the test may take."""
    slow = partial(EngineWatch, interval_s=0.05, timeout_s=100.0, concurrent_max=4)
    async with AsyncExitStack() as stack:
        *engines, late = [await stack.enter_async_context(ScrapedEngine()) for _ in range(10)]
        late.loading = True
        config = a_config(*(engine.url for engine in engines), late.url)
        gateway = await stack.enter_async_context(gateway_in_loop(config, tmp_path, wait_for=9, open_watch=slow))
        await gateway.wait_for_status(lambda _: all(engine.pages.served for engine in engines))
        for engine in engines:
            hang(engine)
        await gateway.wait_for_status(lambda _: sum(engine.pages.hanging for engine in engines) >= 2)
        late.loading = False
        await gateway.wait_until_ready(10)
