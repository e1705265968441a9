"""The first token is relayed immediately, even without further data.

Gateways that combine small writes, in their own code or through Nagle's algorithm, add tens of milliseconds to the time
to first token.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.edge.listener import bind
from testing.fake_engine import Behaviour, FakeEngine, Received, token_text
from testing.gateway import a_config, chat, gateway_in_loop
from tests.lessons.callers import RawCaller

ROUNDS = 30


async def first_token_s(url: str, model: str, engine: FakeEngine) -> float:
    """Return the seconds from sending to receiving the first token, with no other data after it."""
    caller = await RawCaller.to(url)
    try:
        engine.script.append(Behaviour(tokens=3, hang_after=0))
        caller.ask(chat(model=model, stream=True))
        received: Received = await engine.next_request()
        await received.hung.wait()
        # No other data follows that could flush the token.
        engine_goes_on = time.perf_counter()
        received.resume.set()
        await caller.read_until(token_text(0).strip().encode())
        return time.perf_counter() - engine_goes_on
    finally:
        caller.leave()
        await received.ended.wait()


@pytest.mark.timing
async def test_gateway_adds_only_a_few_milliseconds_to_the_first_token(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        bare, through = [], []
        for _ in range(ROUNDS):
            bare.append(await first_token_s(engine.url, "fake", engine))
            through.append(await first_token_s(gateway.url, "m", engine))
        await gateway.wait_until_idle()

    added_ms = 1000 * (statistics.median(through) - statistics.median(bare))
    print(f"\nfirst token: {1000 * statistics.median(bare):.2f} ms bare, {added_ms:.2f} ms more through the gateway")
    # Nagle's algorithm waits for an acknowledgement, which the receiver delays by 40 ms.
    assert added_ms < 10


async def test_each_token_is_relayed_before_the_next_arrives(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for last in (1, 2, 3):
            caller = await RawCaller.to(gateway.url)
            engine.script.append(Behaviour(tokens=5, hang_after=last))
            caller.ask(chat(stream=True))
            received = await engine.next_request()
            await received.hung.wait()
            async with asyncio.timeout(30):
                said = await caller.read_until(token_text(last - 1).strip().encode())
            assert token_text(last).strip().encode() not in said + caller.got
            assert received.tokens_sent == last
            caller.leave()
        await gateway.wait_until_idle()


async def test_event_received_in_several_pieces_is_relayed_when_complete(tmp_path: Path) -> None:
    """An event that arrives in pieces is relayed once its last piece arrives, without waiting for more data."""
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        caller = await RawCaller.to(gateway.url)
        engine.script.append(Behaviour(tokens=3, hang_after=1, piece_bytes=7))
        caller.ask(chat(stream=True))
        await (await engine.next_request()).hung.wait()
        async with asyncio.timeout(30):
            said = await caller.read_until(token_text(0).strip().encode())
        caller.leave()
        await gateway.wait_until_idle()

    assert said.startswith(b"HTTP/1.1 200 ")


# Socket options


def connected_sockets() -> Iterator[tuple[socket.socket, tuple[str, int], tuple[str, int]]]:
    """Yield every connected socket in this event loop with its local and remote address."""
    # The loop stores its transports by file descriptor.
    for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
        sock = transport.get_extra_info("socket")
        ends = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if not transport.is_closing() and None not in ends:
            yield sock, *ends


def nodelay_by_side(gateway_url: str, engine_url: str) -> dict[str, list[int]]:
    """Return TCP_NODELAY for the gateway's sockets to callers and to engines."""
    door, engine = urlsplit(gateway_url).port, urlsplit(engine_url).port
    found: dict[str, list[int]] = {"callers": [], "engines": []}
    for sock, ours, theirs in connected_sockets():
        side = "callers" if ours[1] == door else "engines" if theirs[1] == engine else None
        if side is not None:
            found[side].append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


async def test_gateway_sockets_disable_nagle_on_both_sides(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(tokens=3, hang_after=1)
        callers = [await RawCaller.to(gateway.url) for _ in range(3)]
        for caller in callers:
            caller.ask(chat(stream=True))
        for _ in callers:
            await (await engine.next_request()).hung.wait()
        found = nodelay_by_side(gateway.url, engine.url)
        for caller in callers:
            caller.leave()
        await gateway.wait_until_idle()

    assert found["callers"] == [1] * len(callers)
    assert found["engines"], "no connection to the engine was found"
    assert set(found["engines"]) == {1}


def test_accepted_sockets_disable_nagle() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
