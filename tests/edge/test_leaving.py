"""Tests for clients that disconnect, engines that hang or fail, and gateways that shut down."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from headgate.core.commands import Command, End
from headgate.core.events import AttemptsProgressed, Event
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import NO_TARGETS, a_config, chat, events_of, gateway_in_loop


async def test_client_disconnecting_while_queued_is_removed(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, in_flight_max=1), tmp_path) as gateway:
            engine.script.append(Behaviour(hang_after=1))
            first = asyncio.create_task(read(gateway.post(chat(stream=True))))
            held = await engine.next_request()
            waiting = asyncio.create_task(read(gateway.post(chat(stream=True))))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)

            waiting.cancel()
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 0)
            held.resume.set()
            await first
            await gateway.wait_until_idle()

    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("behaviour", "stream"),
    [
        (Behaviour(hang_before_head=True), True),
        (Behaviour(hang_after=0), True),
        (Behaviour(tokens=5, hang_after=2), True),
        (Behaviour(hang_before_head=True), False),
        (Behaviour(hang_after=0), False),
    ],
    ids=["before the head", "before the first token", "mid-stream", "not streamed", "not streamed, mid-body"],
)
async def test_disconnecting_client_frees_the_engine(tmp_path: Path, behaviour: Behaviour, stream: bool) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.script.append(behaviour)
        call = asyncio.create_task(read(gateway.post(chat(stream=stream))))
        received = await engine.next_request()
        await received.hung.wait()
        call.cancel()

        async with asyncio.timeout(30):
            await received.client_left.wait()
        await gateway.wait_until_idle()


async def test_request_is_retried_if_its_engine_hangs_before_the_first_token(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "first_token_timeout": "2s"}}
    async with FakeEngine() as silent, FakeEngine() as other:
        async with gateway_in_loop(a_config(silent.url, other.url, classes=classes), tmp_path) as gateway:
            silent.behaviour = Behaviour(hang_after=0)
            both = await asyncio.gather(*(told(gateway.post(chat(stream=True))) for _ in range(2)))
            assert (await silent.next_request()).client_left.is_set()

    assert sorted(attempts for attempts, _ in both) == ["1", "2"]
    assert [events_of(body)[-1] for _, body in both] == ["[DONE]", "[DONE]"]


async def test_engine_hanging_mid_stream_causes_an_error_event(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "stream_idle_timeout": "2s"}}
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, classes=classes), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=5, hang_after=2)
            async with gateway.post(chat(stream=True)) as answer:
                events = events_of(await answer.read())

    assert len(events) == 3
    error = json.loads(events[-1])["error"]
    assert error["code"] == "stream_interrupted"
    assert "no token for 2 s" in error["message"]


async def test_request_exceeding_its_total_time_ends_with_504(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "attempt_timeout": "300ms"}}
    async with FakeEngine() as engine:
        async with gateway_in_loop(
            a_config(engine.url, classes=classes, retry={"attempts_max": 1}), tmp_path
        ) as gateway:
            engine.behaviour = Behaviour(hang_before_head=True)
            async with gateway.post(chat()) as answer:
                error = (await answer.json())["error"]

    assert answer.status == 504
    assert error["code"] == "engine_timeout"


async def test_killing_an_engine_interrupts_only_the_streams_it_was_sending(tmp_path: Path) -> None:
    async with FakeEngine() as dying, FakeEngine() as other:
        async with gateway_in_loop(a_config(dying.url, other.url, in_flight_max=4), tmp_path) as gateway:
            dying.behaviour = Behaviour(tokens=5, hang_after=2)
            calls = [asyncio.create_task(read(gateway.post(chat(stream=True)))) for _ in range(8)]
            for _ in range(4):
                await (await dying.next_request()).hung.wait()
            dying.behaviour = Behaviour()
            await dying.kill()
            ends = [events_of(await call)[-1] for call in calls]
            # Later requests are retried, because nothing has been sent to their clients yet.
            later = [asyncio.create_task(read(gateway.post(chat(stream=True)))) for _ in range(8)]
            later_ends = [events_of(await call)[-1] for call in later]

    assert ends.count("[DONE]") == 4
    assert sum('"stream_interrupted"' in end for end in ends) == 4
    assert later_ends == ["[DONE]"] * 8


async def test_sixteen_requests_share_four_slots(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, in_flight_max=4), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=4, pace_s=0.005)
            bodies = await asyncio.gather(*(read(gateway.post(chat(stream=True))) for _ in range(16)))
            await gateway.wait_until_idle()

    assert [events_of(body)[-1] for body in bodies] == ["[DONE]"] * 16
    assert engine.running_max == 4


async def test_drain_completes_open_streams_and_rejects_new_requests(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, in_flight_max=1), tmp_path) as gateway:
            engine.script.append(Behaviour(tokens=3, hang_after=1))
            streaming = asyncio.create_task(read(gateway.post(chat(stream=True))))
            held = await engine.next_request()
            await held.hung.wait()
            queued = asyncio.create_task(read(gateway.post(chat(stream=True))))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)

            gateway.gateway.shut_down()
            await gateway.wait_for_status(lambda status: status["draining"])
            async with gateway.http.get(gateway.admin_url + "/ready") as ready:
                assert ready.status == 503
            async with gateway.post(chat()) as turned:
                assert (turned.status, (await turned.json())["error"]["code"]) == (503, "server_is_overloaded")
            assert turned.headers["x-should-retry"] == "true"
            assert turned.headers["retry-after"] == "1"

            held.resume.set()
            assert events_of(await streaming)[-1] == "[DONE]"
            assert events_of(await queued)[-1] == "[DONE]"
            assert await gateway.running == 0


async def test_requests_still_open_after_the_drain_grace_end_with_an_error(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, in_flight_max=1, drain_grace="200ms"), tmp_path) as gateway:
            engine.script.append(Behaviour(tokens=3, hang_after=1))
            streaming = asyncio.create_task(read(gateway.post(chat(stream=True))))
            held = await engine.next_request()
            await held.hung.wait()
            queued = asyncio.create_task(answered(gateway.post(chat(stream=True))))
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 1)

            gateway.gateway.shut_down()
            interrupted = events_of(await streaming)
            status, body = await queued

    assert json.loads(interrupted[-1])["error"]["code"] == "slow_down"
    assert (status, json.loads(body)["error"]["code"]) == (503, "server_is_overloaded")
    assert held.client_left.is_set()


async def test_receive_timeout_at_the_end_of_the_grace_period_does_not_disturb_the_drain(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            reader, writer = await asyncio.open_connection(*config["listen"].split(":"))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
            await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
            gateway.gateway.shut_down()
            await gateway.wait_for_status(lambda status: status["draining"])

            # Both happen in one loop iteration: the timeout fires, and the grace period ends before its request has
            # run.
            [limit] = gateway.gateway._app._receive_timeouts
            limit.reschedule(0)
            gateway.gateway.shut_down()
            answer = await reader.readline()
            writer.close()
            assert await gateway.running == 0

    assert answer == b"HTTP/1.1 503 Service Unavailable\r\n"


async def test_client_that_stops_reading_is_disconnected(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, limits={"send_timeout": "500ms"})
        async with gateway_in_loop(config, tmp_path) as gateway:
            event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 60_000 + b'"}}]}\n\n'
            engine.behaviour = Behaviour(body=event * 400)
            host, port = config["listen"].split(":")
            _, writer = await asyncio.open_connection(host, int(port), limit=1)
            body = json.dumps(chat(stream=True)).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            received = await engine.next_request()
            async with asyncio.timeout(30):
                await received.client_left.wait()
            await gateway.wait_until_idle()
            writer.close()


async def test_cancelled_exchange_releases_its_slot(tmp_path: Path) -> None:
    async with FakeEngine() as engine, FakeEngine() as other:
        async with gateway_in_loop(a_config(engine.url, other.url), tmp_path) as gateway:
            engine.behaviour = other.behaviour = Behaviour(hang_after=0)
            call = asyncio.create_task(read(gateway.post(chat(stream=True))))
            await gateway.wait_for_status(lambda status: status["attempts_open"] == 1)
            while not engine.requests and not other.requests:
                await asyncio.sleep(0.01)
            [exchange] = gateway.gateway._parts.listeners[0].connections.tasks
            exchange.cancel()
            await gateway.wait_until_idle()
            call.cancel()
            assert len(engine.requests) + len(other.requests) == 1


async def read(request: "aiohttp.client._RequestContextManager") -> bytes:
    async with request as answer:
        return await answer.read()


async def answered(request: "aiohttp.client._RequestContextManager") -> tuple[int, bytes]:
    async with request as answer:
        return answer.status, await answer.read()


async def told(request: "aiohttp.client._RequestContextManager") -> tuple[str, bytes]:
    """Returns the number of attempts from the response header, and the body."""
    async with request as answer:
        return answer.headers["x-headgate-attempts"], await answer.read()


@pytest.mark.parametrize("how", ["leaves", "deadline"])
async def test_delivered_tokens_are_reported_before_the_request_ends(tmp_path: Path, how: str) -> None:
    seen: list[Event | Command] = []

    class Watcher:
        def observe(self, event: Event, commands: Sequence[Command], now: int) -> None:
            del now
            seen.extend((event, *commands))

    headers = {"x-headgate-deadline-ms": "5000"} if how == "deadline" else {}
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path, observers=[Watcher()]) as gateway:
            engine.script.append(Behaviour(tokens=9, hang_after=5))
            async with gateway.post(chat(stream=True), headers=headers) as answer:
                came = b""
                while came.count(b"data: ") < 5:
                    came += await answer.content.readany()
                if how == "leaves":
                    answer.close()
                else:
                    await answer.read()
            await gateway.wait_until_idle()

    [ended_at] = [number for number, each in enumerate(seen) if isinstance(each, End)]
    told = [
        report.tokens for each in seen[:ended_at] if isinstance(each, AttemptsProgressed) for report in each.attempts
    ]
    after = [
        report.tokens for each in seen[ended_at:] if isinstance(each, AttemptsProgressed) for report in each.attempts
    ]
    assert (sum(told), sum(after)) == (5, 0)
