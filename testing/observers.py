"""How does a test get a real Prometheus and a real Alertmanager, and hear what they tell?"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from testing.ports import free_port
from testing.processes import ChildProcess


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is missing; run scripts/observers"
    return found


class Told:
    """Every notification that came, in its order."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self._came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.alerts += (await request.json())["alerts"]
        self._came.set()
        return web.Response()

    async def until(self, name: str, status: str, *, seconds_max: float, **labels: str) -> dict[str, Any]:
        """The first of this name and state."""
        async with asyncio.timeout(seconds_max):
            while True:
                self._came.clear()
                for alert in self.alerts:
                    wanted = {"alertname": name, **labels}
                    if alert["status"] == status and wanted.items() <= alert["labels"].items():
                        return alert
                await self._came.wait()


@asynccontextmanager
async def webhook() -> AsyncIterator[tuple[Told, str]]:
    told, port = Told(), free_port()
    app = web.Application()
    app.router.add_post("/", told.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield told, f"http://127.0.0.1:{port}/"
    finally:
        await runner.cleanup()


@contextmanager
def alertmanager(folder: Path, webhook_url: str) -> Iterator[str]:
    """Its address. It tells of everything at once."""
    place = f"127.0.0.1:{free_port()}"
    route = {
        "receiver": "test",
        "group_by": ["..."],
        "group_wait": "0s",
        "group_interval": "1s",
        "repeat_interval": "1h",
    }
    hook = {"url": webhook_url, "send_resolved": True}
    config = {"route": route, "receivers": [{"name": "test", "webhook_configs": [hook]}]}
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [program("prometheus-alertmanager"), f"--config.file={file}", f"--storage.path={folder / 'alertmanager'}"]
    with ChildProcess(
        "alertmanager", [*command, f"--web.listen-address={place}", "--cluster.listen-address="]
    ) as process:
        process.wait_until_ok(f"http://{place}/-/ready", seconds_max=120)
        yield place


@contextmanager
def prometheus(folder: Path, rules: Mapping[str, object], target: str, alertmanager_place: str) -> Iterator[str]:
    """Its address. It scrapes `target` and evaluates the rules every second."""
    place = f"127.0.0.1:{free_port()}"
    (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_place]}]}]},
        "scrape_configs": [{"job_name": "headgate", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    with ChildProcess("prometheus", [*command, f"--web.listen-address={place}", "--log.level=warn"]) as process:
        process.wait_until_ok(f"http://{place}/-/ready", seconds_max=120)
        yield f"http://{place}"
