"""Split bytes into random reads.

The split depends only on the bytes. The same input is therefore always split in the same way, and seeds contain nothing
but readable content.
"""

import random
import zlib


def cut(data: bytes) -> list[bytes]:
    chance = random.Random(zlib.crc32(data))
    if chance.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in pieces if piece]  # An empty read would mean the end of the stream.
