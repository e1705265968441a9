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

_KEY: Final = b'"usage"'
_OPENING: Final = re.compile(rb'"usage"\s*:\s*\{')
_MAY_OPEN: Final = re.compile(rb'"usage"\s*(?::\s*)?')
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

    Inside a JSON string a quote is escaped, so the bytes `"usage":` cannot stand in the text of an answer: either the
    opening quote has a backslash before it, or the closing one has. Where there are several, the last one counts.
    """

    __slots__ = ("_held", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._held = b""

    def feed(self, data: bytes) -> None:
        buffer = self._held + data
        at = 0
        while (found := buffer.find(_KEY, at)) >= 0:
            at = self._look(buffer, found)
            if at == found:  # It may be whole with the next piece.
                self._held = buffer[found:]
                return
        # What may be the start of the key, and one byte before it for a backslash.
        self._held = buffer[max(at, len(buffer) - len(_KEY)) :]

    def _look(self, buffer: bytes, found: int) -> int:
        """Where to go on; `found` itself if more bytes are needed to tell."""
        further = found + len(_KEY)
        if found > 0 and buffer[found - 1] == ord("\\"):
            return further
        opening = _OPENING.match(buffer, found)
        end = _object_end(buffer, opening.end() - 1) if opening else None
        if opening and end is not None and end - found <= OBJECT_BYTES_MAX:
            self.usage = read_usage(buffer[opening.end() - 1 : end]) or self.usage
            return end
        undecided = end is None and (opening or _MAY_OPEN.fullmatch(buffer, found))
        return found if undecided and len(buffer) - found <= OBJECT_BYTES_MAX else further


def _object_end(buffer: bytes, start: int) -> int | None:
    depth = 0
    for brace in _BRACE.finditer(buffer, start):
        depth += 1 if brace[0] == b"{" else -1
        if depth == 0:
            return brace.end()
    return None
