"""Tests for stopping one of several listeners on a shared port."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headgate.edge.client import Client
from headgate.edge.listener import Listener, bind
from headgate.edge.options import EdgeLimits
from headgate.model.units import SECOND, Duration
from testing.ports import free_port

IDLE_S = 60
CALLERS = 40
"""Number of connections. The kernel selects a listener by hash; the chance that one of two gets none is 2 in 2**40."""
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMITS = EdgeLimits(
    header_bytes_max=65_536,
    unauthenticated_connections_max=4_096,
    header_count_max=100,
    field_bytes_max=4096,
    body_bytes_max=65_536,
    header_timeout_ns=Duration(IDLE_S * SECOND),
    body_timeout_ns=Duration(10 * SECOND),
    keepalive_timeout_ns=Duration(IDLE_S * SECOND),
    send_timeout_ns=Duration(10 * SECOND),
    connections_open_max=100,
)
ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def answer(client: Client) -> None:
    client.reply(200, [], b"")


@asynccontextmanager
async def two_on_one_port() -> AsyncIterator[tuple[Listener, Listener, int]]:
    port = free_port()
    both = [Listener(answer, bind("127.0.0.1", port, shared=True), LIMITS) for _ in range(2)]
    await asyncio.gather(*(each.start() for each in both))
    try:
        yield both[0], both[1], port
    finally:
        await asyncio.gather(*(each.stop() for each in both))


async def connect(port: int, count: int, *listeners: Listener) -> list[Wire]:
    """Opens connections and waits until the listeners have accepted them."""
    before = accepted_by(listeners)
    made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    async with asyncio.timeout(30):
        while accepted_by(listeners) < before + count:
            await asyncio.sleep(0.001)
    return made


def accepted_by(listeners: Sequence[Listener]) -> int:
    return sum(len(each.connections) for each in listeners)


async def test_new_connections_go_to_the_remaining_listener() -> None:
    async with two_on_one_port() as (leaves, stays, port):
        before = await connect(port, CALLERS, leaves, stays)
        shares = (len(leaves.connections), len(stays.connections))
        await leaves.stop_accepting()
        after = await connect(port, CALLERS, stays)
        shares_after = (len(leaves.connections), len(stays.connections))
        for _, writer in before + after:
            writer.close()

    assert min(shares) > 0
    assert shares_after == (0, shares[1] + CALLERS)


async def test_connections_to_a_stopping_listener_are_served_and_then_closed() -> None:
    async with two_on_one_port() as (leaves, stays, port):
        callers = await connect(port, CALLERS, leaves, stays)
        left = len(leaves.connections)
        leaving = asyncio.create_task(leaves.stop_accepting())
        await asyncio.sleep(0)
        for _, writer in callers:
            writer.write(ASK)
        first = [await reader.readline() for reader, _ in callers]
        await leaving
        closing = [asyncio.create_task(until_closed(reader)) for reader, _ in callers]
        async with asyncio.timeout(30):
            while sum(task.done() for task in closing) < left:
                await asyncio.sleep(0.001)
        stayed = len(stays.connections)
        closed = sum(task.done() for task in closing)
        for _, writer in callers:
            writer.close()
        await asyncio.gather(*closing)

    assert first == [b"HTTP/1.1 200 OK\r\n"] * CALLERS
    assert (closed, stayed) == (left, CALLERS - left)
    assert left > 0


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Reads the rest of the response and waits until the listener closes the connection."""
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.read(1) == b""


async def test_stopping_listener_serves_connections_it_has_just_accepted() -> None:
    async with two_on_one_port() as (leaves, stays, port):
        await stays.stop()
        callers = await connect(port, 5, leaves)
        leaving = asyncio.create_task(leaves.stop())
        await asyncio.sleep(0.05)
        for _, writer in callers:
            writer.write(ASK)
        first = [await reader.readline() for reader, _ in callers]
        await leaving
        async with asyncio.timeout(30):
            await asyncio.gather(*(until_closed(reader) for reader, _ in callers))
        for _, writer in callers:
            writer.close()

    assert first == [b"HTTP/1.1 200 OK\r\n"] * 5


async def test_stopping_listener_soon_closes_silent_connections() -> None:
    async with two_on_one_port() as (leaves, stays, port):
        await stays.stop()
        callers = await connect(port, 1, leaves)
        async with asyncio.timeout(IDLE_S / 2):
            await leaves.stop()
        ended = await callers[0][0].read()
        callers[0][1].close()

    assert ended == b""
