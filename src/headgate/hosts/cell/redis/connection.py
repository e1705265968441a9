"""One connection to the store.

Commands are sent together, and their replies are returned as one list. Only one batch is in flight at a time, so
nothing queues behind a missing reply. hiredis encodes and decodes the protocol. Replies are handled as their bytes
arrive rather than in a separate task, because every request in a cell takes this path several times.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis

RedisCommand = tuple[str | bytes | int, ...]

_GRACE_S: Final = 0.01

# The library's stub declares a single argument.
_pack: Callable[[RedisCommand], bytes] = cast("Any", hiredis).pack_command


class RedisConnection(asyncio.Protocol):
    def __init__(self, on_lost: Callable[[Exception], None]) -> None:
        """`on_lost` is called once, but not after `close`."""
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._answers: list[Any] = []
        self._awaited = 0
        self._on_replies: Callable[[list[Any]], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[list[Any]] | None = None
        self._closed = False

    def send(
        self, commands: Sequence[RedisCommand], seconds_max: float, on_replies: Callable[[list[Any]], None]
    ) -> int:
        """Sends commands together. Returns the number of bytes sent.

        `on_replies` receives all replies, including errors.
        """
        assert self._on_replies is None, "the last commands have no reply yet"
        packed = b"".join([_pack(command) for command in commands])
        self._on_replies, self._awaited = on_replies, len(commands)
        self._timer = self._loop.call_later(seconds_max, self._on_timeout)
        if self._transport is not None:
            self._transport.write(packed)
        return len(packed)

    async def request(self, commands: Sequence[RedisCommand], seconds_max: float) -> list[Any]:
        """Sends commands and waits for the replies.

        Raises the error that ended the connection, or the first reply that is an error.
        """
        if self._closed:
            raise ConnectionResetError
        self._waiting = waiting = self._loop.create_future()
        self.send(commands, seconds_max, lambda answers: None if waiting.done() else waiting.set_result(answers))
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
        """Local address of the connection to the store. None if it is unknown."""
        if self._transport is None or not (name := self._transport.get_extra_info("sockname")):
            return None
        return str(name[0])

    def close(self) -> None:
        """Closes the connection immediately. Unsent commands and outstanding replies are lost."""
        self._end(None)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses.
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
        then = self._on_replies
        if then is not None and len(answers) >= self._awaited:
            assert self._timer is not None
            self._timer.cancel()
            self._on_replies, self._answers = None, []
            then(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        # A store that rejects a connection sends the reason before closing the connection.
        said = next((each for each in self._answers if isinstance(each, hiredis.ReplyError)), None)
        self._end(said or exc or ConnectionResetError())

    # Closing

    def _on_timeout(self) -> None:
        # If this process was blocked, the reply has already arrived and is read during the grace time.
        self._timer = self._loop.call_later(_GRACE_S, self._end, TimeoutError())

    def _end(self, cause: Exception | None) -> None:
        if self._closed:
            return
        self._closed, self._on_replies = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(cause or ConnectionResetError())
        elif cause is not None:
            self._on_lost(cause)
