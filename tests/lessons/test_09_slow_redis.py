"""A store that does not respond delays requests only briefly.

A paused store is worse than a dead one: connections stay open and accept data, but there is never a response. A gateway
that waits for the store would hang with it.
"""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, chat
from testing.stalls import rerun_if_stalled
from tests.lessons.cells import CellInLoop, a_cell

pytestmark = [pytest.mark.cell, pytest.mark.timing]

GATEWAYS = 3
EVERY_S = 0.05
USUAL_S, PAUSED_S, AFTER_S = 2.0, 5.0, 2.0
GOES_ON_S_MAX = 2.0
"""Longest time for which a request may be delayed, in seconds. It is one second on an idle machine."""
ADDED_S_MAX = 0.25


@dataclass
class Taken:
    """Durations and statuses of the requests in one phase of the test."""

    seconds: list[float] = field(default_factory=list)
    statuses: set[int] = field(default_factory=set)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[len(self.seconds) * 99 // 100]


async def call(gateway: GatewayInLoop, taken: Taken) -> None:
    started = time.monotonic()
    async with gateway.post(chat(max_tokens=1)) as answer:
        await answer.read()
        taken.statuses.add(answer.status)
        taken.seconds.append(time.monotonic() - started)


async def call_all(cell: CellInLoop, lasts_s: float) -> Taken:
    """Send requests to every gateway at a fixed interval, regardless of earlier requests."""
    taken = Taken()
    until_s = time.monotonic() + lasts_s
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < until_s:
            for gateway in cell.gateways:
                group.create_task(call(gateway, taken))
            await asyncio.sleep(EVERY_S)
    return taken


@rerun_if_stalled
async def test_paused_store_delays_requests_for_at_most_a_second(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(GATEWAYS, tmp_path, engine.url, in_flight_max=64) as cell:
        usual = await call_all(cell, USUAL_S)
        cell.store.pause()
        first = await call_all(cell, GOES_ON_S_MAX)
        paused = await call_all(cell, PAUSED_S - GOES_ON_S_MAX)
        during = await cell.until_all_are("island", seconds_max=1)
        cell.store.resume()
        returning = await call_all(cell, AFTER_S)
        await cell.until_all_are("following")
        after = await call_all(cell, AFTER_S)

    told = (f"{name} p99 {each.p99:.3f} s, worst {max(each.seconds):.3f} s" for name, each in (
        ("usual", usual), ("first", first), ("paused", paused), ("returning", returning), ("after", after),
    ))  # fmt: skip
    print("\n" + "; ".join(told))
    assert {status for each in (usual, first, paused, returning, after) for status in each.statuses} == {200}
    assert max(first.seconds) < GOES_ON_S_MAX
    assert paused.p99 < usual.p99 + ADDED_S_MAX, "a gateway that knows the store is unreachable must not wait for it"
    assert returning.p99 < usual.p99 + ADDED_S_MAX + 1
    assert after.p99 < usual.p99 + ADDED_S_MAX
    assert {each["cell"]["store"] for each in during} == {"away"}


@rerun_if_stalled
async def test_paused_store_does_not_delay_running_streams(tmp_path: Path) -> None:
    async with FakeEngine() as engine, a_cell(2, tmp_path, engine.url, in_flight_max=64) as cell:
        engine.behaviour = Behaviour(tokens=80, pace_s=0.05)
        streams = [asyncio.create_task(followed(gateway)) for gateway in cell.gateways for _ in range(5)]
        await cell.until_all(lambda status: status["requests_open"] == 5)
        cell.store.pause()
        silences = await asyncio.gather(*streams)
        cell.store.resume()
        await cell.until_all_are("following")

    assert max(silences) < 1, "part of a stream waited for the store"


async def followed(gateway: GatewayInLoop) -> float:
    """Read a complete stream and return its longest gap in seconds."""
    longest, heard = 0.0, time.monotonic()
    whole = b""
    async with gateway.post(chat(stream=True)) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_any():
            longest, heard = max(longest, time.monotonic() - heard), time.monotonic()
            whole += piece
    assert whole.endswith(b"data: [DONE]\n\n")
    return longest
