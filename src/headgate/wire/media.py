"""Estimates the prompt tokens of images, audio, video and files.

The number of tokens of an image has little to do with the length of its encoding, and only the model's own processor
could compute it. So each part counts as a fixed number of tokens by type (`MEDIA_TOKENS`). The engine reports the
actual number when the answer has ended.
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
"""Fields of a content part that contain media, with the number of tokens that each counts as."""

_KINDS: Final = (*MEDIA_TOKENS, "input_image", "input_file")
_MEDIA: Final = re.compile(rb'"(?:%b)"' % b"|".join(kind.encode() for kind in _KINDS))
_KIND: Final = "type"


def has_media(raw: bytes | memoryview) -> bool:
    """Whether parts of this JSON may contain media, often as megabytes of base64."""
    return _MEDIA.search(raw) is not None


def part_bytes(part: Mapping[str, msgspec.Raw]) -> int:
    """Length of one content part: media counts by type, everything else in bytes."""
    length = 0
    for name, value in part.items():
        if (tokens := MEDIA_TOKENS.get(name)) is not None:
            length += tokens * BYTES_PER_TOKEN
        elif name != _KIND:
            length += len(memoryview(value))
    return length
