"""Does a gateway go on when it cannot read how loaded its engines are, and does it say so?

Routers that route by scraped load send everything to the endpoint whose figures are stale, or stop when all are.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from headgate.engines.watch import EngineWatch
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_in_loop
from testing.stalls import again_if_stalled
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
    engine.pages.slow_s = 0.15  # Longer than a look may take.


OUTAGES = (fail, hang, talk_garbage, talk_of_numbers_beyond_all_measure, dawdle)


@asynccontextmanager
async def a_fleet(folder: Path) -> AsyncIterator[tuple[list[ScrapedEngine], RunningGateway]]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScrapedEngine()) for _ in range(ENGINES)]
        config = a_config(*(engine.url for engine in engines))
        gateway = await stack.enter_async_context(quick_gateway(config, folder))
        await gateway.until(lambda status: all(each["telemetry_age_s"] is not None for each in status["engines"]))
        yield engines, gateway


async def seconds_for(gateway: RunningGateway, count: int = 60) -> float:
    """How long so many requests take, one after another; every one is answered."""
    started = time.monotonic()
    for _ in range(count):
        async with gateway.post(chat(max_tokens=1)) as answer:
            assert answer.status == 200, await answer.text()
    return time.monotonic() - started


def served(engines: Sequence[ScrapedEngine]) -> list[int]:
    return [len(engine.requests) for engine in engines]


def is_stale(status: Config, number: int) -> bool:
    engine = status["engines"][number]
    return "which is stale" in str(engine["problems"]) and engine["telemetry_age_s"] > STALE_AFTER_S


def stale(status: Config) -> list[bool]:
    return [is_stale(status, number) for number in range(ENGINES)]


@asynccontextmanager
async def an_outage(
    folder: Path, outage: Break, broken: int
) -> AsyncIterator[tuple[list[ScrapedEngine], RunningGateway, Config]]:
    """A fleet of which so many metrics pages are broken, once that is known; with the status that said so."""
    async with a_fleet(folder) as (engines, gateway):
        for engine in engines[:broken]:
            outage(engine)
        others = f"other endpoints that tell theirs: {ENGINES - broken}"
        status = await gateway.until(
            lambda status: all(stale(status)[:broken]) and others in str(status["engines"][0]["problems"])
        )
        yield engines, gateway, status


@pytest.mark.parametrize("broken", [1, ENGINES], ids=["one", "all"])
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
async def test_dispatch_goes_on_and_spreads_the_load_as_before(tmp_path: Path, outage: Break, broken: int) -> None:
    async with an_outage(tmp_path, outage, broken) as (engines, gateway, status):
        await seconds_for(gateway, 10 * ENGINES)
        # A page that comes late on a busy machine makes an endpoint stale for a moment.
        after = await gateway.until(lambda status: stale(status) == [True] * broken + [False] * (ENGINES - broken))

    assert min(served(engines)) > 0.9 * max(served(engines)), "the load is spread by what is in flight"
    assert [each["state"] for each in after["endpoints"]] == ["ready"] * ENGINES
    assert "requests go on by our own count of what is in flight" in str(status["engines"][0]["problems"])


@pytest.mark.timing
@again_if_stalled
async def test_dispatch_keeps_its_pace_while_every_metrics_page_hangs(tmp_path: Path) -> None:
    (tmp_path / "well").mkdir()
    async with a_fleet(tmp_path / "well") as (_, gateway):
        before_s = min([await seconds_for(gateway), await seconds_for(gateway)])
    async with an_outage(tmp_path, hang, ENGINES) as (_, gateway, _):
        during_s = min([await seconds_for(gateway), await seconds_for(gateway)])

    # One wait for a page that hangs would cost a tenth of a second, and there are sixty requests.
    assert during_s < 3 * before_s + 2, f"{before_s:.3f} s before, {during_s:.3f} s during the outage"


async def test_an_endpoint_that_never_told_its_load_stands_out_among_those_that_do(tmp_path: Path) -> None:
    async with ScrapedEngine() as silent, ScrapedEngine() as other:
        hang(silent)
        # Long enough for the page of the other one on a busy machine.
        watch = partial(EngineWatch, interval_s=0.05, timeout_s=2.0, stale_after_s=60.0)
        async with gateway_in_loop(a_config(silent.url, other.url), tmp_path, open_watch=watch) as gateway:
            status = await gateway.until(
                lambda status: (
                    "has never told its load" in str(status["engines"][0]) and status["engines"][1]["problems"] == []
                )
            )
            names = [each["id"] for each in status["endpoints"]]
            signals = [f"headgate_endpoint_signal_missing{{endpoint={name},signal=running}}" for name in names]
            async with asyncio.timeout(30):
                while [(await series_of(gateway))[signal] for signal in signals] != [1, 0]:
                    await asyncio.sleep(0.02)
            await seconds_for(gateway, 10)

    assert served([silent, other]) == [5, 5]
    assert status["engines"][0]["telemetry_age_s"] is None


async def test_what_was_stale_is_fresh_again_when_the_page_is(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as (engines, gateway):
        fail(engines[0])
        await gateway.until(lambda status: is_stale(status, 0))
        name = (await gateway.status())["endpoints"][0]["id"]
        age = f"headgate_endpoint_telemetry_age_seconds{{endpoint={name}}}"
        stale_s = (await series_of(gateway))[age]
        engines[0].metrics_status, engines[0].metrics = 200, None
        status = await gateway.until(lambda status: not status["engines"][0]["problems"])
        async with asyncio.timeout(30):
            while (await series_of(gateway))[age] >= STALE_AFTER_S:
                await asyncio.sleep(0.02)

    assert status["engines"][0]["signals_missing"] == []
    assert stale_s > STALE_AFTER_S


async def test_an_engine_that_comes_up_is_found_while_every_metrics_page_hangs(tmp_path: Path) -> None:
    """More pages than may be read at once hang, each for longer than the test may wait."""
    slow = partial(EngineWatch, interval_s=0.05, timeout_s=100.0, concurrent_max=4)
    async with AsyncExitStack() as stack:
        *engines, late = [await stack.enter_async_context(ScrapedEngine()) for _ in range(10)]
        late.loading = True
        config = a_config(*(engine.url for engine in engines), late.url)
        gateway = await stack.enter_async_context(gateway_in_loop(config, tmp_path, wait_for=9, open_watch=slow))
        await gateway.until(lambda _: all(engine.pages.served for engine in engines))
        for engine in engines:
            hang(engine)
        await gateway.until(lambda _: sum(engine.pages.hanging for engine in engines) >= 2)
        late.loading = False
        await gateway.until_ready(10)
