"""What does a file of records hold, and how is one row found in it?

A file begins with the mark of its version; blocks follow, each of the rows of about a second. Before the rows of a
block stand its length, a checksum, the span of their arrivals, a hash of each request's id and the keys of all rows.
A file is searched by these alone, and only what is wanted of the rest is read. A block that ends too early was half
written when its process died, and one that is damaged ends what can be read of its file.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final
from zlib import compress, crc32, decompress
from zlib import error as CompressionError  # noqa: N812 (the library calls it so)

from msgspec import DecodeError, msgpack

from headgate.telemetry.records.row import Key, Row, decoded, encoded

MAGIC: Final = b"headgate records 1\n"
BLOCK_ROWS_MAX: Final = 512
_SMALL_ROWS: Final = 64
"""Where blocks have fewer rows than these on average, a file is better written anew."""
_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
_HASH_BYTES: Final = 8
_LEVEL: Final = 1
"""Of compression: the rows of a second are much alike, and more effort saves little more."""
_HEAD: Final = struct.Struct(">IIIIIqq")
"""Checksum of the rest, rows, bytes of hashes, keys and details, and the first and the last arrival."""
_keys_decoder: Final = msgpack.Decoder(list[Key])
_details_decoder: Final = msgpack.Decoder(list[bytes])
_encoder: Final = msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block stands, and what it spans."""

    path: Path
    at: int
    """Where its hashes begin."""
    rows: int
    ids: int
    keys: int
    details: int
    """Bytes of each part."""
    checksum: int
    first: int
    last: int


class Unreadable(Exception):
    """What a block says cannot be read."""


def packed(rows: Sequence[Row]) -> bytes:
    """A block of these rows."""
    assert rows, "an empty block says nothing"
    return _packed([row.key for row in rows], [encoded(row) for row in rows])


def _packed(of_rows: Sequence[Key], written: Sequence[bytes]) -> bytes:
    ids = b"".join(id_hash(key.request_id) for key in of_rows)
    keys = compress(_encoder.encode(of_rows), _LEVEL)
    details = compress(_encoder.encode(written), _LEVEL)
    arrivals = [key.arrived for key in of_rows]
    body = ids + keys + details
    head = _HEAD.pack(crc32(body), len(of_rows), len(ids), len(keys), len(details), min(arrivals), max(arrivals))
    return head + body


def writable(row: Row) -> bool:
    """Whether it can be packed: not one that holds half a character, or a number that no computer counts to."""
    try:
        packed([row])
    except (ValueError, OverflowError, TypeError):
        return False
    return True


def merged(path: Path) -> bytes | None:
    """The same file with fewer and larger blocks; None where it would not gain by it. Raises `Unreadable`."""
    found = [block for block, _ in blocks(path)]
    if len(found) < 2 or sum(each.rows for each in found) >= _SMALL_ROWS * len(found):
        return None
    content, keys, written = [MAGIC], list[Key](), list[bytes]()
    for block in found:
        if len(keys) + block.rows > BLOCK_ROWS_MAX:
            content.append(_packed(keys, written))
            keys, written = [], []
        keys += keys_of(block)
        written += _details_of(block)
    return b"".join([*content, _packed(keys, written)])


def id_hash(request_id: str) -> bytes:
    return blake2b(request_id.encode(), digest_size=_HASH_BYTES).digest()


def blocks(path: Path) -> Iterator[tuple[Block, bytes]]:
    """Every block that was written whole, with the hashes of its ids. What was deleted meanwhile has none.

    Raises `Unreadable` where something else stands than blocks; that the last one is not whole is no wonder."""
    try:
        with path.open("rb") as file:
            mark = file.read(len(MAGIC))
            if mark != MAGIC:
                if MAGIC.startswith(mark):
                    return
                raise Unreadable
            at, size = len(MAGIC), path.stat().st_size
            while at + _HEAD.size <= size:
                head = file.read(_HEAD.size)
                checksum, rows, ids, keys, details, first, last = _HEAD.unpack(head)
                length = ids + keys + details
                begin = at + _HEAD.size
                sound = 0 < rows <= BLOCK_ROWS_MAX and ids == rows * _HASH_BYTES and length <= _BLOCK_BYTES_MAX
                if not sound:
                    raise Unreadable
                if begin + length > size:
                    return
                block = Block(path, begin, rows, ids, keys, details, checksum, first, last)
                yield block, file.read(ids)
                at = begin + length
                file.seek(at)
    except FileNotFoundError:
        return
    except (OSError, struct.error) as error:
        raise Unreadable from error


def place_of(hashes: bytes, wanted: bytes) -> int | None:
    """Which of the rows has this hash."""
    at = hashes.rfind(wanted)
    while at > 0 and at % _HASH_BYTES:
        at = hashes.rfind(wanted, 0, at + _HASH_BYTES - 1)
    return None if at < 0 or at % _HASH_BYTES else at // _HASH_BYTES


def keys_of(block: Block) -> list[Key]:
    """Raises `Unreadable`."""
    written = _read(block, block.at + block.ids, block.keys)
    try:
        return _keys_decoder.decode(decompress(written))
    except (CompressionError, DecodeError) as error:
        raise Unreadable from error


def rows_of(block: Block, places: Sequence[int]) -> list[Row]:
    """Raises `Unreadable`."""
    written = _details_of(block)
    try:
        return [decoded(written[place]) for place in places]
    except (DecodeError, IndexError) as error:
        raise Unreadable from error


def _details_of(block: Block) -> list[bytes]:
    """The rows as they were written. Raises `Unreadable`."""
    body = _read(block, block.at, block.ids + block.keys + block.details)
    if crc32(body) != block.checksum:
        raise Unreadable
    try:
        return _details_decoder.decode(decompress(body[block.ids + block.keys :]))
    except (CompressionError, DecodeError) as error:
        raise Unreadable from error


def _read(block: Block, at: int, length: int) -> bytes:
    try:
        with block.path.open("rb") as file:
            file.seek(at)
            written = file.read(length)
    except OSError as error:
        raise Unreadable from error
    if len(written) < length:
        raise Unreadable
    return written
