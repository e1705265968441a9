"""How do traces reach their collector?

By OTLP over HTTP, one post at a time, compressed, from a thread that may wait. No redirect is followed: whoever answers
at the address of the collector has no say in where traces, and the key that goes along with them, are sent. What is
wrong is told without the address and the headers, which may hold secrets.

A post has one bound for all of it: a collector that always has a little more to say would pass one for each step. When
time is up its connection is cut from outside, by a timer, since whoever waits for it cannot.
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
"""How long a post may take altogether, once there is a connection, and how long to make one to each address."""
ANSWER_BYTES_MAX: Final = 64 * 1024
_COMPRESSION: Final = 1
"""The quickest: spans are so much alike that more effort gains next to nothing."""
_TRY_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
"""What a collector answers that may take the same later."""


class Posted(Enum):
    TAKEN = "taken"
    LATER = "later"
    """The same may be taken when it is posted again."""
    NEVER = "never"


class Collector:
    def __init__(self, url: str, headers: Mapping[str, str], *, post_s_max: float = POST_S_MAX) -> None:
        self._post_s_max = post_s_max
        parts = urlsplit(url)
        assert parts.hostname is not None, "an address without a host was let through"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path or "/"
        self._headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", "user-agent": "headgate"}
        self._headers |= headers
        self._connection: http.client.HTTPConnection | None = None
        self._was_cut = False

    def post(self, message: bytes) -> tuple[Posted, str]:
        """What became of it, and why if it was not taken."""
        body = gzip.compress(message, _COMPRESSION)
        self._was_cut = False
        timer = threading.Timer(self._post_s_max, self.cut)
        timer.daemon = True
        timer.start()
        try:
            return self._try(body)
        finally:
            timer.cancel()

    def cut(self) -> None:
        """Ends the post that is under way, from another thread."""
        self._was_cut = True
        connection = self._connection
        if connection is not None and (open_ := connection.sock) is not None:
            with suppress(OSError):
                # Not by the method of a TLS socket, which also changes what its reader is about to use.
                socket.socket.shutdown(open_, socket.SHUT_RDWR)

    def _try(self, body: bytes) -> tuple[Posted, str]:
        again = self._connection is not None
        try:
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if self._was_cut or not again:
                return Posted.LATER, self._why(error)
        # A connection that lay idle may have been closed by the collector meanwhile.
        try:
            return self._post(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return Posted.LATER, self._why(error)

    def _why(self, error: Exception) -> str:
        if self._was_cut or isinstance(error, TimeoutError):
            return f"it did not answer within {self._post_s_max:g} s"
        return _why(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes) -> tuple[Posted, str]:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
            connection.connect()
        if self._was_cut:
            # There was nothing to cut at that moment.
            raise TimeoutError
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        read = answer.read(ANSWER_BYTES_MAX + 1)
        if len(read) > ANSWER_BYTES_MAX or answer.will_close:
            self.close()
        if 200 <= answer.status < 300:
            return Posted.TAKEN, ""
        return (Posted.LATER if answer.status in _TRY_AGAIN else Posted.NEVER), f"it answered {answer.status}"

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._post_s_max)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._post_s_max, context=self._tls)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it ({error.reason or 'handshake failed'})"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return f"what it answered is not HTTP ({type(error).__name__})"
