"""A gateway with a Ray fleet starts its engines in a real Ray cluster and leaves none behind."""

import asyncio
import os
from pathlib import Path

import pytest

from testing.gateway import a_config, chat, gateway_process_with_client
from tests.fleets.ray_node import ENGINE, ray_node
from tests.house.small_tree import PROJECT

MODEL = f"left-behind-{os.getpid()}"
"""Model name that no other test run on this machine uses."""
SECONDS_MAX = 120


def said_by_processes(*words: str) -> list[str]:
    """Command lines of processes on this machine that contain all these words."""
    lines: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.ray
@pytest.mark.timeout(900)
async def test_ray_engines_serve_requests_and_stop_when_gateway_is_killed(tmp_path: Path) -> None:
    with ray_node() as node:
        config = a_config(served_model=MODEL)
        config["pools"]["small"]["fleet"] = {
            "kind": "ray",
            "python": node.python,
            "address": node.address,
            "command": list(ENGINE),
            "environment": {"PYTHONPATH": str(PROJECT / "src")},
            "endpoint_count": 2,
        }
        async with gateway_process_with_client(config, tmp_path, wait_for=2, seconds_max=SECONDS_MAX) as (
            gateway,
            process,
        ):
            async with gateway.post(chat(max_tokens=4)) as answer:
                status = answer.status
            # A newly forked process still shows its parent's command line.
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
