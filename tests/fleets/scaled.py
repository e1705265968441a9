"""Gateways with a process fleet, and callers that check every stream."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.model.units import PoolName
from testing.gateway import NO_TARGETS, Config, GatewayInLoop, a_config, chat, gateway_in_loop
from tests.fleets.builders import fleet_ports

HEADGATE = (sys.executable, "-m", "headgate.cli.main")
SIMULATED = (*HEADGATE, "engine", "--port", "{port}", "--model", "{model}")
PATIENT: Config = {"interactive": {**NO_TARGETS, "queue_wait_max": "60s"}}
"""Classes whose requests wait long enough for an engine to start on a busy machine."""


def a_scaled_config(
    folder: Path,
    command: Sequence[str] = SIMULATED,
    *,
    engine: str = "vllm",
    endpoints: int = 1,
    most: int = 3,
    scaling: Config | None = None,
    fleet: Config | None = None,
    **settings: Any,
) -> Config:
    """Configuration without automatic scaling, unless `scaling` sets a shorter period."""
    config = a_config(engine=engine, **{"classes": PATIENT, **settings})
    config["pools"]["small"] |= {
        "fleet": {
            "kind": "processes",
            "command": [str(word) for word in command],
            "endpoint_count": endpoints,
            "log_directory": str(folder / "logs"),
            "restart_backoff": "100ms",
            "port_range": "{}:{}".format(*fleet_ports()),
            **(fleet or {}),
        },
        "scaling": {"endpoints_max": most, "period": "1h", **(scaling or {})},
    }
    return config


@dataclass
class Streams:
    """Callers that stream one response after another until `over` is set."""

    gateway: GatewayInLoop
    body: Config
    seen: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def going(self, callers: int) -> AsyncIterator["Streams"]:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._call_for_ever())
            try:
                yield self
            finally:
                self.over.set()

    async def until_whole(self, more: int, *, seconds_max: float = 60.0) -> None:
        """Wait until `more` further streams have completed."""
        wanted = self.seen["whole"] + more
        async with asyncio.timeout(seconds_max):
            while self.seen["whole"] < wanted:
                await asyncio.sleep(0.02)

    async def _call_for_ever(self) -> None:
        while not self.over.is_set():
            async with self.gateway.post(self.body) as answer:
                body = await answer.read()
            if answer.status == 200:
                self.seen["whole" if body.endswith(b"data: [DONE]\n\n") else f"severed: {body[-300:]!r}"] += 1
            else:
                self.seen[f"refused: {answer.status} {body[:300]!r}"] += 1
                await asyncio.sleep(0.05)


@asynccontextmanager
async def a_scaled_gateway(config: Config, folder: Path, *, seconds_max: float = 60.0) -> AsyncIterator[GatewayInLoop]:
    async with gateway_in_loop(config, folder, wait_for=0) as gateway:
        await gateway.wait_until_ready(config["pools"]["small"]["fleet"]["endpoint_count"], seconds_max=seconds_max)
        yield gateway


def gated(gate: Path, command: Sequence[str]) -> tuple[str, ...]:
    """Wrap a command so that it waits for the file `gate`. The engine counts as starting until then."""
    return ("/bin/sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.05; done; exec "$@"', str(gate), *command)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Suspend an engine process so that its streams do not end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def scale(gateway: GatewayInLoop, endpoints: int) -> None:
    assert await gateway.gateway._fleets.scale(PoolName("small"), endpoints)


def pids(gateway: GatewayInLoop) -> dict[str, int]:
    return gateway.gateway._fleets._fleets[PoolName("small")].pids()  # type: ignore[attr-defined]


def streaming(*, model: str = "m", tokens: int = 40) -> Config:
    return chat("count", model=model, stream=True, max_tokens=tokens)


async def out_and_in_again(gateway: GatewayInLoop, streams: Streams, *, seconds_max: float) -> set[int]:
    """Scale from 1 endpoint to 3 and back while callers are streaming. Return all process IDs."""
    await streams.until_whole(4)
    await scale(gateway, 3)
    await gateway.wait_until_ready(3, seconds_max=seconds_max)
    ran = set(pids(gateway).values())
    await streams.until_whole(12)
    await gateway.wait_for_status(lambda status: sum(each["in_flight"] > 0 for each in status["endpoints"]) > 1)
    await scale(gateway, 1)
    await gateway.wait_for_status(lambda status: len(status["endpoints"]) == 1, seconds_max=seconds_max)
    await streams.until_whole(6)
    async with asyncio.timeout(seconds_max):
        while len(pids(gateway)) != 1:
            await asyncio.sleep(0.02)
    return ran


async def killed_and_replaced(gateway: GatewayInLoop, streams: Streams, *, seconds_max: float) -> None:
    """Kill one of two endpoints while callers are streaming, and wait for its replacement."""
    await streams.until_whole(4)
    victim, pid = next((name, pid) for name, pid in sorted(pids(gateway).items()))
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(seconds_max):
        while pids(gateway).get(victim) in (None, pid):
            await asyncio.sleep(0.02)
    await gateway.wait_until_ready(2, seconds_max=seconds_max)
    await streams.until_whole(6)
