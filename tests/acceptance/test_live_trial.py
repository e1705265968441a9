"""Setting trials on a gateway process with a simulated engine under traffic."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from headgate.cli.input.operator_key import ADMIN_KEY_VARIABLE
from testing.gateway import gateway_process_with_client
from testing.live_trials import IN_FLIGHT, OPERATOR_KEY, TrialWorld, trial_world

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


async def test_harmful_value_is_reverted_and_a_killed_gateway_starts_with_the_old_one(tmp_path: Path) -> None:
    async with trial_world(tmp_path, in_flight_max=32) as world:
        assert (await world.admin("trials/start", key="hg-reader", setting=IN_FLIGHT, value="1"))[0] == 403
        await world.start(1)
        trial, _ = await world.result(1)
        assert (trial["phase"], trial["result"]) == ("reverted", "worse"), trial
        assert await world.limit() == 32

        await world.start(24)
        await abort_with_cli(world)

        await world.start(24)
        await world.until_limit(24)
        world.process.kill()
        async with gateway_process_with_client(world.config, tmp_path) as (gateway, process):
            restarted = TrialWorld(gateway, process, world.config)
            assert await restarted.limit() == 32
            assert (await restarted.admin("trials/status"))[1]["data"] == []


async def abort_with_cli(world: TrialWorld) -> None:
    command = [sys.executable, "-m", "headgate.cli.main", "tune", "--live", "abort", "--url", world.gateway.admin_url]
    running = await asyncio.create_subprocess_exec(
        *command, env=os.environ | {ADMIN_KEY_VARIABLE: OPERATOR_KEY}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await running.communicate()
    assert running.returncode == 0
    assert b"aborted by alice" in said


@pytest.mark.nightly
async def test_better_value_is_kept(tmp_path: Path) -> None:
    async with trial_world(tmp_path, in_flight_max=4) as world:
        await world.start(32)
        trial, _ = await world.result(32)

        assert (trial["phase"], trial["result"]) == ("kept", "improved"), trial
        assert await world.limit() == 32
