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


def has_media(raw: bytes | memoryview) -> bool:
    """Returns whether this JSON may contain media parts."""
    return _MEDIA.search(raw) is not None


def part_bytes(part: Mapping[str, msgspec.Raw]) -> int:
    """Returns the length of one content part. Media is counted by type, everything else in bytes."""
    length = 0
    for name, value in part.items():
        if (tokens := MEDIA_TOKENS.get(name)) is not None:
            length += tokens * BYTES_PER_TOKEN
        elif name != _KIND:
            length += len(memoryview(value))
    return length
