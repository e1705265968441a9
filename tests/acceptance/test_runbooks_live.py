"""Do the commands of the runbooks that only read answer, where a gateway with engines runs?"""

import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testing.gateway import a_config, chat, gateway_beside
from testing.simulated import simulated_engines
from tests.docs.test_runbooks import FOLDER, PAGES, commands

pytestmark = [pytest.mark.sight, pytest.mark.timeout(900)]

NEED_A_DATABASE = ("cost", "budgets", "operate")
NEED_A_TERMINAL = ("top",)
CLASSES = {"interactive": {"ttft": "5m", "queue_wait_max": "5m", "objectives": {"ttft_percent": 99}}}
"""A promise that is kept even if the machine pauses; `headgate report` ends with 1 if it is not."""


def reading() -> list[str]:
    found = {command for page in (*PAGES, FOLDER / "README.md") for command in commands(page)}
    return sorted(each for each in found if each.split()[1] not in (*NEED_A_DATABASE, *NEED_A_TERMINAL))


def run(command: str, folder: Path, admin_url: str) -> "subprocess.CompletedProcess[str]":
    words = shlex.split(command.replace("http://127.0.0.1:9090", admin_url))[1:]
    arguments = [sys.executable, "-m", "headgate.cli.main", *words]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False, timeout=180)


async def test_every_command_that_only_reads_answers(tmp_path: Path) -> None:
    with simulated_engines(2, "--speed-up", "20") as urls:
        config = a_config(*urls, served_model="sim", classes=CLASSES)
        async with gateway_beside(config, tmp_path) as (gateway, _):
            for _ in range(5):
                async with gateway.post(chat(stream=True, max_tokens=4)) as answer:
                    await answer.read()
            await gateway.until_idle()
            done = {each: await asyncio.to_thread(run, each, tmp_path, gateway.admin_url) for each in reading()}
            for each in ("headgate status", "headgate report"):
                # A gateway that pauses may not have answered in time.
                if done[each].returncode == 1:
                    done[each] = await asyncio.to_thread(run, each, tmp_path, gateway.admin_url)

    assert len(done) > 15
    # 1 is a problem that was found, such as that no request was as slow as asked for; a wrong command line is 2.
    wrong = {command: each.stderr for command, each in done.items() if each.returncode not in (0, 1)}
    assert wrong == {}
    assert {command: each.stderr for command, each in done.items() if "Traceback" in each.stderr} == {}
    assert done["headgate status"].returncode == done["headgate report"].returncode == 0
