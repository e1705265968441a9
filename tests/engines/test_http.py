"""Are an engine's bytes carried faithfully, and is nothing left behind however it ends?"""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from headgate.engines.http import HttpAnswer, url_at
from headgate.model.ticket import Api
from headgate.ports.engine import EngineFault
from tests.engines.calls import a_call, an_http_engine, connections_idle, connections_in_use, read_all
from tests.engines.listeners import listening
from tests.support.fake_engine import Behaviour, FakeEngine, token_text
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
async def nothing_is_left_behind(session: aiohttp.ClientSession) -> AsyncIterator[None]:
    yield
    gc.collect()
    assert connections_in_use(session) == 0


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://e:1", "http://e:1/v1/models"),
        ("http://e:1/", "http://e:1/v1/models"),
        ("http://e:1/v1", "http://e:1/v1/models"),
        ("https://e/team/v1/", "https://e/team/v1/models"),
    ],
)
def test_an_address_may_be_written_with_or_without_its_version(base: str, url: str) -> None:
    assert url_at(base, "/v1/models") == url


@pytest.mark.parametrize(
    ("api", "path"),
    [
        (Api.CHAT, "/v1/chat/completions"),
        (Api.COMPLETIONS, "/v1/completions"),
        (Api.EMBEDDINGS, "/v1/embeddings"),
    ],
)
async def test_the_engine_gets_its_own_name_of_the_model_and_our_headers(
    engine: FakeEngine, session: aiohttp.ClientSession, api: Api, path: str
) -> None:
    engine.api_key = "key"
    asked = an_http_engine(session, engine.url, api_key="key")
    headers = {"traceparent": "00-a-b-01", "X-Request-Id": "not ours", "Authorization": "Bearer caller"}

    answer = await asked.ask(a_call(api, request_id="r7", headers=headers, temperature=0.5))
    body = await read_all(answer)

    received = await engine.next_request()
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(body)["model"] == "fake"
    assert (received.path, received.json["model"], received.json["temperature"]) == (path, "fake", 0.5)
    assert received.headers == {
        "host": f"127.0.0.1:{engine.port}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "authorization": "Bearer key",
        "content-length": str(len(received.raw)),
        "content-type": "application/json",
        "traceparent": "00-a-b-01",
        "user-agent": "headgate",
        "x-request-id": "r7",
    }


async def test_a_stream_is_read_as_it_comes(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)

    answer = await an_http_engine(session, engine.url).ask(a_call(stream=True))
    first = await answer.read()
    received = await engine.next_request()
    await received.hung.wait()
    received.resume.set()
    rest = await read_all(answer)

    assert answer.content_type == "text/event-stream; charset=utf-8"
    assert token_text(0).encode() in first
    assert token_text(2).encode() in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await answer.read() == b""


async def test_a_connection_read_to_its_end_is_used_again(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    asked = an_http_engine(session, engine.url)
    for stream in (True, False, True):
        answer = await asked.ask(a_call(stream=stream))
        await read_all(answer)
        answer.close()

    assert engine.connections_total == 1
    assert connections_idle(session) == 1


async def test_a_stream_has_a_connection_of_its_own_where_the_engine_may_close_it(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.behaviour = Behaviour(close_after=True)
    asked = an_http_engine(session, engine.url, dialect="llamacpp")
    for _ in range(3):
        answer = await asked.ask(a_call(stream=True))
        await read_all(answer)
        answer.close()

    assert [received.headers.get("connection") for received in engine.requests] == ["close"] * 3
    assert engine.connections_total == 3


async def test_small_writes_are_not_held_back(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    answer = await an_http_engine(session, engine.url).ask(a_call(stream=True, max_tokens=100_000))

    assert socket_of(answer).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    answer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_before_the_end_tells_the_engine(
    engine: FakeEngine, session: aiohttp.ClientSession, stream: bool
) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)

    answer = await an_http_engine(session, engine.url).ask(a_call(stream=stream))
    received = await engine.next_request()
    await received.hung.wait()
    answer.close()

    await received.client_left.wait()
    assert connections_idle(session) == 0


async def test_closing_twice_or_after_the_end_does_no_harm(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    answer = await an_http_engine(session, engine.url).ask(a_call())
    await read_all(answer)
    answer.close()
    answer.close()

    assert connections_idle(session) == 1


async def test_a_cut_does_not_wait_for_what_is_still_being_sent(session: aiohttp.ClientSession) -> None:
    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.Event().wait()

    messages = [{"role": "user", "content": "x" * 30_000_000}]
    async with listening(answer_early) as url:
        answer = await an_http_engine(session, url).ask(a_call(stream=True, messages=messages))
        transport, ours = transport_of(answer), socket_of(answer)
        while transport.get_write_buffer_size() == 0:
            await asyncio.sleep(0)
        answer.close()
        for _ in range(3):
            await asyncio.sleep(0)

        assert ours.fileno() == -1


def transport_of(answer: HttpAnswer) -> asyncio.Transport:
    connection = answer._response.connection
    assert connection is not None
    assert connection.transport is not None
    return connection.transport


def socket_of(answer: HttpAnswer) -> socket.socket:
    return transport_of(answer).get_extra_info("socket")


async def test_a_cancelled_question_leaves_no_connection(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    asking = asyncio.create_task(an_http_engine(session, engine.url).ask(a_call()))
    received = await engine.next_request()
    await received.hung.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await received.client_left.wait()
    assert (connections_in_use(session), connections_idle(session)) == (0, 0)


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_after_any_number_of_steps_leaves_no_connection(
    engine: FakeEngine, session: aiohttp.ClientSession, steps: int
) -> None:
    engine.behaviour = Behaviour(tokens=2, hang_after=1)

    async def ask_and_read() -> None:
        answer: HttpAnswer = await an_http_engine(session, engine.url).ask(a_call(stream=True))
        try:
            await read_all(answer)
        finally:
            answer.close()

    asking = asyncio.create_task(ask_and_read())
    for _ in range(steps):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert (connections_in_use(session), connections_idle(session)) == (0, 0)
    for received in engine.requests:
        await received.client_left.wait()


async def test_an_engine_that_is_not_there_is_a_fault(session: aiohttp.ClientSession) -> None:
    with pytest.raises(EngineFault, match=r"^the engine could not be asked: connection refused$"):
        await an_http_engine(session, f"http://127.0.0.1:{free_port()}").ask(a_call())


async def test_a_name_that_does_not_resolve_is_a_fault(session: aiohttp.ClientSession) -> None:
    with pytest.raises(EngineFault, match=r"^the engine could not be asked: its host name does not resolve$"):
        await an_http_engine(session, "http://nowhere.invalid").ask(a_call())


async def test_what_is_not_http_is_a_fault(session: aiohttp.ClientSession) -> None:
    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")

    async with listening(talk_nonsense) as url:
        with pytest.raises(EngineFault, match=r"^the engine could not be asked: its answer is not HTTP"):
            await an_http_engine(session, url).ask(a_call())


async def test_a_connection_dropped_before_the_head_is_a_fault(
    engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    engine.behaviour = Behaviour(drop_before_head=True)

    with pytest.raises(EngineFault, match="could not be asked: it closed the connection without an answer"):
        await an_http_engine(session, engine.url).ask(a_call(stream=True))
    assert len(engine.requests) == 1, "nothing is retried behind the scheduler's back"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_breaks_off_is_a_fault(
    engine: FakeEngine, session: aiohttp.ClientSession, stream: bool
) -> None:
    engine.behaviour = Behaviour(tokens=4, cut_after=2)
    answer = await an_http_engine(session, engine.url).ask(a_call(stream=stream))

    with pytest.raises(EngineFault, match="the engine's answer broke off"):
        await read_all(answer)
    answer.close()


async def test_an_engine_killed_while_we_read_is_a_fault(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    engine.behaviour = Behaviour(tokens=4, hang_after=2)
    answer = await an_http_engine(session, engine.url).ask(a_call(stream=True))
    received = await engine.next_request()
    await received.hung.wait()
    await engine.kill()

    with pytest.raises(EngineFault, match="the engine's answer broke off"):
        await read_all(answer)
    answer.close()


async def test_a_redirect_is_not_followed(session: aiohttp.ClientSession, engine: FakeEngine) -> None:
    async def send_elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Go\r\nlocation: {engine.url}\r\ncontent-length: 0\r\n\r\n".encode())

    async with listening(send_elsewhere) as url:
        answer = await an_http_engine(session, url).ask(a_call())

        assert answer.status == 307
        assert not answer.blames_request(b"")
        assert await read_all(answer) == b""
    assert not engine.requests


async def test_a_body_of_megabytes_arrives_whole(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    messages = [{"role": "user", "content": "x" * 5_000_000}]

    answer = await an_http_engine(session, engine.url).ask(a_call(messages=messages))

    assert (await engine.next_request()).json["messages"] == messages
    await read_all(answer)


async def test_a_reader_that_pauses_stops_the_engine(engine: FakeEngine, session: aiohttp.ClientSession) -> None:
    """What an engine sends while nobody reads stays with the engine, beyond a bounded buffer."""
    flood = b"data: " + b"x" * 1000 + b"\n\n"
    engine.behaviour = Behaviour(body=flood * 20_000, piece_bytes=len(flood))
    answer = await an_http_engine(session, engine.url).ask(a_call(stream=True))
    received = await engine.next_request()

    held = 0
    while len(answer._response.content._buffer) == 0 or held < (held := answer._response.content._size):
        await asyncio.sleep(0.05)

    assert not received.ended.is_set()
    assert held < 1_000_000
    assert len(await read_all(answer)) == len(flood) * 20_000


@pytest.mark.parametrize(("status", "blamed"), [(400, True), (404, False), (429, False), (500, False), (503, False)])
async def test_an_error_status_is_an_answer_and_says_whose_fault_it_is(
    engine: FakeEngine, session: aiohttp.ClientSession, status: int, blamed: bool
) -> None:
    engine.behaviour = Behaviour(status=status, error="no")

    answer = await an_http_engine(session, engine.url).ask(a_call(stream=True))
    body = await read_all(answer)

    assert answer.status == status
    assert answer.blames_request(body) is blamed
