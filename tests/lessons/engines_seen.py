"""A request as seen from the engine's side, for the fake and the simulated engine.

The fake engine reports through events, the simulated engine through its metrics page and record file. Both are slow
enough that a caller can disconnect at any stage of a request.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from headgate.engines.metrics_page import read_metrics
from headgate.simulation.server.record import read_record
from testing.fake_engine import Behaviour, FakeEngine, Received
from testing.gateway import chat

BEFORE_THE_FIRST_BYTE, MID_STREAM, NOT_STREAMED = "before the first byte", "mid-stream", "not streamed"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class EngineSeen(Protocol):
    port: int
    served_model: str

    def question(self, moment: str) -> dict[str, Any]:
        """Return a request that stays in this stage for as long as a test needs."""
        ...

    async def taken_up(self) -> None:
        """Wait until the engine is working on the last request."""
        ...

    async def let_go(self) -> None:
        """Wait until the engine reports that its client has disconnected and that nothing is running."""
        ...

    async def asked(self) -> int:
        """Return the number of requests that have reached the engine."""
        ...


class FakeSeen:
    served_model = "fake"

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._last: Received | None = None
        self.port = engine.port

    def question(self, moment: str) -> dict[str, Any]:
        # Discard events from earlier requests.
        while not self._engine._arrived.empty():
            self._engine._arrived.get_nowait()
        self._engine.behaviour = {
            BEFORE_THE_FIRST_BYTE: Behaviour(hang_before_head=True),
            MID_STREAM: Behaviour(tokens=3, hang_after=2),
            NOT_STREAMED: Behaviour(hang_after=0),
        }[moment]
        return chat(stream=moment != NOT_STREAMED)

    async def taken_up(self) -> None:
        self._last = await self._engine.next_request()
        await self._last.hung.wait()

    async def let_go(self) -> None:
        assert self._last is not None
        await self._last.client_left.wait()
        await self._last.ended.wait()
        assert self._engine.running == 0

    async def asked(self) -> int:
        return len(self._engine.requests)


class SimulatedSeen:
    """Simulated engine at 1/100 of its normal speed: a step takes 0.1 s, and the longest prompt more than 1 s."""

    SPEED_UP = 0.01
    served_model = "sim"

    def __init__(self, url: str, record: Path, http: aiohttp.ClientSession) -> None:
        self.port = int(url.rpartition(":")[2])
        self._url = url
        self._record = record
        self._http = http
        self._ended_before = len(read_record(record))
        self._prompts = 0

    def question(self, moment: str) -> dict[str, Any]:
        # A different prefix each time, so that the prompt is not in the engine's prefix cache.
        self._prompts += 1
        words = 1_500 if moment == BEFORE_THE_FIRST_BYTE else 3
        prompt = f"number {self._ended_before + self._prompts} " + "word " * words
        return chat(prompt, stream=moment != NOT_STREAMED, max_tokens=500)

    async def taken_up(self) -> None:
        async with asyncio.timeout(60):
            while await self._at_work() == 0:
                await asyncio.sleep(0.01)

    async def let_go(self) -> None:
        while await self._at_work() > 0:
            await asyncio.sleep(0.01)
        last = read_record(self._record)[-1]
        assert last["outcome"] == "disconnected", last

    async def asked(self) -> int:
        return len(read_record(self._record)) - self._ended_before + await self._at_work()

    async def _at_work(self) -> int:
        async with self._http.get(self._url + "/metrics") as page:
            found = read_metrics(await page.read(), [RUNNING, WAITING])
        return int(found[RUNNING].total + found[WAITING].total)


@asynccontextmanager
async def fake_seen() -> AsyncIterator[FakeSeen]:
    async with FakeEngine() as engine:
        yield FakeSeen(engine)


@asynccontextmanager
async def simulated_seen(url: str, record: Path) -> AsyncIterator[SimulatedSeen]:
    async with aiohttp.ClientSession() as http:
        yield SimulatedSeen(url, record, http)
