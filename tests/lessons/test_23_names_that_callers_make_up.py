"""Callers cannot drive up the number of metric series or memory usage.

A gateway that uses paths, keys or models from requests as metric labels has a million series after one scan and runs
out of memory.
"""

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from headgate.wire.keys import digest
from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, Config, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.lessons.scraped import series_of

FEW = 800
"""Number of names in the short test. Retaining every second one would exceed the noise of about 100 memory blocks."""
NAMES = 10_000
FULL = 7_500
"""Number of requests after which all bounded buffers of recent requests are full."""
GROWN_MAX = 500
"""Number of memory blocks by which usage may grow. Each retained name would take one or more."""
TRIES = 3
"""Number of attempts. Other memory usage varies, but memory retained for names would show up in every attempt."""
CALLERS = 16
SCRAPE_S_MAX = 0.2
SECRET, KEY = "a secret of this test", "hg-the-only-key"


def a_guarded_config(url: str) -> Config:
    tenant = {"keys": [f"hmac-sha256:{digest(SECRET.encode(), KEY).hex()}"]}
    config = a_config(url, key_secret=SECRET, tenants={"acme": tenant})
    del config["anonymous_tenant"]
    return config


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[GatewayInLoop]:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_guarded_config(engine.url), folder) as gateway:
            yield gateway


def a_request(name: str, kind: int) -> bytes:
    """Build a request with a new name in one of its fields."""
    path, key, body = CHAT, KEY, chat()
    made_up = ("x-made-up", "user-agent", "x-headgate-endpoint", "x-headgate-client-stages", "x-headgate-tenant")
    carried = ("x-request-id", "traceparent", "tracestate", "baggage", "x-forwarded-for", "referer")
    headers = "".join(f"{header}: {name}\r\n" for header in (*made_up, *carried))
    match kind:
        case 0:
            path = f"/v1/{name}"
        case 1:
            key = name
        case 2:
            body = chat(model=name, user=name, metadata={name: name})
        case 3:
            headers += f"x-headgate-class: {name}\r\n"
        case 4:
            body = chat(service_tier=name)
        case _:
            path = f"{CHAT}?{name}"
    content = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: {name}\r\nauthorization: Bearer {key}\r\n{headers}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def send(gateway: GatewayInLoop, requests: Iterator[bytes]) -> dict[int, int]:
    """Send all requests over a few connections and return the number of responses per status."""
    statuses: dict[int, int] = {}
    host, port = gateway.url.removeprefix("http://").split(":")

    async def call() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for request in requests:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            status = int(head.split(b" ", 2)[1])
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return statuses


def made_up(first: int, last: int, step: int = 1) -> Iterator[bytes]:
    """Yield requests with made-up names: three out of four in the path or key, the rest in other fields.

    With `step=0`, all requests have the same name.
    """
    for number in range(first, last):
        kind = number % 2 if number % 4 else 2 + number // 4 % 2
        named = first + (number - first) * step
        yield a_request(f"name-{named}-{named * 7919}", kind)


async def scrape_s(gateway: GatewayInLoop) -> float:
    """Return the shortest of three scrape durations in seconds."""
    took_s: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        async with gateway.http.get(gateway.admin_url + "/metrics") as page:
            await page.read()
        took_s.append(time.perf_counter() - began)
    return min(took_s)


async def until_told(gateway: GatewayInLoop, series: str, value: float | None = None) -> dict[str, float]:
    """Wait until the metrics page has this series, with this value if one is given."""
    async with asyncio.timeout(30):
        while series not in (told := await series_of(gateway)) or value not in (None, told[series]):
            await asyncio.sleep(0.05)
    return told


async def blocks_held(gateway: GatewayInLoop) -> int:
    """Return the number of allocated memory blocks once pending records are written and garbage is collected."""
    await gateway.wait_until_idle()
    await until_told(gateway, "headgate_records_waiting{}", 0)
    gc.collect()
    return sys.getallocatedblocks()


async def grown_by_names(gateway: GatewayInLoop, first: int, last: int, statuses: Counter[int]) -> int:
    """Return how many more blocks requests with new names leave allocated than requests that share one name."""
    before = await blocks_held(gateway)
    statuses.update(await send(gateway, made_up(first, last, step=0)))
    between = await blocks_held(gateway)
    statuses.update(await send(gateway, made_up(first, last)))
    return (await blocks_held(gateway) - between) - (between - before)


@pytest.mark.timeout(240)  # Thousands of requests, possibly on a busy machine.
async def test_made_up_names_add_no_series_and_use_no_memory(tmp_path: Path) -> None:
    """Later requests use the same amount of memory whether they share one name or each has its own."""
    statuses: Counter[int] = Counter()
    async with guarded(tmp_path) as gateway:
        await send(gateway, made_up(0, 100))
        before = await until_told(gateway, "headgate_demand_endpoints{pool=small}")
        grown: list[int] = []
        for first in range(100, 100 + TRIES * FEW, FEW):
            grown.append(await grown_by_names(gateway, first, first + FEW, statuses))
            if grown[-1] < FEW / 4:
                break
        after = await series_of(gateway)

    assert before.keys() == after.keys()
    assert set(statuses) == {400, 401, 404}
    counted = "headgate_requests_total{class=none,outcome=unauthorized}"
    assert after[counted] - before[counted] == statuses[401]
    assert grown[-1] < FEW / 4, f"{grown} blocks for {FEW} names each"


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_ten_thousand_made_up_names_add_no_series_and_use_no_memory(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gateway:
        await send(gateway, made_up(0, 100))
        # The demand metric appears once demand has been measured.
        before = await until_told(gateway, "headgate_demand_endpoints{pool=small}")
        statuses = Counter(await send(gateway, made_up(100, FULL)))
        grown: list[int] = []
        for first in range(FULL, FULL + TRIES * (NAMES - FULL), NAMES - FULL):
            grown.append(await grown_by_names(gateway, first, first + NAMES - FULL, statuses))
            if grown[-1] < GROWN_MAX:
                break
        after = await series_of(gateway)
        took_s = await scrape_s(gateway)

    assert before.keys() == after.keys()
    assert took_s < SCRAPE_S_MAX
    assert set(statuses) == {400, 401, 404}
    assert min(statuses.values()) > 1_000
    counted = "headgate_requests_total{class=none,outcome=unauthorized}"
    assert after[counted] - before[counted] == statuses[401]
    assert grown[-1] < GROWN_MAX, f"{grown} blocks for {NAMES - FULL} names each"


async def test_names_from_requests_do_not_appear_in_metrics_or_status(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gateway:
        statuses = [await send(gateway, iter([a_request("canary", kind)])) for kind in range(6)]
        async with gateway.http.get(gateway.admin_url + "/metrics") as page:
            metrics = await page.text()
        async with gateway.http.get(gateway.admin_url + "/status") as page:
            status = await page.text()

    assert [next(iter(each)) for each in statuses] == [404, 401, 404, 400, 400, 200]
    assert "canary" not in metrics
    assert "canary" not in status


async def test_made_up_admin_paths_add_no_series(tmp_path: Path) -> None:
    async with guarded(tmp_path) as gateway:
        # The demand metric appears once demand has been measured, which is after the engines' metrics.
        before = await until_told(gateway, "headgate_demand_endpoints{pool=small}")
        for number in range(50):
            async with gateway.http.get(f"{gateway.admin_url}/page-{number}?{number}") as answer:
                assert answer.status == 404
        after = await series_of(gateway)

    assert before.keys() == after.keys()
