"""Two real cells and a controller: limits hold across both, shares follow demand, and a lost cell is replaced."""

import asyncio
from pathlib import Path

import pytest

from testing.cell_fleet import FLOOR_PERCENT, excess_ppm, live_fleet

pytestmark = [pytest.mark.cell, pytest.mark.timeout(600)]

REST_PERCENT = 100 - FLOOR_PERCENT
MOST_PERCENT = REST_PERCENT - 6
"""Shares do not change by 5 % or less."""


async def test_limits_hold_while_shares_follow_demand_and_a_cell_is_lost(tmp_path: Path) -> None:
    async with live_fleet(tmp_path) as fleet:
        # Without a controller, each cell uses the floor.
        assert await fleet.shares() == {"a": FLOOR_PERCENT, "b": FLOOR_PERCENT}
        fleet.start_controller()

        # More than the limit, and nearly all of it to one cell. The shares follow.
        sending = asyncio.gather(fleet.send(30, 20, "a"), fleet.send(3, 20, "b"))
        await fleet.wait_for_shares(lambda shares: shares["a"] >= MOST_PERCENT)
        in_a, in_b = await sending
        assert in_a[429] > 0
        assert in_a[200] > in_b[200] > 0

        sending = asyncio.gather(fleet.send(3, 20, "a"), fleet.send(30, 20, "b"))
        await fleet.wait_for_shares(lambda shares: shares["b"] >= MOST_PERCENT)
        await sending
        assert excess_ppm(fleet.admitted) == 0

        # Requests go to the other cell within one retry, and it gets the share of the lost one.
        fleet.cells["b"].kill()
        status = await fleet.ask("b", "a")
        assert status in (200, 429)
        assert fleet.outcomes["b", 0] > 0
        await fleet.wait_for_shares(lambda shares: "b" not in shares and shares["a"] >= MOST_PERCENT)
        assert excess_ppm(fleet.admitted) == 0
        assert fleet.outcomes["a", 500] == fleet.outcomes["a", 503] == 0

        # Without renewals, the remaining cell returns to the floor.
        fleet.kill_controller()
        await fleet.wait_for_shares(lambda shares: shares == {"a": FLOOR_PERCENT})


async def test_tenant_moves_under_load_without_exceeding_its_limit(tmp_path: Path) -> None:
    async with live_fleet(tmp_path, 3, cells_per_tenant=1, pins={"acme": ("a",)}) as fleet:
        fleet.start_controller()
        sending = asyncio.create_task(fleet.send(20, 60, "a"))
        await fleet.wait_for_shares(lambda shares: shares["a"] == 100, used="a")

        moved = await asyncio.to_thread(fleet.command, "move", "acme", "--to", "c")
        assert (moved.returncode, moved.stdout) == (
            0,
            "acme: the new cells have room; update the load balancer with `headgate cells map`\n",
        ), moved.stderr
        assert (await fleet.shares())["a"] <= REST_PERCENT
        assert '"acme": [\n      "c"\n' in fleet.command("map").stdout

        sending.cancel()
        assert (await fleet.shares())["a"] > FLOOR_PERCENT
        await fleet.send(20, 20, "c")
        shares = await fleet.wait_for_shares(lambda shares: shares["c"] >= MOST_PERCENT, used="c")
        assert shares["a"] == FLOOR_PERCENT
        assert excess_ppm(fleet.admitted) == 0

        shown = fleet.command("status")
        assert shown.returncode == 0
        assert "acme    c" in shown.stdout


async def test_second_controller_for_the_same_file_does_not_start(tmp_path: Path) -> None:
    async with live_fleet(tmp_path, 1, cells_per_tenant=1) as fleet:
        fleet.start_controller()
        await fleet.wait_for_shares(lambda shares: shares["a"] == 100, used="a")
        refused = await asyncio.to_thread(fleet.command, "run")
        assert refused.returncode == 1
        assert "another controller uses" in refused.stderr
