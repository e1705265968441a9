"""Can callers hold a place by sending slowly, or not at all?

Each way to be slow is ended by a limit of its own, all set small here; others are served at once meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import CHUNKED, Caller, Closed, body_of, chunk, connected, head_of, request_of

LIMIT_S = 0.6
"""Of each limit under test."""
LATE_S_MAX = 3.0
"""By when it must have acted: sweeps come a few times a second, and the machine may be busy."""
SERVED_S_MAX = 1.0


@asynccontextmanager
async def a_gateway(folder: Path, **limits: Any) -> AsyncIterator[tuple[FakeEngine, GatewayInLoop]]:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), folder) as gateway:
        yield engine, gateway


async def drip_until_closed(caller: Caller, data: bytes, *, pause_s: float) -> float:
    """Sends byte after byte until the gateway closes; how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(LIMIT_S + LATE_S_MAX + 5):
        for at in range(len(data)):
            await caller.send(data[at : at + 1])
            if await caller.is_closed(seconds_max=pause_s):
                break
    return time.monotonic() - began


async def is_served(gateway: GatewayInLoop) -> bool:
    """Whether somebody else is answered at once."""
    async with connected(gateway.url) as caller:
        await caller.send(request_of(body_of("meanwhile")))
        return (await caller.answer(seconds_max=SERVED_S_MAX)).status == 200


@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
async def test_a_connection_without_a_first_byte_is_closed(tmp_path: Path, admin: bool) -> None:
    async with a_gateway(tmp_path, head_max=f"{LIMIT_S}s") as (_, gateway):
        async with connected(gateway.admin_url if admin else gateway.url) as caller:
            assert await is_served(gateway)
            assert await caller.is_closed(seconds_max=LIMIT_S + LATE_S_MAX)


HEAD = head_of(b"content-length: 2", *(b"x-%d: a" % number for number in range(20)))


@pytest.mark.parametrize("sent", [HEAD, HEAD[:1], HEAD[:-2], b"\r\n" * 1000], ids=["head", "byte", "all but", "lines"])
async def test_a_head_that_comes_too_slowly_is_told_so_and_closed(tmp_path: Path, sent: bytes) -> None:
    """The time runs from its first byte; further bytes do not buy more of it."""
    async with a_gateway(tmp_path, head_max=f"{LIMIT_S}s") as (engine, gateway), connected(gateway.url) as caller:
        began = time.monotonic()
        dripping = asyncio.create_task(caller.drip_slowly(sent, every_s=0.05))
        assert await is_served(gateway)
        try:
            status = (await caller.answer(seconds_max=LIMIT_S + LATE_S_MAX)).status
        except Closed:
            status = None
        took = time.monotonic() - began
        dripping.cancel()
        assert await caller.is_closed(seconds_max=LATE_S_MAX)

    # Empty lines are not the beginning of a head; where bytes cross the close, the reset may cost the answer.
    assert status in {408, None}
    assert took > LIMIT_S / 2
    assert engine.requests[1:] == []


async def test_a_slow_head_hears_408_with_the_shape_of_every_error(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, head_max=f"{LIMIT_S}s") as (_, gateway), connected(gateway.url) as caller:
        await caller.send(HEAD[:-2])
        answer = await caller.answer(seconds_max=LIMIT_S + LATE_S_MAX)

    assert answer.status == 408
    assert answer.error.keys() == {"message", "type", "param", "code"}
    assert answer.headers[b"x-request-id"].startswith(b"req_")


BODIES = {
    "nothing of it": (head_of(b"content-length: 100"), b""),
    "byte by byte": (head_of(b"content-length: 1000"), b" " * 1000),
    "chunk by chunk": (head_of(CHUNKED), chunk(b" ") * 200),
    "one chunk, byte by byte": (head_of(CHUNKED) + b"ffff\r\n", b" " * 1000),
    "digits of a chunk's size": (head_of(CHUNKED), b"0" * 15),
    "a chunk's extension": (head_of(CHUNKED) + b"1;", b"a" * 1000),
    "trailers": (head_of(CHUNKED) + chunk(body_of("hi")) + b"0\r\n", b"x-a: b\r\n" * 100),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_comes_too_slowly_ends_the_connection(tmp_path: Path, name: str) -> None:
    at_once, slowly = BODIES[name]
    async with a_gateway(tmp_path, receive_max=f"{LIMIT_S}s") as (engine, gateway), connected(gateway.url) as caller:
        began = time.monotonic()
        await caller.send(at_once)
        dripping = asyncio.create_task(caller.drip_slowly(slowly, every_s=0.05))
        assert await is_served(gateway)
        try:
            status = (await caller.answer(seconds_max=LIMIT_S + LATE_S_MAX)).status
        except Closed:
            status = None
        told_after = time.monotonic() - began
        # It may be given as long again to send what is passed over, and no longer.
        closed = await caller.is_closed(seconds_max=LIMIT_S + LATE_S_MAX)
        dripping.cancel()
        await gateway.until_idle(seconds_max=1)

    assert status in {400, 408, None}
    assert told_after > LIMIT_S / 2
    assert closed
    assert [each.json["messages"] for each in engine.requests] == [[{"role": "user", "content": "meanwhile"}]]


async def test_a_refused_body_that_is_still_sent_byte_by_byte_ends_the_connection(tmp_path: Path) -> None:
    """The answer has gone; passing over the rest may not take for ever either."""
    limits = {"receive_max": f"{LIMIT_S}s", "body_bytes_max": "1KiB"}
    async with a_gateway(tmp_path, **limits) as (_, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(b"content-length: 100000"))
        assert (await caller.answer(seconds_max=2)).status == 413
        took = await drip_until_closed(caller, b" " * 1000, pause_s=0.05)

    assert took < LIMIT_S + LATE_S_MAX


@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
async def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path, admin: bool) -> None:
    async with a_gateway(tmp_path, idle_max=f"{LIMIT_S}s") as (_, gateway):
        async with connected(gateway.admin_url if admin else gateway.url) as caller:
            for _ in range(2):
                await caller.send(head_of(first=b"GET %b HTTP/1.1" % (b"/health" if admin else b"/v1/models")))
                assert (await caller.answer()).status == 200
            began = time.monotonic()
            assert await caller.is_closed(seconds_max=LIMIT_S + LATE_S_MAX)
            assert time.monotonic() - began > LIMIT_S / 2


async def test_the_time_for_a_head_counts_for_the_second_request_too(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, head_max=f"{LIMIT_S}s") as (_, gateway), connected(gateway.url) as caller:
        await caller.send(request_of(body_of("first")))
        assert (await caller.answer()).status == 200
        await caller.send(HEAD[:-2])
        assert (await caller.answer(seconds_max=LIMIT_S + LATE_S_MAX)).status == 408
        assert await caller.is_closed()


async def test_waiting_for_an_engine_is_not_slowness_of_the_caller(tmp_path: Path) -> None:
    """None of these limits touches a request that has come in whole."""
    from testing.fake_engine import Behaviour

    limits = dict.fromkeys(("head_max", "receive_max", "idle_max", "client_stall_max"), "300ms")
    async with a_gateway(tmp_path, **limits) as (engine, gateway), connected(gateway.url) as caller:
        engine.behaviour = Behaviour(hang_after=1)
        await caller.send(request_of(body_of("hi", stream=True)))
        received = await engine.next_request()
        await asyncio.sleep(1.2)
        received.resume.set()
        answer = await caller.answer()

    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_beyond_the_number_of_connections_the_next_is_closed_at_once_and_the_others_work(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=4) as (_, gateway), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(4)]
        for caller in callers:  # Each is known to be accepted once it has been answered.
            await caller.send(request_of(body_of("hi")))
            assert (await caller.answer()).status == 200
        async with connected(gateway.url) as surplus:
            await surplus.send(request_of(body_of("surplus")))
            with pytest.raises(Closed):
                await surplus.answer(seconds_max=2)
        for caller in callers:
            await caller.send(request_of(body_of("again")))
            assert (await caller.answer()).status == 200
        async with connected(gateway.admin_url) as operator:
            await operator.send(head_of(first=b"GET /health HTTP/1.1"))
            assert (await operator.answer()).status == 200
        callers[0].abort()
        await asyncio.sleep(0.1)
        assert await is_served(gateway)


async def test_hundreds_of_slow_heads_leave_the_door_open_for_others(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, head_max="1s") as (_, gateway), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(300)]
        for caller in callers:
            await caller.send(HEAD[:20])
        assert await is_served(gateway)
        closed = await asyncio.gather(*(caller.rest(seconds_max=1 + LATE_S_MAX) for caller in callers))
        assert await is_served(gateway)

    assert len(closed) == 300
