"""Parses large request bodies in a separate process, so that streams are not delayed.

A JSON parser holds the interpreter lock until it is done, even in another thread: 0.1 s for 30 MiB of text, and more
than 1 s for 30 MiB of tiny messages. A separate process therefore parses large bodies (`reader.py`). It is started when
the first large body arrives, and receives the bytes in pieces. It returns an outline, from which this process builds
the `RequestBody`.

Bodies are parsed one at a time, and tenants take turns (`fair_body_queue.py`). The process has no state. If it exits or
hangs, its current body is parsed in a thread, which delays streams. The next body starts another process, with
increasing backoff after repeated failures. The process responds to cancelled requests too, so that requests and
responses stay in step.
"""

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import msgspec

from headgate.edge.large_bodies.fair_body_queue import FairBodyQueue
from headgate.edge.large_bodies.messages import (
    LENGTH_PREFIX,
    RESPONSE_DECODER,
    InvalidBody,
    ParseBody,
    ParsedBody,
    ParseFailed,
    ReaderRequest,
    ReaderResponse,
    TrimmedMessages,
    TrimMessages,
    frame,
)
from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.model.units import TenantId
from headgate.wire.request_body import BadRequest, RequestBody

log = logging.getLogger("headgate")

Capped = tuple[RequestBody, tuple[str, ...]]
ReadLarge = Callable[[bytes | bytearray, Api, TenantId], Awaitable[RequestBody]]
CapLarge = Callable[[RequestBody, Caps, TenantId], Awaitable[Capped]]

_COMMAND: Final = (sys.executable, "-P", "-m", "headgate.edge.large_bodies.reader")
_PIECE_BYTES: Final = 128 * 1024
"""Maximum bytes sent to or received from the process in one iteration of the event loop."""
_RESPONSE_S_MAX: Final = 10.0
_RESPONSE_S_PER_MIB: Final = 0.5
"""Additional response timeout per MiB, in seconds.

The total is about ten times the parse time of the slowest bodies.
"""
_RESTART_S_MAX: Final = 60.0


_NO_TENANT: Final = TenantId("")


async def read_in_thread(raw: bytes | bytearray, api: Api, _tenant: TenantId = _NO_TENANT) -> RequestBody:
    return await asyncio.to_thread(_parse, raw, api)


async def cap_in_thread(body: RequestBody, caps: Caps, _tenant: TenantId = _NO_TENANT) -> Capped:
    return await asyncio.to_thread(body.capped, caps)


def _parse(raw: bytes | bytearray, api: Api) -> RequestBody:
    return RequestBody.parse(bytes(raw), api)


@dataclass(order=True, slots=True)
class _Job:
    """Parse job waiting for the process."""

    size: int
    number: int
    request: ReaderRequest = field(compare=False)
    raw: bytes | bytearray | memoryview = field(compare=False)
    response: asyncio.Future[ReaderResponse] = field(compare=False)


class LargeBodyReader:
    """Queue of large bodies, and the process that parses them. Belongs to one event loop; its owner stops it."""

    def __init__(self, command: tuple[str, ...] = _COMMAND) -> None:
        self._command = command
        self._waiting: FairBodyQueue[_Job] = FairBodyQueue()
        self._numbers = count()
        self._runner: asyncio.Task[None] | None = None
        """Task that runs the waiting jobs one after another. None if no job is waiting."""
        self._reader: _ReaderProcess | None = None
        self._failures = 0
        """Number of consecutive processes that failed to respond."""
        self._start_at = 0.0
        """Earliest time at which to start the next process, in seconds of the event loop clock."""

    @property
    def processes(self) -> int:
        return int(self._reader is not None and self._reader.is_running)

    async def read(self, raw: bytes | bytearray, api: Api, tenant: TenantId = _NO_TENANT) -> RequestBody:
        """Returns the same result as `RequestBody.parse`. Raises `BadRequest`."""
        answer = await self._submit(ParseBody(api, len(raw)), raw, tenant)
        match answer:
            case ParsedBody(outline):
                return RequestBody.from_outline(raw, api, outline)
            case InvalidBody(message, param, kept):
                raise BadRequest(message, param, log_message=kept)
            case _:
                return await read_in_thread(raw, api)

    async def cap(self, body: RequestBody, caps: Caps, tenant: TenantId = _NO_TENANT) -> Capped:
        """Returns the same result as `RequestBody.capped`."""
        if caps.image_detail is not None:
            # The outline does not contain the positions of images. Finding them takes less time than parsing did.
            return await cap_in_thread(body, caps)
        length_max = body.trim_length(caps)
        if length_max is None:
            return body.apply_caps(caps, None)
        answer = await self._submit(TrimMessages(length_max, len(body.messages)), body.messages, tenant)
        match answer:
            case TrimmedMessages(messages, length, turns_dropped):
                return body.apply_caps(caps, (messages, length, turns_dropped))
            case _:
                return await cap_in_thread(body, caps)

    async def stop(self) -> None:
        """Stops the process. Jobs that are still waiting fail."""
        self._start_at = float("inf")
        if (asking := self._runner) is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._fail_pending()
        await self._end_reader()

    # Jobs

    async def _submit(
        self, question: ReaderRequest, raw: bytes | bytearray | memoryview, tenant: TenantId
    ) -> ReaderResponse:
        loop = asyncio.get_running_loop()
        asked = _Job(question.size, next(self._numbers), question, raw, loop.create_future())
        self._waiting.push(tenant, asked)
        if self._runner is None:
            self._runner = loop.create_task(self._run_jobs())
        return await asked.response

    async def _run_jobs(self) -> None:
        try:
            while self._waiting:
                asked = self._waiting.pop()
                if asked.response.done():
                    continue  # The request was cancelled.
                answer: ReaderResponse = ParseFailed("the large-body process stopped")
                try:
                    answer = await self._run_job(asked)
                finally:
                    if not asked.response.done():
                        asked.response.set_result(answer)
        finally:
            self._fail_pending()

    def _fail_pending(self) -> None:
        """Fails all waiting jobs."""
        self._runner = None
        for asked in self._waiting.clear():
            if not asked.response.done():
                asked.response.set_result(ParseFailed("the gateway is shutting down"))

    async def _run_job(self, asked: _Job) -> ReaderResponse:
        try:
            reader = self._running_reader()
            if reader is None:
                return ParseFailed("the large-body process is in restart backoff")
            async with asyncio.timeout(_RESPONSE_S_MAX + _RESPONSE_S_PER_MIB * asked.size / 2**20):
                answer = await reader.ask(asked.request, asked.raw)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            await self._failed(error)
            return ParseFailed("the large-body process did not respond")
        self._failures = 0
        if isinstance(answer, ParseFailed):
            log.warning("the large-body process could not parse a body (%s)", answer.reason)
        return answer

    # The process

    def _running_reader(self) -> "_ReaderProcess | None":
        if self._reader is None and asyncio.get_running_loop().time() >= self._start_at:
            self._reader = _ReaderProcess(self._command)
        return self._reader

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        # After the first failure, restart immediately, because the cause is unlikely to recur.
        wait_s = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), _RESTART_S_MAX)
        self._start_at = asyncio.get_running_loop().time() + wait_s
        why = type(error).__name__
        log.warning("the large-body process failed (%s); restart backoff %.0f s", why, wait_s)
        await self._end_reader()

    async def _end_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.end()


class _ReaderProcess:
    """Running process and the socket connected to it. The process exits when the socket is closed."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)  # noqa: FBT003 (positional-only parameter)
        with theirs:
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())  # noqa: S603 (our own module)
            except BaseException:
                self._socket.close()
                raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def ask(self, question: ReaderRequest, raw: bytes | bytearray | memoryview) -> ReaderResponse:
        """Sends a job and returns the response. Raises OSError or EOFError if the process has exited."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, frame(question))
        with memoryview(raw) as whole:
            for start in range(0, len(whole), _PIECE_BYTES):
                with whole[start : start + _PIECE_BYTES] as piece:
                    await loop.sock_sendall(self._socket, piece)
                # Even if the process accepts each piece immediately, the event loop must get to run other tasks.
                await asyncio.sleep(0)
        (length,) = LENGTH_PREFIX.unpack(await self._receive(LENGTH_PREFIX.size))
        return RESPONSE_DECODER.decode(await self._receive(length))

    async def _receive(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < size:
            if not (data := await loop.sock_recv(self._socket, min(size - len(received), _PIECE_BYTES))):
                raise EOFError
            received += data
        return received

    async def end(self) -> None:
        """Kills the process. Its current result is no longer needed."""
        self._socket.close()
        self._process.kill()
        await asyncio.shield(asyncio.to_thread(self._process.wait))
