"""Tests for HTTP connections: keep-alive, pipelining, limits and early responses."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fuzz.pipes import Pipe
from headgate.edge.client import Client
from headgate.edge.connections import Connections
from headgate.edge.listener import Listener, bind
from headgate.edge.options import EdgeLimits
from headgate.model.units import SECOND
from headgate.telemetry.meters import NO_CLASS
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.edge.test_the_door import config_with_keys

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def wire_to(gateway: GatewayInLoop) -> AsyncIterator[Wire]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.close()


def a_request(content: str = "hi", *, headers: bytes = b"", stream: bool = False) -> bytes:
    body = json.dumps(chat(content, stream=stream)).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n" % (CHAT.encode(), len(body), headers)
    return head + body


async def an_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Reads the status and body of a response with a content length."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    [length] = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
    return int(head.split(b" ")[1]), await reader.readexactly(length)


async def test_rejecting_an_unread_body_keeps_the_connection_usable(tmp_path: Path) -> None:
    config_limits = {"body_bytes_max": "4KiB"}
    async with FakeEngine() as engine:
        async with gateway_in_loop(config_with_keys(engine.url) | {"limits": config_limits}, tmp_path) as gateway:
            async with wire_to(gateway) as (reader, writer):
                key = b"authorization: Bearer hg-acme\r\n"
                for request in (a_request("x" * 200_000), a_request("x" * 200_000, headers=key)):
                    writer.write(request)
                assert (await an_answer(reader))[0] == 401
                assert (await an_answer(reader))[0] == 413
                writer.write(a_request(headers=key))
                assert (await an_answer(reader))[0] == 200


async def test_client_disconnecting_with_a_second_request_pending_frees_the_engine(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(hang_after=1)
        async with wire_to(gateway) as (_, writer):
            writer.write(a_request(stream=True))
            received = await engine.next_request()
            writer.write(a_request("second"))
            await writer.drain()
            await received.hung.wait()
        async with asyncio.timeout(30):
            await received.client_left.wait()
        await gateway.wait_until_idle()


async def test_pipelined_second_request_is_ignored_and_the_first_is_served(
    tmp_path: Path,
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(a_request("first") + a_request("second"))
            status, _ = await an_answer(reader)
            rest = await reader.read()

    assert (status, rest) == (200, b"")
    assert [request.json["messages"] for request in engine.requests] == [[{"role": "user", "content": "first"}]]


async def test_expect_100_continue_is_answered(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            head, _, body = a_request(headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await an_answer(reader))[0] == 200


async def test_http_1_0_client_gets_no_100_continue(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            request = a_request(headers=b"expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
            head, _, body = request.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
            writer.write(body)
            assert (await an_answer(reader))[0] == 200


@pytest.mark.parametrize("in_chunks", [False, True], ids=["content-length", "chunked"])
async def test_client_sending_the_whole_body_first_still_receives_413(tmp_path: Path, in_chunks: bool) -> None:
    """The client sends more than the socket buffers hold before it reads the response."""

    def send() -> tuple[int, str]:
        connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
        pieces = [b" " * 65536] * (24 * 16)
        connection.request("POST", CHAT, body=iter(pieces) if in_chunks else b"".join(pieces))
        answer = connection.getresponse()
        status, code = answer.status, json.load(answer)["error"]["code"]
        connection.close()
        return status, code

    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, limits={"body_bytes_max": "8MiB"}), tmp_path) as gateway:
            assert await asyncio.to_thread(send) == (413, "request_too_large")
            assert await ended(gateway) == {"request_too_large": 1}


async def test_request_rejected_while_its_body_is_arriving_is_counted_once(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
            writer.write(head)
            await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
            writer.write(b"3\r\nabc\r\nno number\r\n")
            assert (await an_answer(reader))[0] == 400
            assert await reader.read() == b""
        await gateway.wait_until_idle()
        assert sum((await ended(gateway)).values()) == 1


async def ended(gateway: GatewayInLoop) -> dict[str, int]:
    """Returns the number of requests that have no class, by outcome."""
    return (await gateway.status())["counted"]["classes"][NO_CLASS]["ended"]


@pytest.mark.parametrize("blank", [b"", b"\r\n", b"\r\n\r\n", b"\n\r\n\r\n"])
async def test_upgrade_header_is_ignored(blank: bytes, tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(blank + a_request(headers=b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"))
            assert (await an_answer(reader))[0] == 200


class CountingPipe(Pipe):
    """Transport that counts the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes += 1


@pytest.mark.parametrize(
    ("method", "size", "writes"), [(b"GET", 0, 1), (b"GET", 16 * 1024, 1), (b"GET", 100_000, 2), (b"HEAD", 100, 1)]
)
async def test_head_and_short_body_are_sent_in_one_write(method: bytes, size: int, writes: int) -> None:
    body = b"x" * size

    async def app(client: Client) -> None:
        client.reply(200, [(b"x-a", b"b")], body)

    connections, pipe = Connections(app, EdgeLimits(), lambda _id, _refused: None), CountingPipe()
    connection = connections()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    for _ in range(2):
        pipe.written, pipe.writes = b"", 0
        connection.data_received(b"%b / HTTP/1.1\r\nhost: x\r\n\r\n" % method)
        [task] = connections.tasks
        await task
        head, _, received = pipe.written.partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[::2] == [b"HTTP/1.1 200 OK", b"x-a: b"]
        assert head.endswith(b"\r\ncontent-length: %d" % size)
        assert received == (b"" if method == b"HEAD" else body)
        assert pipe.writes == writes
        assert not connections.tasks


async def test_head_with_a_length_is_sent_before_a_body_in_pieces() -> None:
    async def app(client: Client) -> None:
        client.start(200, [(b"content-length", b"4")])
        client._transport.send(b"ab")
        client._transport.send(b"c")
        client.finish(b"d")

    connections, pipe = Connections(app, EdgeLimits(), lambda _id, _refused: None), CountingPipe()
    connection = connections()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    [task] = connections.tasks
    await task

    head, _, received = pipe.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert received == b"abcd"


async def test_chunk_is_written_unchanged_until_the_client_disconnects() -> None:
    async def app(client: Client) -> None:
        client.start(200, [(b"x-a", b"b")])
        write = client.chunk_writer()
        assert write is not None
        write(b"2\r\nab\r\n")
        client.write(b"c")
        written = pipe.written
        connection.connection_lost(None)
        write(b"1\r\nd\r\n")
        assert pipe.written == written

    connections, pipe = Connections(app, EdgeLimits(), lambda _id, _refused: None), CountingPipe()
    connection = connections()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    [task] = connections.tasks
    await task

    assert pipe.written.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n")


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        (b"GET / HTTP/1.0", [(b"x-a", b"b")]),
        (b"HEAD / HTTP/1.1", [(b"x-a", b"b")]),
        (b"GET / HTTP/1.1", [(b"content-length", b"1")]),
    ],
)
async def test_response_without_chunks_has_no_chunk_writer(
    request_line: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    writers: list[object] = []

    async def app(client: Client) -> None:
        client.start(200, headers)
        writers.append(client.chunk_writer())
        client.finish(b"x")

    connections, pipe = Connections(app, EdgeLimits(), lambda _id, _refused: None), CountingPipe()
    connection = connections()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    connection.data_received(request_line + b"\r\nhost: x\r\n\r\n")
    [task] = connections.tasks
    await task

    assert writers == [None]


async def test_task_of_a_disconnected_http_1_0_client_ends_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    left = asyncio.Event()
    served: list[asyncio.Task[None]] = []

    async def app(client: Client) -> None:
        served.extend(connections.tasks)
        client.start(200, [(b"x-a", b"b")])
        await left.wait()

    connections = Connections(app, EdgeLimits(), lambda _id, _refused: None)
    async with await asyncio.get_running_loop().create_server(connections, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        while not served:
            await asyncio.sleep(0.001)
        writer.transport.abort()
        while connections._open:
            await asyncio.sleep(0.001)
        left.set()
        [task] = served
        await task

    assert not connections.tasks
    assert not caplog.records


async def test_head_response_has_no_body(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "line", [b"x-a: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many headers", "one long header"]
)
async def test_endless_request_head_closes_the_connection(tmp_path: Path, line: bytes) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-b: ")
            # Closing a connection with unread data resets it, so the client may not receive the response.
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(line)
                    await writer.drain()

    assert engine.requests == []


@pytest.mark.parametrize("name", [b"traceparent", b"x-headgate-class", b"authorization", b"x-stainless-retry-count"])
@pytest.mark.parametrize(
    "value", [b"\xff\xfe", b"\t\x80a", b"\xc3\xbc" * 10], ids=["invalid UTF-8", "tab", "non-ASCII"]
)
async def test_non_ascii_header_bytes_do_not_break_the_request(tmp_path: Path, name: bytes, value: bytes) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(a_request(headers=b"%b: %b\r\n" % (name, value)))
            status, _ = await an_answer(reader)

    assert status == (400 if name == b"x-headgate-class" else 200)


async def test_client_request_id_is_replaced(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers={"x-request-id": "mine"}) as answer:
            ours = answer.headers["x-request-id"]
        received = await engine.next_request()

    assert ours.startswith("req_")
    assert received.headers["x-request-id"] == ours


async def test_incomplete_request_gets_503_at_the_end_of_the_drain(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path) as gateway:
            async with wire_to(gateway) as (reader, writer):
                writer.write(a_request()[:-5])
                await gateway.wait_for_status(lambda status: status["requests_open"] == 1)
                gateway.gateway.shut_down()
                status, body = await an_answer(reader)

    assert (status, json.loads(body)["error"]["code"]) == (503, "server_is_overloaded")


LARGE = b"y" * 8_000_000


async def answer_early(client: Client) -> None:
    """Responds before the body has arrived, as pages and rejections do."""
    client.reply(200, [], LARGE if client.path == b"/large" else bytes(await client.body(100)))


@asynccontextmanager
async def an_unread_answer(limits: EdgeLimits) -> AsyncIterator[tuple[Listener, Wire]]:
    """Sends half a request and waits until writing its response, which exceeds the socket buffers, is blocked."""
    listener = Listener(answer_early, bind("127.0.0.1", 0), limits)
    await listener.start()
    sweeping = asyncio.create_task(listener.sweep_forever())
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nab")
    try:
        async with asyncio.timeout(30):
            while listener.connections.tasks or not any(each.blocked for each in listener.connections._open):
                await asyncio.sleep(0.01)
            yield listener, (reader, writer)
    finally:
        writer.close()
        sweeping.cancel()
        await listener.stop()


async def test_request_after_an_unread_response_is_served_once_that_response_is_read() -> None:
    async with an_unread_answer(EdgeLimits()) as (listener, (reader, writer)):
        writer.write(b"cd" + b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        while not listener.connections.tasks:
            await asyncio.sleep(0.01)
        assert await an_answer(reader) == (200, LARGE)
        writer.write(b"hello")
        assert await an_answer(reader) == (200, b"hello")


async def test_connection_is_closed_if_a_request_stays_incomplete_after_its_response() -> None:
    async with an_unread_answer(EdgeLimits(body_timeout_ns=SECOND)) as (_, (reader, _)):
        assert await an_answer(reader) == (200, LARGE)
        assert await reader.read() == b""
