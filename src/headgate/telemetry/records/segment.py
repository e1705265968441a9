"""Record file format.

A file starts with magic bytes that identify the format version, followed by blocks that hold about one second of rows
each. A block starts with a header (checksum, lengths and the range of arrival times), the hashes of the request ids and
the keys of all rows. Searches scan only these, and read the rows only in matching blocks. A truncated block is the last
one that its process wrote before it died. Reading stops at the first damaged block.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final
from zlib import compress, crc32, decompress
from zlib import error as CompressionError  # noqa: N812 (the library's name)

from msgspec import DecodeError, msgpack

from headgate.telemetry.records.row import RecordKey, RecordRow, decode_row, encode_row

MAGIC: Final = b"headgate records 1\n"
BLOCK_ROWS_MAX: Final = 512
_COMPACT_BELOW_ROWS: Final = 64
"""Mean number of rows per block below which a file is rewritten with larger blocks."""
_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024
_HASH_BYTES: Final = 8
_COMPRESSION_LEVEL: Final = 1
"""Compression level. Rows are very similar, so a higher level saves little."""
_HEADER: Final = struct.Struct(">IIIIIqq")
"""Block header: checksum, number of rows, size of hashes, keys and details, first and last arrival."""
_keys_decoder: Final = msgpack.Decoder(list[RecordKey])
_details_decoder: Final = msgpack.Decoder(list[bytes])
_encoder: Final = msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Block:
    """Location and header of a block."""

    path: Path
    offset: int
    """Offset of the hashes."""
    rows: int
    ids_bytes: int
    keys_bytes: int
    details_bytes: int
    """Size of the row details in bytes; `ids_bytes` and `keys_bytes` are the sizes of the other two parts."""
    checksum: int
    first_arrival: int
    last_arrival: int


class UnreadableSegment(Exception):
    """A file or block is damaged or has another format."""


def pack_block(rows: Sequence[RecordRow]) -> bytes:
    """Encodes the rows as one block."""
    assert rows, "a block needs at least one row"
    return _pack_encoded([row.key for row in rows], [encode_row(row) for row in rows])


def _pack_encoded(of_rows: Sequence[RecordKey], written: Sequence[bytes]) -> bytes:
    ids = b"".join(id_hash(key.request_id) for key in of_rows)
    keys = compress(_encoder.encode(of_rows), _COMPRESSION_LEVEL)
    details = compress(_encoder.encode(written), _COMPRESSION_LEVEL)
    arrivals = [key.arrived_at for key in of_rows]
    body = ids + keys + details
    head = _HEADER.pack(crc32(body), len(of_rows), len(ids), len(keys), len(details), min(arrivals), max(arrivals))
    return head + body


def is_packable(row: RecordRow) -> bool:
    """Whether the row can be encoded. Lone surrogates and integers wider than 64 bits cannot be."""
    try:
        pack_block([row])
    except (ValueError, OverflowError, TypeError):
        return False
    return True


def compacted(path: Path) -> bytes | None:
    """The file's content with fewer, larger blocks; None if rewriting is not worthwhile. Raises `UnreadableSegment`."""
    found = [block for block, _ in blocks(path)]
    if len(found) < 2 or sum(each.rows for each in found) >= _COMPACT_BELOW_ROWS * len(found):
        return None
    content, keys, written = [MAGIC], list[RecordKey](), list[bytes]()
    for block in found:
        if len(keys) + block.rows > BLOCK_ROWS_MAX:
            content.append(_pack_encoded(keys, written))
            keys, written = [], []
        keys += keys_of(block)
        written += _details_of(block)
    return b"".join([*content, _pack_encoded(keys, written)])


def id_hash(request_id: str) -> bytes:
    return blake2b(request_id.encode(), digest_size=_HASH_BYTES).digest()


def blocks(path: Path) -> Iterator[tuple[Block, bytes]]:
    """Complete blocks, each with its id hashes. Yields nothing if the file was deleted in the meantime.

    Raises `UnreadableSegment` for damaged content. A truncated last block is not an error.
    """
    try:
        with path.open("rb") as file:
            mark = file.read(len(MAGIC))
            if mark != MAGIC:
                if MAGIC.startswith(mark):
                    return
                raise UnreadableSegment
            at, size = len(MAGIC), path.stat().st_size
            while at + _HEADER.size <= size:
                head = file.read(_HEADER.size)
                checksum, rows, ids, keys, details, first, last = _HEADER.unpack(head)
                length = ids + keys + details
                begin = at + _HEADER.size
                sound = 0 < rows <= BLOCK_ROWS_MAX and ids == rows * _HASH_BYTES and length <= _BLOCK_BYTES_MAX
                if not sound:
                    raise UnreadableSegment
                if begin + length > size:
                    return
                block = Block(path, begin, rows, ids, keys, details, checksum, first, last)
                yield block, file.read(ids)
                at = begin + length
                file.seek(at)
    except FileNotFoundError:
        return
    except (OSError, struct.error) as error:
        raise UnreadableSegment from error


def row_index(hashes: bytes, wanted: bytes) -> int | None:
    """Index of the last row with this hash; None if there is none."""
    at = hashes.rfind(wanted)
    while at > 0 and at % _HASH_BYTES:
        at = hashes.rfind(wanted, 0, at + _HASH_BYTES - 1)
    return None if at < 0 or at % _HASH_BYTES else at // _HASH_BYTES


def keys_of(block: Block) -> list[RecordKey]:
    """Keys of a block's rows. Raises `UnreadableSegment`."""
    written = _read(block, block.offset + block.ids_bytes, block.keys_bytes)
    try:
        return _keys_decoder.decode(decompress(written))
    except (CompressionError, DecodeError) as error:
        raise UnreadableSegment from error


def rows_of(block: Block, places: Sequence[int]) -> list[RecordRow]:
    """Rows of a block. Raises `UnreadableSegment`."""
    written = _details_of(block)
    try:
        return [decode_row(written[place]) for place in places]
    except (DecodeError, IndexError) as error:
        raise UnreadableSegment from error


def _details_of(block: Block) -> list[bytes]:
    """The encoded rows. Raises `UnreadableSegment`."""
    body = _read(block, block.offset, block.ids_bytes + block.keys_bytes + block.details_bytes)
    if crc32(body) != block.checksum:
        raise UnreadableSegment
    try:
        return _details_decoder.decode(decompress(body[block.ids_bytes + block.keys_bytes :]))
    except (CompressionError, DecodeError) as error:
        raise UnreadableSegment from error


def _read(block: Block, at: int, length: int) -> bytes:
    try:
        with block.path.open("rb") as file:
            file.seek(at)
            written = file.read(length)
    except OSError as error:
        raise UnreadableSegment from error
    if len(written) < length:
        raise UnreadableSegment
    return written
