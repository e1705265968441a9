"""Clients for the kill benchmark, run as a separate process. They record the result of every call.

    python -m bench.kill_cell.load PLAN

Calls are due at even intervals for each gateway, so that gaps between starts are not random. Most are short streams,
some are long streams, and some are not streamed. Each call has its own connection and is routed as a load balancer
would: gateways that are not ready or reject the connection are skipped, and calls that a draining gateway rejects go to
another. Every call is followed to its end and written as one line of JSON. On SIGTERM the process stops sending and
exits once the last call has ended.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import IO, Final, cast

import aiohttp
import msgspec
import uvloop

from bench.kill_cell.record import Ending, Record

READY_EVERY_S = 0.2
PATIENCE_S = 90.0
"""Client timeout for a complete response. When it expires, the call counts as unanswered or severed."""
DRAIN_S_MAX = 60.0

_HEADER: Final = re.compile(rb"\r\n([\w-]+): *([^\r]*)")
_EVENT: Final = b"data: "
_DONE: Final = b"data: [DONE]\n\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_TOLD: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_ENGINE: Final = re.compile(rb'"model": ?"([\w-]+)"')
_OUTCOME: Final = re.compile(r"\((\w+)\); see ")
_KEPT_BYTES = 2_000


class Gateway(msgspec.Struct, frozen=True):
    port: int
    admin_port: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    gateways: tuple[Gateway, ...]
    record: str
    """File to which records are appended."""
    model: str
    seed: int
    streams_per_s: float
    """Streams per second for each gateway."""
    long_every: int
    """Interval between long streams: one in this many streams is long."""
    plain_per_s: float
    """Non-streaming calls per second for each gateway."""
    short_tokens: int
    long_tokens_min: int
    long_tokens_max: int


class Call(asyncio.Protocol):
    """One connection with one request, and the record of its response."""

    def __init__(self, record: Record, request: bytes, over: "asyncio.Future[None]") -> None:
        self.record = record
        self._request = request
        self._over = over
        self._transport: asyncio.Transport
        self._kept = b""
        self._in_head = True
        self._bytes_left: int | None = None
        self._done = False
        self._heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass of it.
        self.record.sent_s = monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = monotonic()
        text = self._kept + data
        if self._in_head:
            head, found, rest = text.partition(b"\r\n\r\n")
            if not found:
                self._kept = text
                return
            self._read_head(head)
            self._kept, text, data = b"", rest, rest
        if not data:
            return
        if self.record.first_s is None:
            self.record.first_s = now_s
        else:
            self.record.silence_s_max = max(self.record.silence_s_max, now_s - self._heard_s)
        self._heard_s = now_s
        if self._read_body(text, data):
            self._end(whole=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(whole=False)

    def give_up(self) -> None:
        self.record.message = f"the client timed out after {PATIENCE_S:g} s"
        self._end(whole=False)

    def _read_head(self, head: bytes) -> None:
        record, self._in_head = self.record, False
        record.status = int(head.split(b" ", 2)[1])
        headers = {name.lower(): value for name, value in _HEADER.findall(head)}
        length = headers.get(b"content-length")
        self._bytes_left = None if length is None else int(length)
        record.request_id = headers.get(b"x-request-id", b"").decode()
        record.service_class = headers.get(b"x-headgate-class", b"").decode()
        waited = headers.get(b"x-headgate-queue-ms")
        record.queue_ms = None if waited is None else int(waited)

    def _read_body(self, text: bytes, data: bytes) -> bool:
        """Return whether the response is complete. `text` is the end of the previous data followed by the new data."""
        record = self.record
        if not record.engine and (engine := _ENGINE.search(text)):
            record.engine = engine[1].decode()
        if told := _TOLD.search(text):
            record.usage_tokens = int(told[1])
        if self._bytes_left is not None:
            self._kept = text[-_KEPT_BYTES:]
            self._bytes_left -= len(data)
            if self._bytes_left <= 0 and record.status != 200:
                self._read_rejection(text)
            return self._bytes_left <= 0
        fresh = text[max(0, len(text) - len(data) - len(_EVENT) + 1) :]
        record.events += fresh.count(_EVENT)
        self._done = self._done or _DONE in text
        if b'"error"' in text:
            record.message = text[-_KEPT_BYTES:].decode(errors="replace")
        self._kept = text[-_KEPT_BYTES // 4 :]
        return text.endswith(_LAST_CHUNK)

    def _read_rejection(self, text: bytes) -> None:
        self.record.message = text.decode(errors="replace")
        if found := _OUTCOME.search(self.record.message):
            self.record.outcome = found[1]

    def _end(self, *, whole: bool) -> None:
        if self._over.done():
            return
        record = self.record
        record.end_s = monotonic()
        record.ending = self._ending(whole=whole)
        self._over.set_result(None)
        self._transport.abort()

    def _ending(self, *, whole: bool) -> Ending:
        record = self.record
        if record.status is None:
            return Ending.UNANSWERED
        if record.status != 200:
            return Ending.REDIRECTED if record.outcome == "draining" else Ending.REJECTED
        if not record.streamed:
            return Ending.WHOLE if whole and record.usage_tokens == record.tokens else Ending.SEVERED
        events = record.tokens + 1  # One event per token and [DONE]. Usage and role may be separate events.
        right = whole and self._done and record.usage_tokens == record.tokens and record.events >= events
        return Ending.WHOLE if right else Ending.SEVERED


class Load:
    def __init__(self, plan: Plan, out: IO[bytes]) -> None:
        self._plan = plan
        self._out = out
        self._ready = [True] * len(plan.gateways)
        self._chance = random.Random(f"{plan.seed} lengths of kill-cell")
        self._number = 0
        self._open: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._over.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        looking = asyncio.create_task(self._look_for_ever())
        senders = [asyncio.create_task(self._send_for_ever(number)) for number in range(len(self._plan.gateways))]
        await self._over.wait()
        for task in (looking, *senders):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=DRAIN_S_MAX)

    # Routing

    async def _look_for_ever(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as http:
            while True:
                looks = (self._is_ready(http, each.admin_port) for each in self._plan.gateways)
                self._ready = list(await asyncio.gather(*looks))
                await asyncio.sleep(READY_EVERY_S)

    async def _is_ready(self, http: aiohttp.ClientSession, port: int) -> bool:
        try:
            async with http.get(f"http://127.0.0.1:{port}/ready") as answer:
                return answer.status == 200
        except TimeoutError:
            return True  # The gateway is up but busy; the calls themselves will show whether it accepts them.
        except aiohttp.ClientError:
            return False

    def _turns(self, first: int) -> list[int]:
        """Return the gateways in the order to try, starting with `first`; those that are not ready come last."""
        count = len(self._plan.gateways)
        order = [(first + number) % count for number in range(count)]
        return sorted(order, key=lambda each: not self._ready[each])

    # Sending

    async def _send_for_ever(self, gateway: int) -> None:
        plan, count = self._plan, len(self._plan.gateways)
        step_s = 1 / plan.streams_per_s
        plain_every = max(1, round(plan.streams_per_s / plan.plain_per_s))
        due_s = monotonic() + step_s * gateway / count
        turn = gateway * plan.long_every // count
        while True:
            await asyncio.sleep(max(0.0, due_s - monotonic()))
            turn += 1
            lengthy = turn % plan.long_every == 0
            long = self._chance.randint(plan.long_tokens_min, plan.long_tokens_max)
            self._start(gateway, streamed=True, tokens=long if lengthy else plan.short_tokens)
            if turn % plain_every == 0:
                self._start(gateway, streamed=False, tokens=plan.short_tokens)
            due_s += step_s

    def _start(self, gateway: int, *, streamed: bool, tokens: int) -> None:
        self._number += 1
        task = asyncio.create_task(self._call(self._number, gateway, streamed=streamed, tokens=tokens))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _call(self, number: int, first: int, *, streamed: bool, tokens: int) -> None:
        """Send the call to the first gateway that accepts it. Try the next only if the connection is rejected or the
        gateway is draining.
        """
        for gateway in self._turns(first):
            record = Record(number=number, gateway=gateway, streamed=streamed, tokens=tokens, sent_s=monotonic())
            if await self._ask(record):
                self._write(record)
                if record.ending is not Ending.REDIRECTED:
                    return
        last = Record(number=number, gateway=first, streamed=streamed, tokens=tokens, sent_s=monotonic())
        last.end_s, last.message = last.sent_s, "no gateway accepted the call"
        self._write(last)

    async def _ask(self, record: Record) -> bool:
        """Send the request and wait for it to end. Return False if the gateway did not accept the connection."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        port = self._plan.gateways[record.gateway].port
        request = self._request(record, port)
        try:
            _, call = await loop.create_connection(lambda: Call(record, request, over), "127.0.0.1", port)
        except OSError:
            return False
        limit = loop.call_later(PATIENCE_S, call.give_up)
        try:
            await over
        finally:
            limit.cancel()
        return True

    def _request(self, record: Record, port: int) -> bytes:
        body: dict[str, object] = {
            "model": self._plan.model,
            "messages": [{"role": "user", "content": f"Call {record.number}: tell me about gates."}],
            "max_tokens": record.tokens,
            "min_tokens": record.tokens,
            "ignore_eos": True,
        }
        if record.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        content = json.dumps(body).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (port, len(content), content)
        )

    def _write(self, record: Record) -> None:
        self._out.write(msgspec.json.encode(record) + b"\n")
        self._out.flush()


async def run(plan: Plan) -> None:
    with Path(plan.record).open("ab") as out:  # noqa: ASYNC230  Short lines to a local file in a benchmark.
        await Load(plan, out).run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))
