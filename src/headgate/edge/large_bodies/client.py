"""How is a large body read while every stream goes on?

A JSON parser holds the interpreter lock until it is done, in any thread: 0.1 s for 30 MiB of text, and more than 1 s
for 30 MiB of tiny messages. So a separate process parses large bodies (`reader.py`). It starts with the first large
body and receives the bytes in pieces. It returns an outline, from which this process builds the `RequestBody`.

One body is read at a time, and tenants take turns (`turns.py`). The process has no state to lose. If it ends or hangs,
its current body is parsed in a thread, which delays streams, and the next body starts another process, with a growing
pause after repeated failures. The process also answers for a request that was cancelled, so that requests and responses
stay in step.
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

from headgate.edge.large_bodies.messages import (
    ANSWERS,
    LENGTH,
    Answer,
    Found,
    Left,
    Question,
    Read,
    Trim,
    Unread,
    Wrong,
    framed,
)
from headgate.edge.large_bodies.turns import Turns
from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.model.units import TenantId
from headgate.wire.request import BadRequest, RequestBody

log = logging.getLogger("headgate")

Capped = tuple[RequestBody, tuple[str, ...]]
ReadLarge = Callable[[bytes | bytearray, Api, TenantId], Awaitable[RequestBody]]
CapLarge = Callable[[RequestBody, Caps, TenantId], Awaitable[Capped]]

_COMMAND: Final = (sys.executable, "-P", "-m", "headgate.edge.large_bodies.reader")
_PIECE_BYTES: Final = 128 * 1024
"""As much is handed to the system, or taken from it, in one turn of the loop."""
_ANSWER_S_MAX: Final = 10.0
_ANSWER_S_PER_MIB: Final = 0.5
"""How long an answer may take: some ten times as long as the worst body does."""
_RESTART_S_MAX: Final = 60.0


_NO_TENANT: Final = TenantId("")


async def read_in_thread(raw: bytes | bytearray, api: Api, _tenant: TenantId = _NO_TENANT) -> RequestBody:
    return await asyncio.to_thread(_parse, raw, api)


async def cap_in_thread(body: RequestBody, caps: Caps, _tenant: TenantId = _NO_TENANT) -> Capped:
    return await asyncio.to_thread(body.capped, caps)


def _parse(raw: bytes | bytearray, api: Api) -> RequestBody:
    return RequestBody.parse(bytes(raw), api)


@dataclass(order=True, slots=True)
class _Asked:
    """A question that waits for its turn."""

    size: int
    number: int
    question: Question = field(compare=False)
    raw: bytes | bytearray | memoryview = field(compare=False)
    answer: asyncio.Future[Answer] = field(compare=False)


class LargeBodies:
    """One reading process at most, and who waits for it. Used inside one running loop; its owner stops it."""

    def __init__(self, command: tuple[str, ...] = _COMMAND) -> None:
        self._command = command
        self._waiting: Turns[_Asked] = Turns()
        self._numbers = count()
        self._asking: asyncio.Task[None] | None = None
        """Puts one question after the other, for as long as there are any."""
        self._reader: _Reader | None = None
        self._failures = 0
        """How many processes in a row have ended without an answer."""
        self._start_at = 0.0
        """When another process may be started."""

    @property
    def processes(self) -> int:
        return int(self._reader is not None and self._reader.is_running)

    async def read(self, raw: bytes | bytearray, api: Api, tenant: TenantId = _NO_TENANT) -> RequestBody:
        """What `RequestBody.parse` gives. Raises `BadRequest`."""
        answer = await self._ask(Read(api, len(raw)), raw, tenant)
        match answer:
            case Found(outline):
                return RequestBody.outlined(raw, api, outline)
            case Wrong(message, param, kept):
                raise BadRequest(message, param, kept=kept)
            case _:
                return await read_in_thread(raw, api)

    async def cap(self, body: RequestBody, caps: Caps, tenant: TenantId = _NO_TENANT) -> Capped:
        """What `RequestBody.capped` gives."""
        if caps.image_detail is not None:
            # Finding images takes less than reading did, and no more is known of where they are.
            return await cap_in_thread(body, caps)
        length_max = body.trims_to(caps)
        if length_max is None:
            return body.shaped(caps, None)
        answer = await self._ask(Trim(length_max, len(body.messages)), body.messages, tenant)
        match answer:
            case Left(messages, length, turns_dropped):
                return body.shaped(caps, (messages, length, turns_dropped))
            case _:
                return await cap_in_thread(body, caps)

    async def stop(self) -> None:
        """Ends the process. What is still asked is answered as not read."""
        self._start_at = float("inf")
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._give_up()
        await self._end_reader()

    # One question after the other

    async def _ask(self, question: Question, raw: bytes | bytearray | memoryview, tenant: TenantId) -> Answer:
        loop = asyncio.get_running_loop()
        asked = _Asked(question.size, next(self._numbers), question, raw, loop.create_future())
        self._waiting.push(tenant, asked)
        if self._asking is None:
            self._asking = loop.create_task(self._answer_all())
        return await asked.answer

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                asked = self._waiting.pop()
                if asked.answer.done():
                    continue  # Whoever asked has been given up.
                answer: Answer = Unread("the reading process ended")
                try:
                    answer = await self._answer(asked)
                finally:
                    if not asked.answer.done():
                        asked.answer.set_result(answer)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Nobody answers what is still asked."""
        self._asking = None
        for asked in self._waiting.clear():
            if not asked.answer.done():
                asked.answer.set_result(Unread("the gateway is leaving"))

    async def _answer(self, asked: _Asked) -> Answer:
        try:
            reader = self._running_reader()
            if reader is None:
                return Unread("no process may be started yet")
            async with asyncio.timeout(_ANSWER_S_MAX + _ANSWER_S_PER_MIB * asked.size / 2**20):
                answer = await reader.ask(asked.question, asked.raw)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            await self._failed(error)
            return Unread("the process did not answer")
        self._failures = 0
        if isinstance(answer, Unread):
            log.warning("a large body could not be read by the process for them (%s)", answer.why)
        return answer

    # The process

    def _running_reader(self) -> "_Reader | None":
        if self._reader is None and asyncio.get_running_loop().time() >= self._start_at:
            self._reader = _Reader(self._command)
        return self._reader

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        # The first is replaced at once: something killed it, and will hardly do so again.
        wait_s = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), _RESTART_S_MAX)
        self._start_at = asyncio.get_running_loop().time() + wait_s
        why = type(error).__name__
        log.warning("the process that reads large bodies failed (%s); another may start in %.0f s", why, wait_s)
        await self._end_reader()

    async def _end_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.end()


class _Reader:
    """A process that was started, and the socket to it. Without the socket's other end it ends by itself."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)  # noqa: FBT003 (the name of that argument)
        with theirs:
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())  # noqa: S603 (our own module)
            except BaseException:
                self._socket.close()
                raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def ask(self, question: Question, raw: bytes | bytearray | memoryview) -> Answer:
        """Raises OSError or EOFError where the process is gone."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, framed(question))
        with memoryview(raw) as whole:
            for start in range(0, len(whole), _PIECE_BYTES):
                with whole[start : start + _PIECE_BYTES] as piece:
                    await loop.sock_sendall(self._socket, piece)
                # A process that takes each piece at once must not keep the loop from everything else.
                await asyncio.sleep(0)
        (length,) = LENGTH.unpack(await self._receive(LENGTH.size))
        return ANSWERS.decode(await self._receive(length))

    async def _receive(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while len(received) < size:
            if not (data := await loop.sock_recv(self._socket, min(size - len(received), _PIECE_BYTES))):
                raise EOFError
            received += data
        return received

    async def end(self) -> None:
        """At once: what it may still be reading matters to nobody."""
        self._socket.close()
        self._process.kill()
        await asyncio.shield(asyncio.to_thread(self._process.wait))
