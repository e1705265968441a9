"""Engines whose metrics page can fail, and gateways that scrape at short intervals."""

import asyncio
from dataclasses import dataclass
from functools import partial

from prometheus_client.parser import text_string_to_metric_families

from headgate.engines.engine_watch import EngineWatch
from testing.fake_engine import FakeEngine, Received
from testing.fake_http import Connection
from testing.gateway import RunningGateway, gateway_in_loop

STALE_AFTER_S = 0.3


@dataclass
class Pages:
    """Behaviour and counters of a metrics page."""

    slow_s: float = 0.0
    hang: bool = False
    served: int = 0
    hanging: int = 0


class ScrapedEngine(FakeEngine):
    """Fake engine whose metrics page can hang or be slow while all other paths work normally."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages()

    async def _serve(self, connection: Connection, received: Received, *, generating: bool) -> None:
        if received.path == "/metrics":
            if self.pages.hang:
                self.pages.hanging += 1
                await asyncio.Event().wait()
            await asyncio.sleep(self.pages.slow_s)
            self.pages.served += 1
        await super()._serve(connection, received, generating=generating)


quick_gateway = partial(
    gateway_in_loop, open_watch=partial(EngineWatch, interval_s=0.05, timeout_s=0.1, stale_after_s=STALE_AFTER_S)
)
"""Gateway that probes its engines a hundred times as often as usual."""
patient_gateway = partial(
    gateway_in_loop, open_watch=partial(EngineWatch, interval_s=0.05, timeout_s=30.0, stale_after_s=60.0)
)
"""Gateway with the same scrape interval and a timeout long enough for a busy machine."""


async def series_of(gateway: RunningGateway) -> dict[str, float]:
    """Return every sample on the metrics page by name and labels."""
    async with gateway.http.get(gateway.admin_url + "/metrics") as answer:
        page = (await answer.read()).decode()
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sample.labels.items())}}}": sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
