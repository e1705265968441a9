"""The read-only commands in the runbooks work against a live gateway."""

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testing.gateway import a_config, chat, gateway_process_with_client
from testing.simulated_engines import simulated_engines
from tests.docs.test_runbooks import FOLDER, PAGES, commands

pytestmark = [pytest.mark.observability, pytest.mark.timeout(900)]

NEED_A_DATABASE = ("cost", "budgets", "operate")
NEED_A_TERMINAL = ("top",)
CLASSES = {"interactive": {"ttft": "5m", "queue_wait_max": "5m", "objectives": {"ttft_percent": 99}}}
"""Objectives that are met even if the machine stalls. `headgate report` exits with 1 if an objective is missed."""


def reading() -> list[str]:
    found = {command for page in (*PAGES, FOLDER / "README.md") for command in commands(page)}
    return sorted(each for each in found if each.split()[1] not in (*NEED_A_DATABASE, *NEED_A_TERMINAL))


def run(command: str, folder: Path, admin_url: str) -> "subprocess.CompletedProcess[str]":
    words = shlex.split(command.replace("http://127.0.0.1:9090", admin_url))[1:]
    arguments = [sys.executable, "-m", "headgate.cli.main", *words]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False, timeout=180)


async def test_read_only_runbook_commands_succeed(tmp_path: Path) -> None:
    with simulated_engines(2, "--speed-up", "20") as urls:
        config = a_config(*urls, served_model="sim", classes=CLASSES)
        async with gateway_process_with_client(config, tmp_path) as (gateway, _):
            for _ in range(5):
                async with gateway.post(chat(stream=True, max_tokens=4)) as answer:
                    await answer.read()
            await gateway.wait_until_idle()
            done = {each: await asyncio.to_thread(run, each, tmp_path, gateway.admin_url) for each in reading()}
            for each in ("headgate status", "headgate report"):
                # The gateway may have stalled and not responded in time.
                if done[each].returncode == 1:
                    done[each] = await asyncio.to_thread(run, each, tmp_path, gateway.admin_url)

    assert len(done) > 15
    # Exit code 1 means that the command found a problem or no match. An invalid command line exits with 2.
    wrong = {command: each.stderr for command, each in done.items() if each.returncode not in (0, 1)}
    assert wrong == {}
    assert {command: each.stderr for command, each in done.items() if "Traceback" in each.stderr} == {}
    assert done["headgate status"].returncode == done["headgate report"].returncode == 0
