"""Transport of a connection after its TLS handshake, which sends large responses in slices.

The event loop's TLS transport encrypts each write immediately, and does not count the encrypted bytes that the client
has not read. A response of several megabytes would therefore never be reported as unread, and would be cut off when the
connection closes. Here at most a few slices are encrypted before the client has read them, so the limits for unread
responses work as they do without TLS.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from headgate.edge.connection import Connection

SLICE_BYTES: Final = 64 * 1024


class TlsStream(asyncio.Transport, asyncio.Protocol):
    """The transport for a `Connection`, and the protocol of the event loop's TLS transport."""

    def __init__(self, connection: Connection, on_made: Callable[[], None]) -> None:
        """`on_made` is called after the handshake, before the connection is registered."""
        super().__init__()
        self._connection = connection
        self._on_made = on_made
        self._transport: asyncio.Transport
        self._unsent: deque[memoryview] = deque()
        """Slices that have not been encrypted yet. They wait for the client, so writing is paused."""
        self._unsent_bytes = 0
        self._paused = False
        """Whether the TLS transport's buffer is full."""
        self._closing = False

    # Callbacks from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue] (uvloop's does not inherit from it)
        self._on_made()
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._connection.data_received(data)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_unsent()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._paused = True
        if not self._connection.blocked:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._send_slices()
        if not self._paused:
            self._connection.resume_writing()

    # Called by the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._unsent_bytes or len(data) > SLICE_BYTES:
            view = memoryview(data)
            self._unsent += (view[start : start + SLICE_BYTES] for start in range(0, len(view), SLICE_BYTES))
            self._unsent_bytes += len(view)
            self._send_slices()
        else:
            self._transport.write(data)

    def _send_slices(self) -> None:
        while self._unsent and not self._paused:
            part = self._unsent.popleft()
            self._unsent_bytes -= len(part)
            # May call `pause_writing`.
            self._transport.write(part)
        if self._closing and not self._unsent:
            self._transport.close()

    def close(self) -> None:
        """Closes the connection when the slices have been sent."""
        self._closing = True
        if not self._unsent:
            self._transport.close()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def abort(self) -> None:
        self._drop_unsent()
        self._closing = True
        self._transport.abort()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        """A TLS connection cannot be closed in one direction."""
        return False

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
