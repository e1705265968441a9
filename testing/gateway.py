"""Gateways for tests, in the test's event loop or as a separate process."""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from headgate.compose.gateway import Gateway
from headgate.config.load import load
from headgate.config.settings import Settings
from headgate.config.tls_files import check_tls_files
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_watch import EngineWatch
from headgate.model.engine_profile import PROFILES
from headgate.ports.observer import Observer
from testing.ports import free_port
from testing.processes import ChildProcess

Config = dict[str, Any]

CHAT = "/v1/chat/completions"


NO_TARGETS: Config = {"ttft": "unlimited", "tpot": "unlimited"}
"""Settings for a class without targets."""
WITHOUT_TARGETS: Config = {name: dict(NO_TARGETS) for name in ("interactive", "long", "batch")}
"""The default classes without their default targets."""


def a_config(
    *urls: str,
    engine: str = "vllm",
    served_model: str = "fake",
    in_flight_max: int = 8,
    model: str = "m",
    **settings: Any,
) -> Config:
    """A configuration with one pool of these endpoints, one model and one tenant without a key, overridden by
    `settings`.

    The classes have no targets, so a request that waits for two seconds on a busy machine is not rejected.
    """
    config: Config = {
        "listen": f"127.0.0.1:{free_port()}",
        "admin_listen": f"127.0.0.1:{free_port()}",
        "drain_grace": "5s",
        "pools": {
            "small": {
                "engine": engine,
                "served_model": served_model,
                "in_flight_max": in_flight_max,
                "endpoints": list(urls),
            }
        },
        "models": {model: "small"},
        "classes": deepcopy(WITHOUT_TARGETS),
        "tenants": {"laptop": {}},
        "anonymous_tenant": "laptop",
    }
    return config | deepcopy(settings)


def chat(content: str = "hi", *, model: str = "m", **fields: Any) -> Config:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


@dataclass
class RunningGateway:
    url: str
    admin_url: str
    file: Path
    http: aiohttp.ClientSession
    operator_key: str = field(default="", kw_only=True)
    """Operator key for the status page. Required if a login is configured."""

    def post(self, body: Mapping[str, Any], path: str = CHAT, **options: Any) -> Any:
        return self.http.post(self.url + path, json=body, **options)

    async def status(self) -> Config:
        headers = {"authorization": f"Bearer {self.operator_key}"} if self.operator_key else {}
        async with self.http.get(self.admin_url + "/status", headers=headers) as answer:
            return await answer.json()

    async def wait_for_status(self, reached: Any, *, seconds_max: float = 60.0) -> Config:
        """Wait for the first status for which `reached` returns true, and return it."""
        async with asyncio.timeout(seconds_max):
            while not reached(status := await self.status()):
                await asyncio.sleep(0.01)
        return status

    async def wait_until_ready(self, count: int, *, seconds_max: float = 60.0) -> None:
        def ready(status: Config) -> bool:
            return sum(endpoint["state"] == "ready" for endpoint in status["endpoints"]) == count

        await self.wait_for_status(ready, seconds_max=seconds_max)

    async def wait_until_idle(self, *, seconds_max: float = 60.0) -> None:
        """Wait until no requests are open and no slots are taken."""

        def idle(status: Config) -> bool:
            return not status["requests_open"] and not any(each["in_flight"] for each in status["endpoints"])

        await self.wait_for_status(idle, seconds_max=seconds_max)


@dataclass
class GatewayInLoop(RunningGateway):
    gateway: Gateway
    running: asyncio.Task[int]

    async def rewrite(self, config: Config) -> None:
        self.file.write_text(yaml.safe_dump(config))
        await self.gateway.reload()


def urls_of(config: Config) -> tuple[str, str]:
    scheme = "https" if "listen_tls" in config else "http"
    admin_scheme = "https" if "admin_listen_tls" in config else "http"
    return f"{scheme}://{config['listen']}", f"{admin_scheme}://{config['admin_listen']}"


@asynccontextmanager
async def gateway_in_loop(
    config: Config,
    folder: Path,
    *,
    wait_for: int | None = None,
    exit_code: int = 0,
    observers: Sequence[Observer] = (),
    operator_key: str = "",
    open_watch: Callable[..., EngineWatch] = EngineWatch,
    tls: ssl.SSLContext | bool = True,
) -> AsyncIterator[GatewayInLoop]:
    """Run a gateway in this event loop and wait until `wait_for` endpoints are ready (default: all). `tls` is the
    client's context for listeners with TLS.
    """
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))

    def read() -> Settings:
        settings = load(file, os.environ, engines=DIALECTS.keys(), profiles=PROFILES)
        return check_tls_files(settings, str(file))

    gateway = Gateway(read(), read, observers=observers, open_watch=open_watch)
    up = asyncio.Event()
    running = asyncio.create_task(gateway.run(lambda *_: up.set()))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls)) as http:
        url, admin_url = urls_of(config)
        await asyncio.wait([running, asyncio.ensure_future(up.wait())], return_when=asyncio.FIRST_COMPLETED)
        found = GatewayInLoop(url, admin_url, file, http, gateway, running, operator_key=operator_key)
        try:
            endpoints = sum(len(pool["endpoints"]) for pool in config["pools"].values())
            await found.wait_until_ready(endpoints if wait_for is None else wait_for)
            yield found
        finally:
            gateway.shut_down()
            gateway.shut_down()
            assert await running == exit_code, "the gateway reported an internal error"


@contextmanager
def gateway_process(
    config: Config, folder: Path, *, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Iterator[ChildProcess]:
    """Run `headgate serve` with this configuration and wait until its admin listener reports ready."""
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "headgate.cli.main", "serve", "--config", str(file), *arguments]
    with ChildProcess("headgate", command, environment) as process:
        process.wait_until_ok(f"http://{config['admin_listen']}/ready", seconds_max=120)
        yield process


@asynccontextmanager
async def gateway_process_with_client(
    config: Config,
    folder: Path,
    *,
    wait_for: int | None = None,
    seconds_max: float = 120.0,
    arguments: Sequence[str] = (),
) -> AsyncIterator[tuple[RunningGateway, ChildProcess]]:
    """Run a gateway as a separate process, with a client for it."""
    with gateway_process(config, folder, arguments=arguments) as process:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            url, admin_url = urls_of(config)
            found = RunningGateway(url, admin_url, folder / "headgate.yaml", http)
            endpoints = sum(len(pool["endpoints"]) for pool in config["pools"].values())
            await found.wait_until_ready(endpoints if wait_for is None else wait_for, seconds_max=seconds_max)
            yield found, process


def events_of(stream: bytes) -> list[str]:
    """The data of each event, in order."""
    return [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event.startswith("data: ")]


def text_of(stream: bytes) -> str:
    """The text of a streamed chat response."""
    parts = [json.loads(event) for event in events_of(stream) if event != "[DONE]"]
    deltas = [choice["delta"] for part in parts for choice in part.get("choices", [])]
    return "".join(delta.get("content") or "" for delta in deltas)
