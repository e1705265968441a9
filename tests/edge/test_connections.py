"""What may come over one connection, and what does it cost?"""

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.edge.client import Client
from headgate.edge.options import EdgeLimits
from headgate.edge.server import Listener, bind
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
    """The status and body of an answer that tells its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    [length] = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
    return int(head.split(b" ")[1]), await reader.readexactly(length)


async def test_what_is_refused_unread_leaves_the_connection_usable(tmp_path: Path) -> None:
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


async def test_a_caller_who_leaves_with_a_second_request_under_way_frees_the_engine(tmp_path: Path) -> None:
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
        await gateway.until_idle()


async def test_a_second_request_in_the_same_breath_is_not_taken_and_changes_nothing_of_the_first(
    tmp_path: Path,
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(a_request("first") + a_request("second"))
            status, _ = await an_answer(reader)
            rest = await reader.read()

    assert (status, rest) == (200, b"")
    assert [request.json["messages"] for request in engine.requests] == [[{"role": "user", "content": "first"}]]


async def test_a_caller_who_asks_first_whether_to_go_on_is_told(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            head, _, body = a_request(headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await an_answer(reader))[0] == 200


async def test_a_caller_of_http_1_0_is_not_told_to_go_on(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            request = a_request(headers=b"expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
            head, _, body = request.partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            await gateway.until(lambda status: status["requests_open"] == 1)
            writer.write(body)
            assert (await an_answer(reader))[0] == 200


@pytest.mark.parametrize("in_chunks", [False, True], ids=["with a length", "in chunks"])
async def test_a_plain_client_that_sends_too_much_comes_to_see_the_refusal(tmp_path: Path, in_chunks: bool) -> None:
    """Such a client reads nothing before it has sent everything: here more than the buffers on its way hold."""

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
            assert await ended(gateway) == {"too_large": 1}


async def test_a_request_whose_body_is_refused_on_its_way_is_counted_once(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
            writer.write(head)
            await gateway.until(lambda status: status["requests_open"] == 1)
            writer.write(b"3\r\nabc\r\nno number\r\n")
            assert (await an_answer(reader))[0] == 400
            assert await reader.read() == b""
        await gateway.until_idle()
        assert sum((await ended(gateway)).values()) == 1


async def ended(gateway: GatewayInLoop) -> dict[str, int]:
    """How many requests that became none have ended in which way."""
    return (await gateway.status())["counted"]["classes"][NO_CLASS]["ended"]


async def test_an_offer_of_another_protocol_is_passed_over(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(a_request(headers=b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"))
            assert (await an_answer(reader))[0] == 200


async def test_head_gets_a_head(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("line", [b"x-a: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many headers", "one header"])
async def test_a_head_without_end_is_not_kept(tmp_path: Path, line: bytes) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-b: ")
            # What it has not read when it closes resets the connection, and may cost the caller the answer.
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(line)
                    await writer.drain()

    assert engine.requests == []


@pytest.mark.parametrize("name", [b"traceparent", b"x-headgate-class", b"authorization", b"x-stainless-retry-count"])
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\t\x80a", b"\xc3\xbc" * 10], ids=["bytes", "tab", "letters"])
async def test_odd_bytes_in_a_header_end_in_an_answer(tmp_path: Path, name: bytes, value: bytes) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with wire_to(gateway) as (reader, writer):
            writer.write(a_request(headers=b"%b: %b\r\n" % (name, value)))
            status, _ = await an_answer(reader)

    assert status == (400 if name == b"x-headgate-class" else 200)


async def test_a_callers_own_request_id_is_not_taken_for_ours(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post(chat(), headers={"x-request-id": "mine"}) as answer:
            ours = answer.headers["x-request-id"]
        received = await engine.next_request()

    assert ours.startswith("req_")
    assert received.headers["x-request-id"] == ours


async def test_a_request_that_has_not_come_in_when_the_grace_time_is_over_is_told_so(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path) as gateway:
            async with wire_to(gateway) as (reader, writer):
                writer.write(a_request()[:-5])
                await gateway.until(lambda status: status["requests_open"] == 1)
                gateway.gateway.leave()
                status, body = await an_answer(reader)

    assert (status, json.loads(body)["error"]["code"]) == (503, "server_is_overloaded")


LARGE = b"y" * 8_000_000


async def answer_early(client: Client) -> None:
    """Gives the large answer without having read the body, as pages and refusals are given."""
    client.reply(200, [], LARGE if client.path == b"/large" else bytes(await client.body(100)))


@asynccontextmanager
async def an_unread_answer(limits: EdgeLimits) -> AsyncIterator[tuple[Listener, Wire]]:
    """A request of which half has come, answered with more than fits on the way to its caller."""
    listener = Listener(answer_early, bind("127.0.0.1", 0), limits)
    await listener.start()
    sweeping = asyncio.create_task(listener.sweep_for_ever())
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


async def test_a_request_that_stood_behind_an_unread_answer_is_answered_once_that_is_read() -> None:
    async with an_unread_answer(EdgeLimits()) as (listener, (reader, writer)):
        writer.write(b"cd" + b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        while not listener.connections.tasks:
            await asyncio.sleep(0.01)
        assert await an_answer(reader) == (200, LARGE)
        writer.write(b"hello")
        assert await an_answer(reader) == (200, b"hello")


async def test_a_request_that_stays_unfinished_after_its_answer_was_read_ends_the_connection() -> None:
    async with an_unread_answer(EdgeLimits(receive_ns_max=SECOND)) as (_, (reader, _)):
        assert await an_answer(reader) == (200, LARGE)
        assert await reader.read() == b""
