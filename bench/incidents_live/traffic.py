"""Callers of the live gateway: an open stream of requests whose rate, lengths and manners an incident may change."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.incidents_live.settings import MODEL

BYTES_PER_TOKEN = 4
OPEN_MAX = 400
"""Requests of one kind of callers that are open at once; more are not sent."""


@dataclass
class Callers:
    """One kind of callers. An incident changes its fields while it runs."""

    key: str
    rate: float
    """Requests per second; 0 sends none."""
    prompt_tokens: int = 2_000
    output_tokens: int = 20
    timeout_s: float = 20.0
    """After so long without the whole answer the caller goes away."""
    retries: int = 0
    """How often a request is sent again at once after it failed or its time was up."""
    service_class: str = "interactive"
    sent: int = 0
    failed: int = 0


@dataclass
class Traffic:
    url: str
    seed: int
    callers: list[Callers]
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def run(self) -> None:
        """Sends until it is cancelled."""
        connector = aiohttp.TCPConnector(limit=0, force_close=False)
        async with aiohttp.ClientSession(connector=connector) as http:
            try:
                await asyncio.gather(*(self._send_for_ever(each, http) for each in self.callers))
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def leave(self, service_class: str) -> None:
        """All callers of the class go away."""
        for task in self._tasks:
            if task.get_name() == service_class:
                task.cancel()

    async def _send_for_ever(self, callers: Callers, http: aiohttp.ClientSession) -> None:
        chance = random.Random(f"{self.seed} {callers.key} {callers.service_class}")
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if callers.rate <= 0:
                await asyncio.sleep(0.1)
                due = loop.time()
                continue
            due += chance.expovariate(callers.rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            if len(self._tasks) < OPEN_MAX:
                task = asyncio.create_task(self._ask(callers, http, f"{chance.random()} "), name=callers.service_class)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask(self, callers: Callers, http: aiohttp.ClientSession, start: str) -> None:
        """One request and its retries. Each prompt begins in a way of its own, so that none is cached."""
        content = start + "x" * max(0, BYTES_PER_TOKEN * callers.prompt_tokens - len(start))
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": callers.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        for number in range(callers.retries + 1):
            callers.sent += 1
            headers = {
                "authorization": f"Bearer {callers.key}",
                "x-headgate-class": callers.service_class,
                "x-stainless-retry-count": str(number),
            }
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=callers.timeout_s)
                async with http.post(self.url, json=body, headers=headers, timeout=timeout) as answer:
                    async for _ in answer.content.iter_any():
                        pass
                    if answer.status == 200:
                        return
            callers.failed += 1
