"""What has this caller been sent, and is it still there?

One HTTP exchange as the door sees it: a request whose body is awaited, and an answer that is started, written and
finished. Writing never waits. What the caller has not read yet stays in its connection's buffer, and whoever brings
more stops bringing it while that is full.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headgate.model.units import TenantId
from headgate.wire.request import LARGE_BYTES

Headers = list[tuple[bytes, bytes]]


class BodyTooLarge(Exception):
    """The request's body exceeds what the door accepts."""


class NoRoomForBody(Exception):
    """The bodies of all open requests together take as much as they may."""


class ClientLeft(Exception):
    """The caller closed its connection before its request was complete."""


class Wire(Protocol):
    """What carries an answer: the caller's connection."""

    @property
    def blocked(self) -> bool:
        """Whether more is waiting to be read by the caller than should be."""
        ...

    @property
    def peer(self) -> str:
        """The address that the caller connects from."""
        ...

    def identified(self, tenant: TenantId | None = None, /) -> bool:
        """Counts the connection towards the tenant instead of as unauthenticated.

        Returns False if the tenant already has its share of connections; this one is closed after the response.
        """
        ...

    def ask_for_body(self) -> None:
        """Somebody waits for the body, so a caller who asked whether to send it should do so."""
        ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...


class Client:
    __slots__ = (
        "_complete",
        "_grow",
        "_held",
        "_no_room",
        "_on_left",
        "_size",
        "_too_large",
        "_waiter",
        "_wire",
        "always",
        "began_at",
        "body_bytes_max",
        "finished",
        "finished_at",
        "headers",
        "left",
        "method",
        "on_blocked",
        "on_unblocked",
        "path",
        "query",
        "received_at",
        "started",
        "status",
        "write",
    )

    def __init__(
        self,
        wire: Wire,
        *,
        method: str,
        path: bytes,
        headers: Mapping[bytes, bytes],
        body_bytes_max: int,
        began_at: int = 0,
        query: bytes = b"",
    ) -> None:
        self._wire = wire
        self.began_at = began_at or time.monotonic_ns()
        """When the first byte of the request came; this and other moments are of the clock that never goes back."""
        self.received_at = 0
        """When the last byte of the body came; 0 as long as it has not."""
        self.finished_at = 0
        self.status = 0
        """Of the answer; 0 before there is one."""
        self.write = wire.send
        """More of the answer, between its head and its end."""
        self.method = method
        self.path = path
        """As it was sent: what is authorised is exactly what is routed."""
        self.query = query
        """What stood after a question mark, as it was sent. Nothing that callers ask goes by it."""
        self.headers = headers
        self.body_bytes_max = body_bytes_max
        self.always: Headers = []
        """What goes into the head of every answer."""
        self.started = False
        """Whether the head of an answer has been sent."""
        self.finished = False
        """Whether the end of an answer has been sent."""
        self.left = False
        """Whether the caller closed its connection before the end."""
        self.on_blocked: Callable[[], None] | None = None
        """Called when the caller has more to read than should wait for it, and the other when that is over."""
        self.on_unblocked: Callable[[], None] | None = None
        self._on_left: Callable[[], None] | None = None
        self._held: bytes | bytearray = b""
        """The part of the body received so far, in one buffer, since many small pieces would take much more memory."""
        self._size = 0
        self._too_large = False
        self._grow: Callable[[int], bool] | None = None
        self._no_room = False
        self._complete = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def blocked(self) -> bool:
        """Whether something that was sent waits for the caller to read."""
        return self._wire.blocked

    # The request

    @property
    def peer(self) -> str:
        """The address of whoever connected, be it the caller or a proxy before it."""
        return self._wire.peer

    @property
    def received(self) -> bool:
        """Whether the body has come whole, or will not be waited for any more."""
        return self._complete or self._too_large or self._no_room

    @property
    def received_bytes(self) -> int:
        """Size of the body so far."""
        return self._size

    def identified(self, tenant: TenantId | None = None, /) -> bool:
        """Called when the caller is authenticated. Returns False if the tenant may not have another connection."""
        return self._wire.identified(tenant)

    async def body(self, size_max: int) -> bytes | bytearray:
        while not self.received and not self.left:
            self._wire.ask_for_body()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._no_room:
            raise NoRoomForBody
        if self._too_large or self._size > size_max:
            raise BodyTooLarge
        if not self._complete:
            raise ClientLeft
        if self._size <= LARGE_BYTES:
            self._held = bytes(self._held)  # A large body is not copied, because that would block the loop.
        return self._held

    def count_body(self, grow: Callable[[int], bool]) -> None:
        """Has `grow` asked for each further piece of the body, and at once for what has come, whether there is room."""
        self._grow = grow
        if not grow(self._size):
            self._give_up_body()

    def release(self) -> None:
        """Drops the body and the references to the exchange at the end of the request.

        Connection, client and exchange refer to each other. Without this the body would stay in memory until the next
        garbage collection, while its bytes are counted as free.
        """
        self._held = b""
        self._grow = self._on_left = self.on_blocked = self.on_unblocked = None

    def notify_when_left(self, on_left: Callable[[], None]) -> None:
        """Has it called once, when the caller leaves before its answer is complete; at once if it has left already."""
        self._on_left = on_left
        if self.left:
            on_left()

    # The answer

    def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.finish(body)

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        assert not self.started, "an answer has one head"
        self.started = True
        self.status = status
        self._wire.send_head(status, [*self.always, *headers])

    def finish(self, data: bytes = b"") -> None:
        assert self.started, "an answer begins with its head"
        assert not self.finished, "an answer ends once"
        self.finished = True
        self._wire.send_end(data)
        self.finished_at = time.monotonic_ns()

    # Told by the connection

    def take_body(self, data: bytes) -> None:
        """More of the body has come. What nobody will read is not kept."""
        if self.finished or self._too_large or self._no_room:
            return
        self._size += len(data)
        if self._size > self.body_bytes_max:
            self._too_large = True
            self._forget_body()
        elif self._grow is not None and not self._grow(len(data)):
            self._give_up_body()
        elif not self._held:
            self._held = data
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)
            self._held += data

    def _give_up_body(self) -> None:
        self._no_room = True
        self._forget_body()

    def _forget_body(self) -> None:
        self._held = b""
        self._wake()

    def complete_body(self) -> None:
        self._complete = True
        self.received_at = time.monotonic_ns()
        self._wake()

    def leave(self) -> None:
        """The connection is gone."""
        if self.finished:
            return
        self.left = True
        self._wake()
        if self._on_left is not None:
            self._on_left()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
