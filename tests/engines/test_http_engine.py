"""HTTP engine responses are relayed unchanged, and no connection leaks however a call ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from headgate.engines.http_engine import HttpResponse, url_at
from headgate.model.ticket import Api
from headgate.ports.engine import EngineFault
from testing.fake_engine import Behaviour, FakeEngine, token_text
from testing.ports import free_port
from tests.engines.calls import Engines, a_call, read_all
from tests.engines.listeners import listening


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as engines:
        yield engines
    assert engines.in_use == 0


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://e:1", "http://e:1/v1/models"),
        ("http://e:1/", "http://e:1/v1/models"),
        ("http://e:1/v1", "http://e:1/v1/models"),
        ("https://e/team/v1/", "https://e/team/v1/models"),
    ],
)
def test_base_url_may_include_the_api_version(base: str, url: str) -> None:
    assert url_at(base, "/v1/models") == url


@pytest.mark.parametrize(
    ("api", "path"),
    [
        (Api.CHAT, "/v1/chat/completions"),
        (Api.COMPLETIONS, "/v1/completions"),
        (Api.EMBEDDINGS, "/v1/embeddings"),
    ],
)
async def test_engine_receives_its_model_name_and_gateway_headers(
    engine: FakeEngine, engines: Engines, api: Api, path: str
) -> None:
    engine.api_key = "key"
    asked = engines(engine.url, api_key="key")
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


async def test_stream_is_read_incrementally(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)

    answer = await engines(engine.url).ask(a_call(stream=True))
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


async def test_connection_is_reused_after_a_complete_response(engine: FakeEngine, engines: Engines) -> None:
    asked = engines(engine.url)
    for stream in (True, False, True):
        answer = await asked.ask(a_call(stream=stream))
        await read_all(answer)
        answer.close()

    assert engine.connections_total == 1
    assert engines.idle == 1


async def test_stream_uses_a_new_connection_if_the_engine_may_close_it(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(close_after=True)
    asked = engines(engine.url, dialect="llamacpp")
    for _ in range(3):
        answer = await asked.ask(a_call(stream=True))
        await read_all(answer)
        answer.close()

    assert [received.headers.get("connection") for received in engine.requests] == ["close"] * 3
    assert engine.connections_total == 3


async def test_connection_disables_nagle(engine: FakeEngine, engines: Engines) -> None:
    answer = await engines(engine.url).ask(a_call(stream=True, max_tokens=100_000))

    assert socket_of(answer).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    answer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_an_unfinished_response_disconnects_the_engine(
    engine: FakeEngine, engines: Engines, stream: bool
) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)

    answer = await engines(engine.url).ask(a_call(stream=stream))
    received = await engine.next_request()
    await received.hung.wait()
    answer.close()

    await received.client_left.wait()
    assert engines.idle == 0


async def test_closing_a_response_twice_has_no_effect(engine: FakeEngine, engines: Engines) -> None:
    answer = await engines(engine.url).ask(a_call())
    await read_all(answer)
    answer.close()
    answer.close()

    assert engines.idle == 1


async def test_close_does_not_wait_for_unsent_data(engines: Engines) -> None:
    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.Event().wait()

    messages = [{"role": "user", "content": "x" * 30_000_000}]
    async with listening(answer_early) as url:
        answer = await engines(url).ask(a_call(stream=True, messages=messages))
        transport, ours = transport_of(answer), socket_of(answer)
        while transport.get_write_buffer_size() == 0:
            await asyncio.sleep(0)
        answer.close()
        for _ in range(3):
            await asyncio.sleep(0)

        assert ours.fileno() == -1


def transport_of(answer: HttpResponse) -> asyncio.Transport:
    connection = answer._connection
    assert connection is not None
    return connection._transport


def socket_of(answer: HttpResponse) -> socket.socket:
    return transport_of(answer).get_extra_info("socket")


async def test_cancelled_request_closes_its_connection(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(hang_before_head=True)
    asking = asyncio.create_task(engines(engine.url).ask(a_call()))
    received = await engine.next_request()
    await received.hung.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await received.client_left.wait()
    await asyncio.sleep(0)
    assert (engines.in_use, engines.idle) == (0, 0)


async def test_cancellation_during_a_complete_response_does_not_abort_the_next_request(engines: Engines) -> None:
    """The response frees the connection, and the next request uses it before the cancelled task wakes up."""
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    asked = asyncio.Event()

    async def answer_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            asked.set()
        writer.write(whole)
        await reader.read()

    async with listening(answer_the_second) as url:
        leaving = asyncio.create_task(engines(url).ask(a_call(request_id="first")))
        await asked.wait()
        other = asyncio.create_task(engines(url).ask(a_call(request_id="second")))
        # The response arrives in the same event loop iteration in which the other request is due.
        [connection] = engines(url)._open
        connection.data_received(whole)
        leaving.cancel()
        async with asyncio.timeout(30):
            answer = await other

        assert leaving.cancelled()
        assert await read_all(answer) == b"{}"
        assert engines(url)._open == {connection}


async def test_early_response_to_an_unread_request_closes_the_connection(
    engines: Engines,
) -> None:
    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.Event().wait()

    async with listening(refuse_early) as url:
        answer = await engines(url).ask(a_call(messages=[{"role": "user", "content": "x" * 30_000_000}]))
        body = await read_all(answer)
        answer.close()
        for _ in range(3):
            await asyncio.sleep(0)

        assert (answer.status, body) == (413, b"{}")
        assert engines(url).connections == 0


@pytest.mark.parametrize("steps", range(12))
async def test_cancellation_at_any_step_closes_the_connection(engine: FakeEngine, engines: Engines, steps: int) -> None:
    engine.behaviour = Behaviour(tokens=2, hang_after=1)

    async def ask_and_read() -> None:
        answer: HttpResponse = await engines(engine.url).ask(a_call(stream=True))
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

    await asyncio.sleep(0)
    assert (engines.in_use, engines.idle) == (0, 0)
    for received in engine.requests:
        await received.client_left.wait()


async def test_refused_connection_raises_a_fault(engines: Engines) -> None:
    with pytest.raises(EngineFault, match=r"^the request to the engine failed: connection refused$"):
        await engines(f"http://127.0.0.1:{free_port()}").ask(a_call())


async def test_unresolvable_host_name_raises_a_fault(engines: Engines) -> None:
    with pytest.raises(EngineFault, match=r"^the request to the engine failed: the host name does not resolve$"):
        await engines("http://nowhere.invalid").ask(a_call())


async def test_second_address_is_used_if_the_first_does_not_respond(
    engine: FakeEngine, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        hosts = ("127.0.0.2", "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, engine.port)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with a_silent_address("127.0.0.2", engine.port):
        async with asyncio.timeout(30):
            answer = await engines(f"http://engine.test:{engine.port}").ask(a_call())
            await read_all(answer)

    assert answer.status == 200


@contextmanager
def a_silent_address(host: str, port: int) -> Iterator[None]:
    """Address that does not answer connection attempts, as if behind a firewall, because its backlog is full."""
    with ExitStack() as stack:
        stack.enter_context(socket.create_server((host, port), backlog=0))
        for _ in range(6):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect((host, port))
        yield


async def test_non_http_response_raises_a_fault(engines: Engines) -> None:
    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")

    async with listening(talk_nonsense) as url:
        with pytest.raises(EngineFault, match=r"^the request to the engine failed: the response is not valid HTTP"):
            await engines(url).ask(a_call())


async def test_connection_closed_before_the_head_raises_a_fault(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(drop_before_head=True)

    with pytest.raises(EngineFault, match="failed: the connection was closed without a response"):
        await engines(engine.url).ask(a_call(stream=True))
    assert len(engine.requests) == 1, "the engine client does not retry without the scheduler"


@pytest.mark.parametrize("stream", [True, False])
async def test_truncated_response_raises_a_fault(engine: FakeEngine, engines: Engines, stream: bool) -> None:
    engine.behaviour = Behaviour(tokens=4, cut_after=2)
    answer = await engines(engine.url).ask(a_call(stream=stream))

    with pytest.raises(EngineFault, match="the engine's response was truncated"):
        await read_all(answer)
    answer.close()


async def test_killing_the_engine_during_a_response_raises_a_fault(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=4, hang_after=2)
    answer = await engines(engine.url).ask(a_call(stream=True))
    received = await engine.next_request()
    await received.hung.wait()
    await engine.kill()

    with pytest.raises(EngineFault, match="the engine's response was truncated"):
        await read_all(answer)
    answer.close()


async def test_redirect_is_not_followed(engines: Engines, engine: FakeEngine) -> None:
    async def send_elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Go\r\nlocation: {engine.url}\r\ncontent-length: 0\r\n\r\n".encode())

    async with listening(send_elsewhere) as url:
        answer = await engines(url).ask(a_call())

        assert answer.status == 307
        assert not answer.is_request_error(b"")
        assert await read_all(answer) == b""
    assert not engine.requests


async def test_large_request_body_arrives_complete(engine: FakeEngine, engines: Engines) -> None:
    messages = [{"role": "user", "content": "x" * 5_000_000}]

    answer = await engines(engine.url).ask(a_call(messages=messages))

    assert (await engine.next_request()).json["messages"] == messages
    await read_all(answer)


async def test_paused_reader_applies_backpressure_to_the_engine(engine: FakeEngine, engines: Engines) -> None:
    """While the response is not being read, the gateway buffers a bounded number of bytes and then stops reading."""
    flood = b"data: " + b"x" * 1000 + b"\n\n"
    engine.behaviour = Behaviour(body=flood * 5_000, piece_bytes=len(flood))
    answer = await engines(engine.url).ask(a_call(stream=True))
    received = await engine.next_request()

    held = 0
    while not answer._buffer or held < (held := answer._buffered_bytes):
        await asyncio.sleep(0.05)

    assert not received.ended.is_set()
    assert held < 1_000_000
    assert len(await read_all(answer)) == len(flood) * 5_000


class UnusedConnection:
    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...


@pytest.mark.parametrize(
    ("reads", "fault", "body"),
    [
        ((b"{}",), None, b"{}"),
        ((b"{", b"}"), None, None),
        ((), None, None),
        ((b"{",), EngineFault("truncated"), None),
    ],
)
def test_body_of_an_ended_response_is_taken_only_if_it_arrived_in_one_piece(
    reads: tuple[bytes, ...], fault: EngineFault | None, body: bytes | None
) -> None:
    answer = HttpResponse(UnusedConnection(), 200, "application/json")
    for data in reads:
        answer.feed(data)
    assert answer.take_body() is None, "the response has not ended"
    answer.end(fault)
    assert answer.take_body() == body


async def test_pour_delivers_data_incrementally_and_in_order(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)
    got: list[bytes] = []

    def take(data: bytes) -> bool:
        got.append(data)
        return False

    answer = await engines(engine.url).ask(a_call(stream=True))
    pouring = asyncio.create_task(answer.stream_to(take))
    received = await engine.next_request()
    await received.hung.wait()
    while token_text(0).encode() not in b"".join(got):
        await asyncio.sleep(0)
    before = b"".join(got)
    received.resume.set()
    await pouring
    answer.close()

    assert token_text(1).encode() not in before
    assert b"".join(got).endswith(b"data: [DONE]\n\n")
    assert engines.idle == 1


async def test_paused_pour_applies_backpressure_and_resumes_without_loss(engine: FakeEngine, engines: Engines) -> None:
    flood = b"data: " + b"x" * 1000 + b"\n\n"
    engine.behaviour = Behaviour(body=flood * 5_000, piece_bytes=len(flood))
    got = bytearray()

    def take(data: bytes) -> bool:
        got.extend(data)
        if len(got) == len(data):
            answer.pause()
        return False

    answer = await engines(engine.url).ask(a_call(stream=True))
    pouring = asyncio.create_task(answer.stream_to(take))
    received = await engine.next_request()
    async with asyncio.timeout(30):
        while not got:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    paused_at = len(got)
    assert 0 < paused_at <= 256 * 1024
    assert answer._buffered_bytes <= 1_000_000
    assert not received.ended.is_set()
    answer.resume()
    await pouring

    assert got == flood * 5_000


async def test_pour_raises_the_response_fault(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=4, cut_after=2)
    answer = await engines(engine.url).ask(a_call(stream=True))

    with pytest.raises(EngineFault, match="the engine's response was truncated"):
        await answer.stream_to(lambda _: False)


async def test_fault_after_pour_has_finished_is_ignored(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=4, cut_after=2)
    answer = await engines(engine.url).ask(a_call(stream=True))
    await answer.stream_to(lambda _: True)
    answer.drain()


async def test_response_still_open_after_pour_is_closed(engine: FakeEngine, engines: Engines) -> None:
    engine.behaviour = Behaviour(tokens=3, hang_after=1)
    answer = await engines(engine.url).ask(a_call(stream=True))
    await answer.stream_to(lambda _: True)
    answer.drain()
    received = await engine.next_request()

    async with asyncio.timeout(30):
        await received.client_left.wait()


@pytest.mark.parametrize(("status", "blamed"), [(400, True), (404, False), (429, False), (500, False), (503, False)])
async def test_error_status_returns_a_response_saying_whether_the_request_is_to_blame(
    engine: FakeEngine, engines: Engines, status: int, blamed: bool
) -> None:
    engine.behaviour = Behaviour(status=status, error="no")

    answer = await engines(engine.url).ask(a_call(stream=True))
    body = await read_all(answer)

    assert answer.status == status
    assert answer.is_request_error(body) is blamed
