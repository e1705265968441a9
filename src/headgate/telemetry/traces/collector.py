"""Posts traces to a collector using OTLP over HTTP.

The calling thread blocks. Posts are compressed and sent one at a time. Redirects are not followed, so that a server at
the collector's address cannot divert traces or the key in the headers. Error messages contain neither the address nor
the headers, because both may contain secrets.

A single timeout covers the whole post, because a slow collector could stay below a per-read timeout indefinitely. When
it expires, a timer in another thread shuts the connection down.
"""

import gzip
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

POST_S_MAX: Final = 3.0
"""Maximum duration of a post, and of one connection attempt."""
RESPONSE_BYTES_MAX: Final = 64 * 1024
_COMPRESSION: Final = 1
"""Compression level. The fastest level suffices, because spans are very similar."""
_RETRYABLE_STATUSES: Final = frozenset({408, 429, 502, 503, 504})
"""Status codes after which retrying the same post may succeed."""


class PostResult(Enum):
    ACCEPTED = "accepted"
    RETRY = "retry"
    """A retry may succeed."""
    REJECTED = "rejected"


class Collector:
    def __init__(self, url: str, headers: Mapping[str, str], *, post_s_max: float = POST_S_MAX) -> None:
        self._post_s_max = post_s_max
        parts = urlsplit(url)
        assert parts.hostname is not None, "the collector address must have a host"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path or "/"
        self._headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", "user-agent": "headgate"}
        self._headers |= headers
        self._connection: http.client.HTTPConnection | None = None
        self._aborted = False

    def post(self, message: bytes) -> tuple[PostResult, str]:
        """Returns the result and, if the collector did not accept the message, the reason."""
        body = gzip.compress(message, _COMPRESSION)
        self._aborted = False
        timer = threading.Timer(self._post_s_max, self.abort)
        timer.daemon = True
        timer.start()
        try:
            return self._post_with_retry(body)
        finally:
            timer.cancel()

    def abort(self) -> None:
        """Aborts the post in progress. Called from another thread."""
        self._aborted = True
        connection = self._connection
        if connection is not None and (open_ := connection.sock) is not None:
            with suppress(OSError):
                # `SSLSocket.shutdown` would also reset state that the reading thread is using.
                socket.socket.shutdown(open_, socket.SHUT_RDWR)

    def _post_with_retry(self, body: bytes) -> tuple[PostResult, str]:
        again = self._connection is not None
        try:
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if self._aborted or not again:
                return PostResult.RETRY, self._error_text(error)
        # The collector may have closed the idle connection. Retry with a new one.
        try:
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return PostResult.RETRY, self._error_text(error)

    def _error_text(self, error: Exception) -> str:
        if self._aborted or isinstance(error, TimeoutError):
            return f"no response within {self._post_s_max:g} s"
        return _error_text(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes) -> tuple[PostResult, str]:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
            connection.connect()
        if self._aborted:
            # The timer fired before there was a connection to shut down.
            raise TimeoutError
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        read = answer.read(RESPONSE_BYTES_MAX + 1)
        if len(read) > RESPONSE_BYTES_MAX or answer.will_close:
            self.close()
        if 200 <= answer.status < 300:
            return PostResult.ACCEPTED, ""
        return (
            PostResult.RETRY if answer.status in _RETRYABLE_STATUSES else PostResult.REJECTED
        ), f"HTTP status {answer.status}"

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._post_s_max)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._post_s_max, context=self._tls)


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS error ({error.reason or 'handshake failed'})"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return f"the response is not valid HTTP ({type(error).__name__})"
