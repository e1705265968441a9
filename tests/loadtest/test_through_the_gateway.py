"""Do the load test and the gateway understand each other?"""

from pathlib import Path

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.loadtest.builders import a_plan, a_schedule, a_sender, ran


async def test_streams_come_through_the_gateway_whole(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url, a_schedule(0.0, 0.01, 0.02, output_tokens=7)))

    assert [(line["ending"], line["output_tokens"]) for line in ran_.lines] == [("completed", 7)] * 3
    assert len({line["request_id"] for line in ran_.lines}) == 3
    assert all(line["request_id"].startswith("req_") for line in ran_.lines)


async def test_the_gateway_s_refusals_are_told_by_its_codes(tmp_path: Path) -> None:
    senders = [a_sender(service_class="no-such-class")]
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url, senders=senders))

    assert (ran_.line["ending"], ran_.line["status"], ran_.line["code"]) == ("refused", 400, "invalid_request_error")


async def test_an_engine_that_breaks_off_is_a_broken_stream_here_too(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=5, cut_after=2)
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url))

    assert (ran_.line["ending"], ran_.line["code"]) == ("broken", "stream_interrupted")
