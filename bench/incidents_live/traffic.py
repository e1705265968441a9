"""Open-loop callers of the live gateway, with rates, lengths, timeouts and retries that incidents can change."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import aiohttp

from bench.incidents_live.settings import MODEL
from testing.gateway import CHAT

BYTES_PER_TOKEN = 4
OPEN_MAX = 400
"""Maximum number of open requests. Once it is reached, no more requests are sent."""


@dataclass
class Callers:
    """A group of identical callers. Incidents change the fields while traffic is running."""

    key: str
    """API key. Empty for requests without a key."""
    rate: float
    """Requests per second. 0 stops sending."""
    prompt_tokens: int = 2_000
    output_tokens: int = 20
    timeout_s: float = 20.0
    """Timeout for the complete response, in seconds. The caller disconnects when it expires."""
    retries: int = 0
    """Maximum number of immediate retries after a failure or timeout."""
    service_class: str = "interactive"
    path: str = CHAT
    stream: bool = True
    deadline_ms: int = 0
    """Deadline sent with the request, or 0 for none."""
    spread: float = 0.0
    """Standard deviation of the logarithm of the lengths. 0 makes all lengths equal."""
    shared_tokens: int = 0
    """Length of the shared prompt prefix."""
    ttft_s: float = inf
    """TTFT target, in seconds."""
    sent: int = 0
    failed: int = 0
    in_time: int = 0
    """Number of requests whose first token arrived within `ttft_s`."""


def body_of(callers: Callers, chance: random.Random) -> dict[str, Any]:
    """Body of one request. The prompt is unique after the shared prefix, so that engines cache only the prefix."""

    def length(tokens: int) -> int:
        return max(1, round(tokens * chance.lognormvariate(0.0, callers.spread)))

    start = "y" * (BYTES_PER_TOKEN * callers.shared_tokens) + f"{chance.random()} "
    content = start + "x" * max(0, BYTES_PER_TOKEN * length(callers.prompt_tokens) - len(start))
    if callers.path != CHAT:
        return {"model": MODEL, "input": content}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": length(callers.output_tokens),
        "ignore_eos": True,
        "stream": callers.stream,
    }


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

    def cancel_open(self, service_class: str) -> None:
        """Cancel all open requests in the class."""
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
                task = asyncio.create_task(self._send(callers, http, chance), name=callers.service_class)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, callers: Callers, http: aiohttp.ClientSession, chance: random.Random) -> None:
        """Send one request and its retries."""
        body = body_of(callers, chance)
        for number in range(callers.retries + 1):
            callers.sent += 1
            headers = {
                **({"authorization": f"Bearer {callers.key}"} if callers.key else {}),
                "x-headgate-class": callers.service_class,
                "x-stainless-retry-count": str(number),
                **({"x-headgate-deadline-ms": str(callers.deadline_ms)} if callers.deadline_ms else {}),
                **({} if self.keeps_connections else {"connection": "close"}),
            }
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=callers.timeout_s)
                due = asyncio.get_running_loop().time() + callers.ttft_s
                async with http.post(self.url + callers.path, json=body, headers=headers, timeout=timeout) as answer:
                    first = await answer.content.readany()
                    if first and answer.status == 200 and asyncio.get_running_loop().time() <= due:
                        callers.in_time += 1
                    async for _ in answer.content.iter_any():
                        pass
                    if answer.status == 200:
                        return
            callers.failed += 1
