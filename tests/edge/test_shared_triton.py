"""Two models of one real Triton server, each with its own pool."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.core.commands import Command, Dispatch
from headgate.core.events import AttemptEnded, Event
from headgate.engines.dialects import DIALECTS
from headgate.engines.http_engine import metrics_url
from headgate.engines.metrics_page import read_metrics
from headgate.model.units import Instant
from testing.gateway import Config, GatewayInLoop, a_config, chat, gateway_in_loop
from testing.real_engines import RealEngine
from testing.real_triton import triton

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]

LIMIT = 4
DELAY_MS = 150
CALLS = 24


class InFlight:
    """Counts the attempts in flight at the server, and those of each pool that were in flight together."""

    def __init__(self) -> None:
        self.pool_of: dict[tuple[str, int], str] = {}
        self.most = 0
        self.mixed = False

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if isinstance(event, AttemptEnded):
            self.pool_of.pop((event.request_id, event.attempt), None)
        for each in commands:
            if isinstance(each, Dispatch):
                self.pool_of[each.request_id, each.attempt] = each.pool
        self.most = max(self.most, len(self.pool_of))
        self.mixed = self.mixed or len(set(self.pool_of.values())) == 2


def two_pools(engine: RealEngine) -> Config:
    config = a_config(engine.url, engine="triton", served_model="embed", in_flight_max=LIMIT)
    config["pools"]["texts"] = {**config["pools"]["small"], "served_model": "text"}
    config["models"]["t"] = "texts"
    return config


async def embed(gateway: GatewayInLoop, text: str) -> tuple[int, Any]:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    body = {"inputs": [tensor], "parameters": {"delay_ms": DELAY_MS}}
    async with gateway.post(body, "/v2/models/m/infer") as answer:
        return answer.status, await answer.json()


async def ask(gateway: GatewayInLoop, text: str) -> tuple[int, Any]:
    async with gateway.post(chat(text, model="t")) as answer:
        return answer.status, await answer.json()


async def pending(gateway: GatewayInLoop, engine: RealEngine, stopped: asyncio.Event) -> float:
    """Returns the highest number of requests that the server reported as waiting, until `stopped` is set."""
    names = {f'nv_inference_pending_request_count{{model="{model}"}}': model for model in ("embed", "text")}
    most = 0.0
    while not stopped.is_set():
        async with gateway.http.get(metrics_url(engine.url, DIALECTS["triton"]) + "/metrics") as answer:
            found = read_metrics(await answer.read(), names)
        most = max(most, sum(each.total for each in found.values()))
    return most


async def test_two_models_of_one_server_share_its_limit_and_its_cost(tmp_path: Path) -> None:
    seen = InFlight()
    with triton("embed", "text") as engine:
        async with gateway_in_loop(two_pools(engine), tmp_path, observers=[seen]) as gateway:
            stopped = asyncio.Event()
            watching = asyncio.create_task(pending(gateway, engine, stopped))
            calls = [embed(gateway, "ab") if number % 2 else ask(gateway, "hello") for number in range(CALLS)]
            answers = await asyncio.gather(*calls)
            stopped.set()
            waiting = await watching
            times = sorted(gateway.gateway._host.collect_endpoint_times(), key=lambda each: each.pool)
            async with gateway.http.get(gateway.admin_url + "/status") as page:
                endpoints = (await page.json())["endpoints"]

    assert [status for status, _ in answers] == [200] * CALLS
    assert all(body["outputs"][0]["data"][:2] == [97.0, 98.0] for _, body in answers[1::2])
    assert all("hello" in body["choices"][0]["message"]["content"] for _, body in answers[::2])
    assert (seen.most, seen.mixed) == (LIMIT, True)
    assert waiting <= LIMIT
    assert [each["engine"] for each in endpoints] == [engine.url.removeprefix("http://")] * 2
    # The engine's time is reported once: under the first endpoint, except for the time of the other's requests.
    assert [each.pool for each in times] == ["small", "texts"]
    assert [bool(each.idle_ns or each.starting_ns) for each in times] == [True, False]
    assert times[1].total_ns == times[1].billed_ns > 0
