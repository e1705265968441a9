"""GPU utilisation and memory are read from an exporter and omitted if there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from headgate.engines.gpu_watch import GpuWatch, exporter_url, read_gpus
from headgate.model.units import EndpointId
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from tests.engines.listeners import listening, say_nothing
from tests.lessons.scraped import series_of

E1, E2, E3 = EndpointId("p/1"), EndpointId("p/2"), EndpointId("p/3")
QUICK_S = 0.01
MIB = 1024 * 1024
PAGE = b"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="node"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100",Hostname="node"} 30
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="node"} 1000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100",Hostname="node"} 3000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100",Hostname="node"} 7000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100",Hostname="node"} 5000
"""
GPUS = {"gpu_utilisation": 0.6, "gpu_memory_used_bytes": 12_000 * MIB, "gpu_memory_total_bytes": 16_000 * MIB}


class Exporter:
    """Exporter that returns the same page for every request and counts requests."""

    def __init__(self, page: bytes = PAGE, status: int = 200) -> None:
        self.page, self.status, self.asked = page, status, 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            self.asked += 1
            writer.write(b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n" % (self.status, len(self.page)) + self.page)
            await writer.drain()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@asynccontextmanager
async def watching(watch: GpuWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_asked(exporter: Exporter, times: int) -> None:
    async with asyncio.timeout(30):
        while exporter.asked < times:
            await asyncio.sleep(QUICK_S / 2)


def test_gpu_utilisation_is_averaged_and_memory_is_summed() -> None:
    assert read_gpus(PAGE) == GPUS
    reserved = PAGE + b'DCGM_FI_DEV_FB_RESERVED{gpu="0"} 500\nDCGM_FI_DEV_FB_RESERVED{gpu="1"} 500\n'
    assert read_gpus(reserved)["gpu_memory_total_bytes"] == 17_000 * MIB


def test_missing_gpu_metrics_are_omitted() -> None:
    assert read_gpus(b"up 1\n") == {}
    assert read_gpus(b"DCGM_FI_DEV_FB_USED 1\n") == {"gpu_memory_used_bytes": MIB}
    assert read_gpus(b"DCGM_FI_DEV_GPU_UTIL nan\nDCGM_FI_DEV_FB_USED what\n") == {}


@pytest.mark.parametrize(
    ("url", "exporter"),
    [
        ("http://gpu-1:8000", "http://gpu-1:9400"),
        ("https://gpu-1", "http://gpu-1:9400"),
        ("http://[::1]:8000", "http://[::1]:9400"),
    ],
)
def test_exporter_url_uses_the_endpoint_host(url: str, exporter: str) -> None:
    assert exporter_url(url, 9400) == exporter


async def test_exporter_is_scraped_once_for_all_endpoints_on_its_host(session: aiohttp.ClientSession) -> None:
    exporter = Exporter()
    watch = GpuWatch(session, lambda: True, interval_s=QUICK_S)
    async with listening(exporter) as url, watching(watch):
        watch.follow({E1: url, E2: url})
        await until_asked(exporter, 2)

        assert watch.readings() == {E1: GPUS, E2: GPUS}
        watch.follow({E2: url})
        assert watch.readings() == {E2: GPUS}
        watch.follow({})
        assert watch.readings() == {}
        watch.follow({E2: url})
        assert watch.readings() == {}, "the values are dropped with the exporter's last endpoint"


async def test_failing_exporter_does_not_delay_others(session: aiohttp.ClientSession) -> None:
    exporter, failing = Exporter(), Exporter(status=500)
    watch = GpuWatch(session, lambda: True, interval_s=QUICK_S, timeout_s=0.05)
    async with listening(exporter) as url, listening(say_nothing) as silent, listening(failing) as wrong:
        watch.follow({E1: silent, E2: url, E3: wrong})
        async with watching(watch):
            await until_asked(exporter, 3)

        assert watch.readings() == {E2: GPUS}


async def test_stale_gpu_metrics_are_omitted(session: aiohttp.ClientSession) -> None:
    exporter, now = Exporter(), [100.0]
    watch = GpuWatch(session, lambda: True, interval_s=QUICK_S, stale_after_s=60, clock=lambda: now[0])
    async with listening(exporter) as url:
        watch.follow({E1: url})
        async with watching(watch):
            await until_asked(exporter, 2)
    now[0] += 60
    assert watch.readings() == {E1: GPUS}
    now[0] += 0.1
    assert watch.readings() == {}


async def test_paused_watch_does_not_scrape(session: aiohttp.ClientSession) -> None:
    exporter, looks = Exporter(), [False]
    watch = GpuWatch(session, lambda: looks[0], interval_s=QUICK_S)
    async with listening(exporter) as url, watching(watch):
        watch.follow({E1: url})
        await asyncio.sleep(5 * QUICK_S)
        assert exporter.asked == 0
        looks[0] = True
        await until_asked(exporter, 1)


async def test_gateway_exports_engine_and_gpu_metrics(tmp_path: Path) -> None:
    exporter = Exporter()
    async with FakeEngine() as engine, listening(exporter) as url:
        config = a_config(engine.url)
        config["pools"]["small"]["gpu_metrics_port"] = int(url.rpartition(":")[2])
        async with gateway_in_loop(config, tmp_path) as gateway:
            async with gateway.post(chat()) as answer:
                assert answer.status == 200
            # Scrape the exporter now instead of waiting for the interval.
            await gateway.gateway._engines.gpus._scrape(url)
            found = await series_of(gateway)

    name = engine.url.removeprefix("http://")
    assert found[f"headgate_gpu_utilization_ratio{{pool=small,endpoint=small/{name}}}"] == 0.6
    assert found[f"headgate_engine_requests_running{{pool=small,endpoint=small/{name}}}"] == 0
