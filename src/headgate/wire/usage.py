"""How many tokens does an engine say an answer used?

`read_usage` reads one usage object. `UsageFinder` finds it in an answer that is passed on whole, piece by piece, and
holds no more of it than one such object: an answer with embeddings may be megabytes, with its usage at either end.
"""

import re
from typing import Final

import msgspec

from headgate.model.usage import TOKENS_MAX, Usage, UsageSource

OBJECT_BYTES_MAX: Final = 4096
"""The longest `"usage": {…}` that is read; real ones have a few hundred bytes."""

SPACES_MAX: Final = 16
"""Maximum white space on either side of the colon after `"usage"`; real answers have at most one space."""
TAIL_BYTES_MAX: Final = len(b'"usage"') + 2 * SPACES_MAX + 2
"""Length of the longest incomplete `"usage": {` that is kept until more bytes arrive, with the byte before it."""

_KEY: Final = b'"usage"'
_KEY_STEP: Final = len(_KEY) - 1
"""The last quote of one key may be the first of the next."""
_SPACES: Final = rb"\s{0,%d}" % SPACES_MAX
_OPENING: Final = re.compile(rb'"usage"%b:%b\{' % (_SPACES, _SPACES))
_UNFINISHED: Final = re.compile(rb'"(?:u(?:s(?:a(?:g(?:e(?:"%b(?::%b)?)?)?)?)?)?)?\Z' % (_SPACES, _SPACES))
_BRACE: Final = re.compile(rb"[{}]")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _UsageObject(msgspec.Struct):
    """The names of chat and completions, and those of responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    usage_source: str | None = None
    """Ours, where no engine has told it: an answer that was put into the OpenAI shape here says so."""


_DECODER: Final = msgspec.json.Decoder(_UsageObject)


def read_usage(raw: bytes | msgspec.Raw) -> Usage | None:
    """What a usage object says; None where it is not one, or says what cannot be."""
    try:
        said = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    prompt = said.prompt_tokens if said.prompt_tokens is not None else said.input_tokens
    if prompt is None:
        return None
    output = said.completion_tokens or said.output_tokens or 0
    details = said.prompt_tokens_details or said.input_tokens_details
    cached = (details.cached_tokens if details else None) or 0
    of_output = said.completion_tokens_details or said.output_tokens_details
    reasoning = (of_output.reasoning_tokens if of_output else None) or 0
    counts = prompt, output, cached, reasoning
    if min(counts) < 0 or max(counts) > TOKENS_MAX:
        return None
    source = UsageSource.ESTIMATED if said.usage_source == UsageSource.ESTIMATED else UsageSource.ENGINE
    return Usage(prompt, output, cached, source, reasoning)


class UsageFinder:
    """Looks for the usage object in the pieces of a JSON answer.

    Quotes inside a JSON string are escaped, so the bytes `"usage":` cannot occur in the text of an answer: a backslash
    precedes the opening or the closing quote. If there are several usage objects, the last one counts, and the
    innermost of nested ones.

    Each byte is scanned once, however the answer is split: an incomplete object is collected while its braces are
    counted; only an incomplete key of at most `TAIL_BYTES_MAX` bytes is scanned again with the next piece.
    """

    __slots__ = ("_depth", "_object", "_tail", "_tail_scanned", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._depth = 0
        """Open braces of the object that is being collected; 0 if none is."""
        self._object = bytearray()
        self._tail = b""
        self._tail_scanned = 0
        """Scanned bytes at the start of the tail, kept to show whether a backslash precedes the rest."""

    @property
    def held_bytes(self) -> int:
        return len(self._object) + len(self._tail)

    def feed(self, data: bytes) -> None:
        buffer = self._tail + data
        unfinished = _UNFINISHED.search(buffer, max(self._tail_scanned, len(buffer) - TAIL_BYTES_MAX))
        at, end = self._tail_scanned, unfinished.start() if unfinished else len(buffer)
        while at < end:
            at = self._collect(buffer, at, end) if self._depth else self._search(buffer, at, end)
        self._tail = buffer[max(0, end - 1) :]
        self._tail_scanned = min(end, 1)

    def _search(self, buffer: bytes, at: int, end: int) -> int:
        """Looks for the next usage object. Returns where to continue."""
        key = buffer.find(_KEY, at, end)
        return end if key < 0 else self._open(buffer, key)

    def _open(self, buffer: bytes, key: int) -> int:
        """Starts to collect an object if one opens at this key. Returns where to continue."""
        opening = None if key > 0 and buffer[key - 1] == ord("\\") else _OPENING.match(buffer, key)
        if opening is None:
            return key + _KEY_STEP
        self._depth = 1
        self._object = bytearray(b"{")
        return opening.end()

    def _collect(self, buffer: bytes, at: int, end: int) -> int:
        """Collects up to the end of the object, or to a key that may open another. Returns where to continue."""
        limit = min(end, at + OBJECT_BYTES_MAX - len(self._object))
        key = buffer.find(_KEY, at, limit)
        stop = limit if key < 0 else key
        for brace in _BRACE.finditer(buffer, at, stop):
            self._depth += 1 if brace[0] == b"{" else -1
            if not self._depth:
                self._object += buffer[at : brace.end()]
                self._read()
                return brace.end()
        if key >= 0:
            after = self._open(buffer, key)
            if after > key + _KEY_STEP:
                return after
            stop = after
        self._object += buffer[at:stop]
        if len(self._object) < OBJECT_BYTES_MAX:
            return stop
        self._forget()
        # A key may span the position at which the object became too long.
        return stop if key >= 0 else max(at, stop - _KEY_STEP)

    def _read(self) -> None:
        self.usage = read_usage(bytes(self._object)) or self.usage
        self._forget()

    def _forget(self) -> None:
        self._depth = 0
        self._object = bytearray()
