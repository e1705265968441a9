"""Estimates the duration of an audio file without decoding it.

The header of an uncompressed WAV file gives its sample rate and the size of a sample. All other files count as
compressed speech of 64 kbit/s. The engine reports the actual duration or the tokens at the end of its response, and the
scheduler learns the ratio of the two for each tenant and model.
"""

import math
from typing import Final

from headgate.model.units import BYTES_PER_TOKEN

TOKENS_PER_SECOND: Final = 50
"""Number of tokens that a second of audio counts as: the positions of Whisper's encoder."""
COMPRESSED_BYTES_PER_SECOND: Final = 8_000
_WAV_RATE_MIN: Final = 4_000
_WAV_RATE_MAX: Final = 768_000
"""Bytes per second of two channels of 32 bits at 96 kHz. A larger value in a header is not plausible."""
WAV_HEADER_BYTES: Final = 36
"""Number of bytes of a file that the estimate needs."""
_UNCOMPRESSED: Final = (b"\x01\0", b"\x03\0", b"\xfe\xff")
"""Format tags of integer samples, of floating-point samples and of the extended header that names one of these."""
SECONDS_MAX: Final = 2**31 // TOKENS_PER_SECOND


def audio_bytes(start: bytes, size: int) -> int:
    """Returns the number of prompt bytes that a file of this size counts as. `start` is its first bytes."""
    return max(1, size * TOKENS_PER_SECOND * BYTES_PER_TOKEN // _bytes_per_second(start))


def tokens_of(seconds: float) -> int | None:
    """Returns the number of tokens for a reported duration. None if the duration is not plausible."""
    return math.ceil(seconds * TOKENS_PER_SECOND) if 0 <= seconds <= SECONDS_MAX else None


def _bytes_per_second(start: bytes) -> int:
    # Decoders do not need the bytes per second in the header, so the caller could write any number there.
    if start.startswith(b"RIFF") and start[8:16] == b"WAVEfmt " and start[20:22] in _UNCOMPRESSED:
        channels, sample_rate = int.from_bytes(start[22:24], "little"), int.from_bytes(start[24:28], "little")
        rate = sample_rate * channels * int.from_bytes(start[34:36], "little") // 8
        if _WAV_RATE_MIN <= rate <= _WAV_RATE_MAX:
            return rate
    return COMPRESSED_BYTES_PER_SECOND
