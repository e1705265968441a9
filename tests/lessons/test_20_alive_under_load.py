"""Under heavy load, a gateway stays responsive and its streams continue.

If health checks queue behind other work, busy processes are killed and their load moves to the others. A blocked event
loop delays every stream.

Because other work shares the machine, the absolute bounds are twice the benchmark's: 40 ms instead of 20 ms for loop
lag.
"""

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.cli.output.top_screen import quantile
from testing.gateway import CHAT, RunningGateway, a_config, chat, gateway_process_with_client
from testing.simulated_engines import simulated_engines
from testing.stalls import rerun_if_stalled
from tests.lessons.flood import image_body, many_turns_body, text_body
from tests.lessons.scraped import series_of

pytestmark = [pytest.mark.process, pytest.mark.timing]

STREAMS = 30
ROUNDS = 3
FLOOD_S = 1.2
BIG_PER_S = 3.0
LAG_S_MAX = 2 * 0.020


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    """Gateway process in front of a simulated engine process that produces a token every 10 ms."""
    with simulated_engines(1, "--speed-up", "0.1") as urls:
        config = a_config(*urls, served_model="sim", in_flight_max=STREAMS)
        async with gateway_process_with_client(config, folder) as (gateway, _):
            yield gateway


async def stream_for_ever(gateway: RunningGateway, gaps: list[float] | None = None) -> None:
    """Stream until cancelled and record the time between chunks in seconds."""
    while True:
        async with gateway.post(chat(stream=True, max_tokens=3000, ignore_eos=True)) as answer:
            assert answer.status == 200, await answer.text()
            last = time.perf_counter()
            async for _ in answer.content.iter_any():
                now = time.perf_counter()
                if gaps is not None:
                    gaps.append(now - last)
                last = now


@asynccontextmanager
async def streams(gateway: RunningGateway, count: int, gaps: list[float] | None = None) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(stream_for_ever(gateway, gaps if number == 0 else None)) for number in range(count)]
    try:
        await gateway.wait_for_status(lambda status: status["attempts_open"] == count)
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), "a stream was truncated"


async def lag_counts(gateway: RunningGateway) -> tuple[list[float], list[float]]:
    """Return the bounds and counts of the gateway's loop lag histogram."""
    series = await series_of(gateway)
    prefix = "headgate_event_loop_lag_seconds_bucket{le="
    found = [(name[len(prefix) : -1], count) for name, count in series.items() if name.startswith(prefix)]
    below = [0.0, *(count for _, count in found)]
    return [float(bound) for bound, _ in found[:-1]], [high - low for low, high in itertools.pairwise(below)]


async def health_s(gateway: RunningGateway) -> float:
    started = time.perf_counter()
    async with gateway.http.get(gateway.admin_url + "/health") as answer:
        assert answer.status == 200
    return time.perf_counter() - started


async def flooded(gateway: RunningGateway, big_per_s: float) -> tuple[dict[str, dict[str, int]], list[float], float]:
    """Flood the gateway. Return the statuses and, in seconds, the health check times and the p99 loop lag."""
    _, before = await lag_counts(gateway)
    command = [sys.executable, "-m", "tests.lessons.flood", gateway.url, str(FLOOD_S), str(big_per_s)]
    flood = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    looks: list[float] = []
    while flood.returncode is None:
        looks.append(await health_s(gateway))
        await asyncio.sleep(0.05)
    out, _ = await flood.communicate()
    bounds, after = await lag_counts(gateway)
    lag = quantile([int(now - then) for now, then in zip(after, before, strict=True)], bounds, 0.99)
    assert lag is not None
    return json.loads(out), looks, lag


@rerun_if_stalled
async def test_flood_does_not_delay_the_event_loop_or_the_health_page(tmp_path: Path) -> None:
    """The flood consists of thousands of small invalid requests, with and without large bodies among them."""
    lags: dict[float, list[float]] = {0: [], BIG_PER_S: []}
    slowest: list[float] = []
    usual: list[float] = []
    small: Counter[str] = Counter()
    big: Counter[str] = Counter()
    async with a_gateway(tmp_path) as gateway, streams(gateway, STREAMS):
        for _ in range(ROUNDS):
            for big_per_s, lags_s in lags.items():
                seen, looks, lag_s = await flooded(gateway, big_per_s)
                print(
                    f"\n{seen}, health p50 {statistics.median(looks):.4f} s, max {max(looks):.4f} s, lag {lag_s:.4f} s"
                )
                lags_s.append(lag_s)
                slowest.append(max(looks))
                usual.append(statistics.median(looks))
                small.update(seen["small"])
                big.update(seen["big"])

    assert set(small) <= {"400", "404", "405"}, "every invalid request must get its own error status"
    assert small.total() > 100
    assert set(big) == {"404"}
    # The best round counts, as below. While other work used both cores of a machine, the lag with small requests alone
    # varied between 5 and 90 ms within one run.
    assert min(slowest) < 1
    assert min(usual) < 0.1
    assert min(lags[0]) <= LAG_S_MAX
    assert min(lags[BIG_PER_S]) <= LAG_S_MAX


@rerun_if_stalled
async def test_30_mib_body_does_not_delay_other_streams(tmp_path: Path) -> None:
    """Compares a stream's longest gap while such a body is read and parsed with the longest gap on an idle gateway."""
    async with a_gateway(tmp_path) as gateway:
        gaps: list[float] = []
        async with streams(gateway, 1, gaps):
            while len(gaps) < 50:
                await asyncio.sleep(0.01)
            quiet = max(gaps)
            for body in (text_body, image_body, many_turns_body):
                content = await asyncio.to_thread(body, 30)
                worst: list[float] = []
                for _ in range(ROUNDS):
                    gaps.clear()
                    # Sent from another thread so that this loop continues to read the stream.
                    status = await asyncio.to_thread(_post, gateway.url, content)
                    assert status == 404
                    while not gaps:
                        await asyncio.sleep(0.01)
                    worst.append(max(gaps))
                beside = ", ".join(f"{1000 * each:.0f}" for each in worst)
                print(f"\nworst gap of a stream: {1000 * quiet:.0f} ms when idle; {beside} ms with {body.__name__}")
                # The best round counts: other work delays some rounds, but a blocked loop delays all of them.
                assert min(worst) < quiet + 0.1


def _post(url: str, content: bytes) -> int:
    request = urllib.request.Request(url + CHAT, data=content, method="POST")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
