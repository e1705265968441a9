"""Limits on a request body's size, chunk count and chunk framing.

HTTP allows any number of chunks, chunk extensions and trailers. This module limits them, both in absolute size and
relative to the body. Small chunks are accepted, but bodies that consist mostly of framing are rejected.
"""

from typing import Final

from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HttpRejection

_FRAMING_BYTES_MIN: Final = 64 * 1024
_FRAMING_PER_BODY_BYTE: Final = 8
"""Maximum framing bytes (chunk sizes, extensions and trailers) per body byte. A one-byte chunk has five."""
FRAMING_RUN_BYTES_MAX: Final = 16 * 1024
"""Maximum size of one chunk extension, or of all trailers, in bytes."""
CHUNKS_MIN: Final = 65_536
_BYTES_PER_CHUNK: Final = 16
"""Body bytes per additional chunk. A body may have `CHUNKS_MIN` chunks, plus one for every 16 bytes."""
DISCARDED_CHUNKS_MAX: Final = 4096
"""Maximum number of chunks parsed after the response in order to reuse the connection."""


class BodyFraming:
    """Counts the body bytes and framing bytes of one request."""

    __slots__ = ("_body_bytes", "_bytes", "_chunks", "_discarded_chunks", "_framing_run_bytes", "_trailers", "chunked")

    def __init__(self) -> None:
        self.begin(chunked=False)

    def begin(self, *, chunked: bool) -> None:
        """Resets the counters at the end of a request head."""
        self.chunked = chunked
        self._body_bytes = self._bytes = self._chunks = self._framing_run_bytes = self._discarded_chunks = (
            self._trailers
        ) = 0

    def add(self, data_bytes: int, pieces: int, body_bytes: int, *, answered: bool) -> None:
        """Counts bytes received after the head, and the body pieces they contain."""
        self._bytes += data_bytes
        self._body_bytes += body_bytes
        self._chunks += pieces
        if answered:
            self._discarded_chunks += pieces
        self._framing_run_bytes = 0 if pieces else self._framing_run_bytes + data_bytes

    def add_trailer(self, limits: EdgeLimits) -> None:
        self._trailers += 1
        if self._trailers > limits.header_count_max:
            raise HttpRejection(400, f"the request body has more than {limits.header_count_max} trailers")

    def check(self) -> None:
        """Raises `HttpRejection` if a limit is exceeded."""
        if self._bytes - self._body_bytes > max(_FRAMING_BYTES_MIN, _FRAMING_PER_BODY_BYTE * self._body_bytes):
            raise HttpRejection(400, "the chunk framing is too large for the size of the request body")
        if self._framing_run_bytes > FRAMING_RUN_BYTES_MAX:
            raise HttpRejection(400, f"a chunk extension or the trailers exceed {FRAMING_RUN_BYTES_MAX} bytes")
        if self.chunked and self._chunks > CHUNKS_MIN + self._body_bytes // _BYTES_PER_CHUNK:
            message = f"the request body has {self._chunks} chunks; send chunks of {_BYTES_PER_CHUNK} bytes or more"
            raise HttpRejection(400, message)

    def check_discarded(self, limits: EdgeLimits) -> bool:
        """Returns whether to keep parsing a request that has already been answered. Raises `HttpRejection`."""
        if self._bytes > limits.discarded_bytes_max:
            raise HttpRejection(413, "the rest of the request body is too large to discard after the response")
        return not self.chunked or self._discarded_chunks <= DISCARDED_CHUNKS_MAX
