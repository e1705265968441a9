"""Does traffic go on, whatever the server does?"""

import asyncio
import io
from array import array

import pytest

from headgate.loadtest.generator import LATE_P99_NS_MAX, Course
from headgate.loadtest.run import LoadTest, files_allow_connections
from testing.fake_engine import Behaviour, FakeEngine
from tests.loadtest.builders import a_plan, a_schedule, lines_of, ran


async def test_a_server_that_hangs_does_not_slow_arrivals_down() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_before_head=True)
        ran_ = await ran(a_plan(engine.url, a_schedule(*(number / 100 for number in range(20))), drain_s=3.0))

        assert engine.running_max == 20
    assert [line["ending"] for line in ran_.lines] == ["unfinished"] * 20
    assert max(line["begun_s"] for line in ran_.lines) < min(line["end_s"] for line in ran_.lines)


async def test_a_late_generator_is_no_excuse_and_says_so() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=1, pace_s=0.1)
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.0, 0.0), connections_most=1))

    # One connection carries one request after the other: the last begins after the two before it.
    assert ran_.lines[2]["begun_s"] >= 0.2
    assert ran_.data["total"]["ttft_s"]["max"] >= 0.3
    generator = ran_.data["generator"]
    assert (generator["behind"], generator["connection_waits"], generator["connections_open_most"]) == (True, 2, 1)
    assert generator["lateness_s"]["max"] >= 0.2


@pytest.mark.parametrize(("late_ns", "behind"), [(0, False), (LATE_P99_NS_MAX, False), (LATE_P99_NS_MAX + 1, True)])
def test_a_generator_is_behind_when_more_than_one_request_in_a_hundred_is_late(late_ns: int, behind: bool) -> None:
    assert Course(planned=100, lateness_ns=array("q", [0] * 98 + [late_ns] * 2)).is_behind is behind
    assert Course(planned=100, lateness_ns=array("q", [0] * 99 + [late_ns])).is_behind is False


async def test_a_run_that_is_stopped_reports_what_there_is() -> None:
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

    assert [line["ending"] for line in lines_of(record)] == ["completed", "unfinished"]
    assert result.course.stopped_early
    assert result.total.offered == 2
    assert result.schedule_ns == result.course.elapsed_ns < 60e9


async def test_the_last_answers_are_waited_for_but_not_for_ever() -> None:
    async with FakeEngine() as engine:
        engine.script.append(Behaviour(tokens=2, pace_s=0.05))
        engine.behaviour = Behaviour(hang_after=1)
        ran_ = await ran(a_plan(engine.url, a_schedule(0.0, 0.001), drain_s=3.0))

    assert [line["ending"] for line in ran_.lines] == ["completed", "unfinished"]


async def test_nothing_is_left_open() -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(hang_after=1)
        await ran(a_plan(engine.url, a_schedule(0.0, 0.0), drain_s=0.05))
        async with asyncio.timeout(30):
            while engine.connections_open:
                await asyncio.sleep(0.01)


def test_connections_stay_within_what_the_system_allows() -> None:
    assert files_allow_connections(10) == 10
