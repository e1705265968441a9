"""A streamed engine response is assembled into the same complete response that the engine would have returned."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.engines.buffered_response import PIECE_BYTES
from headgate.engines.dialects import DIALECTS
from headgate.engines.http_response import HttpResponse
from headgate.engines.joined_response import JoinedResponse
from headgate.model.ticket import Api
from headgate.ports.engine import Call, EngineFault, EngineResponse
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, gateway_in_loop
from testing.simulated_engines import engine_in_loop
from tests.engines.calls import Engines, a_call, read_all

BOTH = pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as engines:
        yield engines
    assert engines.in_use == 0


def test_responses_are_joined_only_for_engines_with_verified_streams() -> None:
    assert [name for name, each in DIALECTS.items() if each.notices_disconnect_only_in_streams] == ["llamacpp"]
    assert [name for name, each in DIALECTS.items() if each.joins_streams] == ["vllm"]


@BOTH
async def test_joined_response_equals_the_complete_response(engine: FakeEngine, engines: Engines, api: Api) -> None:
    bodies = []
    for dialect in ("openai_compatible", "llamacpp"):
        answer = await engines(engine.url, dialect=dialect).ask(a_call(api, max_tokens=5, temperature=0.5))
        assert (answer.status, answer.content_type) == (200, "application/json")
        bodies.append(json.loads(await read_all(answer)))
        answer.close()
    whole, streamed = engine.requests

    assert bodies[0] == bodies[1]
    asked_besides = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    assert streamed.json == whole.json | asked_besides
    assert streamed.headers["connection"] == "close"


@BOTH
async def test_requested_stream_is_not_joined(engine: FakeEngine, engines: Engines, api: Api) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)

    answer = await engines(engine.url, dialect="llamacpp").ask(a_call(api, stream=True))

    assert isinstance(answer, HttpResponse)
    assert (await answer.read()).startswith(b"data: ")
    answer.close()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(a_call(Api.EMBEDDINGS), id="embeddings"),
        pytest.param(a_call(Api.RESPONSES), id="responses"),
        pytest.param(a_call(tools=[{"type": "function"}], logprobs=True), id="not streamable by llama.cpp"),
    ],
)
async def test_requests_that_cannot_be_joined_are_sent_unchanged(
    engine: FakeEngine, engines: Engines, call: Call
) -> None:
    answer = await engines(engine.url, dialect="llamacpp").ask(call)
    body = await read_all(answer)

    assert isinstance(answer, HttpResponse)
    assert json.loads(body)
    assert "stream" not in engine.requests[0].json


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"logprobs": True},
        {"tools": [{"type": "function"}], "logprobs": False},
        {"tools": [{"type": "function"}], "logprobs": None},
        {"tools": [], "logprobs": True},
    ],
)
async def test_requests_with_only_tools_or_logprobs_are_streamed(
    engine: FakeEngine, engines: Engines, fields: dict[str, object]
) -> None:
    (await engines(engine.url, dialect="llamacpp").ask(a_call(**fields))).close()

    assert engine.requests[0].json["stream"] is True


async def test_requested_stream_options_are_kept(engine: FakeEngine, engines: Engines) -> None:
    call = a_call(stream_options={"include_usage": False, "include_obfuscation": False})
    (await engines(engine.url, dialect="llamacpp").ask(call)).close()

    assert engine.requests[0].json["stream_options"] == {"include_usage": True, "include_obfuscation": False}


@pytest.mark.parametrize("status", [400, 503])
async def test_error_status_is_passed_through(engine: FakeEngine, engines: Engines, status: int) -> None:
    engine.behaviour = Behaviour(status=status, error="no")

    answer = await engines(engine.url, dialect="llamacpp").ask(a_call())
    body = await read_all(answer)

    assert answer.status == status
    assert json.loads(body)["error"]["message"] == "no"
    assert answer.is_request_error(body) is (status == 400)


async def test_non_streaming_response_is_passed_through(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(content_type="application/json", body=b'{"whole": true}')

    answer = await engines(engine.url, dialect="llamacpp").ask(a_call())

    assert await read_all(answer) == b'{"whole": true}'


async def test_error_event_becomes_an_error_response(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=4, error_after=2, error="Jinja Exception: no")

    answer = await engines(engine.url, dialect="llamacpp").ask(a_call())
    body = await read_all(answer)
    answer.close()

    assert (answer.status, answer.content_type) == (500, "application/json")
    assert json.loads(body)["error"]["message"] == "Jinja Exception: no"
    assert answer.is_request_error(body)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(tokens=4, cut_after=2), "truncated"),
        (Behaviour(tokens=4, without_done=True), "ended before its last event"),
        (Behaviour(body=b"data: [DONE]\n\n"), "without a response"),
        (Behaviour(body=b"data: what\n\ndata: [DONE]\n\n"), "an invalid event"),
        (Behaviour(drop_before_head=True), "connection was closed"),
    ],
)
async def test_incomplete_stream_raises_a_fault(
    engine: FakeEngine, engines: Engines, behaviour: Behaviour, reason: str
) -> None:
    engine.behaviour = behaviour

    with pytest.raises(EngineFault, match=reason):
        await engines(engine.url, dialect="llamacpp").ask(a_call())


@pytest.mark.parametrize("after", [0, 2])
async def test_cancelled_request_closes_the_connection(engine: FakeEngine, engines: Engines, after: int) -> None:
    engine.behaviour = Behaviour(tokens=4, hang_after=after)
    asking = asyncio.create_task(engines(engine.url, dialect="llamacpp").ask(a_call()))
    received = await engine.next_request()
    await received.hung.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    async with asyncio.timeout(30):
        await received.client_left.wait()


@pytest.mark.parametrize("piece_bytes", [1, 7, None])
async def test_joined_response_does_not_depend_on_chunk_size(
    engine: FakeEngine, engines: Engines, piece_bytes: int | None
) -> None:
    engine.behaviour = Behaviour(tokens=3, piece_bytes=piece_bytes)

    answer = await engines(engine.url, dialect="llamacpp").ask(a_call())
    body = json.loads(await read_all(answer))
    answer.close()

    assert body["choices"][0]["message"]["content"] == "word0 word1 word2 "
    assert body["usage"]["completion_tokens"] == 3


async def a_long_answer(engine: FakeEngine, engines: Engines) -> EngineResponse:
    text = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * PIECE_BYTES}}]}).encode()
    engine.behaviour = Behaviour(body=3 * (b"data: " + text + b"\n\n") + b"data: [DONE]\n\n")
    answer = await engines(engine.url, dialect="llamacpp").ask(a_call())
    assert isinstance(answer, JoinedResponse)
    return answer


async def test_paused_reader_is_sent_no_more_data(engine: FakeEngine, engines: Engines) -> None:
    answer = await a_long_answer(engine, engines)
    taken: list[int] = []

    def take(data: bytes) -> bool:
        taken.append(len(data))
        answer.pause()
        return False

    pouring = asyncio.create_task(answer.stream_to(take))
    for pieces in (1, 2, 3, 4):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(taken) == pieces
        answer.resume()
    await pouring
    answer.close()

    assert taken[:3] == [PIECE_BYTES] * 3
    assert sum(taken) > 3 * PIECE_BYTES


async def test_pour_stops_when_the_reader_is_finished(engine: FakeEngine, engines: Engines) -> None:
    answer = await a_long_answer(engine, engines)
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    await answer.stream_to(take)
    answer.close()

    assert len(taken) == 1


# vLLM


class Watched:
    """Records the calls it receives."""

    def __init__(self) -> None:
        self.told: list[str | int] = []

    def begin(self) -> None:
        self.told.append("begin")

    def record_progress(self, events: int) -> None:
        self.told.append(events)

    def end(self) -> None:
        self.told.append("end")


@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"max_tokens": 3, "n": 2}], ids=["one", "two choices"])
@BOTH
async def test_joined_stream_from_the_simulated_engine_equals_its_complete_response(
    engines: Engines, api: Api, fields: dict[str, object]
) -> None:
    bodies: list[dict[str, object]] = []
    async with engine_in_loop(speed_up=100) as url:
        for watches in (True, False):
            answer = await engines(url, served_model="sim", watches=watches).ask(a_call(api, seed=1, **fields))
            assert isinstance(answer, JoinedResponse) is watches
            bodies.append(json.loads(await read_all(answer)) | {"id": "", "created": 0})
            answer.close()

    assert bodies[0] == bodies[1]


async def test_watch_receives_every_event_adding_to_the_response(engine: FakeEngine, engines: Engines) -> None:
    watch = Watched()
    engine.behaviour = Behaviour(tokens=3)
    call = replace(a_call(), watch=watch)

    (await engines(engine.url, watches=True).ask(call)).close()

    assert (watch.told[0], watch.told[-1]) == ("begin", 3)
    assert "end" not in watch.told


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"return_token_ids": True},
        {"return_prompt_text": True},
        {"stream_options": {"include_usage": True}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_vllm_is_not_streamed_if_the_stream_would_omit_fields(
    engine: FakeEngine, engines: Engines, fields: dict[str, object]
) -> None:
    watch = Watched()
    (await engines(engine.url, watches=True).ask(replace(a_call(**fields), watch=watch))).close()

    assert "stream" not in engine.requests[0].json
    assert watch.told == []


async def test_pool_can_disable_streaming_of_complete_responses(tmp_path: Path) -> None:
    for watches in (True, False):
        async with FakeEngine() as engine:
            config = a_config(engine.url)
            config["pools"]["small"]["always_stream_upstream"] = watches
            async with gateway_in_loop(config, tmp_path) as gateway, gateway.post(chat()) as answer:
                assert answer.status == 200
        assert engine.requests[0].json.get("stream", False) is watches


REASONING = (
    b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
    b"""{"choices":[{"index":0,"delta":{
"reasoning":"Hm."}}]}""".replace(b"\n", b""),
)


async def test_request_is_repeated_without_streaming_if_the_server_parses_reasoning(
    engine: FakeEngine, engines: Engines
) -> None:
    stream = b"".join(b"data: %b\n\n" % each for each in (*REASONING, b"[DONE]"))
    engine.script.append(Behaviour(body=stream))
    asked, watch = engines(engine.url, watches=True), Watched()

    for api in (Api.CHAT, Api.CHAT, Api.COMPLETIONS):
        answer = await asked.ask(replace(a_call(api, max_tokens=2), watch=watch))
        assert json.loads(await read_all(answer))["usage"]["completion_tokens"] == 2
        answer.close()

    assert [each.json.get("stream", False) for each in engine.requests] == [True, False, False, True]
    assert watch.told[:2] == ["begin", "end"]


async def test_gateway_retries_an_incomplete_joined_response(engine: FakeEngine, tmp_path: Path) -> None:
    """The caller receives nothing before the end of the stream, so the gateway can retry at any point."""
    async with FakeEngine() as other:
        for each in (engine, other):
            each.script.append(Behaviour(tokens=4, cut_after=3))
        async with gateway_in_loop(a_config(engine.url, other.url, engine="llamacpp"), tmp_path) as gateway:
            async with gateway.post(chat(max_tokens=4)) as answer:
                body = await answer.json()

    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers["x-headgate-attempts"] == "3"
    assert body["choices"][0]["message"]["content"] == "word0 word1 word2 word3 "
    assert body["usage"]["completion_tokens"] == 4
