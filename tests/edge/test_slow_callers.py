"""Tests for clients that read slowly or not at all."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, NO_TARGETS, GatewayInLoop, a_config, chat, events_of, gateway_in_loop
from testing.in_process_client import InProcessClient

LIMIT = "2s"
"""Timeout for engines and streams, long enough that a stall in the test process does not trigger it."""
SWEEPS = 3.0
"""Seconds after which the timeouts in these tests have expired and have been checked by a sweep."""


def at_the_head(caller: InProcessClient) -> bool:
    return caller.heads != []


def at_a_token(caller: InProcessClient) -> bool:
    return b"word1" in caller.body


def ask(gateway: GatewayInLoop, caller: InProcessClient) -> "asyncio.Task[None]":
    return asyncio.create_task(gateway.gateway._app(caller.client))


def impatient_of_engines(url: str) -> dict[str, Any]:
    classes = {
        "interactive": {"priority_band": 0, **NO_TARGETS, "stream_idle_timeout": LIMIT, "first_token_timeout": LIMIT}
    }
    return a_config(url, classes=classes, health={"stall_timeout": LIMIT, "consecutive_failures_max": 1})


@pytest.mark.parametrize("stops_at", [at_the_head, at_a_token])
async def test_slow_client_does_not_count_against_the_engine(tmp_path: Path, stops_at: Any) -> None:
    async with FakeEngine() as engine, gateway_in_loop(impatient_of_engines(engine.url), tmp_path) as gateway:
        caller = InProcessClient(chat(stream=True), stops_at=stops_at)
        door = ask(gateway, caller)
        await caller.stopped.wait()
        await asyncio.sleep(SWEEPS)
        status = await gateway.status()
        caller.resume_reading()
        await door
        ended = (await gateway.status())["counted"]["classes"]["interactive"]["ended"]

    assert [each["state"] for each in status["endpoints"]] == ["ready"]
    assert (caller.complete, events_of(caller.body)[-1]) == (True, "[DONE]")
    assert ended == {"completed": 1}


async def test_unread_stream_ends_at_its_timeout_without_blaming_the_engine(tmp_path: Path) -> None:
    classes = {"interactive": {"priority_band": 0, **NO_TARGETS, "attempt_timeout": LIMIT}}
    async with FakeEngine() as engine:
        config = a_config(engine.url, classes=classes, health={"consecutive_failures_max": 1})
        async with gateway_in_loop(config, tmp_path) as gateway:
            caller = InProcessClient(chat(stream=True), stops_at=at_a_token)
            door = ask(gateway, caller)
            async with asyncio.timeout(30):
                await door
            status = await gateway.status()

    assert [each["state"] for each in status["endpoints"]] == ["ready"]
    assert status["counted"]["classes"]["interactive"]["ended"] == {"cancelled": 1}
    assert not caller.complete


async def test_stream_stopped_while_its_client_is_not_reading_never_ends_with_done(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url, drain_grace="100ms"), tmp_path) as gateway:
            engine.behaviour = Behaviour(tokens=20, pace_s=0.002)
            caller = InProcessClient(chat(stream=True), stops_at=at_a_token)
            door = ask(gateway, caller)
            await caller.stopped.wait()
            gateway.gateway.shut_down()
            await door

    assert caller.complete
    assert b"[DONE]" not in caller.body
    assert json.loads(events_of(caller.body)[-1])["error"]["code"] == "slow_down"


async def test_connection_to_a_client_that_is_not_reading_is_closed(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, limits={"send_timeout": "300ms"})
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
            await gateway.wait_until_idle()


def sockets_held(port: int) -> int:
    """Returns the number of accepted connections on this port that a process still has open."""
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    listening, nobodys = "0A", "0"
    return sum(int(row[1].partition(":")[2], 16) == port and row[3] != listening and row[9] != nobodys for row in rows)
