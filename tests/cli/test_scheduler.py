"""Does a process run that schedules for a cell and serves nobody?"""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from testing.gateway import a_config
from testing.ports import free_port
from testing.processes import ChildProcess

CANARY = "canary-5f1d"
SCHEDULER = (sys.executable, "-m", "headgate.cli.main", "scheduler")


def write(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def scheduler(file: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    words = [*SCHEDULER, str(file), *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)


def cell_config(**settings: Any) -> dict[str, Any]:
    """A cell whose store nobody listens on."""
    cell = {"store": f"redis://127.0.0.1:{free_port()}", "members": 2, "member": "gw-1"}
    return a_config("http://127.0.0.1:1", cell=cell, **settings)


async def test_it_answers_operators_and_listens_for_nobody_else(tmp_path: Path) -> None:
    config, admin = cell_config(), f"127.0.0.1:{free_port()}"
    words = [*SCHEDULER, str(write(tmp_path, config)), f"--admin-listen={admin}"]
    with ChildProcess("scheduler", words) as process:
        process.wait_until_ok(f"http://{admin}/health", seconds_max=20)
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


async def test_the_password_of_the_store_is_shown_nowhere(tmp_path: Path) -> None:
    config = cell_config()
    config["cell"]["store"] = f"redis://u:${{PASSWORD}}@127.0.0.1:{free_port()}"
    words = [*SCHEDULER, str(write(tmp_path, config)), "--log-level=debug"]
    with ChildProcess("scheduler", words, {"PASSWORD": CANARY}) as process:
        process.wait_until_ok(f"http://{config['admin_listen']}/health", seconds_max=20)
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


def test_without_a_cell_it_says_what_to_write(tmp_path: Path) -> None:
    run = scheduler(write(tmp_path, a_config("http://127.0.0.1:1")))

    assert run.returncode == 1
    assert "names no cell, so there is nobody to schedule for; add cell: {store: redis://HOST:PORT}" in run.stderr


def test_a_wrong_file_is_not_run(tmp_path: Path) -> None:
    run = scheduler(write(tmp_path, cell_config(heath={})))

    assert run.returncode == 1
    assert 'did you mean "health"?' in run.stderr
    assert "not started" in run.stderr


def test_an_address_that_cannot_be_read_is_code_two(tmp_path: Path) -> None:
    run = scheduler(tmp_path / "headgate.yaml", "--admin-listen=here")

    assert run.returncode == 2
    assert "expected an address with its port" in run.stderr
