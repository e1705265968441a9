"""Reads engine-reported usage.

`read_usage` parses one usage object. `UsageFinder` finds it in the pieces of a non-streaming response while they are
forwarded, and buffers at most one usage object. An embeddings response can be several megabytes long, with its usage at
either end.
"""

import re
from typing import Final

import msgspec

from headgate.model.usage import TOKENS_MAX, Usage, UsageSource
from headgate.wire.audio_length import tokens_of
from headgate.wire.usage_object import USAGE_OBJECT

OBJECT_BYTES_MAX: Final = 4096
"""Maximum size of a usage object. Real ones have a few hundred bytes."""

SPACES_MAX: Final = 16
"""Maximum white space on either side of the colon after `"usage"`. Real responses have at most one space."""
TAIL_BYTES_MAX: Final = len(b'"usage"') + 2 * SPACES_MAX + 2
"""Maximum length of an incomplete `"usage": {` and the byte before it, which are buffered until more bytes arrive."""

_KEY: Final = b'"usage"'
_KEY_STEP: Final = len(_KEY) - 1
"""Bytes to advance after a key: its last quote may be the first quote of the next key."""
_BACKSLASH: Final = ord("\\")
_SPACES: Final = rb"\s{0,%d}" % SPACES_MAX
_OPENING: Final = re.compile(rb'"usage"%b:%b\{' % (_SPACES, _SPACES))
_LAST: Final = re.compile(rb'"usage"%b:%b(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})' % (_SPACES, _SPACES))
"""Complete usage object with at most one level of objects in it."""
_UNFINISHED: Final = re.compile(rb'"(?:u(?:s(?:a(?:g(?:e(?:"%b(?::%b)?)?)?)?)?)?)?\Z' % (_SPACES, _SPACES))
# In Python 3.11, access to a member through its enum takes as long as several function calls.
_ESTIMATED: Final = UsageSource.ESTIMATED
_ENGINE: Final = UsageSource.ENGINE


def read_usage(raw: bytes | msgspec.Raw) -> Usage | None:
    """Parses a usage object. Returns None if it is malformed or has impossible values."""
    try:
        said = USAGE_OBJECT.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    prompt, read, written = said.prompt_tokens, 0, 0
    if prompt is None:
        prompt = said.input_tokens
        if prompt is None and said.seconds is not None:
            prompt = tokens_of(said.seconds)
        if prompt is None:
            return None
        # In the Messages API, the number of input tokens excludes these.
        read, written = said.cache_read_input_tokens or 0, said.cache_creation_input_tokens or 0
    output = said.completion_tokens or said.output_tokens or 0
    details = said.prompt_tokens_details or said.input_tokens_details
    cached = (details.cached_tokens if details else None) or read
    of_output = said.completion_tokens_details or said.output_tokens_details
    reasoning = (of_output.reasoning_tokens if of_output else None) or 0
    if not (
        0 <= prompt <= TOKENS_MAX
        and 0 <= output <= TOKENS_MAX
        and 0 <= cached <= TOKENS_MAX
        and 0 <= reasoning <= TOKENS_MAX
        and 0 <= written <= TOKENS_MAX
    ):
        return None
    return Usage(
        prompt + read + written, output, cached, _ESTIMATED if said.usage_source == _ESTIMATED else _ENGINE, reasoning
    )


class UsageFinder:
    """Finds the usage object in the pieces of a JSON response.

    Quotes inside a JSON string are escaped, so the bytes `"usage":` cannot occur in the text of a response without a
    backslash before one of the quotes. If there are several usage objects, the last one is used, and the innermost if
    they are nested.

    Most responses arrive in one piece, and their last usage object is found from the end. In all others, each byte is
    scanned once, however the response is split. An incomplete object is collected while its braces are counted. Only an
    incomplete key of at most `TAIL_BYTES_MAX` bytes is scanned again with the next piece.
    """

    __slots__ = ("_depth", "_object", "_tail", "_tail_scanned", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._depth = 0
        """Number of open braces in the object being collected. 0 if there is none."""
        self._object = bytearray()
        self._tail = b""
        self._tail_scanned = 0
        """Number of bytes at the start of the tail that have already been scanned, kept to detect a backslash before
        the rest.
        """

    @property
    def held_bytes(self) -> int:
        return len(self._object) + len(self._tail)

    def feed(self, data: bytes) -> None:
        # The first piece of a response usually ends with its last brace. No key can be incomplete there.
        if self._tail or not data.endswith(b"}") or not self._read_last(data):
            self._scan(data)

    def _read_last(self, data: bytes) -> bool:
        """Reads the last usage object of a first piece that ends with a brace. Returns False if that is not possible.

        Earlier objects do not matter if the last one is valid.
        """
        key = data.rfind(_KEY)
        if key < 0 or data[key - 1] == _BACKSLASH:
            return False
        opening = key + len(_KEY) + 1
        end = data.find(b"}", opening) + 1
        if data.startswith(b":{", opening - 1) and data.find(b"{", opening + 1, end) < 0:
            last = data[opening:end]  # Most usage objects have no white space before them and no objects in them.
        elif (found := _LAST.match(data, key)) is not None:
            last = found[1]
        else:
            return False
        if len(last) > OBJECT_BYTES_MAX or (usage := read_usage(last)) is None:
            return False
        self.usage = usage
        self._tail, self._tail_scanned = b"}", 1
        return True

    def _scan(self, data: bytes) -> None:
        buffer = self._tail + data
        unfinished = _UNFINISHED.search(buffer, max(self._tail_scanned, len(buffer) - TAIL_BYTES_MAX))
        at, end = self._tail_scanned, unfinished.start() if unfinished else len(buffer)
        while at < end:
            at = self._collect(buffer, at, end) if self._depth else self._search(buffer, at, end)
        self._tail = buffer[max(0, end - 1) :]
        self._tail_scanned = min(end, 1)

    def _search(self, buffer: bytes, at: int, end: int) -> int:
        """Searches for the next usage object. Returns where to continue."""
        key = buffer.find(_KEY, at, end)
        return end if key < 0 else self._open(buffer, key)

    def _open(self, buffer: bytes, key: int) -> int:
        """Starts collecting an object if one opens at this key. Returns where to continue."""
        opening = None if key > 0 and buffer[key - 1] == _BACKSLASH else _OPENING.match(buffer, key)
        if opening is None:
            return key + _KEY_STEP
        self._depth = 1
        self._object = bytearray(b"{")
        return opening.end()

    def _collect(self, buffer: bytes, at: int, end: int) -> int:
        """Collects bytes up to the end of the object, or up to a key that may open another.

        Returns where to continue.
        """
        limit = min(end, at + OBJECT_BYTES_MAX - len(self._object))
        key = buffer.find(_KEY, at, limit)
        stop = limit if key < 0 else key
        scanned = at
        while (brace := buffer.find(b"}", scanned, stop)) >= 0:
            self._depth += buffer.count(b"{", scanned, brace) - 1
            scanned = brace + 1
            if not self._depth:
                self._object += buffer[at:scanned]
                self._read()
                return scanned
        self._depth += buffer.count(b"{", scanned, stop)
        if key >= 0:
            after = self._open(buffer, key)
            if after > key + _KEY_STEP:
                return after
            stop = after
        self._object += buffer[at:stop]
        if len(self._object) < OBJECT_BYTES_MAX:
            return stop
        self._reset()
        # A key may span the position at which the object became too long.
        return stop if key >= 0 else max(at, stop - _KEY_STEP)

    def _read(self) -> None:
        self.usage = read_usage(bytes(self._object)) or self.usage
        self._reset()

    def _reset(self) -> None:
        self._depth = 0
        self._object = bytearray()
