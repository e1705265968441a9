"""Builders that serve a simulated engine over HTTP and send requests to it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp

from headgate.engines.metrics_page import read_metrics
from headgate.hosts.local.clock import SystemClock
from headgate.model.engine_profile import TINY, EngineProfile
from headgate.simulation.server.engine_server import EngineServer
from headgate.simulation.server.options import EngineOptions, FaultOptions

CHAT = "/v1/chat/completions"
RATES = ("error_rate", "reset_rate", "truncate_rate", "stall_every_s", "stall_for_s")


def some_options(*, profile: EngineProfile = TINY, **changes: Any) -> EngineOptions:
    faults = FaultOptions(**{name: changes.pop(name) for name in RATES if name in changes})
    return EngineOptions(profile=profile, faults=faults, **{"model": "m"} | changes)


def slow(**changes: Any) -> EngineProfile:
    """Returns a profile with twenty steps per second."""
    return replace(TINY, step_ps=50_000_000_000, **changes)


class Running:
    def __init__(self, server: EngineServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.url = server.url

    def post(self, path: str = CHAT, **body: Any) -> Any:
        return self.http.post(self.url + path, json={"model": "m"} | body)

    def chat(self, content: str = "hi", **body: Any) -> Any:
        return self.post(messages=[{"role": "user", "content": content}], **body)

    async def metric(self, name: str) -> float:
        async with self.http.get(self.url + "/metrics") as answer:
            return read_metrics(await answer.read(), [name])[name].total

    async def until(self, name: str, value: float, *, seconds_max: float = 30.0) -> None:
        async with asyncio.timeout(seconds_max):
            while await self.metric(name) != value:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def an_engine(**changes: Any) -> AsyncGenerator[Running]:
    async with EngineServer(some_options(**changes), SystemClock()) as server:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Running(server, http)


def events_of(stream: bytes) -> list[Any]:
    """Returns the parsed data of each event. `[DONE]` is returned as text."""
    data = [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def text_of(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(
        choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        for choice in choices
        if choice["index"] == index
    )
