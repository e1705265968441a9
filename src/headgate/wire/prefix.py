"""Computes the prefix hashes of a prompt.

An engine need not compute a prefix again that it still has in its cache. To send a request to an endpoint that has its
prefix, the scheduler compares hashes of prefixes of increasing length (`model/prefix.py`). They are computed here from
the bytes of the prompt as received: in a conversation each request starts with the whole previous one.

Fields that the engine puts before the prompt, such as tools, go into every hash but do not count towards its length:
their length is reported separately. Images do not count towards the length either, because their cost to a model has
little to do with the length of their encoding. Tenants have separate caches (`salts.py`) and separate hashes.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from headgate.model.prefix import HASH_BYTES, STEPS
from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.measure import BEFORE, PromptLength
from headgate.wire.media import has_media

SHORTEST_BYTES: Final = STEPS[0] * BYTES_PER_TOKEN
"""A prompt of fewer bytes has no hash."""
_MEDIA_BYTES_MAX: Final = 64 * 1024
"""So much of the end of an image tells it from others."""

_STEPS_BYTES: Final = tuple(step * BYTES_PER_TOKEN for step in STEPS)
_SALT: Final = "cache_salt"
_PROMPT: Final = {
    Api.CHAT: ("messages",),
    Api.COMPLETIONS: ("prompt",),
    Api.RESPONSES: ("instructions", "input"),
}
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY, _OBJECT = b"[{"
"""How their JSON begins."""

_Piece = tuple[memoryview, bool]
"""Bytes of a prompt, and whether they count for its length."""


def beginnings(fields: Mapping[str, msgspec.Raw], api: Api, length: PromptLength) -> bytes:
    """The hashes of a body that has been measured, packed; the same for all tenants."""
    if length.text < SHORTEST_BYTES or api not in _PROMPT:
        return b""
    before = [memoryview(fields[name]) for name in (_SALT, *BEFORE.get(api, ())) if name in fields]
    values = [memoryview(fields[name]) for name in _PROMPT[api] if name in fields]
    if sum(map(len, values)) == length.text:
        # All of it was counted as text, so that there is no need to look for images.
        return hashed(before, [(value, True) for value in values])
    return hashed(before, _pieces(values))


def hashed(before: Iterable[memoryview], pieces: Iterable[_Piece]) -> bytes:
    digest = blake2b(digest_size=HASH_BYTES)
    for each in before:
        digest.update(b"%d:" % len(each))
        digest.update(each)
    steps = iter(_STEPS_BYTES)
    hashes: list[bytes] = []
    left = next(steps)
    for piece, counts in pieces:
        rest = piece
        while counts and len(rest) >= left:
            digest.update(rest[:left])
            hashes.append(digest.digest())
            rest = rest[left:]
            left = next(steps, 0)
            if not left:
                return b"".join(hashes)
        digest.update(rest)
        left -= len(rest) if counts else 0
    return b"".join(hashes)


def salted(packed: bytes, tenant: str) -> bytes:
    """The hashes as they are for one tenant: equal only to those of the same tenant."""
    size = len(packed)
    salt = int.from_bytes(_salt(tenant) * (size // HASH_BYTES), "little")
    return (int.from_bytes(packed, "little") ^ salt).to_bytes(size, "little")


@lru_cache(maxsize=4096)
def _salt(tenant: str) -> bytes:
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def _pieces(values: Iterable[memoryview]) -> Iterator[_Piece]:
    for value in values:
        if value[0] == _ARRAY and has_media(value):
            for element in _ELEMENTS.decode(value):
                yield from _parts(memoryview(element))
        else:
            yield value, True


def _parts(element: memoryview) -> Iterator[_Piece]:
    """Of an element with images all that is text counts, and of an image a part is looked at."""
    if element[0] != _OBJECT or not has_media(element):
        yield element, True
        return
    for name, value in _FIELDS.decode(element).items():
        content = memoryview(value)
        yield memoryview(name.encode("utf-8", "surrogatepass")), False
        for part in _ELEMENTS.decode(content) if content[0] == _ARRAY else (value,):
            raw = memoryview(part)
            yield (raw[-_MEDIA_BYTES_MAX:], False) if has_media(raw) else (raw, True)
