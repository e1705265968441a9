"""Computes the prefix hashes of a prompt.

An engine can skip a prefix that is still in its cache. To send a request to an endpoint that has its prefix, the
scheduler compares hashes of prefixes of increasing length (`model/prefix.py`). The hashes are computed from the
received bytes of the prompt, because in a conversation each request starts with the complete previous one.

Fields that the engine puts before the prompt, such as tools, are part of every hash but do not count toward its length,
which is reported separately. Images do not count toward the length either, because their cost has little to do with
their encoded length. Tenants have separate caches (`cache_salts.py`) and separate hashes.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from headgate.model.prefix import HASH_BYTES, STEP_TOKENS
from headgate.model.ticket import Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.media import has_media
from headgate.wire.messages_length import may_have_media
from headgate.wire.prompt_length import PREAMBLE_FIELDS, PromptLength

HASHED_BYTES_MIN: Final = STEP_TOKENS[0] * BYTES_PER_TOKEN
"""Minimum length of a prompt for it to have a hash, in bytes."""
_MEDIA_BYTES_MAX: Final = 64 * 1024
"""Number of bytes at the end of an image that are hashed, enough to tell images apart."""

_STEPS_BYTES: Final = tuple(step * BYTES_PER_TOKEN for step in STEP_TOKENS)
_SALT: Final = "cache_salt"
_PROMPT: Final = {
    Api.CHAT: ("messages",),
    Api.COMPLETIONS: ("prompt",),
    Api.RESPONSES: ("instructions", "input"),
    Api.MESSAGES: ("system", "messages"),
}
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BILLING: Final = b'"x-anthropic-billing-header:'
_MESSAGES: Final = Api.MESSAGES
_ARRAY, _OBJECT = b"[{"
"""First byte of a JSON array or object."""

_Piece = tuple[memoryview, bool]
"""Bytes of a prompt, and whether they count toward its length."""


def prefix_hashes(fields: Mapping[str, msgspec.Raw], api: Api, length: PromptLength) -> bytes:
    """Returns the packed prefix hashes of a measured body. They are the same for all tenants."""
    if length.text < HASHED_BYTES_MIN or api not in _PROMPT:
        return b""
    before = [memoryview(fields[name]) for name in (_SALT, *PREAMBLE_FIELDS.get(api, ())) if name in fields]
    values = [memoryview(fields[name]) for name in _PROMPT[api] if name in fields]
    if api is _MESSAGES:
        return hash_pieces(before, _message_pieces(values))
    if sum(map(len, values)) == length.text:
        # Everything was counted as text, so there are no images.
        return hash_pieces(before, [(value, True) for value in values])
    return hash_pieces(before, _pieces(values))


def hash_pieces(before: Iterable[memoryview], pieces: Iterable[_Piece]) -> bytes:
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


def salt_hashes(packed: bytes, tenant: str) -> bytes:
    """Returns the hashes salted for one tenant, so that they never match another tenant's."""
    if not packed:
        return packed
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


def _message_pieces(values: Iterable[memoryview]) -> Iterator[_Piece]:
    """Yields the pieces of the system prompt and the messages of the Messages API.

    A message with an image or a document does not count. Claude Code puts a block with a request's billing data into
    the system prompt. Engines do not put it into the prompt, and it differs between the requests of a conversation.
    """
    for value in values:
        if value[0] == _ARRAY and (may_have_media(value) or _BILLING in bytes(value)):
            for element in _ELEMENTS.decode(value):
                raw = bytes(element)
                if _BILLING not in raw:
                    yield (
                        (memoryview(raw[-_MEDIA_BYTES_MAX:]), False) if may_have_media(raw) else (memoryview(raw), True)
                    )
        else:
            yield value, True


def _parts(element: memoryview) -> Iterator[_Piece]:
    """Yields the pieces of an array element. Text counts toward the length, and images are hashed partially."""
    if element[0] != _OBJECT or not has_media(element):
        yield element, True
        return
    for name, value in _FIELDS.decode(element).items():
        content = memoryview(value)
        yield memoryview(name.encode("utf-8", "surrogatepass")), False
        for part in _ELEMENTS.decode(content) if content[0] == _ARRAY else (value,):
            raw = memoryview(part)
            yield (raw[-_MEDIA_BYTES_MAX:], False) if has_media(raw) else (raw, True)
