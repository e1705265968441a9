"""Which engines must keep the contract? The fake one in this process, and the real ones with real weights."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal

import aiohttp

from headgate.engines.dialect import Signal
from headgate.engines.dialects import DIALECTS
from headgate.engines.http import HttpEngine, open_session
from headgate.engines.metrics_page import read_metrics
from tests.engines.calls import an_http_engine
from tests.support.fake_engine import Behaviour, FakeEngine
from tests.support.real_engines import RealEngine, llamacpp, vllm

Kind = Literal["fake", "llamacpp", "vllm"]


@contextmanager
def a_real_engine(kind: Kind) -> Iterator[RealEngine | None]:
    match kind:
        case "fake":
            yield None
        case "llamacpp":
            with llamacpp() as engine:
                yield engine
        case "vllm":
            with vllm() as engine:
                yield engine


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine under the contract."""

    kind: Kind
    url: str
    model: str
    session: aiohttp.ClientSession
    fake: FakeEngine | None

    @property
    def dialect(self) -> str:
        return "vllm" if self.kind == "fake" else self.kind

    @property
    def engine(self) -> HttpEngine:
        return an_http_engine(self.session, self.url, dialect=self.dialect, served_model=self.model)

    def would_answer(self, behaviour: Behaviour) -> None:
        """What a real engine does by itself, the fake one is told."""
        if self.fake is not None:
            self.fake.script.append(behaviour)

    async def running(self) -> int:
        """How many requests the engine says it runs or holds."""
        metrics = DIALECTS[self.dialect].metrics
        names = [metrics[signal][0] for signal in (Signal.RUNNING, Signal.WAITING)]
        # Not by the session under test: its pool is looked at.
        async with aiohttp.ClientSession() as own, own.get(f"{self.url}/metrics") as answer:
            found = read_metrics(await answer.read(), names)
        return int(sum(found[name].total for name in names))

    async def until_running(self, count: int, *, seconds_max: float, every_s: float = 0.05) -> None:
        async with asyncio.timeout(seconds_max):
            while await self.running() != count:
                await asyncio.sleep(every_s)


@asynccontextmanager
async def a_subject(kind: Kind, real: RealEngine | None) -> AsyncIterator[Subject]:
    """The engine, with a session of its own."""
    async with open_session() as session:
        if real is not None:
            yield Subject(kind, real.url, real.model, session, fake=None)
            return
        async with FakeEngine() as fake:
            yield Subject(kind, fake.url, "fake", session, fake)
