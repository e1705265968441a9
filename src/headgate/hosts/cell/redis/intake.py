"""How is a stream read, and what is done with what was read?

By one connection that waits for more, in batches, each told as a list. Where it has got to outlives the connection; but
a stream that ends before that place is another one, of a store that came back empty or with an old copy, and is read
from its beginning. What has been read is trimmed away now and then, by whoever writes next.
"""

from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import hiredis

from headgate.hosts.cell.redis.wire import Command, Wire

BATCH: Final = 256
BLOCK_MS: Final = 250
"""So often a reader that hears nothing asks again, and finds out whether the store is there."""
ANSWER_S_MAX: Final = 0.5
TRIM_ENTRIES: Final = 128
TRIM_BYTES: Final = 256 * 1024
"""What was read and is not trimmed yet: so many entries or bytes, and what came with the last batch."""

_BEGINNING: Final = b"0-0"


def end_of(key: bytes) -> Command:
    """Asks for the last entry of a stream."""
    return ("XREVRANGE", key, "+", "-", "COUNT", 1)


def position_of(answer: Any) -> bytes:
    """What `end_of` was answered with: where the stream ends."""
    return answer[0][0] if answer else _BEGINNING


class Intake:
    def __init__(
        self, key: bytes, deliver: Callable[[list[bytes]], None], on_refused: Callable[[Exception], None]
    ) -> None:
        self.key = key
        self._deliver = deliver
        self._on_refused = on_refused
        self._wire: Wire | None = None
        self.position: bytes | None = None
        """Of the last entry that was read; None where nobody has said yet where to begin."""
        self._untrimmed = 0
        self._untrimmed_bytes = 0
        self.entries = 0
        self.bytes = 0

    async def begin(self, wire: Wire) -> None:
        """Go on from where it was; the first time, from the end. Returns when that place is known."""
        [answer] = await wire.answers([end_of(self.key)], ANSWER_S_MAX)
        end = position_of(answer)
        if self.position is None:
            self.position = end
        elif _order(end) < _order(self.position):
            self.position = _BEGINNING
        self._wire = wire
        self._ask()

    def end(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def forget(self) -> None:
        """Reads no more, and leaves what is there to whoever reads next."""
        self.end()
        self.position = None
        self._untrimmed = self._untrimmed_bytes = 0

    def trim(self) -> Command | None:
        """What frees the store of what was read, when that is worth a command."""
        if self._untrimmed < TRIM_ENTRIES and self._untrimmed_bytes < TRIM_BYTES:
            return None
        assert self.position is not None
        self._untrimmed = self._untrimmed_bytes = 0
        return ("XTRIM", self.key, "MINID", "~", self.position)

    def _ask(self) -> None:
        assert self._wire is not None
        assert self.position is not None
        command = ("XREAD", "COUNT", BATCH, "BLOCK", BLOCK_MS, "STREAMS", self.key, self.position)
        self._wire.ask([command], BLOCK_MS / 1_000 + ANSWER_S_MAX, self._read)

    def _read(self, answers: list[Any]) -> None:
        [answer] = answers
        if isinstance(answer, hiredis.ReplyError):
            self._on_refused(answer)
            return
        if answer is None:
            self._ask()
            return
        batch = answer[0][1]
        self.position = batch[-1][0]
        # The store looks for more while this process is busy with what came.
        self._ask()
        entries = [fields[1] for _, fields in batch if _is_whole(fields)]
        size = sum(map(len, entries))
        self.entries += len(entries)
        self.bytes += size
        self._untrimmed += len(entries)
        self._untrimmed_bytes += size
        self._deliver(entries)


def _is_whole(fields: list[bytes]) -> bool:
    """Whether the checksum of an entry is right. Dropped entries are sent again. Older versions write no checksum."""
    return len(fields) < 4 or fields[3] == b"%d" % crc32(fields[1])


def _order(position: bytes) -> tuple[int, int]:
    moment, _, number = position.partition(b"-")
    return int(moment), int(number or 0)
