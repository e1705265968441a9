"""Tests for reloading the configuration file."""

import asyncio
from pathlib import Path

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop


async def test_invalid_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            before = await gateway.status()
            await gateway.rewrite(config | {"heath": {}})
            after = await gateway.status()
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert after["config_hash"] == before["config_hash"]
    assert 'did you mean "health"?' in after["reload_problems"][0]


async def test_model_and_endpoint_are_added_while_a_stream_continues(tmp_path: Path) -> None:
    async with FakeEngine() as engine, FakeEngine() as other:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.script.append(Behaviour(tokens=3, hang_after=1))
            async with gateway.post(chat(stream=True)) as streaming:
                held = await engine.next_request()
                await held.hung.wait()
                config["pools"]["small"]["endpoints"] = [other.url]
                config["models"]["n"] = "small"
                await gateway.rewrite(config)
                await gateway.wait_for_status(lambda status: other.url[7:] in str(status["engines"]))
                leaving = [each for each in (await gateway.status())["endpoints"] if each["leaving"]]
                assert [each["in_flight"] for each in leaving] == [1]

                await gateway.wait_until_ready(2)
                async with gateway.post(chat(model="n")) as answer:
                    assert answer.status == 200
                assert len(other.requests) == 1

                held.resume.set()
                assert (await streaming.read()).endswith(b"data: [DONE]\n\n")
            await gateway.wait_for_status(lambda status: len(status["endpoints"]) == 1)


async def test_request_queued_for_a_removed_model_gets_404(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, in_flight_max=1)
        config["models"]["n"] = "small"
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.script.append(Behaviour(hang_before_head=True))
            async with asyncio.TaskGroup() as group:
                group.create_task(status_of(gateway.post(chat())))
                held = await engine.next_request()
                waiting = group.create_task(status_of(gateway.post(chat(model="n"))))
                await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)
                del config["models"]["n"]
                await gateway.rewrite(config)
                assert await waiting == 404
                held.resume.set()


async def status_of(request: object) -> int:
    async with request as answer:  # type: ignore[attr-defined]
        return answer.status
