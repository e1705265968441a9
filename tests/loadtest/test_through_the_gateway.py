"""Tests for running the load test against a gateway."""

from pathlib import Path

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.loadtest.builders import a_plan, a_schedule, a_sender, ran


async def test_streams_through_the_gateway_are_complete(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url, a_schedule(0.0, 0.01, 0.02, output_tokens=7)))

    assert [(line["outcome"], line["output_tokens"]) for line in ran_.lines] == [("completed", 7)] * 3
    assert len({line["request_id"] for line in ran_.lines}) == 3
    assert all(line["request_id"].startswith("req_") for line in ran_.lines)


async def test_gateway_rejection_is_recorded_with_its_code(tmp_path: Path) -> None:
    senders = [a_sender(service_class="no-such-class")]
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url, senders=senders))

    line = ran_.line
    assert (line["outcome"], line["status"], line["code"]) == ("http_error", 400, "invalid_request_error")


async def test_stream_truncated_by_the_engine_is_recorded_as_interrupted(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=5, cut_after=2)
        async with gateway_in_loop(a_config(engine.url, model="fake"), tmp_path) as gateway:
            ran_ = await ran(a_plan(gateway.url))

    assert (ran_.line["outcome"], ran_.line["code"]) == ("interrupted", "stream_interrupted")
