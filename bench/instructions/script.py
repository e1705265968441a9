"""The fixed script of requests whose instructions are counted.

Client and engine run in one thread, so that the gateway handles each request in the same steps however busy the machine
is: requests are sent one at a time over one connection, and the engine sends the next chunk of a stream only once the
client has received the previous one.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar, cast

from bench.cli import FailedRequests
from bench.connection import a_request, chat_body
from bench.mock_upstream import UpstreamConnection
from bench.precise_timer import PreciseTimer
from bench.targets import Target

WORK_SECONDS_MAX: Final = 120.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EVENT: Final = b"data: "
_Result = TypeVar("_Result")


class Lockstep:
    """In place of the upstream's timer: sends what is due when the client is ready for it."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def schedule(self, when_ns: int, callback: Callable[[], None]) -> None:
        del when_ns
        self._due.append(callback)

    def advance(self) -> None:
        due, self._due = self._due, []
        for callback in due:
            callback()


class Script:
    """The engine at `port`, and the client."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lockstep = Lockstep()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._target: Target
        self.port = 0

    def start(self) -> None:
        self.port = self._wait(self._listen())

    def connect(self, target: Target) -> None:
        self._target = target
        self._reader, self._writer = self._wait(asyncio.open_connection("127.0.0.1", target.port, limit=1 << 20))

    def ask(self, times: int) -> None:
        """Send short requests, each of which gets its response in one piece."""
        self._wait(self._ask(times))

    def stream(self, chunks: int) -> None:
        self._wait(self._exchange(self._request(chunks)))

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WORK_SECONDS_MAX)

    async def _listen(self) -> int:
        callers: set[UpstreamConnection] = set()
        engine = partial(UpstreamConnection, cast("PreciseTimer", self._lockstep), callers)
        server = await self._loop.create_server(engine, "127.0.0.1", 0)
        return server.sockets[0].getsockname()[1]

    async def _ask(self, times: int) -> None:
        request = self._request(0)
        for _ in range(times):
            await self._exchange(request)

    def _request(self, chunks: int) -> bytes:
        body = chat_body(self._target.model, chunks=chunks)
        return a_request(json.dumps(body).encode(), port=self._target.port, key=self._target.key)

    async def _exchange(self, request: bytes) -> None:
        self._writer.write(request)
        received, events = b"", 0
        while not _is_complete(received):
            data = await self._reader.read(65536)
            if not data:
                raise FailedRequests(f"the gateway closed the connection after {received[-400:]!r}")
            received += data
            events_now = received.count(_EVENT)
            if events_now > events:
                events = events_now
                self._lockstep.advance()
        if not received.startswith(b"HTTP/1.1 200 "):
            raise FailedRequests(f"the gateway responded {received[:400]!r}")


def _is_complete(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return len(body) == int(length[1]) if length else body.endswith(b"\r\n0\r\n\r\n")


@contextmanager
def running_script() -> Generator[Script]:
    """Run the engine and the client in their own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        script = Script(loop)
        script.start()
        yield script
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
