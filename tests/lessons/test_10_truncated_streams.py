"""A truncated stream is never delivered as a complete one.

A stream is complete only if the engine has sent `[DONE]`. If it is truncated before the first event, the gateway
retries on another endpoint or returns an error status. After the first event, the gateway ends the stream with an error
event and without `[DONE]`, so that the unmodified OpenAI client raises instead of returning a partial response.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import APIError, AsyncOpenAI, InternalServerError

from testing.envoy import envoy_before
from testing.fake_engine import Behaviour, FakeEngine, token_text
from testing.fault_proxy import Fault, FaultProxy
from testing.gateway import GatewayInLoop, a_config, chat, events_of, gateway_in_loop, text_of
from tests.engines.listeners import listening

TOKENS = 2
TEXT = "".join(token_text(number) for number in range(TOKENS))
STEP = 7
"""Step size in bytes between the positions at which the short test truncates."""
ONE_ATTEMPT = {"retry": {"attempts_max": 1}, "health": {"consecutive_failures_max": 1_000_000}}
"""Settings without retries or ejections, so that the response shows the effect of each individual fault."""


@asynccontextmanager
async def broken_line(folder: Path) -> AsyncIterator[tuple[FakeEngine, FaultProxy, GatewayInLoop]]:
    async with FakeEngine() as engine, FaultProxy(engine.port) as proxy:
        engine.behaviour = Behaviour(tokens=TOKENS)
        async with gateway_in_loop(a_config(proxy.url, in_flight_max=1, **ONE_ATTEMPT), folder) as gateway:
            yield engine, proxy, gateway


async def asked(gateway: GatewayInLoop, *, stream: bool = True) -> tuple[int, bytes]:
    async with gateway.post(chat(stream=stream)) as answer:
        return answer.status, await answer.read()


async def whole_answer(gateway: GatewayInLoop, proxy: FaultProxy) -> bytes:
    """Return the engine's raw response when no fault is injected."""
    status, body = await asked(gateway)
    assert (status, text_of(body), events_of(body)[-1]) == (200, TEXT, "[DONE]")
    return proxy.answer


def check(status: int, body: bytes, *, cut_at: int, answer: bytes) -> str:
    """Check the response that a caller gets for a stream truncated at this byte, and return its kind."""
    done_from, done_to = answer.index(b"data: [DONE]"), answer.index(b"data: [DONE]") + len(b"data: [DONE]\n\n")
    where = f"cut at byte {cut_at} of {len(answer)}: {status} {body!r}"
    if status != 200:
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (502, "engine_error"), where
        assert cut_at <= answer.index(b"\n\n", answer.index(b"data: ")) + 2, f"an event had already arrived; {where}"
        return "status"
    events = events_of(body)
    if events[-1] == "[DONE]":
        assert cut_at > done_from + len(b"data: "), where
        assert text_of(body) == TEXT, where
        return "done"
    assert cut_at < done_to, where
    assert "[DONE]" not in events, where
    assert json.loads(events[-1])["error"]["code"] == "stream_interrupted", where
    said = "".join(text_of(f"data: {event}\n\n".encode()) for event in events[:-1])
    assert TEXT.startswith(said), where
    return "error event"


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", ["cut_after", "reset_after"], ids=["end of connection", "reset"])
async def test_chunked_stream_truncated_at_any_byte_is_not_reported_as_completed(
    tmp_path: Path, way: str, step: int
) -> None:
    """Chunked transfer encoding, which engines use, shows that data is missing."""
    told: list[str] = []
    async with broken_line(tmp_path) as (_, proxy, gateway):
        answer = await whole_answer(gateway, proxy)
        done_at = answer.index(b"data: [DONE]")
        for cut_at in sorted({*range(0, len(answer), step), *range(done_at - 2, len(answer))}):
            proxy.fault = Fault(**{"only": b"POST", way: cut_at})
            told.append(check(*await asked(gateway), cut_at=cut_at, answer=answer))
        proxy.fault = Fault()
        await whole_answer(gateway, proxy)
        await gateway.wait_until_idle()

    print(Counter(told), "of", len(answer), "positions")
    assert told == sorted(told, key=("status", "error event", "done").index), (
        "the kinds must follow each other in this order"
    )
    assert set(told) == {"status", "error event", "done"}


async def test_stream_shorter_than_its_content_length_is_not_reported_as_completed(tmp_path: Path) -> None:
    """Some proxies buffer a stream and send it with a content length."""
    async with broken_line(tmp_path) as (engine, proxy, gateway):
        whole = await body_of(engine, proxy, gateway)
        engine.behaviour = Behaviour(body=whole, content_type="text/event-stream")
        answer = await whole_answer(gateway, proxy)
        assert b"content-length: %d" % len(whole) in answer
        for cut_at in range(0, len(answer), STEP):
            proxy.fault = Fault(only=b"POST", cut_after=cut_at)
            check(*await asked(gateway), cut_at=cut_at, answer=answer)


async def test_stream_delimited_by_connection_close_is_not_reported_as_completed_without_done(tmp_path: Path) -> None:
    """Without framing, truncation looks like the end of the stream, and only the missing `[DONE]` reveals it."""
    pieces: list[bytes] = []

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        kind, body = b"application/json", b'{"data":[{"id":"fake"}]}'
        if head.startswith(b"POST"):
            # Read the complete request, because closing with unread data would be a reset.
            await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0]))
            kind, body = b"text/event-stream", b"".join(pieces)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n%b" % (kind, body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with broken_line(tmp_path) as (engine, proxy, gateway):
        events = [event + b"\n\n" for event in (await body_of(engine, proxy, gateway)).split(b"\n\n") if event]
    (tmp_path / "unframed").mkdir()
    async with listening(answer_and_close) as url:
        async with gateway_in_loop(a_config(url, **ONE_ATTEMPT), tmp_path / "unframed") as gateway:
            for count in range(len(events) + 1):
                pieces[:] = events[:count]
                status, body = await asked(gateway)
                if count == 0:
                    assert status == 502
                elif count < len(events):
                    assert json.loads(events_of(body)[-1])["error"]["code"] == "stream_interrupted"
                    assert "[DONE]" not in events_of(body)
                else:
                    assert events_of(body)[-1] == "[DONE]"


async def body_of(engine: FakeEngine, proxy: FaultProxy, gateway: GatewayInLoop) -> bytes:
    """Return the engine's stream without chunked framing."""
    answer = await whole_answer(gateway, proxy)
    chunks, rest = bytearray(), answer.partition(b"\r\n\r\n")[2]
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        rest = rest.partition(b"\r\n")[2]
        chunks += rest[:size]
        rest = rest[size + 2 :]
    return bytes(chunks)


async def test_clean_end_without_done_is_treated_as_an_error(tmp_path: Path) -> None:
    async with broken_line(tmp_path) as (engine, _, gateway):
        engine.behaviour = Behaviour(tokens=TOKENS, without_done=True)
        status, body = await asked(gateway)

    assert status == 200
    assert json.loads(events_of(body)[-1])["error"]["code"] == "stream_interrupted"
    assert "[DONE]" not in events_of(body)


@pytest.mark.parametrize("way", ["cut_after", "reset_after"], ids=["end of connection", "reset"])
async def test_non_streaming_response_is_either_complete_or_an_error(tmp_path: Path, way: str) -> None:
    async with broken_line(tmp_path) as (_, proxy, gateway):
        status, whole = await asked(gateway, stream=False)
        length = len(proxy.answer)
        for cut_at in range(0, length, STEP):
            proxy.fault = Fault(**{"only": b"POST", way: cut_at})
            status, body = await asked(gateway, stream=False)
            assert (status, json.loads(body)["error"]["code"]) == (502, "engine_error"), cut_at
        proxy.fault = Fault(only=b"POST", cut_after=length)

        assert await asked(gateway, stream=False) == (200, whole)


async def test_openai_client_raises_for_a_truncated_stream(tmp_path: Path) -> None:
    async with broken_line(tmp_path) as (_, proxy, gateway):
        answer = await whole_answer(gateway, proxy)
        done_at = answer.index(b"data: [DONE]")
        async with AsyncOpenAI(base_url=gateway.url + "/v1", api_key="unused", max_retries=0) as client:
            for way in ("cut_after", "reset_after"):
                for cut_at in range(0, done_at, 80):
                    proxy.fault = Fault(**{"only": b"POST", way: cut_at})
                    with pytest.raises(APIError) as raised:
                        await said(client)
                    code = "stream_interrupted" if raised.type is APIError else "engine_error"
                    assert raised.value.code == code, (way, cut_at)
            proxy.fault = Fault()

            assert await said(client) == TEXT


async def said(client: AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


# Errors before the first event


async def test_error_as_first_event_becomes_a_status_for_the_openai_client(tmp_path: Path) -> None:
    async with broken_line(tmp_path) as (engine, _, gateway):
        engine.behaviour = Behaviour(error_after=0, error="out of memory")
        async with AsyncOpenAI(base_url=gateway.url + "/v1", api_key="unused", max_retries=0) as client:
            with pytest.raises(InternalServerError, match="the engine reported an error") as raised:
                await said(client)

    assert (raised.value.status_code, raised.value.code) == (502, "engine_error")
    assert raised.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(error_after=0), Behaviour(status=500), Behaviour(drop_before_head=True), Behaviour(cut_after=0)],
    ids=["error event", "status", "no head", "no event"],
)
async def test_failure_before_the_first_event_is_retried_within_the_budget(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    async with FakeEngine() as bad, FakeEngine() as good:
        bad.behaviour = behaviour
        async with gateway_in_loop(a_config(bad.url, good.url), tmp_path) as gateway:
            both = await asyncio.gather(*(asked(gateway) for _ in range(2)))
            assert [(status, events_of(body)[-1]) for status, body in both] == [(200, "[DONE]")] * 2
            assert (len(bad.requests), len(good.requests)) == (1, 2)
            good.behaviour = behaviour
            status, _ = await asked(gateway)
            attempts = len(bad.requests) + len(good.requests) - 3

    assert status == 502
    assert 1 < attempts <= 3


# Behind a real proxy


@pytest.mark.process
async def test_error_response_from_envoy_is_retried(tmp_path: Path) -> None:
    async with FakeEngine() as far, FakeEngine() as near, envoy_before(far.port) as envoy:
        async with gateway_in_loop(a_config(envoy.url, near.url), tmp_path) as gateway:
            await envoy.inject(abort_status=503)
            both = await asyncio.gather(*(asked(gateway) for _ in range(2)))

    assert [(status, events_of(body)[-1]) for status, body in both] == [(200, "[DONE]")] * 2
    assert (len(far.requests), len(near.requests)) == (0, 2)


@pytest.mark.process
async def test_stream_truncated_by_envoy_ends_with_an_error_event(tmp_path: Path) -> None:
    """Envoy's route timeout expires during the stream, and Envoy resets the stream without a last chunk."""
    async with FakeEngine() as engine, envoy_before(engine.port, route_s_max=2.0) as envoy:
        engine.behaviour = Behaviour(tokens=3, hang_after=2)
        async with gateway_in_loop(a_config(envoy.url, **ONE_ATTEMPT), tmp_path) as gateway:
            status, body = await asked(gateway)
            await asyncio.wait_for((await engine.next_request()).client_left.wait(), 30)

    assert status == 200
    assert len(events_of(body)) == 3
    assert json.loads(events_of(body)[-1])["error"]["code"] == "stream_interrupted"


@pytest.mark.process
@pytest.mark.parametrize("way", ["cut_after", "reset_after"], ids=["end of connection", "reset"])
async def test_stream_truncated_behind_envoy_is_not_reported_as_completed(tmp_path: Path, way: str) -> None:
    told: set[str] = set()
    async with FakeEngine() as engine, FaultProxy(engine.port) as proxy, envoy_before(proxy.port) as envoy:
        engine.behaviour = Behaviour(tokens=TOKENS)
        async with gateway_in_loop(a_config(envoy.url, **ONE_ATTEMPT), tmp_path) as gateway:
            answer = await whole_answer(gateway, proxy)
            for cut_at in range(0, len(answer), 29):
                proxy.fault = Fault(**{"only": b"POST", way: cut_at})
                told.add(await asked_behind_envoy(gateway, answer, cut_at))
    assert {"status", "error event"} <= told


async def asked_behind_envoy(gateway: GatewayInLoop, answer: bytes, cut_at: int) -> str:
    """Like `check`, but Envoy reframes the stream and can lose its last part with the connection."""
    status, body = await asked(gateway)
    if status == 200 and events_of(body)[-1] == "[DONE]":
        assert text_of(body) == TEXT
        assert cut_at > answer.index(b"data: [DONE]")
        return "done"
    if status == 200:
        assert "[DONE]" not in events_of(body)
        assert json.loads(events_of(body)[-1])["error"]["code"] == "stream_interrupted"
        return "error event"
    assert status == 502, (cut_at, body)
    return "status"
