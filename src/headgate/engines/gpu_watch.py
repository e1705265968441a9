"""GPU utilisation and memory of endpoints, from NVIDIA's DCGM exporter.

Most engines do not report these values. The watch scrapes each exporter once per interval, regardless of the number of
endpoints on its machine, with limits on response time, response size and concurrency. It does not use the engine
probes' slots, so a hanging exporter does not delay them. Stale values are dropped. No decision depends on them.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from headgate.engines.dialect import GPU_UTILISATION
from headgate.engines.metrics_page import Metric, metrics_steps, read_metrics, run_in_turns
from headgate.engines.page import PAGE_BYTES_MAX, PageUnavailable, get_page
from headgate.model.units import EndpointId

INTERVAL_S: Final = 5.0
TIMEOUT_S: Final = 2.0
CONCURRENT_MAX: Final = 8
STALE_AFTER_S: Final = 20.0

_PATH: Final = "/metrics"
_UTILISATION: Final = "DCGM_FI_DEV_GPU_UTIL"
_USED: Final = "DCGM_FI_DEV_FB_USED"
_PARTS: Final = (_USED, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
"""Metrics for the individual parts of a GPU's memory, in MiB. Not every exporter reports the last one."""
_MIB: Final = 1024 * 1024


def exporter_url(endpoint_url: str, port: int) -> str:
    """Returns the URL of the exporter on an endpoint's machine."""
    host = urlsplit(endpoint_url).hostname or ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_gpus(page: bytes) -> dict[str, float]:
    """Reads the values for all GPUs on a machine, by the gateway's names for them. Empty if the page has none."""
    return _gpus(read_metrics(page, (_UTILISATION, *_PARTS)))


def _gpus(found: Mapping[str, Metric]) -> dict[str, float]:
    told: dict[str, float] = {}
    if _UTILISATION in found:
        told[GPU_UTILISATION] = found[_UTILISATION].mean / 100
    if _USED in found:
        told["gpu_memory_used_bytes"] = found[_USED].total * _MIB
        if all(part in found for part in _PARTS[:2]):
            told["gpu_memory_total_bytes"] = sum(found[part].total for part in _PARTS if part in found) * _MIB
    return told


class GpuWatch:
    """Scrapes the exporters for the endpoints it follows, while `is_enabled` returns true."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        is_enabled: Callable[[], bool],
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        stale_after_s: float = STALE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._is_enabled = is_enabled
        self._clock = clock
        self._interval_s, self._timeout_s, self._stale_after_s = interval_s, timeout_s, stale_after_s
        self._exporters: Mapping[EndpointId, str] = {}
        self._readings: dict[str, tuple[float, dict[str, float]]] = {}
        """Time of the last scrape and its values, by exporter."""
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)

    def follow(self, exporters: Mapping[EndpointId, str]) -> None:
        """Replaces the set of followed endpoints. Takes a mapping from endpoint to exporter URL."""
        self._exporters = dict(exporters)
        wanted = set(self._exporters.values())
        self._readings = {url: told for url, told in self._readings.items() if url in wanted}

    def readings(self) -> dict[EndpointId, dict[str, float]]:
        """Returns the values by endpoint, omitting stale ones."""
        oldest = self._clock() - self._stale_after_s
        return {
            endpoint_id: told[1]
            for endpoint_id, url in self._exporters.items()
            if (told := self._readings.get(url)) is not None and told[0] >= oldest
        }

    async def run(self) -> None:
        """Scrapes until cancelled."""
        # Adds jitter, so that gateways that start together do not scrape together.
        await asyncio.sleep(random.uniform(0, self._interval_s))  # noqa: S311  Not used for security.
        while True:
            if self._is_enabled():
                await asyncio.gather(*(self._scrape(url) for url in dict.fromkeys(self._exporters.values())))
            await asyncio.sleep(self._interval_s)

    async def _scrape(self, url: str) -> None:
        async with self._slots:
            try:
                page = await get_page(
                    self._session,
                    url,
                    _PATH,
                    headers={},
                    timeout_s=self._timeout_s,
                    page_bytes_max=PAGE_BYTES_MAX,
                )
            except PageUnavailable:
                return
        if page.status != 200:
            return
        told = _gpus(await run_in_turns(metrics_steps(page.body, (_UTILISATION, *_PARTS))))
        if told and url in self._exporters.values():
            self._readings[url] = (self._clock(), told)
