"""Size lines of the chunked transfer coding, by the length of a read.

Engines usually send each event of a stream as one chunk, which arrives in one read. The length of such a read
determines the size line with which it must begin, so a comparison replaces parsing.
"""

from typing import Final

READ_BYTES_MAX: Final = 1024
"""Maximum length of a read in the table."""
END_OF_CHUNK: Final = b"\r\n"
_NO_CHUNK: Final = (b"", -1)


def _chunk_in(read_bytes: int) -> tuple[bytes, int]:
    """Returns the size line and the size of a chunk that, with size line and end, is `read_bytes` long.

    The last chunk of a body, which is empty, is not in the table.
    """
    for digits in range(1, 4):
        size = read_bytes - digits - 2 * len(b"\r\n")
        line = b"%x\r\n" % size
        if size > 0 and len(line) == digits + len(b"\r\n"):
            return line, size
    return _NO_CHUNK


CHUNKS: Final = tuple(_chunk_in(read_bytes) for read_bytes in range(READ_BYTES_MAX + 1))
"""Size line and size of the chunk that fills a read, by the length of the read. The size is -1 if there is none."""
