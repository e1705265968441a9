"""Oversized requests are rejected before they are read completely.

A body over the limit is rejected before it is read, with or without a content length. A head over its limits is
rejected before it is complete. The memory cost of floods is measured on a separate gateway process.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import GatewayInLoop, a_config, gateway_in_loop, gateway_process_with_client
from testing.simulated_engines import resident_mib
from tests.edge.test_the_door import config_with_keys
from tests.security.raw import CHUNKED, Caller, Closed, body_of, chunk, connected, head_of, request_of

MIB = 1024 * 1024
KIB = 1024
LIMITS = {"body_bytes_max": "16KiB", "header_bytes_max": "8KiB", "header_count_max": 20}
FLOOD_BYTES_MAX = 64 * MIB
TAKEN_BYTES_MAX = 24 * MIB
"""Bytes that the client may have sent by the time it notices the close. Nearly all of them are in kernel buffers."""
GROWTH_MIB_MAX = 16.0


@asynccontextmanager
async def a_gateway(folder: Path) -> AsyncIterator[tuple[FakeEngine, GatewayInLoop]]:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=LIMITS), folder) as gateway:
        yield engine, gateway


# Body limits


async def test_declared_length_over_the_limit_is_rejected_before_the_body_is_read(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(b"content-length: %d" % (16 * KIB + 1)))
        answer = await caller.answer()

    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert engine.requests == []


@pytest.mark.parametrize("length", [10**12, 2**63 - 1, 2**63, 2**64 - 1])
async def test_extreme_content_length_is_rejected(tmp_path: Path, length: int) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(b"content-length: %d" % length))
        answer = await caller.answer()

    assert answer.status in {400, 413}
    assert engine.requests == []


async def test_expect_continue_over_the_limit_gets_413_instead_of_100(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (_, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(b"content-length: %d" % MIB, b"expect: 100-continue"))
        first = await caller._reader.readuntil(b"\r\n")

    assert first.split(b" ")[1] == b"413"


async def test_body_at_the_limit_is_accepted(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        padding = b" " * (16 * KIB - len(body_of("hi")))
        await caller.send(request_of(body_of("hi") + padding))
        assert (await caller.answer()).status == 200
        await caller.send(head_of(CHUNKED) + chunk(body_of("hi") + padding[1:]) + chunk(b" ") + b"0\r\n\r\n")
        assert (await caller.answer()).status == 200

    assert len(engine.requests) == 2


async def test_chunked_body_over_the_limit_is_rejected(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(CHUNKED), chunk(b" " * 16 * KIB), chunk(b" "))
        answer = await caller.answer()

    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert engine.requests == []


async def test_single_chunk_over_the_limit_is_rejected(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(head_of(CHUNKED), b"7fffffff\r\n", b" " * 17 * KIB)
        answer = await caller.answer()

    assert answer.status in {400, 413}
    assert engine.requests == []


async def test_request_without_a_key_is_rejected_before_its_body_is_read(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(head_of(b"content-length: 1000000"))
            assert (await caller.answer()).status == 401
        async with connected(gateway.url) as caller:
            await caller.send(head_of(CHUNKED))
            assert (await caller.answer()).status == 401


async def test_key_in_a_trailer_is_ignored(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(config_with_keys(engine.url), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            trailer = b"0\r\nauthorization: Bearer hg-acme\r\n\r\n"
            await caller.send(head_of(CHUNKED) + chunk(body_of("hi")) + trailer)
            assert (await caller.answer()).status == 401

    assert engine.requests == []


# Head limits


async def test_head_within_its_limits_is_accepted(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (_, gateway), connected(gateway.url) as caller:
        await caller.send(request_of(body_of("hi"), *(b"x-%d: a" % number for number in range(18))))
        assert (await caller.answer()).status == 200
        await caller.send(request_of(body_of("hi"), b"x-a: " + b"a" * 3 * KIB, b"x-b: " + b"b" * 3 * KIB))
        assert (await caller.answer()).status == 200


HEADS = {
    "one header too many": head_of(*(b"x-%d: a" % number for number in range(20))),
    "one long header": head_of(b"x-a: " + b"a" * 8 * KIB),
    "one long name": head_of(b"a" * 8 * KIB + b": a"),
    "many headers that exceed the limit together": head_of(*(b"x-%d: " % number + b"a" * KIB for number in range(10))),
    "a long target": head_of(first=b"GET /v1/models?" + b"a" * 8 * KIB + b" HTTP/1.1"),
    "a header that does not end": head_of(b"x-a: " + b"a" * 9 * KIB).rstrip(),
    "a target that does not end": b"GET /" + b"a" * 9 * KIB,
    "a method that does not end": b"POST" * 3 * KIB,
    "headers that do not end": head_of(*[b"x-a: a"] * 21).rstrip(),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
async def test_head_over_its_limits_gets_431_and_the_connection_is_closed(
    tmp_path: Path, name: str, admin: bool
) -> None:
    async with a_gateway(tmp_path) as (_, gateway):
        async with connected(gateway.admin_url if admin else gateway.url) as caller:
            await caller.send(HEADS[name])
            answer = await caller.answer()
            closed = await caller.is_closed()

    assert answer.status in ({400, 431} if "method" in name else {431})
    assert closed


async def test_oversized_head_sent_byte_by_byte_gets_431(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (_, gateway), connected(gateway.url) as caller:
        await caller.drip(HEADS["one header too many"])
        answer = await caller.answer()

    assert answer.status == 431
    assert answer.error.keys() == {"message", "type", "param", "code"}
    assert answer.headers[b"x-request-id"].startswith(b"req_")


# Memory cost of floods

CHUNKED_HEAD = head_of(CHUNKED)
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "one endless header line": (b"POST /v1/chat/completions HTTP/1.1\r\nx-a: ", b"a" * 65_536),
    "endless headers": (b"POST /v1/chat/completions HTTP/1.1\r\n", b"x-a: b\r\n" * 8192),
    "an endless target": (b"GET /", b"a" * 65_536),
    "endless empty lines": (b"", b"\r\n" * 32_768),
    "an endless chunk extension": (CHUNKED_HEAD + b"5;", b"a" * 65_536),
    "endless digits of a chunk size": (CHUNKED_HEAD, b"0" * 65_536),
    "endless trailers": (CHUNKED_HEAD + chunk(b"{}") + b"0\r\n", b"x-a: b\r\n" * 8192),
    "one endless trailer": (CHUNKED_HEAD + chunk(b"{}") + b"0\r\nx-a: ", b"a" * 65_536),
    "endless chunks": (CHUNKED_HEAD, chunk(b" " * 65_536)),
    "endless small chunks": (CHUNKED_HEAD, chunk(b" ") * 8192),
    "a body without end": (head_of(b"content-length: 1000000000000"), b" " * 65_536),
    "requests one after another, never read": (b"", request_of(b"{}") * 600),
}


@pytest.mark.process
async def test_floods_do_not_increase_memory_and_are_cut_off(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, limits={"body_bytes_max": "1MiB"})
        async with gateway_process_with_client(config, tmp_path) as (gateway, process):
            await flood_with(gateway.url, "endless headers")  # One-time allocations do not count as growth.
            before = resident_mib(process.pid)
            taken, grown = {}, {}
            for name in FLOODS:
                taken[name] = await flood_with(gateway.url, name)
                grown[name] = resident_mib(process.pid) - before
            async with connected(gateway.url) as caller:
                await caller.send(request_of(body_of("after")))
                assert (await caller.answer()).status == 200

    print({name: (f"{taken[name] / MIB:.1f} MiB taken", f"{grown[name]:+.1f} MiB") for name in FLOODS})
    assert {name: grown[name] for name in FLOODS if grown[name] > GROWTH_MIB_MAX} == {}
    assert {name: taken[name] for name in FLOODS if taken[name] > TAKEN_BYTES_MAX} == {}


async def flood_with(url: str, name: str) -> int:
    beginning, piece = FLOODS[name]
    async with connected(url) as caller:
        await caller.send(beginning)
        try:
            async with asyncio.timeout(4):
                return await caller.flood(piece, FLOOD_BYTES_MAX)
        except TimeoutError:
            # The gateway neither reads nor closes the connection. The kernel buffers are full, so the flood costs
            # nothing.
            return 0


@pytest.mark.process
async def test_concurrent_floods_use_bounded_memory(tmp_path: Path) -> None:
    async with (
        FakeEngine() as engine,
        gateway_process_with_client(a_config(engine.url), tmp_path) as (gateway, process),
    ):
        before = resident_mib(process.pid)

        async def hold(caller: Caller) -> None:
            # Send a head just below its limits, and then nothing.
            await caller.send(head_of(b"x-a: " + b"a" * 60 * KIB).rstrip())

        async with asyncio.timeout(60), _many(gateway.url, 200) as callers:
            await asyncio.gather(*(hold(caller) for caller in callers))
            async with connected(gateway.url) as caller:
                await caller.send(request_of(body_of("meanwhile")))
                assert (await caller.answer()).status == 200
            grown = resident_mib(process.pid) - before

    # 200 heads of 60 KiB take up 12 MiB. Allow twice that plus the memory for the connections.
    assert grown < 48


@asynccontextmanager
async def _many(url: str, count: int) -> AsyncIterator[list[Caller]]:
    opened: list[Any] = [connected(url) for _ in range(count)]
    callers = [await each.__aenter__() for each in opened]
    try:
        yield callers
    finally:
        for each in opened:
            await each.__aexit__(None, None, None)


async def test_no_request_is_read_after_a_rejected_head(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(HEADS["one header too many"] + request_of(body_of("behind")))
        assert (await caller.answer()).status == 431
        with pytest.raises(Closed):
            await caller.answer()

    assert engine.requests == []


async def test_declared_but_unsent_bodies_do_not_count_towards_the_body_budget(tmp_path: Path) -> None:
    limits = {"body_bytes_max": "1MiB", "total_body_bytes_max": "2MiB"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), tmp_path) as gateway:
        async with AsyncExitStack() as stack:
            for _ in range(8):
                caller = await stack.enter_async_context(connected(gateway.url))
                await caller.send(head_of(b"content-length: 1048576"))
            await gateway.wait_for_status(lambda status: status["requests_open"] == 8)
            async with connected(gateway.url) as caller:
                await caller.send(request_of(body_of("hi")))
                assert (await caller.answer()).status == 200


async def test_chunked_bodies_are_counted_as_they_arrive(tmp_path: Path) -> None:
    limits = {"body_bytes_max": "1MiB", "total_body_bytes_max": "1MiB"}
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, limits=limits), tmp_path) as gateway:
        async with connected(gateway.url) as first, connected(gateway.url) as second:
            for caller in (first, second):
                await caller.send(head_of(CHUNKED) + chunk(b" " * 600 * KIB))
            answers = {first: asyncio.create_task(first.answer()), second: asyncio.create_task(second.answer())}
            done, _ = await asyncio.wait(answers.values(), return_when=asyncio.FIRST_COMPLETED)
            held = (await gateway.status())["held"]["body_bytes"]
            refused = done.pop().result()
            for task in answers.values():
                task.cancel()

    assert (refused.status, refused.error["code"]) == (429, "slow_down")
    assert held <= MIB


async def test_content_length_with_leading_zeros_is_parsed_or_rejected(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (_, gateway), connected(gateway.url) as caller:
        body = body_of("hi")
        await caller.send(head_of(b"content-length: " + b"0" * 4000 + b"%d" % len(body)) + body)
        assert (await caller.answer()).status in {200, 400}


# Length of names and single headers


async def test_single_long_header_is_rejected(tmp_path: Path) -> None:
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(request_of(body_of("hi"), b"x-headgate-class: " + b"z" * 5_000))
        answer = await caller.answer()

    assert answer.status == 431
    assert engine.requests == []


@pytest.mark.parametrize("field", ["model", "service_tier"])
async def test_long_names_in_a_body_are_rejected(tmp_path: Path, field: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], field: "z" * 5_000}).encode()
    async with a_gateway(tmp_path) as (engine, gateway), connected(gateway.url) as caller:
        await caller.send(request_of(body))
        answer = await caller.answer()

    assert (answer.status, answer.error["param"]) == (400, field)
    assert engine.requests == []
