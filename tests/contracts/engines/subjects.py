"""Engines that the contract tests run against: fake and simulated engines in this process, and real ones."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import aiohttp

from headgate.engines.dialect import Signal
from headgate.engines.dialects import DIALECTS
from headgate.engines.http_engine import HttpEngine, metrics_url
from headgate.engines.metrics_page import read_metrics
from headgate.engines.page import open_session
from headgate.hosts.local.clock import SystemClock
from headgate.model.engine_profile import PROFILES
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.options import EngineOptions
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_triton import FakeTriton
from testing.real_engines import RealEngine, llamacpp
from testing.real_triton import triton
from tests.engines.calls import Engines

Kind = Literal["fake", "simulated", "fake_triton", "llamacpp", "vllm", "triton"]
DIALECT_OF: dict[Kind, str] = {
    "fake": "vllm",
    "simulated": "vllm",
    "fake_triton": "triton_trtllm",
    "triton": "triton_trtllm",
}

# Slow enough that a test can disconnect in the middle of a response.
A_STEP_PS = 20_000_000_000


@contextmanager
def a_real_engine(kind: Kind) -> Iterator[RealEngine | None]:
    match kind:
        case "fake" | "simulated" | "fake_triton":
            yield None
        case "llamacpp":
            with llamacpp() as engine:
                yield engine
        case "triton":
            with triton("llm") as engine:
                yield engine


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine that the contract applies to."""

    kind: Kind
    url: str
    model: str
    session: aiohttp.ClientSession
    """Session for probes and metrics."""
    engines: Engines
    fake: FakeEngine | None = None
    simulated: EngineServer | None = None

    @property
    def dialect(self) -> str:
        return DIALECT_OF.get(self.kind, self.kind)

    @property
    def in_process(self) -> FakeEngine | EngineServer | None:
        return self.fake or self.simulated

    @property
    def engine(self) -> HttpEngine:
        return self.engines(self.url, dialect=self.dialect, served_model=self.model)

    def would_answer(self, behaviour: Behaviour) -> None:
        """Queues a behaviour for a fake engine. Has no effect on other engines."""
        if self.fake is not None:
            self.fake.script.append(behaviour)

    async def running(self) -> int:
        """Returns the number of running and queued requests according to the engine's metrics."""
        metrics = DIALECTS[self.dialect].metrics
        names = [metrics[signal][0] for signal in (Signal.RUNNING, Signal.WAITING)]
        page = f"{metrics_url(self.url, DIALECTS[self.dialect])}/metrics"
        # Uses a separate session, because the tests check the connection pool of the session under test.
        async with aiohttp.ClientSession() as own, own.get(page) as answer:
            found = read_metrics(await answer.read(), names)
        return int(sum(found[name].total for name in names))

    async def until_running(self, count: int, *, seconds_max: float, every_s: float = 0.05) -> None:
        async with asyncio.timeout(seconds_max):
            while await self.running() != count:
                await asyncio.sleep(every_s)


@asynccontextmanager
async def a_subject(kind: Kind, real: RealEngine | None) -> AsyncIterator[Subject]:
    """Yields the engine with its own connections."""
    async with open_session() as session, Engines() as engines:
        if real is not None:
            yield Subject(kind, real.url, real.model, session, engines)
        elif kind == "simulated":
            profile = replace(PROFILES["tiny"], step_ps=A_STEP_PS)
            options = EngineOptions(profile=profile, model="sim", serves_embeddings=False)
            async with EngineServer(options, SystemClock()) as simulated:
                yield Subject(kind, simulated.url, "sim", session, engines, simulated=simulated)
        else:
            async with FakeTriton() if kind == "fake_triton" else FakeEngine() as fake:
                yield Subject(kind, fake.url, "fake", session, engines, fake=fake)
