"""Format of a usage object.

It stays interpreted in the compiled build, because mypyc does not support `msgspec.Struct`.
"""

from typing import Final

import msgspec


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class UsageObject(msgspec.Struct, gc=False):
    """Usage object, with the field names used by chat, completions, responses and messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    """Messages API: cached prompt tokens, in addition to `input_tokens`."""
    cache_creation_input_tokens: int | None = None
    """Messages API: prompt tokens that were written to the cache, in addition to `input_tokens`."""
    seconds: float | None = None
    """Transcripts: duration of the audio, if the engine does not count tokens."""
    usage_source: str | None = None
    """Headgate's own field. Set in responses that Headgate converted to OpenAI format without usage from the engine."""


USAGE_OBJECT: Final = msgspec.json.Decoder(UsageObject)
