"""Tests for parsing large bodies in a separate process, including when that process fails."""

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.edge.large_bodies.client import LargeBodyReader, cap_in_thread, read_in_thread
from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.request_body import LARGE_BYTES, BadRequest, RequestBody
from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, a_config, chat, gateway_in_loop, gateway_process_with_client

pytestmark = pytest.mark.process

TRIMMED = Caps(prompt_tokens=100, trim_prompt=True, output_tokens=5)


def a_body(length: int = 2 * LARGE_BYTES, **fields: object) -> bytes:
    return json.dumps(chat("word " * (length // 5)) | fields).encode()


def a_conversation(turns: int = 20_000) -> bytes:
    messages = [{"role": "user", "content": f"{number}"} for number in range(turns)]
    return json.dumps({"model": "m", "messages": messages}).encode()


@asynccontextmanager
async def large_bodies(*command: str) -> AsyncIterator[LargeBodyReader]:
    bodies = LargeBodyReader(command) if command else LargeBodyReader()
    try:
        yield bodies
    finally:
        await bodies.stop()
        assert bodies.processes == 0


def children(of: int | None = None) -> set[int]:
    """Returns the IDs of a process's running parser processes."""
    parent = of or os.getpid()
    found = set[int]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parents_pid = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parents_pid) == parent and state not in "ZX" and b"large_bodies.reader" in command:
            found.add(int(path.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while is_running(pid):
            await asyncio.sleep(0.01)


# Parsing


async def test_one_process_parses_all_bodies_with_the_same_result() -> None:
    async with large_bodies() as bodies:
        for raw in (a_body(stream=True), a_conversation(), a_body(8 * LARGE_BYTES, tools=[1])):
            assert await bodies.read(bytearray(raw), Api.CHAT) == RequestBody.parse(raw, Api.CHAT)
        assert bodies.processes == len(children()) == 1


async def test_process_is_not_started_before_it_is_needed() -> None:
    async with large_bodies() as bodies:
        assert bodies.processes == len(children()) == 0


@pytest.mark.parametrize("raw", [a_body()[:-1], a_body(stream=1), a_body().replace(b"word", b"wor\xff"), a_body(n=[0])])
async def test_invalid_body_is_rejected_with_the_same_message(raw: bytes) -> None:
    with pytest.raises(BadRequest) as expected:
        RequestBody.parse(raw, Api.CHAT)

    async with large_bodies() as bodies:
        with pytest.raises(BadRequest) as caught:
            await bodies.read(raw, Api.CHAT)
        assert (caught.value.message, caught.value.param) == (expected.value.message, expected.value.param)
        assert (await bodies.read(a_body(), Api.CHAT)).model == "m", "the next body is parsed normally"


async def test_long_conversation_is_trimmed_in_the_process() -> None:
    async with large_bodies() as bodies:
        body = await bodies.read(a_conversation(), Api.CHAT)

        assert await bodies.cap(body, TRIMMED) == body.capped(TRIMMED)
        assert await bodies.cap(body, Caps(n=1)) == (body, ())
        assert body.capped(TRIMMED)[1][-1].startswith("turns_dropped=199")


async def test_small_body_does_not_wait_for_all_larger_ones() -> None:
    ended: list[str] = []

    async def read(name: str, raw: bytes) -> None:
        await bodies.read(raw, Api.CHAT)
        ended.append(name)

    async with large_bodies() as bodies, asyncio.TaskGroup() as group:
        for name, raw in ("first", a_body(20 * LARGE_BYTES)), ("large", a_body(20 * LARGE_BYTES)), ("small", a_body()):
            group.create_task(read(name, raw))
            await asyncio.sleep(0)

    assert ended == ["first", "small", "large"]


# Process failures


async def test_killed_process_does_not_fail_later_bodies() -> None:
    raw = a_body()
    expected = RequestBody.parse(raw, Api.CHAT)
    async with large_bodies() as bodies:
        await bodies.read(raw, Api.CHAT)
        (first,) = children()
        os.kill(first, signal.SIGKILL)
        await until_gone(first)
        assert bodies.processes == 0

        assert await bodies.read(raw, Api.CHAT) == expected, "parsed in a thread"
        assert await bodies.read(raw, Api.CHAT) == expected
        (second,) = children()
        assert second != first


async def test_process_killed_while_parsing_does_not_fail_the_body() -> None:
    raw = a_conversation(50_000)
    async with large_bodies() as bodies:
        await bodies.read(a_body(), Api.CHAT)
        (pid,) = children()
        os.kill(pid, signal.SIGSTOP)
        reading = asyncio.create_task(bodies.read(raw, Api.CHAT))
        await asyncio.sleep(0.05)
        assert not reading.done()
        os.kill(pid, signal.SIGKILL)

        assert await reading == RequestBody.parse(raw, Api.CHAT)


async def test_cancelled_requests_do_not_mix_up_results() -> None:
    async with large_bodies() as bodies:
        raws = [a_body(length * LARGE_BYTES, user=f"{length}") for length in range(2, 12)]
        reading = [asyncio.create_task(bodies.read(raw, Api.CHAT)) for raw in raws]
        for number, task in enumerate(reading):
            if number % 2 == 0:
                task.cancel()
                await asyncio.sleep(0.005)
        found = await asyncio.gather(*reading, return_exceptions=True)

        for number, (raw, body) in enumerate(zip(raws, found, strict=True)):
            if number % 2:
                assert body == RequestBody.parse(raw, Api.CHAT)
        assert len(children()) == 1


@pytest.mark.parametrize(
    "command", [("/no/such/program",), (sys.executable, "-c", ""), (sys.executable, "-c", "print('x' * 4096)")]
)
async def test_failing_process_is_restarted_with_backoff(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    raw = a_body()
    expected = RequestBody.parse(raw, Api.CHAT)
    async with large_bodies(*command) as bodies:
        for _ in range(8):
            assert await bodies.read(raw, Api.CHAT) == expected

    assert 2 <= len([each for each in caplog.messages if "failed" in each]) <= 4


async def test_bodies_are_parsed_in_a_thread_without_a_process() -> None:
    body = await read_in_thread(bytearray(a_conversation()), Api.CHAT)

    assert body == RequestBody.parse(a_conversation(), Api.CHAT)
    assert await cap_in_thread(body, TRIMMED) == body.capped(TRIMMED)


async def test_stop_while_parsing_completes_all_requests() -> None:
    async with large_bodies() as bodies:
        reading = [asyncio.create_task(bodies.read(a_conversation(), Api.CHAT)) for _ in range(3)]
        await asyncio.sleep(0.02)
        await bodies.stop()
        await asyncio.gather(*reading)
        assert not children()


async def test_parsed_body_is_not_kept_in_memory() -> None:
    raw = a_body(240 * LARGE_BYTES)

    async with large_bodies() as bodies:
        await bodies.read(raw, Api.CHAT)
        (pid,) = children()
        await bodies.read(a_body(), Api.CHAT)

        assert resident_bytes(pid) < len(raw)


# Gateway


async def test_large_body_reaches_the_engine_unchanged_and_shutdown_stops_the_process(tmp_path: Path) -> None:
    raw = a_body(3 * 2**20, tools=[{"é": 1.50}])
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
            for _ in range(2):
                async with gateway.http.post(gateway.url + CHAT, data=io.BytesIO(raw)) as answer:
                    assert answer.status == 200
                sent, asked = engine.requests[-1].json, json.loads(raw)
                assert (sent["model"], sent["messages"], sent["tools"]) == ("fake", asked["messages"], asked["tools"])
            assert (await gateway.status())["held"]["body_parsers"] == len(children()) == 1
        assert not children()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_process_exits_with_its_gateway(tmp_path: Path, number: int) -> None:
    async with (
        FakeEngine() as engine,
        gateway_process_with_client(a_config(engine.url), tmp_path) as (gateway, process),
    ):
        async with gateway.http.post(gateway.url + CHAT, data=a_body()) as answer:
            assert answer.status == 200
        (reader,) = children(process.pid)
        # A terminal sends these signals to the whole process group.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(reader, each)
        await asyncio.sleep(0.05)
        assert is_running(reader)

        os.kill(process.pid, number)
        await until_gone(reader)
        process.wait_until_ended()
