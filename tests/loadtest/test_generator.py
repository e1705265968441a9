"""Tests for the load generator: arrivals follow the schedule whatever the server does."""

import asyncio
import io
from array import array

import pytest

from headgate.loadtest.generator import LATE_P99_NS_MAX, RunCounts
from headgate.loadtest.load_test import LoadTest, raise_file_limit
from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.builders import a_plan, a_schedule, lines_of, ran


async def test_hanging_server_does_not_slow_down_arrivals() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        ran_ = await ran(a_plan(engine.url, a_schedule(*(number / 100 for number in range(20))), drain_s=3.0))

        assert engine.running_max == 20
    assert [line["outcome"] for line in ran_.lines] == ["unfinished"] * 20
    assert max(line["started_s"] for line in ran_.lines) < min(line["end_s"] for line in ran_.lines)


async def test_latency_includes_generator_lateness() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=1, pace_s=0.1)
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.0, 0.0), connections_max=1))

    # One connection sends one request at a time, so the last request starts after the two others.
    assert ran_.lines[2]["started_s"] >= 0.2
    assert ran_.data["total"]["ttft_s"]["max"] >= 0.3
    generator = ran_.data["generator"]
    assert (generator["behind"], generator["connection_waits"], generator["connections_open_peak"]) == (True, 2, 1)
    assert generator["lateness_s"]["max"] >= 0.2


@pytest.mark.parametrize(("late_ns", "behind"), [(0, False), (LATE_P99_NS_MAX, False), (LATE_P99_NS_MAX + 1, True)])
def test_generator_is_behind_if_more_than_one_percent_of_requests_are_late(late_ns: int, behind: bool) -> None:
    assert RunCounts(planned=100, lateness_ns=array("q", [0] * 98 + [late_ns] * 2)).is_behind is behind
    assert RunCounts(planned=100, lateness_ns=array("q", [0] * 99 + [late_ns])).is_behind is False


async def test_stopped_run_reports_the_requests_sent_so_far() -> None:
    record = io.BytesIO()
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=1))
        engine.behaviour = Behaviour(hang_before_head=True)
        test = LoadTest(a_plan(engine.url, a_schedule(0.0, 0.3, 3600.0)), record=record)
        running = asyncio.create_task(test.run())
        await engine.next_request()
        await (await engine.next_request()).hung.wait()
        test.stop()
        result = await running

    assert [line["outcome"] for line in lines_of(record)] == ["completed", "unfinished"]
    assert result.counts.stopped_early
    assert result.total.offered == 2
    assert result.schedule_ns == result.counts.elapsed_ns < 60e9


async def test_generator_waits_for_the_last_responses_up_to_the_drain_time() -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=2, pace_s=0.05))
        engine.behaviour = Behaviour(hang_after=1)
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.001), drain_s=3.0))

    assert [line["outcome"] for line in ran_.lines] == ["completed", "unfinished"]


async def test_generator_closes_all_connections_at_the_end() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_after=1)
        await ran(a_plan(engine.url, a_schedule(0.0, 0.0), drain_s=0.05))
        async with asyncio.timeout(30):
            while engine.connections_open:
                await asyncio.sleep(0.01)


def test_connection_limit_within_the_file_limit_is_unchanged() -> None:
    assert raise_file_limit(10) == 10
