"""Callers that send slowly or not at all are disconnected.

Each kind of slowness has its own timeout, and other callers are served in the meantime. Timeouts enforced by a sweep
are tested by running the sweep at a later time, so that no test waits for them. The timeout for a body is enforced by
the request handler, so it is short in these tests.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.edge.connection import Connection
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from tests.security.raw import CHUNKED, Caller, Closed, body_of, chunk, connected, head_of, request_of

LIMIT_S = 60.0
"""Value of each timeout that a sweep enforces, in seconds."""
BODY_LIMIT_S = 0.2
"""Timeout for receiving a body, in seconds."""
WAIT_S_MAX = 30.0


@asynccontextmanager
async def a_gateway(folder: Path, **limits: Any) -> AsyncIterator[tuple[FakeEngine, GatewayInLoop]]:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), folder) as gateway:
        yield engine, gateway


def sweep_after(gateway: GatewayInLoop, seconds: float) -> None:
    """Run the gateway's sweep as if `seconds` had passed."""
    now = asyncio.get_running_loop().time() + seconds
    for listener in gateway.gateway._parts.listeners:
        listener.connections.sweep(now)


def first_connection(gateway: GatewayInLoop) -> Connection:
    return next(iter(gateway.gateway._parts.listeners[0].connections._open))


async def is_served(gateway: GatewayInLoop, *, admin: bool = False) -> bool:
    """Return whether another caller is served. By then, data sent earlier has been read."""
    async with connected(gateway.admin_url if admin else gateway.url) as caller:
        await caller.send(head_of(first=b"GET /health HTTP/1.1") if admin else request_of(body_of("meanwhile")))
        return (await caller.answer(seconds_max=WAIT_S_MAX)).status == 200


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def is_open(caller: Caller) -> bool:
    return not await caller.is_closed(seconds_max=0.02)


@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
async def test_connection_without_a_first_byte_is_closed(tmp_path: Path, admin: bool) -> None:
    async with a_gateway(tmp_path, header_timeout=f"{LIMIT_S}s") as (_, gateway):
        connections = gateway.gateway._parts.listeners[-1 if admin else 0].connections
        others = len(connections)
        async with connected(gateway.admin_url if admin else gateway.url) as caller:
            assert await is_served(gateway, admin=admin)
            # The thread for probes waits briefly for the first byte, then passes the connection to the loop.
            await until(lambda: len(connections) > others)
            sweep_after(gateway, LIMIT_S / 2)
            assert await is_open(caller)
            sweep_after(gateway, LIMIT_S + 1)
            assert await caller.is_closed(seconds_max=WAIT_S_MAX)


HEAD = head_of(b"content-length: 2", *(b"x-%d: a" % number for number in range(20)))


@pytest.mark.parametrize(
    "sent",
    [HEAD[:-1], HEAD[:1], HEAD[:-2], b"\r\n"],
    ids=["all but one byte", "one byte", "all but the last line", "empty line"],
)
async def test_slow_head_gets_408_and_the_connection_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with a_gateway(tmp_path, header_timeout=f"{LIMIT_S}s") as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(sent)
        assert await is_served(gateway)
        sweep_after(gateway, LIMIT_S / 2)
        assert await is_open(caller)
        sweep_after(gateway, LIMIT_S + 1)
        status = (await caller.answer(seconds_max=WAIT_S_MAX)).status
        assert await caller.is_closed(seconds_max=WAIT_S_MAX)

    assert status == 408
    assert engine.requests[1:] == []


async def test_further_bytes_do_not_extend_the_head_timeout(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, header_timeout=f"{LIMIT_S}s") as (_, gateway), connected(gateway.url) as caller:
        await caller.send(HEAD[:1])
        assert await is_served(gateway)
        due_at = first_connection(gateway).timeout_at
        for byte in HEAD[1:9]:
            await caller.send(bytes([byte]))
            await asyncio.sleep(0.001)
        assert await is_served(gateway)

        assert first_connection(gateway).timeout_at == due_at


async def test_slow_head_gets_408_with_a_standard_error_body(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, header_timeout=f"{LIMIT_S}s") as (_, gateway), connected(gateway.url) as caller:
        await caller.send(HEAD[:-2])
        assert await is_served(gateway)
        sweep_after(gateway, LIMIT_S + 1)
        answer = await caller.answer(seconds_max=WAIT_S_MAX)

    assert answer.status == 408
    assert answer.error.keys() == {"message", "type", "param", "code"}
    assert answer.headers[b"x-request-id"].startswith(b"req_")


BODIES = {
    "nothing": (head_of(b"content-length: 100"), b""),
    "byte by byte": (head_of(b"content-length: 1000"), b" " * 1000),
    "chunk by chunk": (head_of(CHUNKED), chunk(b" ") * 200),
    "one chunk, byte by byte": (head_of(CHUNKED) + b"ffff\r\n", b" " * 1000),
    "digits of a chunk's size": (head_of(CHUNKED), b"0" * 15),
    "a chunk's extension": (head_of(CHUNKED) + b"1;", b"a" * 1000),
    "trailers": (head_of(CHUNKED) + chunk(body_of("hi")) + b"0\r\n", b"x-a: b\r\n" * 100),
}


@pytest.mark.parametrize("name", BODIES)
async def test_slow_body_closes_the_connection(tmp_path: Path, name: str) -> None:
    at_once, slowly = BODIES[name]
    limits = {"body_timeout": f"{BODY_LIMIT_S}s"}
    async with a_gateway(tmp_path, **limits) as (engine, gateway), connected(gateway.url) as caller:
        began = time.monotonic()
        await caller.send(at_once)
        dripping = asyncio.create_task(caller.drip_slowly(slowly, every_s=0.01))
        try:
            status = (await caller.answer(seconds_max=WAIT_S_MAX)).status
        except Closed:
            status = None
        told_after = time.monotonic() - began
        # The caller gets the same amount of time again to send the rest of the body, which is discarded.
        sweep_after(gateway, 2 * BODY_LIMIT_S)
        closed = await caller.is_closed(seconds_max=WAIT_S_MAX)
        dripping.cancel()
        assert await is_served(gateway)
        await gateway.wait_until_idle(seconds_max=WAIT_S_MAX)

    assert status in {400, 408, None}
    assert told_after > BODY_LIMIT_S / 2
    assert closed
    assert [each.json["messages"] for each in engine.requests] == [[{"role": "user", "content": "meanwhile"}]]


async def test_slow_remainder_of_a_rejected_body_closes_the_connection(tmp_path: Path) -> None:
    """After the response, the gateway discards the rest of the body, but only for a limited time."""
    limits = {"body_timeout": f"{LIMIT_S}s", "body_bytes_max": "1KiB"}
    async with a_gateway(tmp_path, **limits) as (_, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(b"content-length: 100000"))
        assert (await caller.answer(seconds_max=WAIT_S_MAX)).status == 413
        await caller.send(b" " * 100)
        assert await is_open(caller)
        sweep_after(gateway, LIMIT_S + 1)
        assert await caller.is_closed(seconds_max=WAIT_S_MAX)


@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
async def test_idle_connection_is_closed_without_a_response(tmp_path: Path, admin: bool) -> None:
    async with a_gateway(tmp_path, keepalive_timeout=f"{LIMIT_S}s") as (_, gateway):
        async with connected(gateway.admin_url if admin else gateway.url) as caller:
            for _ in range(2):
                await caller.send(head_of(first=b"GET %b HTTP/1.1" % (b"/ready" if admin else b"/v1/models")))
                assert (await caller.answer()).status == 200
            sweep_after(gateway, LIMIT_S / 2)
            assert await is_open(caller)
            sweep_after(gateway, LIMIT_S + 1)
            assert await caller.is_closed(seconds_max=WAIT_S_MAX)


async def test_head_timeout_applies_to_the_second_request(tmp_path: Path) -> None:
    limits = {"header_timeout": f"{LIMIT_S}s", "keepalive_timeout": "1h"}
    async with a_gateway(tmp_path, **limits) as (_, gateway), connected(gateway.url) as caller:
        await caller.send(request_of(body_of("first")))
        assert (await caller.answer()).status == 200
        await caller.send(HEAD[:-2])
        assert await is_served(gateway)
        sweep_after(gateway, LIMIT_S + 1)
        assert (await caller.answer(seconds_max=WAIT_S_MAX)).status == 408
        assert await caller.is_closed(seconds_max=WAIT_S_MAX)


async def test_caller_waiting_for_an_engine_is_not_treated_as_slow(tmp_path: Path) -> None:
    """These timeouts do not affect a request that has been received completely."""
    limits = dict.fromkeys(("header_timeout", "body_timeout", "keepalive_timeout", "send_timeout"), f"{LIMIT_S}s")
    async with a_gateway(tmp_path, **limits) as (engine, gateway), connected(gateway.url) as caller:
        engine.behaviour = Behaviour(hang_after=1)
        await caller.send(request_of(body_of("hi", stream=True)))
        received = await engine.next_request()
        sweep_after(gateway, 10 * LIMIT_S)
        received.resume.set()
        answer = await caller.answer()

    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_connection_over_the_tenant_share_is_closed_while_the_others_keep_working(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, connections_open_max=5) as (_, gateway), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(4)]
        for caller in callers:  # A response shows that the connection was accepted.
            await caller.send(request_of(body_of("hi")))
            assert (await caller.answer()).status == 200
        async with connected(gateway.url) as surplus:
            await surplus.send(request_of(body_of("surplus")))
            assert (await surplus.answer(seconds_max=WAIT_S_MAX)).status == 429
            assert await surplus.is_closed(seconds_max=WAIT_S_MAX)
        for caller in callers:
            await caller.send(request_of(body_of("again")))
            assert (await caller.answer()).status == 200
        async with connected(gateway.admin_url) as operator:
            await operator.send(head_of(first=b"GET /health HTTP/1.1"))
            assert (await operator.answer()).status == 200
        callers[0].abort()
        async with asyncio.timeout(WAIT_S_MAX):
            while len(gateway.gateway._parts.listeners[0].connections) >= 4:
                await asyncio.sleep(0.005)
        assert await is_served(gateway)


async def test_hundreds_of_slow_heads_do_not_block_other_callers(tmp_path: Path) -> None:
    async with a_gateway(tmp_path, header_timeout=f"{LIMIT_S}s") as (_, gateway), AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(connected(gateway.url)) for _ in range(300)]
        for caller in callers:
            await caller.send(HEAD[:20])
        assert await is_served(gateway)
        sweep_after(gateway, LIMIT_S + 1)
        answers = await asyncio.gather(*(caller.rest(seconds_max=WAIT_S_MAX) for caller in callers))
        assert await is_served(gateway)

    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 408"] * 300
