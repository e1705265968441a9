"""A live gateway under attack; a victim tenant and a health probe measure the effect on others."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from bench.attack.hostile_engine import HostileEngine
from headgate.wire.keys import digest, format_digest
from testing.gateway import NO_TARGETS, Config, RunningGateway, a_config, gateway_process_with_client
from testing.processes import ChildProcess
from testing.simulated_engines import resident_mib

SECRET: Final = "of the attacks, and long enough"
ATTACKER: Final = "sk-attacker"
LIMITED: Final = "sk-limited"
VICTIM: Final = "sk-victim"
ENGINES: Final = 4
_PROBE_EVERY_S: Final = 0.05
_VICTIM_EVERY_S: Final = 0.1
_SLOWEST_TURN: Final = 'headgate_event_loop_iteration_max_seconds{clock="cpu",window="lifetime"}'


def config(urls: list[str]) -> Config:
    """Four engines, an attacking tenant, an attacking tenant with its own limit, and a victim."""
    made = a_config(*urls, key_secret=SECRET, in_flight_max=16)
    del made["anonymous_tenant"]
    prices = {"input_per_1m_tokens": 1000, "output_per_1m_tokens": 1000}
    made["pools"]["small"] |= {"prices": prices, "kv_tokens": 800_000}
    made["tenants"] = {
        "attacker": {"keys": [_hashed(ATTACKER)], "budgets": {"day": 1_000_000}},
        "limited": {"keys": [_hashed(LIMITED)], "limits": {"requests_per_minute": 1}},
        "victim": {"keys": [_hashed(VICTIM)], "limits": {"tokens_per_minute": 1_000_000}},
    }
    made["classes"] = {"interactive": {"caps": {"n": 4, "prompt_tokens": 800_000}, **NO_TARGETS}}
    return made


def _hashed(key: str) -> str:
    return format_digest(digest(SECRET.encode(), key))


@dataclass
class HealthProbe:
    """Polls `/health` from a separate thread, as a liveness probe does."""

    address: str
    waits_s: list[float] = field(default_factory=list[float])
    failures: int = 0

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def p99_ms(self) -> float:
        waits = sorted(self.waits_s) or [0.0]
        return 1_000 * waits[min(len(waits) - 1, len(waits) * 99 // 100)]

    def _run(self) -> None:
        while not self._over.wait(_PROBE_EVERY_S):
            began = time.monotonic()
            connection = http.client.HTTPConnection(self.address, timeout=30)
            try:
                connection.request("GET", "/health")
                self.failures += connection.getresponse().status != 200
            except OSError:
                self.failures += 1
            finally:
                connection.close()
            self.waits_s.append(time.monotonic() - began)


@dataclass
class AttackedGateway:
    gateway: RunningGateway
    process: ChildProcess
    engines: list[HostileEngine]
    victim_waits_s: list[float] = field(default_factory=list[float])
    victim_failures: list[str] = field(default_factory=list[str])

    async def chat(self, key: str, mode: str = "ok", *, path: str = "/v1/chat/completions", **body: Any) -> "Reply":
        """Send one request; `mode` selects how the engine behaves."""
        asked = {"model": "m", "user": mode, **({"messages": [{"role": "user", "content": "hi"}]} | body)}
        began = time.monotonic()
        headers = {"authorization": f"Bearer {key}", **asked.pop("headers", {})}
        async with self.gateway.http.post(self.gateway.url + path, json=asked, headers=headers) as answer:
            content = await answer.read()
        return Reply(
            answer.status, {k.lower(): v for k, v in answer.headers.items()}, content, time.monotonic() - began
        )

    async def page(self, path: str) -> bytes:
        async with self.gateway.http.get(self.gateway.admin_url + path) as answer:
            return await answer.read()

    async def status(self) -> dict[str, Any]:
        return json.loads(await self.page("/status"))

    def resident_mib(self) -> float:
        return resident_mib(self.process.pid)

    async def send_victim_requests(self) -> None:
        """Send another tenant's short requests, one after the other, until cancelled."""
        while True:
            try:
                reply = await self.chat(VICTIM)
            except (OSError, aiohttp.ClientError) as error:
                self.victim_failures.append(type(error).__name__)
            else:
                self.victim_waits_s.append(reply.took_s)
                if reply.status != 200:
                    self.victim_failures.append(f"{reply.status} {reply.content[:200]!r}")
            await asyncio.sleep(_VICTIM_EVERY_S)

    async def longest_turn_ms(self) -> float:
        """Longest iteration of the gateway's event loop so far, in thread CPU time."""
        for line in (await self.page("/metrics")).decode().splitlines():
            if line.startswith(_SLOWEST_TURN):
                return 1_000 * float(line.rpartition(" ")[2])
        raise LookupError(f"{_SLOWEST_TURN} is not on the metrics page")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    content: bytes
    took_s: float

    @property
    def message(self) -> str:
        return json.loads(self.content)["error"]["message"]


@asynccontextmanager
async def attacked_gateway(folder: Path) -> AsyncIterator[AttackedGateway]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(HostileEngine()) for _ in range(ENGINES)]
        running = gateway_process_with_client(config([each.url for each in engines]), folder)
        gateway, process = await stack.enter_async_context(running)
        yield AttackedGateway(gateway, process, engines)
