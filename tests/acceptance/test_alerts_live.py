"""End-to-end alerting with a real Prometheus and Alertmanager, from a real incident to its resolution.

All windows are scaled to one sixtieth, so an hour takes a minute.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from headgate.cli.main import main
from headgate.cli.output.objectives import load_objectives
from headgate.slo.rules import rules
from testing.gateway import RunningGateway, a_config, chat, gateway_process_with_client
from testing.ports import free_ports
from testing.processes import ChildProcess
from testing.prometheus import alertmanager, prometheus, webhook
from tests.house.small_tree import PROJECT

pytestmark = [pytest.mark.observability, pytest.mark.timeout(480)]

SCALE = 1 / 60
RUNBOOKS = "https://docs.example/runbooks"
CLASSES = {
    "interactive": {
        # Longer than a process ever stalls on a busy machine.
        "ttft": "3s",
        "first_token_timeout": "4s",
        "objectives": {"ttft_percent": 99, "availability_percent": 99.5},
    }
}


@asynccontextmanager
async def traffic(gateway: RunningGateway, *, per_second: int) -> AsyncIterator[None]:
    """Send short streams at a steady rate and ignore errors."""

    async def ask() -> None:
        try:
            async with gateway.post(chat("hello", stream=True, max_tokens=8)) as answer:
                await answer.read()
        except aiohttp.ClientError:
            pass

    async def go_on() -> None:
        async with asyncio.TaskGroup() as asked:
            while True:
                asked.create_task(ask())
                await asyncio.sleep(1 / per_second)

    running = asyncio.create_task(go_on())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_hanging_engines_trigger_alerts_that_have_runbooks_and_resolve_after_recovery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = free_ports(2)
    command = [sys.executable, "-m", "headgate.cli.main", "engine", "--model", "sim", "--speed-up", "10", "--port"]
    with ChildProcess("engine", [*command, str(first)]) as one, ChildProcess("engine", [*command, str(second)]) as two:
        for process, port in ((one, first), (two, second)):
            process.wait_until_ok(f"http://127.0.0.1:{port}/health", seconds_max=60)
        urls = [f"http://127.0.0.1:{port}" for port in (first, second)]
        config = a_config(*urls, served_model="sim", in_flight_max=16, classes=CLASSES)
        async with gateway_process_with_client(config, tmp_path) as (gateway, _), webhook() as (told, hook):
            promises = load_objectives(gateway.file)
            assert promises is not None
            made = rules(promises, runbooks=RUNBOOKS, scale=SCALE)
            with (
                alertmanager(tmp_path, hook) as place,
                prometheus(tmp_path, made, config["admin_listen"], place) as url,
            ):
                async with traffic(gateway, per_second=15):
                    # Every paging window must contain some data.
                    await asyncio.sleep(10)
                    pages = [each["labels"] for each in told.alerts if each["labels"]["severity"] == "page"]
                    assert pages == [], "an alert paged while everything was healthy"

                    one.freeze()
                    verdict = await told.wait_for_alert(
                        "HeadgateIncident", "firing", seconds_max=120, incident="engine_hang"
                    )
                    assert verdict["annotations"]["runbook_url"] == f"{RUNBOOKS}/engine_hang.md"

                    two.freeze()
                    alert = await told.wait_for_alert(
                        "HeadgateErrorBudgetBurnFast", "firing", seconds_max=120, **{"class": "interactive"}
                    )
                    runbook = alert["annotations"]["runbook_url"]
                    assert runbook == f"{RUNBOOKS}/error_budget_burn.md"
                    assert (PROJECT / "docs" / "operations" / "runbooks" / Path(runbook).name).is_file()
                    assert "headgate doctor --live" in alert["annotations"]["description"]
                    over = ["report", "--config", str(gateway.file), "--prometheus-url", url, "--since", "60s"]
                    assert await asyncio.to_thread(main, over) == 1
                    assert "interactive: optimizes for latency; objectives MISSED" in capsys.readouterr().out

                    one.thaw()
                    two.thaw()
                    await told.wait_for_alert(
                        "HeadgateErrorBudgetBurnFast", "resolved", seconds_max=120, **{"class": "interactive"}
                    )
