"""A request body takes about as much memory as `limits.total_body_bytes_max` counts for it, however it is split."""

import asyncio
import contextlib
import gc
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from fuzz.pipes import Pipe
from headgate.edge.client import Client, ClientDisconnected
from headgate.edge.connection import Connection
from headgate.edge.connections import Connections
from headgate.edge.options import MIB, EdgeLimits
from headgate.model.ticket import Api
from headgate.wire.multipart import MultipartParser
from headgate.wire.request_body import RequestBody
from headgate.wire.transcription import TEXT_BYTES_MAX, TranscriptionBody
from headgate.wire.turn_budget import TurnBudget
from testing.executed_lines import split_into
from testing.fake_engine import FakeEngine
from testing.forms import BOUNDARY, CONTENT_TYPE, a_field, a_file, a_form
from testing.gateway import RunningGateway, a_config, gateway_in_loop, gateway_process_with_client
from testing.simulated_engines import resident_mib
from tests.security.raw import CHUNKED, body_of, chunk, connected, head_of

GROWTH_MAX = 1.5
BODIES = 60
CONNECTION_BYTES_MAX = 16 * 1024
"""Memory used by a connection and its exchange, excluding the body."""


class Room:
    """Counts the bytes of one body, as the gateway does for all bodies."""

    def __init__(self) -> None:
        self.counted = 0

    async def __call__(self, client: Client) -> None:
        client.limit_body(self._grow)
        with contextlib.suppress(ClientDisconnected):
            await client.body(MIB)

    def _grow(self, size: int) -> bool:
        self.counted += size
        return True


@pytest.mark.parametrize(("size", "body_bytes"), [(1, 20_000), (2, 60_000), (16, 250_000), (1000, 900_000)])
@pytest.mark.parametrize("framing", ["reads", "chunks"])
async def test_body_memory_is_at_most_fifty_percent_above_the_counted_bytes(
    size: int, body_bytes: int, framing: str
) -> None:
    room = Room()
    connections = Connections(room, EdgeLimits(body_bytes_max=MIB), lambda _id, _refused: None)
    connections.budget = TurnBudget(asyncio.get_running_loop().call_soon, lambda: 0)  # No read is deferred.
    connection: Connection = connections()
    connection.connection_made(Pipe())  # pyright: ignore[reportArgumentType]
    if framing == "chunks":
        connection.data_received(head_of(CHUNKED))
        reads = split_into(b"".join(chunk(piece) for piece in split_into(b"a" * body_bytes, size)), 65_536)
    else:
        connection.data_received(head_of(b"content-length: %d" % (body_bytes + 1)))
        reads = split_into(b"a" * body_bytes, size)
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


@pytest.mark.parametrize("character", ["a", '"', "\\", "ä", "世", "😀"])
@pytest.mark.parametrize("size", [1_000, 60_000, TEXT_BYTES_MAX - 10])
def test_fields_of_a_form_use_the_memory_that_is_counted_for_them(character: str, size: int) -> None:
    text = "a" + character * (size // len(character.encode()))
    raw = a_form(a_field("model", "m"), a_field("prompt", text), a_file())
    tracemalloc.start()
    try:
        parser = MultipartParser(raw, BOUNDARY.encode())
        while not parser.parse_step():
            pass
        body = TranscriptionBody.of(raw, Api.TRANSCRIPTIONS, parser.parts)
        del parser
        pieces = body.encode_in_pieces(served_model="served")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(pieces[0]) > size
    assert held <= GROWTH_MAX * body.copied_bytes + CONNECTION_BYTES_MAX
    assert body.copied_bytes <= 3 * size + 1_000


async def test_fields_of_a_form_count_towards_the_memory_of_all_bodies(tmp_path: Path) -> None:
    form = a_form(a_field("model", "m"), a_field("prompt", '"' * 100_000), a_file())
    limits = {"body_bytes_max": "300KiB", "total_body_bytes_max": "300KiB"}
    headers = {"content-type": CONTENT_TYPE}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), tmp_path) as gateway:
        url = gateway.url + "/v1/audio/transcriptions"
        async with gateway.http.post(url, data=form, headers=headers) as answer:
            refused = await answer.json()
        await gateway.wait_for_status(lambda status: status["held"]["body_bytes"] == 0)
        small = a_form(a_field("model", "m"), a_field("prompt", "a" * 30_000), a_file())
        async with gateway.http.post(url, data=small, headers=headers) as accepted:
            await accepted.read()

    assert (answer.status, refused["error"]["code"]) == (429, "slow_down")
    assert accepted.status == 200


@pytest.mark.parametrize("size", [1_000, 100_000, 255_000])
def test_sending_a_body_to_an_engine_does_not_copy_it(size: int) -> None:
    body = RequestBody.parse(body_of("a" * size), Api.CHAT)
    tracemalloc.start()
    try:
        pieces = body.encode_in_pieces(served_model="served")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(map(len, pieces)) > size
    assert held <= 16 * 1024


@pytest.mark.process
async def test_resident_memory_for_many_large_bodies_is_at_most_fifty_percent_above_their_size(tmp_path: Path) -> None:
    async with (
        FakeEngine() as engine,
        gateway_process_with_client(a_config(engine.url), tmp_path) as (gateway, process),
    ):
        before = resident_mib(process.pid)
        # Later rounds must reuse the memory freed by earlier ones.
        ratios = [await resident_ratio(gateway, process.pid, before, 2 * MIB + 50_000 * turn) for turn in range(3)]

    print([f"{ratio:.2f}" for ratio in ratios])
    assert max(ratios) <= GROWTH_MAX


async def resident_ratio(gateway: RunningGateway, pid: int, before_mib: float, size: int) -> float:
    """Return how much resident memory grows per byte while the process holds BODIES bodies."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(BODIES)]
        for at in range(0, size, 32 * 1024):
            piece = b" " * min(32 * 1024, size - at)
            for caller in callers:
                await caller.send(piece if at else head_of(b"content-length: %d" % (size + 1)) + piece)
        await gateway.wait_for_status(lambda status: status["held"]["body_bytes"] == BODIES * size)
        ratio = (resident_mib(pid) - before_mib) * MIB / (BODIES * size)
    await gateway.wait_for_status(lambda status: status["requests_open"] == 0)
    return ratio
