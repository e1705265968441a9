"""A tenant's limit applies once across all gateways in a cell.

Gateways that count separately admit the limit multiplied by the number of gateways. The gateways in a cell share one
count. A gateway that cannot reach the others uses only its share and reports that it is doing so.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.fault_proxy import Fault
from testing.gateway import GatewayInLoop, chat
from testing.stalls import rerun_if_stalled
from tests.lessons.cells import CellInLoop, a_cell
from tests.lessons.scraped import series_of

pytestmark = [pytest.mark.cell, pytest.mark.timing]

GATEWAYS = 8
PER_MINUTE = 240
CALLERS = 2
"""Number of callers per gateway."""
PAUSE_S = 0.03
LASTS_S = 5.0
AT_ONCE = 12


def allowed(per_minute: float, lasted_s: float) -> float:
    """Requests that a limit admits after an idle minute: one minute's worth plus the refill in the meantime."""
    return per_minute * (1 + lasted_s / 60)


async def hammer(gateway: GatewayInLoop, until_s: float, seen: Counter[int]) -> None:
    """Send requests at a fixed pace and ignore Retry-After."""
    while time.monotonic() < until_s:
        async with gateway.post(chat(max_tokens=1)) as answer:
            body = await answer.text()
            assert answer.status == 200 or '"rate_limit_exceeded"' in body, body
            seen[answer.status] += 1
        await asyncio.sleep(PAUSE_S)


async def hammer_all(cell: CellInLoop) -> tuple[list[Counter[int]], float]:
    """Return the statuses per gateway and the duration in seconds."""
    seen = [Counter[int]() for _ in cell.gateways]
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for gateway, counted in zip(cell.gateways, seen, strict=True):
            for _ in range(CALLERS):
                group.create_task(hammer(gateway, started + LASTS_S, counted))
    return seen, time.monotonic() - started


@rerun_if_stalled
async def test_eight_gateways_admit_the_limit_once(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            seen, lasted_s = await hammer_all(cell)
            modes = {(await gateway.status())["cell"]["mode"] for gateway in cell.gateways}

    let_in = [each[200] for each in seen]
    print(f"\nadmitted per gateway: {let_in}, total {sum(let_in)} of {allowed(PER_MINUTE, lasted_s):.0f}")
    assert modes == {"following"}
    assert sum(each[429] for each in seen) > PER_MINUTE, "the offered load must far exceed the limit"
    assert 0.9 * PER_MINUTE <= sum(let_in) <= 1.05 * allowed(PER_MINUTE, lasted_s)
    assert min(let_in) > 0, "every gateway must admit some requests"
    assert len(engine.requests) == sum(let_in)


@rerun_if_stalled
async def test_concurrency_limit_is_shared_by_eight_gateways(tmp_path: Path) -> None:
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


@rerun_if_stalled
async def test_islands_admit_their_share_and_report_it(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            await asyncio.to_thread(cell.store.kill)
            statuses = await cell.until_all_are("island")
            seen, lasted_s = await hammer_all(cell)
            series = [await series_of(gateway) for gateway in cell.gateways]

    part = allowed(PER_MINUTE // GATEWAYS, lasted_s)
    let_in = [each[200] for each in seen]
    print(f"\nadmitted per gateway: {let_in}, of {part:.0f} each")
    assert max(let_in) <= part + 1
    assert min(let_in) >= 0.5 * part, "an island must be able to use its share"
    assert {each["cell"]["share"].partition("/")[2] for each in statuses} == {str(GATEWAYS)}
    assert {each["cell"]["store"] for each in statuses} == {"away"}
    assert all(each["cell"]["store_problem"] for each in statuses)
    for each in series:
        assert each["headgate_cell_mode{mode=island}"] == 1
        assert each["headgate_cell_share_divisor{}"] == GATEWAYS


@pytest.mark.parametrize("deaf", [False, True], ids=["disconnected", "receives nothing"])
@rerun_if_stalled
async def test_single_island_adds_at_most_its_share(tmp_path: Path, deaf: bool) -> None:
    """Checks the bound in docs/concepts/cell.md for one island: the followers' limit plus the island's share."""
    async with FakeEngine() as engine:
        tenants = {"laptop": {"limits": {"requests_per_minute": PER_MINUTE}}}
        async with a_cell(4, tmp_path, engine.url, in_flight_max=64, tenants=tenants) as cell:
            lone = cell.gateways[-1]
            if deaf:
                cell.way.fault = Fault(lost="answer")
            else:
                await cell.way.stop_listening()
                cell.way.break_all()
            await lone.wait_for_status(lambda status: status["cell"]["mode"] == "island")
            seen, lasted_s = await hammer_all(cell)
            modes = [(await gateway.status())["cell"]["mode"] for gateway in cell.gateways]

    *followers, alone = [each[200] for each in seen]
    limit, part = allowed(PER_MINUTE, lasted_s), allowed(PER_MINUTE // 4, lasted_s)
    print(f"\nadmitted by followers: {followers}, total {sum(followers)} of {limit:.0f}; island {alone} of {part:.0f}")
    assert modes == ["following"] * 3 + ["island"]
    assert alone <= part + 1
    assert sum(followers) <= 1.05 * limit
    assert min(followers) > 0
