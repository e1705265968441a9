"""Into which reads does a stream of bytes fall?

The cuts follow from the bytes themselves, so that an input is plain content that a person can read, and the same input
is always cut in the same way.
"""

import random
import zlib


def cut(data: bytes) -> list[bytes]:
    chance = random.Random(zlib.crc32(data))
    if chance.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return [piece for piece in pieces if piece]  # No read is empty: that would be the end.
