"""How does one connection carry a request and its answer?

HTTP/1.1 by httptools, one request at a time. The moment of a read is taken before anything else is done with it.
"""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import cast

import httptools

from headgate.loadtest.answer import HEADERS_MAX, Answer


class Connection(asyncio.Protocol):
    """Also the protocol of its parser."""

    def __init__(self, start_ns: int, on_lost: "Callable[[Connection], None]") -> None:
        self._start_ns = start_ns
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._answer: Answer | None = None
        self._headers: dict[bytes, bytes] = {}
        self._until_close = False
        """Whether the answer goes on until the server closes, having told no length."""
        self.reusable = False
        """Whether the last answer came to its end and the server keeps the connection."""

    def ask(self, request: bytes, answer: Answer) -> None:
        self._answer = answer
        self._headers = {}
        self.reusable = self._until_close = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def abort(self) -> None:
        """Leaves at once; the server sees the connection closed."""
        self._answer = None
        self._transport.abort()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # Nothing was asked: whatever this is, it cannot be followed by an answer.
            self._transport.abort()
            return
        answer.now_ns = monotonic_ns() - self._start_ns
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(whole=False, lost="not_http")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.now_ns = monotonic_ns() - self._start_ns
            self._end(whole=self._until_close and exc is None, lost="connection_lost")
        self._on_lost(self)

    # -- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) < HEADERS_MAX:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if self._answer is None or status < 200:
            return
        self._until_close = b"content-length" not in headers and b"transfer-encoding" not in headers
        self._answer.head(status, headers)

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.body(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # An interim answer; the real one follows.
            self._headers = {}
            return
        self.reusable = self._parser.should_keep_alive()
        self._end(whole=True)

    def _end(self, *, whole: bool, lost: str | None = None) -> None:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer.end(whole=whole, lost=None if whole else lost)
