"""How does a usage row look to COPY?

In PostgreSQL's own binary form, made by hand: one of these is made for every attempt, and asyncpg's own
`copy_records_to_table` takes 1.4 to 2 times the CPU (11 µs per row against 5.5; `python -m bench.ledger_copy`).
Numbers come first, since all of them are packed at once; then the texts that are alike in most rows, which are kept
packed; then what differs in each.
"""

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from headgate.ports.ledger import UsageRow

COLUMNS: Final = (
    *("at", "attempt", "correction", "stream", "tokens_in", "tokens_cached", "tokens_out", "tokens_reasoning"),
    *("queue_us", "duration_us", "input_us", "output_us", "overhead_us", "level"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "reserved_nano_usd"),
    *("tenant", "class", "model", "served_model", "pool", "endpoint", "api", "usage_source"),
    *("outcome", "ending", "cause", "payer", "request", "ttft_us", "metadata"),
)
_COUNT: Final = len(COLUMNS)
_BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_NUMBERS: Final = struct.Struct(">h iq ih ih i? ii ii ii ii iq iq iq iq iq ih iq iq iq iq")
"""How many columns there are, and of each number its length before it."""
_LENGTH: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">iq")
_JSON_VERSION: Final = b"\1"
_JSON: Final = msgspec.json.Encoder()
_2000_US: Final = 946_684_800_000_000
"""Where PostgreSQL's time begins, in Unix time."""
_TEXTS_MAX: Final = 16_384

Unfit = struct.error
"""What a number raises that its column has no room for."""


class _Packed(dict[str, bytes]):
    """Texts with their lengths before them, made when they are first asked for."""

    def __missing__(self, text: str) -> bytes:
        written = text.encode()
        packed = self[text] = _LENGTH.pack(len(written)) + written
        return packed


_packed: Final = _Packed()


async def chunks(rows: Sequence[UsageRow], rows_per_turn: int, *, texts_max: int = _TEXTS_MAX) -> AsyncGenerator[bytes]:
    """All that COPY reads, a little in each turn of the loop."""
    yield _BEGIN
    for first in range(0, len(rows), rows_per_turn):
        if len(_packed) > texts_max:
            _packed.clear()
        yield b"".join([copied(row) for row in rows[first : first + rows_per_turn]])
        await asyncio.sleep(0)
    yield _END


# fmt: off
def copied(row: UsageRow) -> bytes:
    """In the order of `COLUMNS`. Each value is looked up and handed over once: this is made for every attempt."""
    numbers = _NUMBERS.pack(
        _COUNT, 8, row.at // 1_000 - _2000_US, 2, row.attempt, 2, row.correction, 1, row.stream,
        4, row.tokens_in, 4, row.tokens_cached, 4, row.tokens_out, 4, row.tokens_reasoning,
        8, row.queue_us, 8, row.duration_us, 8, row.input_us, 8, row.output_us, 8, row.overhead_us, 2, row.level,
        8, row.input_nano_usd, 8, row.output_nano_usd, 8, row.overhead_nano_usd, 8, row.reserved_nano_usd,
    )
    request = row.request.encode()
    ttft = _NULL if row.ttft_us is None else _LONG.pack(8, row.ttft_us)
    packed = _packed
    return b"".join((
        numbers, packed[row.tenant], packed[row.service_class], packed[row.model], packed[row.served_model],
        packed[row.pool], packed[row.endpoint], packed[row.api], packed[row.usage_source], packed[row.outcome],
        packed[row.ending], packed[row.cause], packed[row.payer], _LENGTH.pack(len(request)), request, ttft,
        _metadata(row.metadata) if row.metadata else _NULL,
    ))
# fmt: on


def _metadata(given: tuple[tuple[str, str], ...]) -> bytes:
    written = _JSON.encode(dict(given))
    return _LENGTH.pack(1 + len(written)) + _JSON_VERSION + written
