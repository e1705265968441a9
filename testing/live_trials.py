"""A gateway with a simulated engine under steady traffic, for setting trials."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from headgate.wire.keys import digest, format_digest
from testing.gateway import Config, RunningGateway, a_config, chat, gateway_process_with_client
from testing.processes import ChildProcess
from testing.simulated_engines import simulated_engines

OPERATOR_KEY = "hg-operator"
IN_FLIGHT = "pools.small.in_flight_max"
_SECRET = "a secret of more than sixteen letters"
_RATE = 30
"""Requests per second. Each takes about 0.4 s, so an endpoint with 32 slots serves them, and one with 4 does not."""
_OPEN_MAX = 400
_ENGINE = ("--speed-up", "0.1")


def trial_config(url: str, in_flight_max: int) -> Config:
    key = format_digest(digest(_SECRET.encode(), OPERATOR_KEY))
    return a_config(
        url,
        served_model="sim",
        in_flight_max=in_flight_max,
        key_secret=_SECRET,
        admin_keys={
            "alice": {"key": key, "permissions": ["read", "operate"]},
            "bob": {"key": format_digest(digest(_SECRET.encode(), "hg-reader")), "permissions": ["read"]},
        },
        classes={"chat": {"priority_band": 0, "ttft": "500ms", "queue_wait_max": "1s"}},
    )


class TrialWorld:
    """A gateway process under traffic."""

    def __init__(self, gateway: RunningGateway, process: ChildProcess, config: Config) -> None:
        self.gateway, self.process, self.config = gateway, process, config

    async def admin(self, action: str, *, key: str = OPERATOR_KEY, **body: Any) -> tuple[int, Any]:
        url = f"{self.gateway.admin_url}/admin/v1/{action}"
        async with self.gateway.http.post(url, json=body, headers={"authorization": f"Bearer {key}"}) as answer:
            return answer.status, await answer.json()

    async def start(self, value: int, **fields: Any) -> dict[str, Any]:
        body = {"setting": IN_FLIGHT, "value": str(value), "block_s": 2, "duration_s": 90} | fields
        status, said = await self.admin("trials/start", **body)
        assert status == 200, said
        return said

    async def trial(self) -> dict[str, Any]:
        """Returns the latest trial."""
        status, said = await self.admin("trials/status")
        assert status == 200, said
        return said["data"][-1]

    async def limit(self) -> int:
        """Returns the number of requests that the endpoint may have in flight."""
        [endpoint] = (await self.gateway.status())["endpoints"]
        return endpoint["in_flight_max"]

    async def until_limit(self, value: int, *, seconds_max: float = 60) -> None:
        async with asyncio.timeout(seconds_max):
            while await self.limit() != value:
                await asyncio.sleep(0.02)

    async def result(self, new_limit: int, *, seconds_max: float = 120) -> tuple[dict[str, Any], float]:
        """Returns the trial once it has ended, and for how many seconds its new value was last in force before."""
        since = time.monotonic()
        async with asyncio.timeout(seconds_max):
            was_new = False
            while (trial := await self.trial())["phase"] == "running":
                is_new = await self.limit() == new_limit
                if is_new and not was_new:
                    since = time.monotonic()
                was_new = is_new
                await asyncio.sleep(0.02)
        return trial, time.monotonic() - since


@asynccontextmanager
async def trial_world(folder: Path, *, in_flight_max: int) -> AsyncIterator[TrialWorld]:
    with simulated_engines(1, *_ENGINE) as [url]:
        config = trial_config(url, in_flight_max)
        async with gateway_process_with_client(config, folder) as (gateway, process), traffic(gateway):
            yield TrialWorld(gateway, process, config)


@asynccontextmanager
async def traffic(gateway: RunningGateway) -> AsyncIterator[None]:
    """Sends requests at random times until the block ends."""
    sending = asyncio.create_task(_send(gateway))
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(gateway: RunningGateway) -> None:
    draws, at = Random(1), time.monotonic()
    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            at += draws.expovariate(_RATE)
            await asyncio.sleep(at - time.monotonic())
            if len(running) < _OPEN_MAX:
                task = asyncio.create_task(_request(gateway))
                running.add(task)
                task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _request(gateway: RunningGateway) -> None:
    async with gateway.post(chat(stream=True, max_tokens=40)) as answer:
        await answer.read()
