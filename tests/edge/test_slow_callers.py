"""What does a caller that reads slowly, or not at all, cost the others?"""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from testing.caller import Caller
from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, NO_TARGETS, GatewayInLoop, a_config, chat, events_of, gateway_in_loop

LIMIT = "2s"
"""A pause of the process must not use it up between two tokens."""
SWEEPS = 3.0
"""Long enough for the limits in these tests to be over and for sweeps to have seen it."""


def at_the_head(caller: Caller) -> bool:
    return caller.heads != []


def at_a_token(caller: Caller) -> bool:
    return b"word1" in caller.body


def ask(gateway: GatewayInLoop, caller: Caller) -> "asyncio.Task[None]":
    return asyncio.create_task(gateway.gateway._door(caller.client))


def impatient_of_engines(url: str) -> dict[str, Any]:
    classes = {"interactive": {"band": 0, **NO_TARGETS, "idle_max": LIMIT, "first_token_max": LIMIT}}
    return a_config(url, classes=classes, health={"stall_max": LIMIT, "failures_max": 1})


@pytest.mark.parametrize("stops_at", [at_the_head, at_a_token])
async def test_a_callers_slowness_is_not_held_against_the_engine(tmp_path: Path, stops_at: Any) -> None:
    async with FakeEngine() as engine, gateway_in_loop(impatient_of_engines(engine.url), tmp_path) as gateway:
        caller = Caller(chat(stream=True), stops_at=stops_at)
        door = ask(gateway, caller)
        await caller.stopped.wait()
        await asyncio.sleep(SWEEPS)
        status = await gateway.status()
        caller.read_on()
        await door
        ended = (await gateway.status())["counted"]["classes"]["interactive"]["ended"]

    assert [each["state"] for each in status["endpoints"]] == ["ready"]
    assert (caller.complete, events_of(caller.body)[-1]) == (True, "[DONE]")
    assert ended == {"completed": 1}


async def test_what_the_caller_is_not_reading_in_time_ends_and_nobody_else_is_blamed(tmp_path: Path) -> None:
    classes = {"interactive": {"band": 0, **NO_TARGETS, "total_max": LIMIT}}
    async with FakeEngine() as engine:
        config = a_config(engine.url, classes=classes, health={"failures_max": 1})
        async with gateway_in_loop(config, tmp_path) as gateway:
            caller = Caller(chat(stream=True), stops_at=at_a_token)
            door = ask(gateway, caller)
            async with asyncio.timeout(30):
                await door
            status = await gateway.status()

    assert [each["state"] for each in status["endpoints"]] == ["ready"]
    assert status["counted"]["classes"]["interactive"]["ended"] == {"cancelled": 1}
    assert not caller.complete


async def test_a_stream_stopped_while_its_caller_does_not_read_never_says_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=20, pace_s=0.002)
            caller = Caller(chat(stream=True), stops_at=at_a_token)
            door = ask(gateway, caller)
            await caller.stopped.wait()
            gateway.gateway.leave()
            await door

    assert caller.complete
    assert b"[DONE]" not in caller.body
    assert json.loads(events_of(caller.body)[-1])["error"]["code"] == "slow_down"


async def test_the_connection_of_a_caller_that_does_not_read_is_let_go(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, limits={"client_stall_max": "300ms"})
        async with gateway_in_loop(config, tmp_path) as gateway:
            engine.behaviour = Behaviour(body=(b"data: " + b"x" * 60_000 + b"\n\n") * 400)
            host, port = config["listen"].split(":")
            body = json.dumps(chat(stream=True)).encode()
            with socket.create_connection((host, int(port))) as deaf:
                deaf.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)))
                deaf.sendall(body)
                await (await engine.next_request()).client_left.wait()
                async with asyncio.timeout(30):
                    while sockets_held(int(port)):
                        await asyncio.sleep(0.01)
            await gateway.until_idle()


def sockets_held(port: int) -> int:
    """How many accepted connections of this port a process still holds, by the kernel's list of them."""
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    listening, nobodys = "0A", "0"
    return sum(int(row[1].partition(":")[2], 16) == port and row[3] != listening and row[9] != nobodys for row in rows)
