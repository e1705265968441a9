"""Responses over TLS to clients that read slowly, and connections that take over from their handshakes."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.edge.body_framing import DISCARDED_CHUNKS_MAX
from headgate.edge.client import Client
from headgate.edge.connection import Connection
from headgate.edge.listener import Listener, bind
from headgate.edge.options import EdgeLimits
from headgate.model.units import SECOND
from headgate.ports.tls import ServerTlsOptions, server_context
from testing.certificates import HOST, Authority

BODY = b"x" * 16_000_000
"""More than the kernel's buffers."""
RECEIVED_BYTES_MAX = 64 * 1024
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n"
LIMITS = EdgeLimits()
SEND_S = LIMITS.send_timeout_ns / SECOND


async def large_response(client: Client) -> None:
    client.reply(200, [(b"content-type", b"text/plain")], BODY)


async def small_response(client: Client) -> None:
    client.reply(200, [(b"content-type", b"text/plain")], b"ok")


@asynccontextmanager
async def a_listener(
    folder: Path, app: Callable[[Client], object], limits: EdgeLimits = LIMITS
) -> AsyncIterator[tuple[Listener, ssl.SSLContext]]:
    authority = Authority(folder)
    tls = server_context(ServerTlsOptions(*authority.issue()))
    listener = Listener(app, bind(HOST, 0), limits, tls=tls)  # pyright: ignore[reportArgumentType]
    await listener.start()
    try:
        yield listener, authority.client_context()
    finally:
        await listener.stop()


async def connect(listener: Listener, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    plain = socket.socket()
    plain.setblocking(False)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES_MAX)
    await asyncio.get_running_loop().sock_connect(plain, listener.address)
    return await asyncio.open_connection(sock=plain, ssl=tls, server_hostname=HOST, limit=RECEIVED_BYTES_MAX)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def connections(listener: Listener) -> list[Connection]:
    return [each for each in listener.connections._open if isinstance(each, Connection)]


def sweep_after(listener: Listener, seconds: float) -> None:
    listener.connections.sweep(asyncio.get_running_loop().time() + seconds)


@pytest.mark.parametrize("header", [b"", b"connection: close\r\n"], ids=["kept open", "closed"])
async def test_large_response_reaches_a_slow_client(tmp_path: Path, header: bytes) -> None:
    async with a_listener(tmp_path, large_response) as (listener, tls):
        reader, writer = await connect(listener, tls)
        writer.write(REQUEST + header + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await until(lambda: connections(listener)[0].blocked)
        [connection] = connections(listener)
        unread = connection._transport.get_write_buffer_size()
        sweep_after(listener, SEND_S - 1)
        await reader.readexactly(len(BODY) // 2)
        # The client has made progress, so it has the whole time again.
        sweep_after(listener, SEND_S + 1)
        rest = await reader.readexactly(len(BODY) - len(BODY) // 2)
        if header:
            assert await reader.read() == b""
        writer.close()

    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert unread > len(BODY) // 2
    assert set(rest) == {ord("x")}


async def test_client_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    async with a_listener(tmp_path, large_response) as (listener, tls):
        reader, writer = await connect(listener, tls)
        writer.write(REQUEST + b"connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: connections(listener)[0].blocked)
        sweep_after(listener, SEND_S + 1)
        await until(lambda: not connections(listener))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(len(BODY))
        writer.close()


async def test_tiny_chunks_after_the_response_are_discarded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without TLS, the gateway closes its direction of the connection. TLS cannot close one direction."""
    async with a_listener(tmp_path, small_response) as (listener, tls):
        reader, writer = await connect(listener, tls)
        writer.write(REQUEST.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(2)
        [connection] = connections(listener)
        writer.write(b"1\r\nx\r\n" * (2 * DISCARDED_CHUNKS_MAX))
        await until(lambda: connection._discarded is not None)
        was_open = not connection._closing
        writer.transport.abort()
        await until(lambda: not connections(listener))

    assert (answer, was_open) == (b"ok", True)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_completed_handshake_evicts_no_other_client(tmp_path: Path) -> None:
    count = 3
    limits = replace(LIMITS, connections_open_max=count, unauthenticated_connections_max=count)
    async with a_listener(tmp_path, small_response, limits) as (listener, tls):
        clients = [await connect(listener, tls) for _ in range(count)]
        await until(lambda: len(connections(listener)) == count)
        answers: list[bytes] = []
        for reader, writer in clients:
            writer.write(REQUEST + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            answers.append(await reader.readexactly(2))
        for _, writer in clients:
            writer.close()

    assert answers == [b"ok"] * count
