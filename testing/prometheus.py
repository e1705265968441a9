"""Real Prometheus and Alertmanager processes for tests, and a webhook that receives their notifications."""

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


def find_program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is missing; run scripts/install_observability"
    return found


class AlertReceiver:
    """All notifications received, in order."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self._came = asyncio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        self.alerts += (await request.json())["alerts"]
        self._came.set()
        return web.Response()

    async def wait_for_alert(self, name: str, status: str, *, seconds_max: float, **labels: str) -> dict[str, Any]:
        """Wait for the first alert with this name, status and labels."""
        async with asyncio.timeout(seconds_max):
            while True:
                self._came.clear()
                for alert in self.alerts:
                    wanted = {"alertname": name, **labels}
                    if alert["status"] == status and wanted.items() <= alert["labels"].items():
                        return alert
                await self._came.wait()


@asynccontextmanager
async def webhook() -> AsyncIterator[tuple[AlertReceiver, str]]:
    told, port = AlertReceiver(), free_port()
    app = web.Application()
    app.router.add_post("/", told.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield told, f"http://127.0.0.1:{port}/"
    finally:
        await runner.cleanup()


@contextmanager
def alertmanager(folder: Path, webhook_url: str) -> Iterator[str]:
    """Run an Alertmanager that sends every notification immediately, and return its address."""
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
    command = [
        find_program("prometheus-alertmanager"),
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
    ]
    with ChildProcess(
        "alertmanager", [*command, f"--web.listen-address={place}", "--cluster.listen-address="]
    ) as process:
        process.wait_until_ok(f"http://{place}/-/ready", seconds_max=120)
        yield place


@contextmanager
def prometheus(folder: Path, rules: Mapping[str, object], target: str, alertmanager_place: str) -> Iterator[str]:
    """Run a Prometheus that scrapes `target` and evaluates the rules every second, and return its URL."""
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
    command = [find_program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    with ChildProcess("prometheus", [*command, f"--web.listen-address={place}", "--log.level=warn"]) as process:
        process.wait_until_ok(f"http://{place}/-/ready", seconds_max=120)
        yield f"http://{place}"
