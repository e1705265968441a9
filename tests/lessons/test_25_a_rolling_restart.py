"""A rolling restart truncates no stream, and an engine's cold start is not reported as a client error.

Two gateway processes run behind a simple load balancer that checks their readiness and sends new connections only to
ready ones. Each process is replaced in turn while callers are streaming.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import CHAT, NO_TARGETS, Config, a_config, chat, gateway_in_loop, gateway_process, urls_of
from testing.processes import ChildProcess

CALLERS = 16
TOKENS, PACE_S = 30, 0.02
GRACE_S = 120


class Switch:
    """Load balancer that passes each new connection to one of the ready gateways, in turn."""

    EVERY_S = 0.2

    def __init__(self, configs: list[Config]) -> None:
        self._configs = configs
        self._ready: list[Config] = []
        self._taken_out: list[Config] = []
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Switch"]:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asking = asyncio.create_task(self._ask_for_ever())
        try:
            yield self
        finally:
            asking.cancel()
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(asking, *self._tasks, return_exceptions=True)

    def take_out(self, config: Config) -> None:
        """Stop sending new connections to this gateway, as Kubernetes does before it runs `preStop`."""
        self._taken_out.append(config)
        self._ready = [each for each in self._ready if each is not config]

    def put_back(self, config: Config) -> None:
        self._taken_out.remove(config)

    async def until_ready(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self._ready) != count:
                await asyncio.sleep(0.01)

    async def _ask_for_ever(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                answers = await asyncio.gather(*(self._is_ready(http, config) for config in self._configs))
                answered = zip(self._configs, answers, strict=True)
                self._ready = [config for config, ready in answered if ready and config not in self._taken_out]
                await asyncio.sleep(self.EVERY_S)

    async def _is_ready(self, http: aiohttp.ClientSession, config: Config) -> bool:
        try:
            async with http.get(urls_of(config)[1] + "/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            ahead, back = await self._connect()
            writers.append(back)
            await asyncio.gather(_copy(reader, back), _copy(ahead, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.close()
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the next gateway in turn. Skip one that has just stopped, and wait while none is ready."""
        while not self._ready:
            await asyncio.sleep(0.05)
        self._turn += 1
        turns = [self._ready[(self._turn + number) % len(self._ready)] for number in range(len(self._ready))]
        for config in turns:
            host, port = config["listen"].split(":")
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, int(port))
        raise ConnectionRefusedError


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


@dataclass
class Gateways:
    """Two gateway processes that are started and replaced one by one."""

    configs: list[Config]
    folder: Path
    stack: ExitStack
    running: list[ChildProcess] = field(default_factory=list)
    starts: int = 0

    async def start(self, number: int) -> ChildProcess:
        self.starts += 1
        folder = self.folder / str(self.starts)
        folder.mkdir()
        return await asyncio.to_thread(self.stack.enter_context, gateway_process(self.configs[number], folder))

    async def start_all(self) -> None:
        self.running = [await self.start(number) for number in range(len(self.configs))]

    async def replace(self, number: int) -> None:
        """Send SIGTERM, wait for the process to exit and start a replacement, as a supervisor would."""
        leaving = self.running[number]
        leaving.terminate()
        # The process exits once its streams have ended, long before the grace period expires.
        status = await asyncio.to_thread(leaving.wait_until_ended, GRACE_S / 2)
        assert status == 0, leaving.log()
        self.running[number] = await self.start(number)


@asynccontextmanager
async def two_gateways(folder: Path, engine: FakeEngine) -> AsyncIterator[tuple[Switch, Gateways]]:
    configs = [a_config(engine.url, in_flight_max=64, drain_grace=f"{GRACE_S}s") for _ in range(2)]
    with ExitStack() as stack:
        gateways = Gateways(configs, folder, stack)
        await gateways.start_all()
        async with Switch(configs).serving() as switch:
            await switch.until_ready(2)
            yield switch, gateways


async def call_plainly(http: aiohttp.ClientSession, url: str, seen: Counter[str]) -> None:
    """Run one stream as a client that honours Retry-After would."""
    while True:
        async with http.post(url + CHAT, json=chat(stream=True)) as answer:
            body = await answer.read()
        if answer.status == 200:
            seen["whole" if body.endswith(b"data: [DONE]\n\n") else f"severed: {body[-200:]!r}"] += 1
            return
        if answer.status != 503 or "retry-after" not in answer.headers:
            seen[f"refused: {answer.status} {body[:200]!r}"] += 1
            return
        seen["told to come back"] += 1
        await asyncio.sleep(float(answer.headers["retry-after"]))


async def call_by_sdk(client: openai.AsyncOpenAI, seen: Counter[str]) -> None:
    """Run one stream with the official client and its own retries."""
    messages: Any = [{"role": "user", "content": "hi"}]
    said = 0
    async with await client.chat.completions.create(model="m", messages=messages, stream=True) as stream:
        async for chunk in stream:
            said += bool(chunk.choices and chunk.choices[0].delta.content)
    seen["whole by the SDK" if said == TOKENS else f"severed after {said}"] += 1


@pytest.mark.process
async def test_rolling_restart_truncates_no_stream_and_fails_no_call(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=TOKENS, pace_s=PACE_S)
        async with two_gateways(tmp_path, engine) as (switch, gateways):
            seen: Counter[str] = Counter()
            over = asyncio.Event()
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            async with (
                aiohttp.ClientSession(connector=connector) as http,
                openai.AsyncOpenAI(api_key="none", base_url=switch.url + "/v1") as client,
            ):

                async def plainly() -> None:
                    while not over.is_set():
                        await call_plainly(http, switch.url, seen)

                async def by_sdk() -> None:
                    while not over.is_set():
                        await call_by_sdk(client, seen)

                async with asyncio.TaskGroup() as group:
                    for _ in range(CALLERS // 2):
                        group.create_task(plainly())
                        group.create_task(by_sdk())
                    while seen.total() < CALLERS:
                        await asyncio.sleep(0.01)
                    for number in range(2):
                        switch.take_out(gateways.configs[number])
                        await gateways.replace(number)
                        switch.put_back(gateways.configs[number])
                        await switch.until_ready(2)
                    while min(seen["whole"], seen["whole by the SDK"]) <= CALLERS:
                        await asyncio.sleep(0.01)
                    over.set()

    print(f"\n{dict(seen)}")
    assert set(seen) <= {"whole", "whole by the SDK", "told to come back"}, seen
    assert seen["whole"] > CALLERS
    assert seen["whole by the SDK"] > CALLERS


# Starting engines


COLD = {"interactive": {"priority_band": 0, **NO_TARGETS, "queue_wait_max": "800ms"}}


async def test_requests_wait_while_the_engine_is_loading(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        config = a_config(
            engine.url, classes={"interactive": {"priority_band": 0, **NO_TARGETS, "queue_wait_max": "8s"}}
        )
        async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
            waiting = [asyncio.create_task(answered(gateway.post(chat(stream=True)))) for _ in range(5)]
            await gateway.wait_for_status(lambda status: status["queued"]["interactive"] == 5)
            assert engine.requests == [], "a loading engine must get no requests"
            engine.loading = False
            answers = await asyncio.gather(*waiting)

    assert [status for status, _, _ in answers] == [200] * 5
    assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in answers)


@pytest.mark.parametrize("listening", [True, False], ids=["reports loading", "does not listen yet"])
async def test_request_gets_retry_after_if_loading_takes_too_long(tmp_path: Path, listening: bool) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        if not listening:
            await engine.kill()
        config = a_config(engine.url, classes=COLD)
        config["pools"]["small"]["warm_up"] = "45s"
        async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
            started = time.monotonic()
            status, headers, body = await answered(gateway.post(chat()))
            lasted_s = time.monotonic() - started

    assert status == 503, body
    assert b'"no_endpoints"' in body
    assert headers["retry-after"] == "45", "Retry-After is the configured warm-up time"
    assert "x-should-retry" not in headers, "the official client must retry"
    assert lasted_s > 0.7, "the request must wait for the queue_wait_max of its class"
    assert engine.requests == []


def that_may_have_none(url: str, *, start_wait: str) -> Config:
    """Configuration with one engine in a pool that may scale to zero."""
    classes = {
        "interactive": {"priority_band": 0, **NO_TARGETS, "queue_wait_max": "200ms", "cold_start_wait_max": start_wait}
    }
    config = a_config(url, classes=classes)
    config["pools"]["small"]["scaling"] = {"endpoints_min": 0, "endpoints_max": 1, "cold_start": "40s"}
    return config


async def test_held_requests_wait_longer_than_the_queue_timeout(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        config = that_may_have_none(engine.url, start_wait="20s")
        async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
            waiting = [asyncio.create_task(answered(gateway.post(chat(stream=True)))) for _ in range(5)]
            await gateway.wait_for_status(lambda status: status["held_for_start"] == {"small": 5})
            held_at = time.monotonic()
            # Twice their class's queue_wait_max.
            await gateway.wait_for_status(lambda _: time.monotonic() > held_at + 0.4)
            engine.loading = False
            answers = await asyncio.gather(*waiting)

    assert [status for status, _, _ in answers] == [200] * 5
    assert all(int(headers["x-headgate-cold-start-ms"]) >= 400 for _, headers, _ in answers), (
        "the response must report the hold"
    )


async def test_request_gets_retry_after_when_its_hold_expires(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.loading = True
        config = that_may_have_none(engine.url, start_wait="500ms")
        async with gateway_in_loop(config, tmp_path, wait_for=0) as gateway:
            status, headers, body = await answered(gateway.post(chat()))

    assert (status, headers["retry-after"]) == (503, "40"), body
    assert b'"no_endpoints"' in body
    assert int(headers["x-headgate-cold-start-ms"]) >= 500
    assert engine.requests == []


async def answered(request: Any) -> tuple[int, Any, bytes]:
    async with request as answer:
        return answer.status, answer.headers, await answer.read()
