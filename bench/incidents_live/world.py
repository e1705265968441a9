"""Live gateway and simulated engines, each a process that an incident can freeze, kill or restart."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import yaml

from bench.incidents_live.settings import (
    ENGINES,
    LOAD,
    MODEL,
    PROFILE,
    SECRET_NAME,
    Keys,
    configuration,
    llama_configuration,
    rate,
)
from bench.incidents_live.traffic import Callers, Traffic
from testing.dns_server import DnsServer
from testing.fault_proxy import FaultProxy
from testing.gateway import Config, urls_of
from testing.ports import free_ports
from testing.postgres import Postgres
from testing.processes import ChildProcess
from testing.real_engines import LLAMACPP_START_SECONDS_MAX, llamacpp_command
from testing.simulated_engines import HEADGATE
from testing.stores import Server

START_S_MAX = 120.0


class LiveEngine:
    """Simulated engine that keeps its address across restarts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *arguments: str, wait: bool = True) -> None:
        command = [*HEADGATE, "engine", "--profile", PROFILE.name, "--model", MODEL, "--port", str(self.port)]
        self.process = ChildProcess(f"engine-{self.port}", [*command, *arguments])
        if wait:
            self.process.wait_until_ok(f"{self.url}/health", START_S_MAX)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.stop()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None, "the engine is not running"
        self.process.freeze()

    def thaw(self) -> None:
        assert self.process is not None, "the engine is not running"
        self.process.thaw()


class LlamaEngine(LiveEngine):
    """Real llama.cpp server that keeps its address across restarts."""

    def start(self, *arguments: str, wait: bool = True) -> None:
        self.process = ChildProcess(f"llamacpp-{self.port}", [*llamacpp_command(self.port), *arguments])
        if wait:
            self.process.wait_until_ok(f"{self.url}/health", LLAMACPP_START_SECONDS_MAX)

    def thaw(self) -> None:
        """Thaw the engine and wait until it responds to a request. It first handles requests pending in its sockets."""
        super().thaw()
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_S_MAX)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()
        connection.close()


@dataclass
class World:
    folder: Path
    keys: Keys
    engines: list[LiveEngine]
    config: Config
    callers: dict[str, Callers]
    gateway: ChildProcess | None = None
    traffic: Traffic | None = None
    store: Server | None = None
    database: Postgres | None = None
    proxy: FaultProxy | None = None
    names: DnsServer | None = None
    floods: list[ChildProcess] = field(default_factory=list[ChildProcess])
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])
    parts: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Resources that the incident holds, closed after everything else."""

    @property
    def admin_url(self) -> str:
        return urls_of(self.config)[1]

    def migrate(self) -> None:
        """Migrate the configured database."""
        file = self.folder / "headgate.yaml"
        file.write_text(yaml.safe_dump(self.config))
        environment = {**os.environ, SECRET_NAME: self.keys.secret}
        subprocess.run([*HEADGATE, "ledger", "migrate", "--config", str(file)], check=True, env=environment)

    def start_gateway(self) -> None:
        file = self.folder / "headgate.yaml"
        file.write_text(yaml.safe_dump(self.config))
        command = [sys.executable, "-m", "headgate.cli.main", "serve", "--config", str(file)]
        self.gateway = ChildProcess("gateway", command, {SECRET_NAME: self.keys.secret})
        self.gateway.wait_until_ok(f"{self.admin_url}/verdict", START_S_MAX)

    def reload(self, config: Config) -> None:
        """Write a new configuration and send SIGHUP to the gateway."""
        assert self.gateway is not None, "the gateway is not running"
        self.config = config
        (self.folder / "headgate.yaml").write_text(yaml.safe_dump(config))
        os.kill(self.gateway.pid, signal.SIGHUP)

    def start_traffic(self) -> None:
        self.traffic = Traffic(urls_of(self.config)[0], 0, list(self.callers.values()))
        self.tasks.append(asyncio.create_task(self.traffic.run()))

    async def verdict(self) -> dict[str, Any]:
        """The gateway's most severe verdict."""
        return await asyncio.to_thread(self._verdict)

    def _verdict(self) -> dict[str, Any]:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.admin_url}/verdict", timeout=3) as answer:
                verdicts = json.load(answer)["verdicts"]
        except (OSError, HTTPException, ValueError):
            return {"incident": "no answer", "sentence": "the gateway did not return a verdict"}
        return verdicts[0] if verdicts else {"incident": "no verdict", "sentence": ""}

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for process in (*self.floods, self.gateway, *(each.process for each in self.engines)):
            if process is not None:
                await asyncio.to_thread(process.stop)
        if self.proxy is not None:
            await self.proxy.stop_listening()
            self.proxy.break_all()
        for part in (self.store, self.database):
            if part is not None:
                part.stop()
        await self.parts.aclose()


@asynccontextmanager
async def a_world(folder: Path, *, real: bool = False, **pool: Any) -> AsyncGenerator[World]:
    """Create a world without running processes and close it at exit. With `real`, the engines are llama.cpp."""
    keys = Keys()
    engines = [(LlamaEngine if real else LiveEngine)(port) for port in free_ports(ENGINES)]
    usual = rate(LOAD) / 2
    callers = {
        "acme": Callers(keys.of["acme"], usual),
        "bolt": Callers(keys.of["bolt"], usual),
        "more": Callers(keys.of["acme"], 0.0),
        "batch": Callers(keys.of["bolt"], 0.0, service_class="batch", timeout_s=120.0),
    }
    urls = [each.url for each in engines]
    config = llama_configuration(urls, keys) if real else configuration(urls, keys, **pool)
    if real:
        for each in callers.values():
            each.rate, each.prompt_tokens, each.output_tokens = min(each.rate, 0.4), 30, 10
    world = World(folder, keys, engines, config, callers)
    try:
        yield world
    finally:
        await world.close()
