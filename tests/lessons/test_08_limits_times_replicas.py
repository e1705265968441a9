"""Is a limit of a tenant one limit, however many gateways it calls?

Gateways that count by themselves let in the limit times their number. Those of a cell have one count; and where they
cannot reach each other, each keeps to its part and says so.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault
from testing.gateway import GatewayInLoop, chat
from testing.stalls import again_if_stalled
from tests.lessons.cells import CellInLoop, a_cell
from tests.lessons.scraped import series_of

pytestmark = [pytest.mark.cell, pytest.mark.timing]

GATEWAYS = 8
PER_MINUTE = 240
CALLERS = 2
"""At each gateway."""
PAUSE_S = 0.03
LASTS_S = 5.0
AT_ONCE = 12


def allowed(per_minute: float, lasted_s: float) -> float:
    """What a limit lets in of those who have not called for a minute: a minute's worth, and what drains meanwhile."""
    return per_minute * (1 + lasted_s / 60)


async def hammer(gateway: GatewayInLoop, until_s: float, seen: Counter[int]) -> None:
    """One caller who does not listen to what it is told."""
    while time.monotonic() < until_s:
        async with gateway.post(chat(max_tokens=1)) as answer:
            body = await answer.text()
            assert answer.status == 200 or '"rate_limit_exceeded"' in body, body
            seen[answer.status] += 1
        await asyncio.sleep(PAUSE_S)


async def hammer_all(cell: CellInLoop) -> tuple[list[Counter[int]], float]:
    """What each gateway answered, and how long it went on."""
    seen = [Counter[int]() for _ in cell.gateways]
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for gateway, counted in zip(cell.gateways, seen, strict=True):
            for _ in range(CALLERS):
                group.create_task(hammer(gateway, started + LASTS_S, counted))
    return seen, time.monotonic() - started


@again_if_stalled
async def test_eight_gateways_let_in_the_limit_once(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            seen, lasted_s = await hammer_all(cell)
            modes = {(await gateway.status())["cell"]["mode"] for gateway in cell.gateways}

    let_in = [each[200] for each in seen]
    print(f"\nlet in by each: {let_in}, together {sum(let_in)} of {allowed(PER_MINUTE, lasted_s):.0f}")
    assert modes == {"following"}
    assert sum(each[429] for each in seen) > PER_MINUTE, "far more was asked for"
    assert 0.9 * PER_MINUTE <= sum(let_in) <= 1.05 * allowed(PER_MINUTE, lasted_s)
    assert min(let_in) > 0, "no gateway went without"
    assert len(engine.requests) == sum(let_in)


@again_if_stalled
async def test_what_may_run_at_once_is_one_number_for_eight_gateways(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=20, pace_s=0.05)
        tenants = {"laptop": {"limits": {"concurrency": AT_ONCE}}}
        async with a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            answers = await asyncio.gather(*(answered(each) for each in cell.gateways for _ in range(AT_ONCE)))

    assert set(answers) == {200, 429}
    assert AT_ONCE - 2 <= engine.running_max <= AT_ONCE
    assert len(engine.requests) == answers.count(200)


async def answered(gateway: GatewayInLoop) -> int:
    async with gateway.post(chat(stream=True)) as answer:
        await answer.read()
        return answer.status


@again_if_stalled
async def test_without_the_store_each_lets_in_its_part_and_says_so(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            await asyncio.to_thread(cell.store.kill)
            statuses = await cell.until_all_are("island")
            seen, lasted_s = await hammer_all(cell)
            series = [await series_of(gateway) for gateway in cell.gateways]

    part = allowed(PER_MINUTE // GATEWAYS, lasted_s)
    let_in = [each[200] for each in seen]
    print(f"\nlet in by each: {let_in}, of {part:.0f} each")
    assert max(let_in) <= part + 1
    assert min(let_in) >= 0.5 * part, "its part is there to be used"
    assert {each["cell"]["share"].partition("/")[2] for each in statuses} == {str(GATEWAYS)}
    assert {each["cell"]["store"] for each in statuses} == {"away"}
    assert all(each["cell"]["store_problem"] for each in statuses)
    for each in series:
        assert each["headgate_cell_mode{mode=island}"] == 1
        assert each["headgate_cell_share_of{}"] == GATEWAYS


@pytest.mark.parametrize("deaf", [False, True], ids=["cut off", "hears nothing"])
@again_if_stalled
async def test_one_that_is_cut_off_adds_its_part_and_no_more(tmp_path: Path, deaf: bool) -> None:
    """The bound of docs/concepts/cell.md for one island: the limit of those who follow, and its own part of it."""
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(4, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            lone = cell.gateways[-1]
            if deaf:
                cell.way.fault = Fault(lost="answer")
            else:
                await cell.way.refuse()
                cell.way.break_all()
            await lone.until(lambda status: status["cell"]["mode"] == "island")
            seen, lasted_s = await hammer_all(cell)
            modes = [(await gateway.status())["cell"]["mode"] for gateway in cell.gateways]

    *followers, alone = [each[200] for each in seen]
    limit, part = allowed(PER_MINUTE, lasted_s), allowed(PER_MINUTE // 4, lasted_s)
    print(f"\nlet in by followers: {followers}, together {sum(followers)} of {limit:.0f}; alone {alone} of {part:.0f}")
    assert modes == ["following"] * 3 + ["island"]
    assert alone <= part + 1
    assert sum(followers) <= 1.05 * limit
    assert min(followers) > 0
