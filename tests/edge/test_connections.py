"""What may come over one connection, and what does it cost?"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.edge.test_the_door import config_with_keys
from tests.support.fake_engine import Behaviour, FakeEngine
from tests.support.gateway import CHAT, GatewayInLoop, a_config, chat, gateway_in_loop

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def wire_to(gateway: GatewayInLoop) -> AsyncIterator[Wire]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(10):
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
        async with asyncio.timeout(1):
            await received.client_left.wait()
        await gateway.until_idle(seconds_max=1)


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
