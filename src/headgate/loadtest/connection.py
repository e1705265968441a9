"""One connection of the load test: HTTP/1.1, parsed by httptools, one request at a time.

The time of each read is recorded before the data is parsed.
"""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import cast

import httptools

from headgate.loadtest.response import HEADERS_MAX, LoadTestResponse


class LoadTestConnection(asyncio.Protocol):
    """asyncio protocol, and the callbacks of its parser."""

    def __init__(self, start_ns: int, on_lost: "Callable[[LoadTestConnection], None]") -> None:
        self._start_ns = start_ns
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._response: LoadTestResponse | None = None
        self._headers: dict[bytes, bytes] = {}
        self._until_close = False
        """Whether the response has no length and ends when the server closes the connection."""
        self.reusable = False
        """Whether the last response is complete and the server is keeping the connection open."""

    def ask(self, request: bytes, answer: LoadTestResponse) -> None:
        self._response = answer
        self._headers = {}
        self.reusable = self._until_close = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def abort(self) -> None:
        """Closes the connection immediately."""
        self._response = None
        self._transport.abort()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    # Callbacks from asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport class does not inherit from it.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        answer = self._response
        if answer is None:  # The server sent data without a request, so the connection is unusable.
            self._transport.abort()
            return
        answer.now_ns = monotonic_ns() - self._start_ns
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(whole=False, lost="not_http")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None:
            self._response.now_ns = monotonic_ns() - self._start_ns
            self._end(whole=self._until_close and exc is None, lost="connection_lost")
        self._on_lost(self)

    # Callbacks from the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) < HEADERS_MAX:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if self._response is None or status < 200:
            return
        self._until_close = b"content-length" not in headers and b"transfer-encoding" not in headers
        self._response.on_head(status, headers)

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.on_body(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # An interim response; the final one follows.
            self._headers = {}
            return
        self.reusable = self._parser.should_keep_alive()
        self._end(whole=True)

    def _end(self, *, whole: bool, lost: str | None = None) -> None:
        if self._response is not None:
            answer, self._response = self._response, None
            answer.end(whole=whole, lost=None if whole else lost)
