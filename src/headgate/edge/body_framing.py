"""Bounds of a request's body on the wire: its bytes, its chunks and their framing.

A chunked body may have any number of chunk sizes, extensions and trailers. Each is bounded here, both in absolute size
and relative to the body. Small chunks are accepted; bodies that consist mostly of framing are rejected.
"""

from typing import Final

from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import Refused

_FRAMING_BYTES_MIN: Final = 64 * 1024
_FRAMING_PER_BODY_BYTE: Final = 8
"""Maximum bytes of chunk sizes, extensions and trailers per byte of the body. One-byte chunks have five."""
UNBROKEN_BYTES_MAX: Final = 16 * 1024
"""Maximum size of one extension, or of all trailers, without a byte of the body between them."""
CHUNKS_MIN: Final = 65_536
_BYTES_PER_CHUNK: Final = 16
"""A body may have `CHUNKS_MIN` chunks, plus one for each this many bytes."""
PASSED_OVER_CHUNKS_MAX: Final = 4096
"""Maximum number of chunks that are parsed after the response, so that the connection can be reused."""


class BodyFraming:
    """Counts the bytes of one request's body and its framing."""

    __slots__ = ("_body_bytes", "_bytes", "_chunks", "_passed_over", "_trailers", "_unbroken", "chunked")

    def __init__(self) -> None:
        self.begin(chunked=False)

    def begin(self, *, chunked: bool) -> None:
        """Starts counting at the end of a request's head."""
        self.chunked = chunked
        self._body_bytes = self._bytes = self._chunks = self._unbroken = self._passed_over = self._trailers = 0

    def add(self, data_bytes: int, pieces: int, body_bytes: int, *, answered: bool) -> None:
        """Counts bytes received after the head, and the pieces of the body among them."""
        self._bytes += data_bytes
        self._body_bytes += body_bytes
        self._chunks += pieces
        if answered:
            self._passed_over += pieces
        self._unbroken = 0 if pieces else self._unbroken + data_bytes

    def add_trailer(self, limits: EdgeLimits) -> None:
        self._trailers += 1
        if self._trailers > limits.headers_max:
            raise Refused(400, f"the body has more than {limits.headers_max} trailers")

    def check(self) -> None:
        """Raises `Refused` if a bound is exceeded."""
        if self._bytes - self._body_bytes > max(_FRAMING_BYTES_MIN, _FRAMING_PER_BODY_BYTE * self._body_bytes):
            raise Refused(400, "the framing of the body's chunks is too large for the size of the body")
        if self._unbroken > UNBROKEN_BYTES_MAX:
            raise Refused(400, f"a chunk extension or the trailers of the body exceed {UNBROKEN_BYTES_MAX} bytes")
        if self.chunked and self._chunks > CHUNKS_MIN + self._body_bytes // _BYTES_PER_CHUNK:
            raise Refused(400, f"the body has {self._chunks} chunks; send chunks of {_BYTES_PER_CHUNK} bytes or more")

    def check_passed_over(self, limits: EdgeLimits) -> bool:
        """Whether the rest of an answered request should still be parsed. Raises `Refused`."""
        if self._bytes > limits.passed_over_bytes_max:
            raise Refused(413, "the request body exceeds the bytes discarded after a response")
        return not self.chunked or self._passed_over <= PASSED_OVER_CHUNKS_MAX
