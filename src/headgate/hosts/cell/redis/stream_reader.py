"""Reader for one Redis stream.

One connection waits for new entries and delivers them in batches. The read position outlives the connection. If the
stream ends before that position, the store was restored empty or from an old copy, and the stream is read from its
start. Entries that have been read are trimmed from time to time, along with the next write.
"""

from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import hiredis

from headgate.hosts.cell.redis.connection import RedisCommand, RedisConnection

BATCH_ENTRIES: Final = 256
BLOCK_MS: Final = 250
"""Interval at which a reader without new entries repeats its command, in order to detect a lost store."""
ANSWER_S_MAX: Final = 0.5
TRIM_ENTRIES: Final = 128
TRIM_BYTES: Final = 256 * 1024
"""Limits on entries that have been read but not trimmed: a number of entries or bytes, plus the last batch."""

_STREAM_START: Final = b"0-0"


def last_entry_command(key: bytes) -> RedisCommand:
    """Returns the command that reads the last entry of a stream."""
    return ("XREVRANGE", key, "+", "-", "COUNT", 1)


def position_of(answer: Any) -> bytes:
    """Returns the end of the stream from the reply to `last_entry_command`."""
    return answer[0][0] if answer else _STREAM_START


class StreamReader:
    def __init__(
        self, key: bytes, deliver: Callable[[list[bytes]], None], on_error: Callable[[Exception], None]
    ) -> None:
        self.key = key
        self._deliver = deliver
        self._on_refused = on_error
        self._wire: RedisConnection | None = None
        self.position: bytes | None = None
        """Position of the last entry read. None if the start position is not known yet."""
        self._untrimmed = 0
        self._untrimmed_bytes = 0
        self.entries = 0
        self.bytes = 0

    async def begin(self, wire: RedisConnection) -> None:
        """Continues from the last position or, the first time, from the end of the stream.

        Returns once the position is known.
        """
        [answer] = await wire.request([last_entry_command(self.key)], ANSWER_S_MAX)
        end = position_of(answer)
        if self.position is None:
            self.position = end
        elif _position_key(end) < _position_key(self.position):
            self.position = _STREAM_START
        self._wire = wire
        self._read_next()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def reset(self) -> None:
        """Stops reading. The remaining entries are left for the next reader."""
        self.close()
        self.position = None
        self._untrimmed = self._untrimmed_bytes = 0

    def trim_command(self) -> RedisCommand | None:
        """Returns the command that trims entries that were read, or None if there are too few."""
        if self._untrimmed < TRIM_ENTRIES and self._untrimmed_bytes < TRIM_BYTES:
            return None
        assert self.position is not None
        self._untrimmed = self._untrimmed_bytes = 0
        return ("XTRIM", self.key, "MINID", "~", self.position)

    def _read_next(self) -> None:
        assert self._wire is not None
        assert self.position is not None
        command = ("XREAD", "COUNT", BATCH_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS", self.key, self.position)
        self._wire.send([command], BLOCK_MS / 1_000 + ANSWER_S_MAX, self._on_reply)

    def _on_reply(self, answers: list[Any]) -> None:
        [answer] = answers
        if isinstance(answer, hiredis.ReplyError):
            self._on_refused(answer)
            return
        if answer is None:
            self._read_next()
            return
        batch = answer[0][1]
        self.position = batch[-1][0]
        # The store waits for more entries while this process handles the batch.
        self._read_next()
        entries = [fields[1] for _, fields in batch if _is_whole(fields)]
        size = sum(map(len, entries))
        self.entries += len(entries)
        self.bytes += size
        self._untrimmed += len(entries)
        self._untrimmed_bytes += size
        self._deliver(entries)


def _is_whole(fields: list[bytes]) -> bool:
    """Returns whether the checksum is correct. Dropped entries are sent again. Older versions write no checksum."""
    return len(fields) < 4 or fields[3] == b"%d" % crc32(fields[1])


def _position_key(position: bytes) -> tuple[int, int]:
    moment, _, number = position.partition(b"-")
    return int(moment), int(number or 0)
