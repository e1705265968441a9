"""Estimates the prompt tokens for images, audio, video and files.

An image's token count has little to do with its encoded length, and only the model's own processor can compute it. Each
part therefore counts as a fixed number of tokens by type (`MEDIA_TOKENS`). The engine reports the actual number at the
end of the response.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.model.units import BYTES_PER_TOKEN

IMAGE_TOKENS: Final = 1_024
AUDIO_TOKENS: Final = 1_024
VIDEO_TOKENS: Final = 8_192
FILE_TOKENS: Final = 4_096

MEDIA_TOKENS: Final[Mapping[str, int]] = {
    "image_url": IMAGE_TOKENS,
    "image_embeds": IMAGE_TOKENS,
    "input_audio": AUDIO_TOKENS,
    "audio_url": AUDIO_TOKENS,
    "video_url": VIDEO_TOKENS,
    "file": FILE_TOKENS,
    "file_data": FILE_TOKENS,
    "file_id": FILE_TOKENS,
    "file_url": FILE_TOKENS,
}
"""Content part fields that contain media, with the number of tokens that each counts as."""

MEDIA_KINDS: Final = (*MEDIA_TOKENS, "input_image", "input_file")
# Finds the names above. Few branches at each quote make it twice as fast as a list of the names.
_MEDIA: Final = re.compile(
    rb'"(?:i(?:mage_(?:url|embeds)|nput_(?:audio|image|file))|(?:audio|video)_url|file(?:_(?:data|id|url))?)"'
)
_KIND: Final = "type"


def escaped_names(*names: str) -> re.Pattern[bytes]:
    """Returns a pattern that finds these names in JSON even if some of their letters are escaped, as in `im\\u0061ge`.

    JSON encoders do not write letters in this way, so search only JSON that `may_escape_names`.
    """

    def spelling(letter: str) -> str:
        code = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{ord(letter):04x}")
        return rf"(?:{letter}|\\u{code})"

    spelled = ("".join(map(spelling, name)) for name in names)
    return re.compile(f'"(?:{"|".join(spelled)})"'.encode())


def may_escape_names(raw: bytes) -> bool:
    """Returns whether this JSON contains an escaped character below U+0100. All letters of names are among them."""
    return raw.find(b"\\u00") >= 0


_ESCAPED_MEDIA: Final = escaped_names(*MEDIA_KINDS)


def has_media(raw: bytes | memoryview) -> bool:
    """Returns whether this JSON may contain media parts."""
    if _MEDIA.search(raw) is not None:
        return True
    text = bytes(raw)
    return may_escape_names(text) and _ESCAPED_MEDIA.search(text) is not None


def part_bytes(part: Mapping[str, msgspec.Raw]) -> int:
    """Returns the length of one content part. Media is counted by type, everything else in bytes."""
    length = 0
    for name, value in part.items():
        if (tokens := MEDIA_TOKENS.get(name)) is not None:
            length += tokens * BYTES_PER_TOKEN
        elif name != _KIND:
            length += len(memoryview(value))
    return length
