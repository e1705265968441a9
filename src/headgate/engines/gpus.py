"""How busy are the GPUs of endpoints, and how full is their memory?

Most engines do not tell; NVIDIA's DCGM exporter, where one runs beside them, does. Each exporter is asked once in an
interval, however many endpoints stand on its machine, with a bound on the time and size of its answer and on how many
are asked at once. It has lines of its own: one that hangs delays nobody who looks at engines, and what it last said is
forgotten when it is stale. No decision is made by it.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from headgate.engines.dialect import GPU_UTILISATION
from headgate.engines.metrics_page import Metric, in_turns, metrics_steps, read_metrics
from headgate.engines.page import PAGE_BYTES_MAX, Unheard, get_page
from headgate.model.units import EndpointId

INTERVAL_S: Final = 5.0
TIMEOUT_S: Final = 2.0
CONCURRENT_MAX: Final = 8
STALE_AFTER_S: Final = 20.0

_PATH: Final = "/metrics"
_UTILISATION: Final = "DCGM_FI_DEV_GPU_UTIL"
_USED: Final = "DCGM_FI_DEV_FB_USED"
_PARTS: Final = (_USED, "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
"""Of a GPU's memory; in MiB. The last not every exporter tells."""
_MIB: Final = 1024 * 1024


def exporter_url(endpoint_url: str, port: int) -> str:
    """Where the exporter of an endpoint's machine is."""
    host = urlsplit(endpoint_url).hostname or ""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_gpus(page: bytes) -> dict[str, float]:
    """What an exporter tells of all GPUs of its machine, by our names; nothing where it tells nothing of them."""
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
    """Asks the exporters of the endpoints that it follows, as long as `looks` says so."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        looks: Callable[[], bool],
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        stale_after_s: float = STALE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._looks = looks
        self._clock = clock
        self._interval_s, self._timeout_s, self._stale_after_s = interval_s, timeout_s, stale_after_s
        self._exporters: Mapping[EndpointId, str] = {}
        self._told: dict[str, tuple[float, dict[str, float]]] = {}
        """By exporter: when it was last heard, and what it said."""
        self._places = asyncio.Semaphore(CONCURRENT_MAX)

    def follow(self, exporters: Mapping[EndpointId, str]) -> None:
        """From here on these endpoints, by the addresses of their exporters."""
        self._exporters = dict(exporters)
        wanted = set(self._exporters.values())
        self._told = {url: told for url, told in self._told.items() if url in wanted}

    def told(self) -> dict[EndpointId, dict[str, float]]:
        """What was heard of late; endpoints of which nothing was are not there."""
        oldest = self._clock() - self._stale_after_s
        return {
            endpoint_id: told[1]
            for endpoint_id, url in self._exporters.items()
            if (told := self._told.get(url)) is not None and told[0] >= oldest
        }

    async def run(self) -> None:
        """For ever."""
        # Gateways that start together do not ask together.
        await asyncio.sleep(random.uniform(0, self._interval_s))  # noqa: S311  Nothing is kept secret by it.
        while True:
            if self._looks():
                await asyncio.gather(*(self._ask(url) for url in dict.fromkeys(self._exporters.values())))
            await asyncio.sleep(self._interval_s)

    async def _ask(self, url: str) -> None:
        async with self._places:
            try:
                page = await get_page(
                    self._session,
                    url,
                    _PATH,
                    headers={},
                    timeout_s=self._timeout_s,
                    page_bytes_max=PAGE_BYTES_MAX,
                )
            except Unheard:
                return
        if page.status != 200:
            return
        told = _gpus(await in_turns(metrics_steps(page.body, (_UTILISATION, *_PARTS))))
        if told and url in self._exporters.values():
            self._told[url] = (self._clock(), told)
