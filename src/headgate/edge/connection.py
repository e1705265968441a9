"""What may one connection of a caller cost us?

uvicorn's HTTP protocol, with bounds where it has none: how long a request's head may be, how long
an answer may stay unread, and how many requests may be open on one connection.
"""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
"""The longest request line with its headers; somewhat more may come in the read that exceeds it."""

# Java's HTTP client offers HTTP/2 with every request. The parser would take that for the end of HTTP and lose the body.
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


def connection(client_stall_max_s: float) -> type[asyncio.Protocol]:
    """The protocol for a listener whose callers may leave an answer unread for so long."""
    return type("Connection", (_Connection,), {"client_stall_max_s": client_stall_max_s})


class _Connection(HttpToolsProtocol):
    client_stall_max_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        """Whether the next bytes belong to the head of a request, rather than to a body."""
        self._head_bytes = 0
        """How much of a head has come without its end."""
        self._surplus = False
        """Whether a second request has begun before the first was answered."""
        self._unread = 0
        self._stall: asyncio.TimerHandle | None = None

    # The head of a request

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-upgrade-passed-over:", head) + end + rest
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have {HEAD_BYTES_MAX} bytes.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self.cycle and not self.cycle.response_complete:
            # While a second request waits on the connection nobody could hear that the caller of the first has left.
            # It is not taken, and a closed connection tells its caller so.
            self._surplus = True
            self.cycle.keep_alive = False
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._surplus:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        if not self._surplus:
            super().on_message_complete()

    # The reading of an answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_reader()
        super().connection_lost(exc)

    def _await_reader(self) -> None:
        self._stall = self.loop.call_later(self.client_stall_max_s, self._check_reader)

    def _check_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread:
            self._unread = unread
            self._await_reader()
        else:
            # A plain close would wait for the very caller that does not read.
            self.transport.abort()

    def _forget_reader(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
