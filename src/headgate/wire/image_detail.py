"""Lowers the `detail` of images in a request.

`detail` is inside `image_url` in chat messages, and beside it in the items of /v1/responses. Requests without images
are not parsed, and unchanged messages are kept as received.
"""

import re
from typing import Final, TypeVar

import msgspec

from headgate.model.caps import ImageDetail
from headgate.wire.fields import FIELDS, Fields
from headgate.wire.media import escaped_names, may_escape_names

_T = TypeVar("_T")
_IMAGES: Final = re.compile(rb'"(?:image_url|input_image)"')
_ESCAPED_IMAGES: Final = escaped_names("image_url", "input_image")
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_ENCODER: Final = msgspec.json.Encoder()
_DETAILS: Final = tuple(ImageDetail)
_CONTENT: Final = ("content", "output")
"""Fields that contain the parts of a message or of a tool's output."""


def lower_detail(raw: bytes, most: ImageDetail) -> bytes | None:
    """Lowers the detail of each image to at most `most`. Returns None if nothing changed."""
    if not _has_images(raw):
        return None
    items = _decoded(_ITEMS, raw)
    changed = [_lower_item(each, most) for each in items or ()]
    return _joined(items or [], changed)


def _has_images(raw: bytes) -> bool:
    if _IMAGES.search(raw) is not None:
        return True
    return may_escape_names(raw) and _ESCAPED_IMAGES.search(raw) is not None


def _lower_item(item: msgspec.Raw, most: ImageDetail) -> bytes | None:
    if not _has_images(bytes(item)) or (fields := _decoded(FIELDS, item)) is None:
        return None
    found = False
    for name in _CONTENT:
        parts = _decoded(_ITEMS, fields.get(name, msgspec.Raw(b"null")))
        if parts is not None and (content := _joined(parts, [_lower_part(each, most) for each in parts])) is not None:
            fields[name] = msgspec.Raw(content)
            found = True
    return _ENCODER.encode(fields) if found else None


def _lower_part(part: msgspec.Raw, most: ImageDetail) -> bytes | None:
    fields = _decoded(FIELDS, part)
    match None if fields is None else _decoded(_STRING, fields.get("type", msgspec.Raw(b"null"))):
        case "input_image":
            assert fields is not None
            return _ENCODER.encode(_with_detail(fields, most)) if _exceeds(fields, most) else None
        case "image_url":
            assert fields is not None
            image = _decoded(FIELDS, fields.get("image_url", msgspec.Raw(b"null")))
            if image is None or not _exceeds(image, most):
                return None
            return _ENCODER.encode(fields | {"image_url": msgspec.Raw(_ENCODER.encode(_with_detail(image, most)))})
        case _:
            return None


def _exceeds(image: Fields, most: ImageDetail) -> bool:
    """Returns whether the detail exceeds `most`.

    A missing detail counts as `auto`, and an unknown detail always exceeds it.
    """
    asked = _decoded(_STRING, image.get("detail", msgspec.Raw(b"null"))) or ImageDetail.AUTO
    return asked not in _DETAILS[: _DETAILS.index(most) + 1]


def _with_detail(image: Fields, most: ImageDetail) -> Fields:
    return image | {"detail": msgspec.Raw(_ENCODER.encode(most))}


def _joined(items: list[msgspec.Raw], changed: list[bytes | None]) -> bytes | None:
    if not any(changed):
        return None
    pieces = (bytes(item) if new is None else new for item, new in zip(items, changed, strict=True))
    return b"[" + b",".join(pieces) + b"]"


def _decoded(decoder: msgspec.json.Decoder[_T], raw: bytes | msgspec.Raw) -> _T | None:
    """Returns the decoded value, or None if it has another type, which is left for the engine to check."""
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        return None
