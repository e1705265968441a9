"""How closely is an engine asked to look at the images of a request?

`detail` stands beside the address of an image: in the messages of a chat inside of `image_url`, in the items of
responses next to it. A request without images is not opened, and a message in which nothing is lowered stays the bytes
it came as.
"""

import re
from typing import Final, TypeVar

import msgspec

from headgate.model.caps import ImageDetail
from headgate.wire.fields import FIELDS, Fields

_T = TypeVar("_T")
_IMAGES: Final = re.compile(rb'"(?:image_url|input_image)"')
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_ENCODER: Final = msgspec.json.Encoder()
_DETAILS: Final = tuple(ImageDetail)
_CONTENT: Final = ("content", "output")
"""Where the parts of a message, or of what a tool has found, stand."""


def lowered(raw: bytes, most: ImageDetail) -> bytes | None:
    """The messages or items with every image's detail at this most; None where none was beyond it."""
    if _IMAGES.search(raw) is None:
        return None
    items = _decoded(_ITEMS, raw)
    changed = [_lowered_item(each, most) for each in items or ()]
    return _joined(items or [], changed)


def _lowered_item(item: msgspec.Raw, most: ImageDetail) -> bytes | None:
    if _IMAGES.search(bytes(item)) is None or (fields := _decoded(FIELDS, item)) is None:
        return None
    found = False
    for name in _CONTENT:
        parts = _decoded(_ITEMS, fields.get(name, msgspec.Raw(b"null")))
        if parts is not None and (content := _joined(parts, [_lowered_part(each, most) for each in parts])) is not None:
            fields[name] = msgspec.Raw(content)
            found = True
    return _ENCODER.encode(fields) if found else None


def _lowered_part(part: msgspec.Raw, most: ImageDetail) -> bytes | None:
    fields = _decoded(FIELDS, part)
    match None if fields is None else _decoded(_STRING, fields.get("type", msgspec.Raw(b"null"))):
        case "input_image":
            assert fields is not None
            return _ENCODER.encode(_with(fields, most)) if _is_beyond(fields, most) else None
        case "image_url":
            assert fields is not None
            image = _decoded(FIELDS, fields.get("image_url", msgspec.Raw(b"null")))
            if image is None or not _is_beyond(image, most):
                return None
            return _ENCODER.encode(fields | {"image_url": msgspec.Raw(_ENCODER.encode(_with(image, most)))})
        case _:
            return None


def _is_beyond(image: Fields, most: ImageDetail) -> bool:
    """Without a word an engine does as it likes; a word that only some engine knows may mean anything."""
    asked = _decoded(_STRING, image.get("detail", msgspec.Raw(b"null"))) or ImageDetail.AUTO
    return asked not in _DETAILS[: _DETAILS.index(most) + 1]


def _with(image: Fields, most: ImageDetail) -> Fields:
    return image | {"detail": msgspec.Raw(_ENCODER.encode(most))}


def _joined(items: list[msgspec.Raw], changed: list[bytes | None]) -> bytes | None:
    if not any(changed):
        return None
    pieces = (bytes(item) if new is None else new for item, new in zip(items, changed, strict=True))
    return b"[" + b",".join(pieces) + b"]"


def _decoded(decoder: msgspec.json.Decoder[_T], raw: bytes | msgspec.Raw) -> _T | None:
    """None where it is of another kind: whether an engine accepts that is the engine's to say."""
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        return None
