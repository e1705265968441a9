"""Open-loop callers of the live gateway. An incident can change their rate, lengths, timeouts and retries."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import aiohttp

from bench.incidents_live.settings import MODEL

BYTES_PER_TOKEN = 4
OPEN_MAX = 400
"""Limit on open requests; above it, no further requests are sent."""


@dataclass
class Callers:
    """A group of identical callers. Incidents change the fields while traffic runs."""

    key: str
    """Empty for requests without a key."""
    rate: float
    """Requests per second; 0 stops sending."""
    prompt_tokens: int = 2_000
    output_tokens: int = 20
    timeout_s: float = 20.0
    """Time limit for the complete response, after which the caller disconnects."""
    retries: int = 0
    """Maximum number of immediate retries after a failure or timeout."""
    service_class: str = "interactive"
    ttft_s: float = inf
    """Target for the first token."""
    sent: int = 0
    failed: int = 0
    in_time: int = 0
    """Number of requests whose first token arrived within `ttft_s`."""


@dataclass
class Traffic:
    url: str
    seed: int
    callers: list[Callers]
    keeps_connections: bool = True
    """Whether callers use a connection for more than one request."""
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def run(self) -> None:
        """Send requests until cancelled."""
        connector = aiohttp.TCPConnector(limit=0, force_close=False)
        async with aiohttp.ClientSession(connector=connector) as http:
            try:
                await asyncio.gather(*(self._send_for_ever(each, http) for each in self.callers))
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def leave(self, service_class: str) -> None:
        """Cancel all open requests of the class."""
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
        """Send one request and its retries. Each prompt starts differently, so there are no prefix cache hits."""
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
                **({"authorization": f"Bearer {callers.key}"} if callers.key else {}),
                "x-headgate-class": callers.service_class,
                "x-stainless-retry-count": str(number),
                **({} if self.keeps_connections else {"connection": "close"}),
            }
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=callers.timeout_s)
                due = asyncio.get_running_loop().time() + callers.ttft_s
                async with http.post(self.url, json=body, headers=headers, timeout=timeout) as answer:
                    first = await answer.content.readany()
                    if first and answer.status == 200 and asyncio.get_running_loop().time() <= due:
                        callers.in_time += 1
                    async for _ in answer.content.iter_any():
                        pass
                    if answer.status == 200:
                        return
            callers.failed += 1
