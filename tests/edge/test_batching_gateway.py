"""Tests for a gateway that batches embeddings: responses, metrics, retries and shutdown."""

import asyncio
from pathlib import Path
from typing import Any

from headgate.core.events import AttemptEnded, Event
from headgate.model.usage import Usage, UsageSource
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop

PATH = "/v1/embeddings"


def batching_config(*urls: str, in_flight_max: int = 16, **batching: Any) -> Config:
    config = a_config(*urls, in_flight_max=in_flight_max)
    config["pools"]["small"]["batching"] = {"batch_size_max": 4, "delay_max": "10s"} | batching
    return config


async def embed(gateway: GatewayInLoop, given: object = "once", **fields: Any) -> tuple[int, Any]:
    async with gateway.post({"model": "m", "input": given, **fields}, PATH) as answer:
        return answer.status, await answer.json()


async def hung(engine: FakeEngine, gateway: GatewayInLoop) -> "asyncio.Task[tuple[int, Any]]":
    """Starts a call that waits in the engine until the test resumes it."""
    engine.script.append(Behaviour(hang_before_head=True))
    first = asyncio.create_task(embed(gateway, "first", dimensions=1))
    await (await engine.next_request()).hung.wait()
    return first


async def test_concurrent_requests_are_joined_and_each_gets_its_own_response(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        answers = await asyncio.gather(*(embed(gateway, text) for text in ("a", "b", ["c", "d"])))
        engine.requests[0].resume.set()
        await first
        await gateway.wait_until_idle()
        async with gateway.http.get(gateway.admin_url + "/metrics") as page:
            metrics = await page.text()
        held = (await gateway.status())["held"]

    assert sorted(engine.requests[1].json["input"]) == ["a", "b", "c", "d"]
    assert engine.requests[1].json["model"] == "fake"
    assert [status for status, _ in answers] == [200] * 3
    assert [len(body["data"]) for _, body in answers] == [1, 1, 2]
    assert sum(body["usage"]["prompt_tokens"] for _, body in answers) == 28
    assert 'headgate_batch_size_bucket{pool="small",le="1.0"} 1\n' in metrics
    assert 'headgate_batch_size_bucket{pool="small",le="4.0"} 2\n' in metrics
    assert 'headgate_batch_wait_seconds_count{pool="small"} 4\n' in metrics
    assert held["batched_inputs"] == 0


async def test_rejection_affects_only_its_own_request_and_does_not_eject_the_endpoint(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        refusal = b'{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":400}}'
        # Rejected: the batch, its first half, and one of the two requests in that half.
        engine.script.extend([Behaviour(status=400, body=refusal)] * 2 + [Behaviour()])
        engine.script.append(Behaviour(status=400, body=refusal))
        answers = await asyncio.gather(*(embed(gateway, text) for text in "abcd"))
        engine.requests[0].resume.set()
        await first
        status = await gateway.status()

    assert sorted(status for status, _ in answers) == [200, 200, 200, 400]
    assert [endpoint["state"] for endpoint in status["endpoints"]] == ["ready"]


async def test_client_error_reported_as_server_error_is_returned_as_400_without_retry(tmp_path: Path) -> None:
    words = b'{"error":{"code":500,"message":"input (301 tokens) is too large to process.","type":"server_error"}}'
    async with FakeEngine() as engine:
        config = batching_config(engine.url)
        config["pools"]["small"]["engine"] = "llamacpp"
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.script.append(Behaviour(status=500, body=words))
            async with gateway.post({"model": "m", "input": "long"}, PATH) as answer:
                told = answer.status, answer.headers["x-should-retry"], await answer.read()
            status = await gateway.status()

    assert told == (400, "false", words)
    assert len(engine.requests) == 1
    assert [endpoint["state"] for endpoint in status["endpoints"]] == ["ready"]


async def test_dropped_connection_does_not_count_as_a_failure_of_every_batched_request(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        engine.script.append(Behaviour(drop_before_head=True))
        answers = await asyncio.gather(*(embed(gateway, text) for text in "abcd"))
        engine.requests[0].resume.set()
        await first
        status = await gateway.status()

    assert [status for status, _ in answers] == [200] * 4
    assert [len(request.json["input"]) for request in engine.requests[1:]] == [4, 2, 2]
    assert status["counted"]["pools"]["small"]["retries"] == 0
    assert [endpoint["state"] for endpoint in status["endpoints"]] == ["ready"]


async def test_request_retried_by_the_scheduler_is_sent_alone(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = batching_config(engine.url) | {"health": {"consecutive_failures_max": 100}}
        async with gateway_in_loop(config, tmp_path) as gateway:
            first = await hung(engine, gateway)
            engine.script.extend([Behaviour(drop_before_head=True)] * 3)
            answers = await asyncio.gather(*(embed(gateway, text) for text in "abcd"))
            engine.requests[0].resume.set()
            await first
            status = await gateway.status()

    assert [status for status, _ in answers] == [200] * 4
    assert sorted(request.json["input"] for request in engine.requests[4:]) == ["a", "b", "c", "d"]
    assert status["counted"]["pools"]["small"]["retries"] == 4


async def test_disconnecting_client_leaves_the_rest_of_the_batch_running(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        engine.script.append(Behaviour(hang_before_head=True))
        tasks = [asyncio.create_task(embed(gateway, text)) for text in "abcd"]
        batch = await engine.next_request()
        await batch.hung.wait()
        tasks[0].cancel()
        await gateway.wait_for_status(lambda status: status["requests_open"] == 4)
        batch.resume.set()
        answers = await asyncio.gather(*tasks[1:])
        engine.requests[0].resume.set()
        await first
        await gateway.wait_until_idle()

    assert [status for status, _ in answers] == [200] * 3
    assert len(batch.json["input"]) == 4


async def test_engine_call_is_cancelled_when_all_clients_have_disconnected(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        engine.script.append(Behaviour(hang_before_head=True))
        tasks = [asyncio.create_task(embed(gateway, text)) for text in "abcd"]
        batch = await engine.next_request()
        await batch.hung.wait()
        for task in (first, *tasks):
            task.cancel()
        async with asyncio.timeout(30):
            await batch.client_left.wait()
        await gateway.wait_until_idle()
        held = (await gateway.status())["held"]

    assert (held["batched_inputs"], held["attempts"]) == (0, 0)


async def test_deadline_limits_the_batch_wait(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        hasty = {"x-headgate-deadline-ms": "3000"}
        async with gateway.post({"model": "m", "input": "a"}, PATH, headers=hasty) as answer:
            assert answer.status == 200
        engine.requests[0].resume.set()
        await first

    assert engine.requests[1].json["input"] == "a"


async def test_usage_divided_by_bytes_is_recorded_as_estimated(tmp_path: Path) -> None:
    usages: list[Usage] = []

    class Watcher:
        def observe(self, event: Event, commands: object, now: int) -> None:
            del commands, now
            if isinstance(event, AttemptEnded) and event.usage is not None:
                usages.append(event.usage)

    async with FakeEngine() as engine:
        async with gateway_in_loop(batching_config(engine.url), tmp_path, observers=[Watcher()]) as gateway:
            first = await hung(engine, gateway)
            await asyncio.gather(*(embed(gateway, text) for text in "abcd"))
            engine.requests[0].resume.set()
            await first

    assert [(usage.prompt_tokens, usage.source) for usage in usages] == [
        *[(7, UsageSource.ESTIMATED)] * 4,
        (7, UsageSource.ENGINE),
    ]


async def test_batching_stops_when_its_rules_are_removed(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = batching_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            del config["pools"]["small"]["batching"]
            await gateway.rewrite(config)
            first = await hung(engine, gateway)
            answers = await asyncio.gather(*(embed(gateway, text) for text in "abcd"))
            engine.requests[0].resume.set()
            await first

    assert [status for status, _ in answers] == [200] * 4
    assert [request.json["input"] for request in engine.requests[1:]] != ["abcd"]
    assert len(engine.requests) == 5


async def test_joined_requests_keep_their_own_id_class_and_usage(tmp_path: Path) -> None:
    charged: dict[str, int | None] = {}

    class Watcher:
        def observe(self, event: Event, commands: object, now: int) -> None:
            del commands, now
            if isinstance(event, AttemptEnded) and event.usage is not None:
                charged[event.request_id] = event.usage.prompt_tokens

    async def ask(gateway: GatewayInLoop, text: str, service_class: str) -> tuple[str, str, int]:
        headers = {"x-headgate-class": service_class}
        async with gateway.post({"model": "m", "input": text}, PATH, headers=headers) as answer:
            assert answer.status == 200
            tokens = (await answer.json())["usage"]["prompt_tokens"]
            return answer.headers["x-request-id"], answer.headers["x-headgate-class"], tokens

    async with FakeEngine() as engine:
        config = batching_config(engine.url)
        async with gateway_in_loop(config, tmp_path, observers=[Watcher()]) as gateway:
            first = await hung(engine, gateway)
            told = await asyncio.gather(
                ask(gateway, "x", "interactive"),
                ask(gateway, "x" * 2, "batch"),
                ask(gateway, "x" * 11, "interactive"),
                ask(gateway, "x" * 14, "batch"),
            )
            engine.requests[0].resume.set()
            await first
            await gateway.wait_until_idle()

    assert len(engine.requests[1].json["input"]) == 4
    assert len({request_id for request_id, _, _ in told}) == 4
    assert [name for _, name, _ in told] == ["interactive", "batch", "interactive", "batch"]
    assert [tokens for _, _, tokens in told] == [1, 2, 11, 14]
    assert [charged[request_id] for request_id, _, _ in told] == [1, 2, 11, 14]


async def test_requests_waiting_in_a_batch_are_completed_on_shutdown(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
        first = await hung(engine, gateway)
        others = [asyncio.create_task(embed(gateway, text)) for text in "abc"]
        await gateway.wait_for_status(lambda status: status["held"]["batched_inputs"] == 3)
        gateway.gateway.shut_down()
        engine.requests[0].resume.set()
        answers = await asyncio.gather(first, *others)

    assert [status for status, _ in answers] == [200] * 4


async def test_second_shutdown_signal_cancels_the_batch_and_ends_every_request(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(batching_config(engine.url), tmp_path) as gateway:
            first = await hung(engine, gateway)
            engine.script.append(Behaviour(hang_before_head=True))
            others = [asyncio.create_task(embed(gateway, text)) for text in "abcde"]
            batch = await engine.next_request()
            await batch.hung.wait()
            gateway.gateway.shut_down()
            gateway.gateway.shut_down()
            async with asyncio.timeout(30):
                answers = await asyncio.gather(first, *others)
                await batch.client_left.wait()

    assert [(status, body["error"]["code"]) for status, body in answers] == [(429, "slow_down")] * 6
