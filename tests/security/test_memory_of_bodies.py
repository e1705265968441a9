"""A request body takes about as much memory as `limits.bodies_bytes_max` counts for it, however it is split."""

import asyncio
import contextlib
import gc
import tracemalloc

import pytest

from fuzz.pipes import Pipe
from headgate.edge.client import Client, ClientLeft
from headgate.edge.connection import Connection
from headgate.edge.connections import Connections
from headgate.edge.options import MIB, EdgeLimits
from headgate.wire.turn_budget import TurnBudget
from testing.work import cut_into
from tests.security.raw import CHUNKED, chunk, head_of

GROWTH_MAX = 1.5
CONNECTION_BYTES_MAX = 16 * 1024
"""Memory of a connection and its exchange, without the body."""


class Room:
    """Counts the bytes of one body, as the door does for all of them."""

    def __init__(self) -> None:
        self.counted = 0

    async def __call__(self, client: Client) -> None:
        client.count_body(self._grow)
        with contextlib.suppress(ClientLeft):
            await client.body(MIB)

    def _grow(self, size: int) -> bool:
        self.counted += size
        return True


@pytest.mark.parametrize(("size", "body_bytes"), [(1, 20_000), (2, 60_000), (16, 250_000), (1000, 900_000)])
@pytest.mark.parametrize("framing", ["reads", "chunks"])
async def test_memory_of_a_body_is_at_most_half_more_than_counted(size: int, body_bytes: int, framing: str) -> None:
    room = Room()
    connections = Connections(room, EdgeLimits(body_bytes_max=MIB), lambda _id, _refused: None)
    connections.budget = TurnBudget(asyncio.get_running_loop().call_soon, lambda: 0)  # No read waits for a turn.
    connection: Connection = connections()
    connection.connection_made(Pipe())  # pyright: ignore[reportArgumentType]
    if framing == "chunks":
        connection.data_received(head_of(CHUNKED))
        reads = cut_into(b"".join(chunk(piece) for piece in cut_into(b"a" * body_bytes, size)), 65_536)
    else:
        connection.data_received(head_of(b"content-length: %d" % (body_bytes + 1)))
        reads = cut_into(b"a" * body_bytes, size)
    gc.collect()
    tracemalloc.start()
    try:
        for read in reads:
            connection.data_received(bytes(bytearray(read)))  # A separate object for each read, as from a socket.
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    connection.connection_lost(None)

    assert held <= GROWTH_MAX * body_bytes + CONNECTION_BYTES_MAX
