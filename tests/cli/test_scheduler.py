"""`headgate scheduler`, a scheduler-only node of a cell."""

import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from testing.gateway import a_config
from testing.ports import free_port
from testing.processes import ChildProcess
from tests.cli.conftest import Headgate

CANARY = "canary-5f1d"
SCHEDULER = (sys.executable, "-m", "headgate.cli.main", "scheduler")


def write(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def cell_config(**settings: Any) -> dict[str, Any]:
    """Cell with an unreachable store."""
    cell = {"store": f"redis://127.0.0.1:{free_port()}", "member_count": 2, "member_name": "gw-1"}
    return a_config("http://127.0.0.1:1", cell=cell, **settings)


@pytest.mark.process
async def test_scheduler_serves_only_the_admin_listener(tmp_path: Path) -> None:
    config, admin = cell_config(), f"127.0.0.1:{free_port()}"
    words = [*SCHEDULER, "--config", str(write(tmp_path, config)), f"--admin-listen={admin}"]
    with ChildProcess("scheduler", words) as process:
        process.wait_until_ok(f"http://{admin}/health", seconds_max=90)
        async with aiohttp.ClientSession() as http, http.get(f"http://{admin}/status") as answer:
            status = await answer.json()
        host, _, port = config["listen"].rpartition(":")
        with socket.socket() as caller:
            refused = caller.connect_ex((host, int(port)))
        process.terminate()
        code = process.wait_until_ended()
        log = process.log()

    assert status["cell"]["member"] == "gw-1-scheduler"
    assert refused != 0
    assert code == 0
    assert f"admin on http://{admin}/status" in log
    assert "serving on" not in log


@pytest.mark.process
async def test_store_password_is_never_shown(tmp_path: Path) -> None:
    config = cell_config()
    config["cell"]["store"] = f"redis://u:${{PASSWORD}}@127.0.0.1:{free_port()}"
    words = [*SCHEDULER, "--config", str(write(tmp_path, config)), "--log-level=debug"]
    with ChildProcess("scheduler", words, {"PASSWORD": CANARY}) as process:
        process.wait_until_ok(f"http://{config['admin_listen']}/health", seconds_max=90)
        shown = ""
        async with aiohttp.ClientSession() as http:
            for path in ("/status", "/metrics", "/ready"):
                async with http.get(f"http://{config['admin_listen']}{path}") as answer:
                    shown += await answer.text()
        process.terminate()
        process.wait_until_ended()
        shown += process.log()

    assert '"store":"away"' in shown.replace(" ", "")
    assert CANARY not in shown


def test_file_without_cell_is_reported_with_next_step(headgate: Headgate, tmp_path: Path) -> None:
    said = headgate("scheduler", "--config", str(write(tmp_path, a_config("http://127.0.0.1:1"))))

    assert said.code == 1
    assert "has no cell, so there are no gateways to schedule for; add cell: {store: redis://HOST:PORT}" in said.err


def test_invalid_file_is_not_run(headgate: Headgate, tmp_path: Path) -> None:
    said = headgate("scheduler", "--config", str(write(tmp_path, cell_config(heath={}))))

    assert said.code == 1
    assert 'did you mean "health"?' in said.err
    assert "not started" in said.err


def test_invalid_address_exits_with_code_2(headgate: Headgate) -> None:
    said = headgate("scheduler", "--config", "headgate.yaml", "--admin-listen=here")

    assert said.code == 2
    assert "expected an address with a port" in said.err
