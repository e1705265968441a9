"""Does a gateway start its engines in a real Ray cluster when its configuration says so, and leave none behind?"""

import asyncio
import os
from pathlib import Path

import pytest

from testing.gateway import a_config, chat, gateway_beside
from tests.fleets.ray_node import ENGINE, ray_node
from tests.house.small_tree import PROJECT

MODEL = f"left-behind-{os.getpid()}"
"""Differs from the name that other test runs on this machine use."""
SECONDS_MAX = 120


def said_by_processes(*words: str) -> list[str]:
    """The command lines on this machine that hold all these words."""
    lines: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.ray
@pytest.mark.timeout(900)
async def test_a_request_is_answered_from_the_cluster_and_a_killed_gateway_leaves_nothing_there(tmp_path: Path) -> None:
    with ray_node() as node:
        config = a_config(served_model=MODEL)
        config["pools"]["small"]["fleet"] = {
            "kind": "ray",
            "python": node.python,
            "address": node.address,
            "command": list(ENGINE),
            "environment": {"PYTHONPATH": str(PROJECT / "src")},
            "endpoints": 2,
        }
        async with gateway_beside(config, tmp_path, wait_for=2, seconds_max=SECONDS_MAX) as (gateway, process):
            async with gateway.post(chat(max_tokens=4)) as answer:
                status = answer.status
            # A process that was just forked still shows the command line of its parent.
            async with asyncio.timeout(SECONDS_MAX):
                while len(said_by_processes("--model", MODEL)) != 2:
                    await asyncio.sleep(0.05)
                while len(said_by_processes("ray/driver", node.address)) != 1:
                    await asyncio.sleep(0.05)
            process.kill()
            async with asyncio.timeout(SECONDS_MAX):
                while said_by_processes("--model", MODEL) or said_by_processes("ray/driver", node.address):
                    await asyncio.sleep(0.05)
        cluster_stays = node.process.exit_status is None

    assert status == 200
    assert cluster_stays
