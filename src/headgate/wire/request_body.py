"""Request body: parsed from the client's bytes and encoded for the engine.

Only the fields needed for decisions are parsed: the model, whether to stream, the service tier and the prompt size.
Values that could harm an engine are rejected (`request_checks.py`). Values above the caps of a class are lowered
(`request_caps.py`, `conversation.py`). Everything else is forwarded unchanged.
"""

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Final, Self

import msgspec

from headgate.model.caps import Caps
from headgate.model.message import message
from headgate.model.ticket import TOKENIZER_APIS, Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.body_fields import LARGE_BYTES, is_large, parse_fields
from headgate.wire.cache_salts import engine_salt
from headgate.wire.conversation import trim
from headgate.wire.fields import (
    DEPTH_MAX,
    STRING,
    BadRequest,
    Fields,
    read_field,
)
from headgate.wire.outline import Outline, slice_fields, value_spans
from headgate.wire.prompt_length import PromptLength
from headgate.wire.request_caps import apply_caps, requested_choices, requested_output_tokens

__all__ = ["DEPTH_MAX", "LARGE_BYTES", "BadRequest", "RequestBody", "Trimmed", "is_large"]

METADATA_BYTES_MAX: Final = 16 * 1024
"""Maximum size of metadata that is parsed. OpenAI allows 16 keys of 64 characters with values of 512."""
METADATA_KEYS_MAX: Final = 16
METADATA_VALUE_BYTES_MAX: Final = 128
"""Maximum size of a metadata value that is kept."""

_METADATA: Final = msgspec.json.Decoder(dict[str, object])
_PIECE_BYTES_MIN: Final = 64 * 1024
_ENCODER: Final = msgspec.json.Encoder()
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = (b"null", b"false", b"[]")
# Python 3.11 looks up members of an enumeration slowly.
_CHAT: Final = Api.CHAT
_UNSALTED_APIS: Final = (Api.EMBEDDINGS, Api.INFER, *TOKENIZER_APIS)
"""APIs whose requests never carry a cache salt: those that use no prefix cache, and embeddings, which may be batched
across tenants.
"""
_NO_STREAM_OPTIONS: Final = (Api.RESPONSES, Api.MESSAGES)
"""Streaming APIs that always report usage."""


_EngineFields = dict[str, object]
"""Fields for an engine. Those that the gateway sets are not encoded yet. All others are `msgspec.Raw`."""
Trimmed = tuple[bytes, int, int]
"""Messages that remain after trimming, their length (as in `PromptLength`) and the number of removed turns."""


@message
class RequestBody:
    api: Api
    model: str
    stream: bool
    service_tier: str | None
    wants_usage: bool
    """Whether the client requested a usage chunk in the stream."""
    length: PromptLength
    """Length of all fields that become prompt tokens."""
    is_large: bool
    prefix: bytes = field(repr=False)
    """Packed hashes of the prompt prefix, the same for all tenants."""
    # Prompts must not end up in a log through repr.
    _fields: Fields = field(repr=False)
    _stream_options: Fields = field(repr=False)

    @classmethod
    def parse(cls, raw: bytes, api: Api) -> Self:
        return cls(api, *parse_fields(raw, api))

    # Parsing in another process

    def outline(self, raw: bytes) -> Outline:
        """Returns the outline of this body. `raw` is the bytes that it was parsed from."""
        fields = value_spans(raw)
        return Outline(
            model=self.model,
            stream=self.stream,
            service_tier=self.service_tier,
            wants_usage=self.wants_usage,
            length=self.length,
            prefix=self.prefix,
            fields=fields,
            stream_options=value_spans(raw, fields["stream_options"]) if self._stream_options else {},
        )

    @classmethod
    def from_outline(cls, raw: bytes | bytearray, api: Api, outline: Outline) -> Self:
        """Builds the body from an outline, without parsing or copying the bytes."""
        return cls(
            api=api,
            model=outline.model,
            stream=outline.stream,
            service_tier=outline.service_tier,
            wants_usage=outline.wants_usage,
            length=outline.length,
            is_large=is_large(raw),
            prefix=outline.prefix,
            _fields=slice_fields(raw, outline.fields),
            _stream_options=slice_fields(raw, outline.stream_options),
        )

    # Size

    @property
    def prompt_bytes(self) -> int:
        """Bytes of prompt text. Media is counted by type."""
        return self.length.text + self.length.other

    @property
    def prompt_bytes_kept(self) -> int:
        """Prompt bytes that would remain after removing all removable turns."""
        return self.length.text_min + self.length.other

    @property
    def n(self) -> int:
        """Number of choices that an engine would generate."""
        return requested_choices(self._fields, self.api)

    @property
    def output_tokens_max(self) -> int | None:
        """Requested maximum number of output tokens per choice. None if the request does not set one."""
        return requested_output_tokens(self._fields, self.api)

    # Metadata for the ledger

    def metadata(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Returns the given metadata fields whose values are short strings.

        Metadata in any other format is ignored here and left for the engine to check.
        """
        raw = self._fields.get("metadata", _NULL)
        if not 2 < len(memoryview(raw)) <= METADATA_BYTES_MAX:
            return ()
        try:
            said = _METADATA.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ()
        values = ((name, said.get(name)) for name in names)
        kept = [(name, value) for name, value in values if isinstance(value, str) and "\0" not in value]
        return tuple(each for each in kept if len(each[1].encode()) <= METADATA_VALUE_BYTES_MAX)[:METADATA_KEYS_MAX]

    def short_text(self, name: str, chars_max: int) -> str:
        """Returns the value of a top-level field. Empty if it is missing, not a string or longer than `chars_max`."""
        raw = self._fields.get(name, _NULL)
        # A character takes at most 12 bytes in JSON.
        if not 2 < len(memoryview(raw)) <= 12 * chars_max + 2:
            return ""
        try:
            text = STRING.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
        return text if len(text) <= chars_max else ""

    # Request and response formats

    @property
    def copied_bytes(self) -> int:
        """Maximum memory that parts of the body use beside the body as received, in bytes."""
        return 0

    @property
    def content_type(self) -> str:
        """Content type of the encoded body."""
        return "application/json"

    @property
    def returns_json(self) -> bool:
        """Whether a non-streaming response is always a JSON object."""
        return True

    @property
    def requires_stream(self) -> bool:
        """Whether a response that is not a stream is a failure of the engine."""
        return self.stream

    # Caps

    def capped(self, caps: Caps) -> tuple[Self, tuple[str, ...]]:
        """Applies a class's caps. Returns the body, which is `self` if nothing changed, and the degradations.

        A prompt above its cap is trimmed if possible. Otherwise it is left unchanged here and rejected elsewhere.
        """
        length_max = self.trim_length(caps)
        return self.apply_caps(caps, None if length_max is None else trim(bytes(self.messages), length_max))

    def trim_length(self, caps: Caps) -> int | None:
        """Returns the length to which the messages must be trimmed, or None if they cannot or need not be trimmed."""
        if not caps.trim_prompt or caps.prompt_tokens is None or self.api is not _CHAT:
            return None
        length_max = caps.prompt_tokens * BYTES_PER_TOKEN + BYTES_PER_TOKEN - 1 - self.length.other
        return length_max if self.length.text > max(length_max, self.length.text_min) else None

    @property
    def messages(self) -> memoryview:
        """Messages of a chat, as received."""
        return memoryview(self._fields["messages"])

    def apply_caps(self, caps: Caps, trimmed: Trimmed | None) -> tuple[Self, tuple[str, ...]]:
        """Like `capped`, with the messages already trimmed."""
        fields, length, dropped = self._fields, self.length, 0
        if trimmed is not None and trimmed[2]:
            messages, text_bytes, dropped = trimmed
            length = length._replace(text=text_bytes)
            fields = fields | {"messages": msgspec.Raw(messages)}
        fields, told = apply_caps(fields, self.api, caps)
        if dropped:
            told.append(f"turns_dropped={dropped}")
        if not told and fields is self._fields:
            return self, ()
        shaped = type(self)(
            api=self.api,
            model=self.model,
            stream=self.stream,
            service_tier=self.service_tier,
            wants_usage=self.wants_usage,
            length=length,
            is_large=self.is_large,
            prefix=self.prefix,
            _fields=fields,
            _stream_options=self._stream_options,
        )
        return shaped, tuple(told)

    def as_stream(self, *switches: str) -> Self:
        """Returns the same request as a stream with usage, for a client that wants a non-streaming response.

        `switches` are additional engine-specific boolean fields to set to true.
        """
        return replace(self, stream=True, _fields=self._fields | dict.fromkeys(("stream", *switches), _TRUE))

    # Batching and encoding

    def fields(self) -> Fields:
        """Returns a copy of the fields."""
        return dict(self._fields)

    def with_fields(self, fields: Fields, *, is_large: bool) -> Self:
        """Returns the same request with other fields."""
        return replace(self, is_large=is_large, _fields=fields)

    def without(
        self, names: frozenset[str], *, prefixes: tuple[str, ...] = (), disabled: frozenset[str] = frozenset()
    ) -> Self:
        """Returns the same request without the fields that have these names or begin with these prefixes.

        The fields in `disabled` are set to false if they are present.
        """
        kept = {
            name: _FALSE if name in disabled else value
            for name, value in self._fields.items()
            if name not in names and not name.startswith(prefixes)
        }
        return self if kept == self._fields else replace(self, _fields=kept)

    def has_fields(self, names: Iterable[str]) -> bool:
        """Returns whether all these fields are present and not null, false or empty."""
        return all(bytes(memoryview(self._fields.get(name, _NULL))[:8]) not in _NOTHING for name in names)

    def encode(self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None) -> bytes:
        """Encodes the body for the engine, with the engine's model name and with usage in streams. All other values are
        unchanged.

        `cache_salt` is the tenant's salt, for an engine that supports salts. If it is None, the client's salt is
        removed. `priority` is removed for engines that do not support it, because they would reject the request.
        """
        return _ENCODER.encode(
            self._engine_fields(served_model, passes_priority=passes_priority, cache_salt=cache_salt)
        )

    def encode_in_pieces(
        self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None
    ) -> list[bytes | memoryview]:
        """Like `encode`, but large values are not copied. The body must stay in memory while it is sent."""
        fields = self._engine_fields(served_model, passes_priority=passes_priority, cache_salt=cache_salt)
        if self.is_large:
            return _pieces(fields)
        if self.length.text < _PIECE_BYTES_MIN:
            # Encoding a short body is faster than measuring its values.
            encoded = _ENCODER.encode(fields)
            if len(encoded) < _PIECE_BYTES_MIN:
                return [encoded]
        if any(len(memoryview(value)) >= _PIECE_BYTES_MIN for value in self._fields.values()):
            return _pieces(fields)
        return [_ENCODER.encode(fields)]

    def _engine_fields(self, served_model: str, *, passes_priority: bool, cache_salt: str | None) -> _EngineFields:
        callers = self._fields
        fields: _EngineFields = {**callers, "model": served_model}
        if self.stream and not self.wants_usage and self.api not in _NO_STREAM_OPTIONS:
            fields["stream_options"] = self._stream_options | {"include_usage": _TRUE}
        if not passes_priority and "priority" in callers:
            del fields["priority"]
        if cache_salt is None or self.api in _UNSALTED_APIS:
            fields.pop("cache_salt", None)
        else:
            salt = read_field(callers, "cache_salt", STRING, "a string") if "cache_salt" in callers else None
            fields["cache_salt"] = engine_salt(cache_salt, salt)
        return fields


def _pieces(fields: _EngineFields) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    small = bytearray(b"{")
    for name, value in fields.items():
        small += _ENCODER.encode(name) + b":"
        view = memoryview(value if isinstance(value, msgspec.Raw) else _ENCODER.encode(value))
        if len(view) < _PIECE_BYTES_MIN:
            small += view
        else:
            pieces += [bytes(small), view]
            small.clear()
        small += b","
    # There is always a model, so the last byte is always a comma.
    small[-1:] = b"}"
    return [*pieces, bytes(small)]
