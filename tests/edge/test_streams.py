"""What does a caller of a stream get?"""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, events_of, gateway_in_loop, text_of


async def test_a_stream_passes_through_and_ends_in_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True, max_tokens=5)) as answer:
            body = await answer.read()

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert text_of(body)
    assert len(events_of(body)) == 6
    assert events_of(body)[-1] == "[DONE]"


async def test_the_answer_tells_how_the_request_was_treated(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True)) as answer:
            await answer.read()

    told = {name: answer.headers[name] for name in answer.headers if name.startswith("x-headgate-")}
    assert told == {
        "x-headgate-model": "m",
        "x-headgate-queue-ms": "0",
        "x-headgate-attempts": "1",
        "x-headgate-class": "interactive",
        "x-headgate-degraded": "none",
    }
    assert answer.headers["x-request-id"].startswith("req_")


async def test_usage_is_asked_of_the_engine_and_kept_from_a_caller_who_did_not_ask(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True)) as answer:
            body = await answer.read()
        received = await engine.next_request()

    assert received.json["stream_options"] == {"include_usage": True}
    assert b'"usage"' not in body


async def test_a_caller_who_asks_for_usage_gets_it_before_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(stream=True, stream_options={"include_usage": True})) as answer:
            events = events_of(await answer.read())

    last = json.loads(events[-2])
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 7


async def test_a_broken_stream_ends_in_an_error_and_never_in_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=5, cut_after=2)
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert answer.status == 200
    assert len(events) == 3
    assert json.loads(events[-1])["error"]["code"] == "stream_interrupted"


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(tokens=5, without_done=True),
        Behaviour(tokens=5, error_after=3),
    ],
    ids=["ends without [DONE]", "reports an error"],
)
async def test_what_does_not_end_well_is_not_called_done(tmp_path: Path, behaviour: Behaviour) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = behaviour
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert "[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "stream_interrupted"


async def test_an_error_as_first_event_is_tried_elsewhere_and_never_seen(tmp_path: Path) -> None:
    async with FakeEngine() as bad, FakeEngine() as good:
        async with gateway_in_loop(a_config(bad.url, good.url), tmp_path) as gateway:
            bad.behaviour = Behaviour(error_after=0)
            both = await asyncio.gather(*(read(gateway.post(chat(stream=True))) for _ in range(2)))

    # Each engine got one of the two, and the good one the other's second attempt.
    assert [(status, events_of(body)[-1]) for status, body in both] == [(200, "[DONE]")] * 2
    assert len(bad.requests) == 1
    assert len(good.requests) == 2


async def test_an_error_as_first_event_everywhere_is_a_status(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(error_after=0, error="out of luck")
        async with gateway.post(chat(stream=True)) as answer:
            error = (await answer.json())["error"]

    assert answer.status == 502
    assert answer.headers["retry-after"] == "1"
    assert error["code"] == "engine_error"
    assert "the engine reported an error" in error["message"]


async def test_pieces_of_any_size_come_out_as_whole_events(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=20, piece_bytes=7)
        async with gateway.post(chat(stream=True)) as answer:
            events = events_of(await answer.read())

    assert len(events) == 21
    assert events[-1] == "[DONE]"


async def read(request: "aiohttp.client._RequestContextManager") -> tuple[int, bytes]:
    async with request as answer:
        return answer.status, await answer.read()


async def test_streams_that_follow_each_other_share_a_connection_to_the_engine(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for _ in range(5):
            async with gateway.post(chat(stream=True)) as answer:
                await answer.read()
            await gateway.until(lambda status: status["endpoints"][0]["in_flight"] == 0)
            await asyncio.sleep(0.02)

    assert len({request.connection for request in engine.requests}) == 1
