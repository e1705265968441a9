"""What does a caller ask, and what is the engine asked?

Only what decisions need is read: the model, whether to stream, the tier, and how much text the prompt holds. Values
that could harm an engine are refused (`checks.py`), what goes beyond a class is lowered (`shaping.py`,
`conversation.py`), and everything else travels on as the bytes it came as.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

import msgspec

from headgate.model.caps import Caps
from headgate.model.ticket import WITHOUT_OUTPUT, Api
from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.checks import check
from headgate.wire.conversation import trim
from headgate.wire.fields import (
    BOOL,
    DEPTH_MAX,
    FIELDS,
    FIELDS_MAX,
    NAMES_CHARS_MAX,
    STRING,
    BadRequest,
    Fields,
    read,
    split,
    too_many,
)
from headgate.wire.kserve.checks import check_once
from headgate.wire.measure import PromptLength, measure_prompt
from headgate.wire.outline import Outline, cut, spans
from headgate.wire.prefix import beginnings
from headgate.wire.salts import engine_salt
from headgate.wire.shaping import asked_choices, asked_output, shape

__all__ = ["DEPTH_MAX", "LARGE_BYTES", "BadRequest", "RequestBody", "Trimmed", "is_large"]

LARGE_BYTES: Final = 256 * 1024
LARGE_VALUES: Final = 4096
"""Number of arrays and objects together, or of strings. Processing a body with more takes milliseconds, which would
delay every other stream."""

METADATA_BYTES_MAX: Final = 16 * 1024
"""OpenAI's own limit is 16 keys of 64 characters with values of 512."""
METADATA_KEYS_MAX: Final = 16
METADATA_VALUE_BYTES_MAX: Final = 128
"""Of what is kept."""

_METADATA: Final = msgspec.json.Decoder(dict[str, object])
_PIECE_BYTES_MIN: Final = 64 * 1024
_ENCODER: Final = msgspec.json.Encoder()
_TRUE: Final = msgspec.Raw(b"true")
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = (b"null", b"false", b"[]")


Trimmed = tuple[bytes, int, int]
"""The messages that are left of a conversation, their length as prompts are measured, and how many turns are not."""


def is_large(raw: bytes | bytearray) -> bool:
    """Whether reading it would hold up others: by its length, or by how much there is in it."""
    if not LARGE_VALUES < len(raw) <= LARGE_BYTES:
        return len(raw) > LARGE_BYTES
    return raw.count(b"{") + raw.count(b"[") > LARGE_VALUES or raw.count(b'"') > 2 * LARGE_VALUES


@dataclass(frozen=True, slots=True)
class RequestBody:
    api: Api
    model: str
    stream: bool
    service_tier: str | None
    wants_usage: bool
    """Whether the caller asked for the usage chunk of a stream."""
    length: PromptLength
    """Length of all fields that become tokens of the prompt."""
    is_large: bool
    prefix: bytes = field(repr=False)
    """Hashes of the prompt's beginning, packed; the same for all tenants."""
    # Prompts must not reach a log by way of a repr.
    _fields: Fields = field(repr=False)
    _stream_options: Fields = field(repr=False)

    @classmethod
    def parse(cls, raw: bytes, api: Api) -> Self:
        fields = split(raw)
        if api is Api.INFER:
            check_once(raw, None)
        stream = read(fields, "stream", BOOL, "true or false") or False
        options = read(fields, "stream_options", FIELDS, "an object") or {}
        wants_usage = read(options, "include_usage", BOOL, "true or false", inside="stream_options") or False
        model = _read_model(fields, api)
        service_tier = read(fields, "service_tier", STRING, "a string")
        if len(raw) > NAMES_CHARS_MAX or len(options) > FIELDS_MAX:
            _check_lengths(model, service_tier, options)
        check(fields, api)
        length = measure_prompt(fields, api)
        return cls(
            api=api,
            model=model,
            # Embeddings and tensors come whole, whatever the caller says.
            stream=stream and api not in WITHOUT_OUTPUT,
            service_tier=service_tier,
            wants_usage=stream and wants_usage,
            length=length,
            is_large=is_large(raw),
            prefix=beginnings(fields, api, length),
            _fields=fields,
            _stream_options=options,
        )

    # Read elsewhere

    def outline(self, raw: bytes) -> Outline:
        """What was found in the bytes that this body was parsed from."""
        fields = spans(raw)
        return Outline(
            model=self.model,
            stream=self.stream,
            service_tier=self.service_tier,
            wants_usage=self.wants_usage,
            length=self.length,
            prefix=self.prefix,
            fields=fields,
            stream_options=spans(raw, fields["stream_options"]) if self._stream_options else {},
        )

    @classmethod
    def outlined(cls, raw: bytes | bytearray, api: Api, outline: Outline) -> Self:
        """What parsing these bytes gives, known from elsewhere. The bytes are neither read nor copied."""
        return cls(
            api=api,
            model=outline.model,
            stream=outline.stream,
            service_tier=outline.service_tier,
            wants_usage=outline.wants_usage,
            length=outline.length,
            is_large=is_large(raw),
            prefix=outline.prefix,
            _fields=cut(raw, outline.fields),
            _stream_options=cut(raw, outline.stream_options),
        )

    # How much it asks for

    @property
    def prompt_bytes(self) -> int:
        """Bytes of prompt text; media counts by type."""
        return self.length.text + self.length.other

    @property
    def prompt_bytes_kept(self) -> int:
        """Prompt bytes that remain after all removable turns are left out."""
        return self.length.text_kept + self.length.other

    @property
    def n(self) -> int:
        """How many answers an engine would make."""
        return asked_choices(self._fields, self.api)

    @property
    def output_tokens_max(self) -> int | None:
        """What it asks for at most, of each answer."""
        return asked_output(self._fields, self.api)

    # For the accounts

    def metadata(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Of what the caller sent as metadata, these keys, where their values are strings of no great length.

        What has another shape is for the engine to judge, and is nothing here.
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

    # Asked of an engine

    def capped(self, caps: Caps) -> tuple[Self, tuple[str, ...]]:
        """The body as its class allows it, and what was given up for that; itself, if nothing was.

        A prompt beyond the cap stays as it is unless turns of it may be left out: to refuse it is not this one's task.
        """
        length_max = self.trims_to(caps)
        return self.shaped(caps, None if length_max is None else trim(bytes(self.messages), length_max))

    def trims_to(self, caps: Caps) -> int | None:
        """Length to which the messages are to be trimmed; None if they cannot or need not be trimmed."""
        if self.api is not Api.CHAT or not caps.trims_prompt or caps.prompt_tokens is None:
            return None
        length_max = caps.prompt_tokens * BYTES_PER_TOKEN + BYTES_PER_TOKEN - 1 - self.length.other
        return length_max if self.length.text > max(length_max, self.length.text_kept) else None

    @property
    def messages(self) -> memoryview:
        """The conversation of a chat."""
        return memoryview(self._fields["messages"])

    def shaped(self, caps: Caps, trimmed: Trimmed | None) -> tuple[Self, tuple[str, ...]]:
        """As `capped`, with what is left of the conversation where it is to be trimmed."""
        fields, length, dropped = self._fields, self.length, 0
        if trimmed is not None and trimmed[2]:
            messages, text_bytes, dropped = trimmed
            length = length._replace(text=text_bytes)
            fields = fields | {"messages": msgspec.Raw(messages)}
        fields, told = shape(fields, self.api, caps)
        if dropped:
            told.append(f"turns_dropped={dropped}")
        if not told:
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

    def streamed(self, *switches: str) -> Self:
        """The same request, to be answered with a stream and its usage, although the caller wants a whole answer.

        Further fields of the engine's own may be switched on with it.
        """
        return replace(self, stream=True, _fields=self._fields | dict.fromkeys(("stream", *switches), _TRUE))

    # Asked together with others

    def fields(self) -> Fields:
        """Its fields by name, to be changed at will."""
        return dict(self._fields)

    def saying(self, fields: Fields, *, is_large: bool) -> Self:
        """The same request with these fields instead."""
        return replace(self, is_large=is_large, _fields=fields)

    def has(self, names: Iterable[str]) -> bool:
        """Whether all these fields are there and ask for something."""
        return all(bytes(memoryview(self._fields.get(name, _NULL))[:8]) not in _NOTHING for name in names)

    def encode(self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None) -> bytes:
        """The body for the engine: its name of the model, usage asked for in streams, all other values as they came.

        `cache_salt` is the tenant's own, for an engine that takes one. To others the caller's says nothing, and a
        priority is an error to engines that do not schedule by it.
        """
        return _ENCODER.encode(self._sent(served_model, passes_priority=passes_priority, cache_salt=cache_salt))

    def encode_in_pieces(
        self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None
    ) -> list[bytes | memoryview]:
        """Like `encode`, but large values are not copied: the body stays in memory while the engine is asked."""
        fields = self._sent(served_model, passes_priority=passes_priority, cache_salt=cache_salt)
        in_pieces = self.is_large or any(len(memoryview(value)) >= _PIECE_BYTES_MIN for value in fields.values())
        return _pieces(fields) if in_pieces else [_ENCODER.encode(fields)]

    def _sent(self, served_model: str, *, passes_priority: bool, cache_salt: str | None) -> Fields:
        fields = self._fields | {"model": msgspec.Raw(_ENCODER.encode(served_model))}
        if self.stream and not self.wants_usage and self.api is not Api.RESPONSES:
            options = self._stream_options | {"include_usage": _TRUE}
            fields["stream_options"] = msgspec.Raw(_ENCODER.encode(options))
        if not passes_priority:
            fields.pop("priority", None)
        if cache_salt is None or self.api in WITHOUT_OUTPUT:
            fields.pop("cache_salt", None)
        else:
            callers = read(fields, "cache_salt", STRING, "a string")
            fields["cache_salt"] = msgspec.Raw(_ENCODER.encode(engine_salt(cache_salt, callers)))
        return fields


def _pieces(fields: Fields) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    small = bytearray(b"{")
    for name, value in fields.items():
        small += _ENCODER.encode(name) + b":"
        if len(view := memoryview(value)) < _PIECE_BYTES_MIN:
            small += view
        else:
            pieces += [bytes(small), view]
            small.clear()
        small += b","
    # There is always a model, so the last of these is a comma.
    small[-1:] = b"}"
    return [*pieces, bytes(small)]


def _check_lengths(model: str, service_tier: str | None, options: Fields) -> None:
    """What is read of a body is kept and compared; so much of it is nobody's name for anything."""
    for name, value in ("model", model), ("service_tier", service_tier or ""):
        if len(value) > NAMES_CHARS_MAX:
            raise BadRequest(f'"{name}" has {len(value)} characters; at most {NAMES_CHARS_MAX} are taken', name)
    if too_many(options):
        raise BadRequest(f'"stream_options" has more than {FIELDS_MAX} fields, or too long names', "stream_options")


def _read_model(fields: Fields, api: Api) -> str:
    model = read(fields, "model", STRING, "a string")
    if api is Api.INFER:
        # Its path names it.
        return model or ""
    if model is None:
        raise BadRequest('"model" is missing; name one of the models that GET /v1/models lists', "model")
    if not model.strip():
        raise BadRequest('"model" is empty; name one of the models that GET /v1/models lists', "model")
    return model
