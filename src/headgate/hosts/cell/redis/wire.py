"""How is one connection to the store asked, and given up when it does not answer?

Commands go out together, and their answers come back as one list: one question at a time, so nothing can pile up behind
one that is not answered. hiredis reads and writes the protocol. Answers are taken where the bytes arrive and not in a
task of their own, since every request of a cell passes here several times.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis

Command = tuple[str | bytes | int, ...]

_GRACE_S: Final = 0.01

_packed: Callable[[Command], bytes] = hiredis.pack_command  # pyright: ignore[reportUnknownMemberType, reportAssignmentType, reportUnknownVariableType]  (its types say one argument)


class Wire(asyncio.Protocol):
    def __init__(self, on_lost: Callable[[Exception], None]) -> None:
        """`on_lost` is told once, and not where `close` was called."""
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._answers: list[Any] = []
        self._awaited = 0
        self._then: Callable[[list[Any]], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[list[Any]] | None = None
        self._closed = False

    def ask(self, commands: Sequence[Command], seconds_max: float, then: Callable[[list[Any]], None]) -> int:
        """All of these at once. `then` gets all answers, errors among them; gives back how many bytes went out."""
        assert self._then is None, "the last question was not answered yet"
        packed = b"".join([_packed(command) for command in commands])
        self._then, self._awaited = then, len(commands)
        self._timer = self._loop.call_later(seconds_max, self._is_late)
        if self._transport is not None:
            self._transport.write(packed)
        return len(packed)

    async def answers(self, commands: Sequence[Command], seconds_max: float) -> list[Any]:
        """As `ask`, for those who can wait. Raises what ended the connection, or the first answer that is an error."""
        if self._closed:
            raise ConnectionResetError
        self._waiting = waiting = self._loop.create_future()
        self.ask(commands, seconds_max, lambda answers: None if waiting.done() else waiting.set_result(answers))
        try:
            answers = await waiting
        finally:
            self._waiting = None
        for answer in answers:
            if isinstance(answer, hiredis.ReplyError):
                raise answer
        return answers

    @property
    def local_host(self) -> str | None:
        """By which address of this machine the store is reached; None where that is not known."""
        if self._transport is None or not (name := self._transport.get_extra_info("sockname")):
            return None
        return str(name[0])

    def close(self) -> None:
        """At once: what was not sent or answered is lost."""
        self._end(None)

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are no subclass.
        self._transport = transport = cast("asyncio.Transport", transport)
        if self._closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        answers = self._answers
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                answers.append(answer)
        except hiredis.ProtocolError as cause:
            self._end(cause)
            return
        then = self._then
        if then is not None and len(answers) >= self._awaited:
            assert self._timer is not None
            self._timer.cancel()
            self._then, self._answers = None, []
            then(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        # A store that turns a caller away says why before it closes.
        said = next((each for each in self._answers if isinstance(each, hiredis.ReplyError)), None)
        self._end(said or exc or ConnectionResetError())

    # Its end

    def _is_late(self) -> None:
        # Where it was this process that stood still, the answer lies there and is read before this is over.
        self._timer = self._loop.call_later(_GRACE_S, self._end, TimeoutError())

    def _end(self, cause: Exception | None) -> None:
        if self._closed:
            return
        self._closed, self._then = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(cause or ConnectionResetError())
        elif cause is not None:
            self._on_lost(cause)
