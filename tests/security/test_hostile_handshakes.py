"""Clients that attack the TLS handshake. Each one ends only its own connection."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.tls_handshake import HandshakeFailure
from testing.certificates import Authority
from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from testing.hostile_handshakes import client_hello, hostile_bytes

CORPUS = hostile_bytes()
CONNECTIONS_MAX = 40
ATTACKERS = 1_000


@asynccontextmanager
async def a_gateway(folder: Path, **limits: Any) -> AsyncIterator[GatewayInLoop]:
    authority = Authority(folder / "pki")
    async with FakeEngine() as engine:
        config = a_config(engine.url, listen_tls=authority.issue()._asdict(), limits=limits)
        async with gateway_in_loop(config, folder, tls=authority.client_context()) as gateway:
            yield gateway


def failures(gateway: GatewayInLoop) -> dict[HandshakeFailure, int]:
    return dict(gateway.gateway._parts.listeners[0].connections.handshake_failures)


def connections(gateway: GatewayInLoop) -> int:
    return len(gateway.gateway._parts.listeners[0].connections)


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def connect(gateway: GatewayInLoop) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("https://").split(":")
    return await asyncio.open_connection(host, int(port))


async def is_served(gateway: GatewayInLoop) -> bool:
    async with gateway.post(chat(), headers={"connection": "close"}) as answer:
        return answer.status == 200


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            return await reader.read()
    return b""


@pytest.mark.parametrize("name", CORPUS)
async def test_hostile_bytes_end_only_their_own_connection(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = CORPUS[name]
    async with a_gateway(tmp_path) as gateway:
        reader, writer = await connect(gateway)
        writer.write(sent.data)
        if sent.reason is HandshakeFailure.CLOSED:
            writer.write_eof()
        await read_to_the_end(reader)
        writer.close()
        await eventually(lambda: failures(gateway))
        await eventually(lambda: not connections(gateway))
        counted = failures(gateway)
        assert await is_served(gateway)

    assert counted == {sent.reason: 1}
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_slow_handshake_is_cut_off(tmp_path: Path) -> None:
    """A client that sends one byte at a time is disconnected when the time limit of the request headers has passed."""
    async with a_gateway(tmp_path, header_timeout="1s") as gateway:
        reader, writer = await connect(gateway)
        closed = asyncio.create_task(read_to_the_end(reader))
        for byte in client_hello()[:-1] * 100:
            if closed.done():
                break
            with contextlib.suppress(ConnectionError):
                writer.write(bytes([byte]))
            await asyncio.wait([closed], timeout=0.02)
        assert await closed == b""
        writer.close()
        await eventually(lambda: failures(gateway) == {HandshakeFailure.TIMEOUT: 1})
        await eventually(lambda: not connections(gateway))
        assert await is_served(gateway)


async def test_half_a_handshake_is_released_when_the_client_closes(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as gateway:
        reader, writer = await connect(gateway)
        writer.write(client_hello())
        assert await reader.read(1) == b"\x16"
        writer.transport.abort()
        await eventually(lambda: failures(gateway) == {HandshakeFailure.CLOSED: 1})
        await eventually(lambda: not connections(gateway))
        assert await is_served(gateway)


async def test_open_handshakes_lock_out_nobody(tmp_path: Path) -> None:
    async with a_gateway(
        tmp_path, connections_open_max=CONNECTIONS_MAX, unauthenticated_connections_max=CONNECTIONS_MAX
    ) as gateway:
        hello, writers = client_hello(), []
        for number in range(ATTACKERS):
            _, writer = await connect(gateway)
            writer.write(hello if number % 2 else hello[:100])
            writers.append(writer)
            assert connections(gateway) <= CONNECTIONS_MAX
        await eventually(lambda: connections(gateway) == CONNECTIONS_MAX)
        assert await is_served(gateway)
        for writer in writers:
            writer.transport.abort()
        await eventually(lambda: not connections(gateway))
        assert await is_served(gateway)
