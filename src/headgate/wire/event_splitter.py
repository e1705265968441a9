"""Splits event streams into the data of their events.

This file stays interpreted: with mypyc, a generator that is discarded does not run its `finally` block.
"""

from collections.abc import Iterator

from headgate.wire.sse import (
    BOUNDARY,
    BOUNDARY_BYTES_MAX,
    COMMENTS_MAX,
    EVENT_BYTES_MAX,
    WITHOUT_DATA,
    is_overlong,
    payload_of,
)


class EventSplitter:
    """Splits a stream into the data of its events, in linear time for any read size. Buffers at most one event."""

    __slots__ = ("_comments", "_comments_max", "_event_bytes_max", "_tail", "overlong")

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, comments_max: int = COMMENTS_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._comments_max = comments_max
        self._comments = 0
        self._tail = bytearray()
        self.overlong = False
        """Whether an event was too long or there were too many comments. If so, the rest of the stream is ignored."""

    @property
    def held_bytes(self) -> int:
        return len(self._tail)

    def split(self, data: bytes) -> Iterator[bytes]:
        """Adds received bytes. Yields the data of each event that they complete."""
        buffer = self._tail
        search_from = max(0, len(buffer) - BOUNDARY_BYTES_MAX + 1)
        buffer += data
        start = 0
        try:
            while not self.overlong and (boundary := BOUNDARY.search(buffer, search_from)):
                end = boundary.end()
                comments = WITHOUT_DATA.match(buffer, start, start + self._event_bytes_max)
                if comments is not None:
                    end = comments.end()
                    self._count_comments(len(BOUNDARY.findall(buffer, start, end)))
                elif (payload := self._payload(bytes(buffer[start:end]))) is not None:
                    yield payload
                start = search_from = end
        finally:
            del buffer[:start]
            self.overlong = self.overlong or len(buffer) >= self._event_bytes_max
            if self.overlong:
                buffer.clear()

    def _payload(self, event: bytes) -> bytes | None:
        if is_overlong(event, self._event_bytes_max):
            self.overlong = True
            return None
        payload = payload_of(event)
        if payload is None:
            self._count_comments(1)
        else:
            self._comments = 0
        return payload

    def _count_comments(self, count: int) -> None:
        self._comments += count
        self.overlong = self.overlong or self._comments > self._comments_max
