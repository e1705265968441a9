"""What does a caller ask, and what is the engine asked?

A body is split into its top-level fields and no further: each value stays the bytes it came as, so that fields which
nobody here knows reach the engine untouched. Only what decisions need is read: the model, whether to stream, the tier,
and how much text the prompt holds. What is refused here would otherwise be an engine's problem, and for some engines a
malformed body is an internal error that looks like their own failure.
"""

import re
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import msgspec

from headgate.model.ticket import Api

DEPTH_MAX: Final = 64
"""How deep arrays and objects may nest. Engines fail in ways of their own at depths of some hundreds."""
BYTES_PER_TOKEN: Final = 4
"""What a prompt given as token ids is taken to measure."""

_T = TypeVar("_T")

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_BOOL: Final = msgspec.json.Decoder(bool)
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ENCODER: Final = msgspec.json.Encoder()
_TRUE: Final = msgspec.Raw(b"true")

_PROMPT_FIELD: Final = {Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.EMBEDDINGS: "input"}

# Parts of a message that carry media, often as megabytes of base64.
_MEDIA: Final = re.compile(rb'"(?:image_url|input_audio|audio_url|video_url|file|input_image|input_file)"')
_STRINGS: Final = re.compile(rb'"[^"]*"')
_ARRAYS_ONLY: Final = bytes.maketrans(b"{}", b"[]")
_NOT_OPENING: Final = bytes(set(range(256)) - set(b"[{"))
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))


class BadRequest(Exception):
    """The body cannot be understood. The message says what to change; `param` names the field, if it is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class RequestBody:
    api: Api
    model: str
    stream: bool
    service_tier: str | None
    wants_usage: bool
    """Whether the caller asked for the usage chunk of a stream."""
    prompt_bytes: int
    """Bytes of prompt text; images and audio are not counted by their encoded length."""
    # Prompts must not reach a log by way of a repr.
    _fields: dict[str, msgspec.Raw] = field(repr=False)
    _stream_options: dict[str, msgspec.Raw] = field(repr=False)

    @classmethod
    def parse(cls, raw: bytes, api: Api) -> Self:
        fields = _read_fields(raw)
        stream = _read(fields, "stream", _BOOL, "true or false") or False
        options = _read(fields, "stream_options", _FIELDS, "an object") or {}
        wants_usage = _read(options, "include_usage", _BOOL, "true or false", inside="stream_options") or False
        return cls(
            api=api,
            model=_read_model(fields),
            # Embeddings come whole, whatever the caller says.
            stream=stream and api is not Api.EMBEDDINGS,
            service_tier=_read(fields, "service_tier", _STRING, "a string"),
            wants_usage=stream and wants_usage,
            prompt_bytes=_prompt_bytes(fields, api),
            _fields=fields,
            _stream_options=options,
        )

    def encode(self, *, served_model: str) -> bytes:
        """The body for the engine: its name of the model, usage asked for in streams, all other values as they came."""
        fields = self._fields | {"model": msgspec.Raw(_ENCODER.encode(served_model))}
        if self.stream and not self.wants_usage:
            options = self._stream_options | {"include_usage": _TRUE}
            fields["stream_options"] = msgspec.Raw(_ENCODER.encode(options))
        return _ENCODER.encode(fields)


def _read_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        # Values that are only skipped are not checked for their encoding, and engines differ in what they make of it.
        raw.decode()
        fields = _FIELDS.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}; encode the JSON as UTF-8") from None
    except msgspec.ValidationError:
        raise BadRequest('the body must be a JSON object such as {"model": "…", …}') from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}; send one JSON object") from None
    if _is_deeper_than(raw, DEPTH_MAX):
        raise _too_deep()
    return fields


def _read_model(fields: dict[str, msgspec.Raw]) -> str:
    model = _read(fields, "model", _STRING, "a string")
    if model is None:
        raise BadRequest('"model" is missing; name one of the models that GET /v1/models lists', "model")
    if not model.strip():
        raise BadRequest('"model" is empty; name one of the models that GET /v1/models lists', "model")
    return model


def _read(
    fields: dict[str, msgspec.Raw],
    name: str,
    decoder: msgspec.json.Decoder[_T],
    kind: str,
    *,
    inside: str | None = None,
) -> _T | None:
    """The field's value; None where it is absent or null, which callers use alike."""
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:  # Its subclass ValidationError too: a value of another type.
        path = name if inside is None else f"{inside}.{name}"
        raise BadRequest(f'"{path}" must be {kind}, not {_excerpt(raw)}', path) from None


def _prompt_bytes(fields: dict[str, msgspec.Raw], api: Api) -> int:
    name = _PROMPT_FIELD[api]
    raw = bytes(fields.get(name, b"null"))
    match raw[:1]:
        case b"n":
            raise BadRequest(f'"{name}" is missing; this path needs it', name)
        case b"[":
            return _array_bytes(raw, name, api)
        case b'"' if api is not Api.CHAT:
            return len(raw)
        case _:
            kind = "an array of messages" if api is Api.CHAT else "a string or an array"
            raise BadRequest(f'"{name}" must be {kind}, not {_excerpt(raw)}', name)


def _array_bytes(raw: bytes, name: str, api: Api) -> int:
    first = raw[1:].lstrip()[:1]
    if first == b"]":
        raise BadRequest(f'"{name}" is empty; put at least one element into it', name)
    if api is Api.CHAT:
        return _message_text_bytes(raw) if _MEDIA.search(raw) else len(raw)
    if first in b"0123456789[":
        # Token ids, one prompt or several. Every id but the last is followed by a comma.
        return BYTES_PER_TOKEN * (raw.count(b",") + 1)
    return len(raw)


def _message_text_bytes(raw: bytes) -> int:
    """The text of messages of which some carry media."""
    try:
        return sum(
            _content_bytes(value) if name == "content" else len(bytes(value))
            for message in _OBJECTS.decode(raw)
            for name, value in message.items()
        )
    except msgspec.DecodeError:
        reason = '"messages" must be an array of objects whose "content" is a string or an array of parts'
        raise BadRequest(reason, "messages") from None


def _content_bytes(content: msgspec.Raw) -> int:
    raw = bytes(content)
    if not raw.startswith(b"["):
        return len(raw)
    return sum(len(bytes(part["text"])) for part in _OBJECTS.decode(raw) if "text" in part)


def _is_deeper_than(raw: bytes, depth: int) -> bool:
    """Whether valid JSON nests deeper, found without walking it.

    Strings go first, so that only structure is left; then each round takes away the innermost level of all.
    """
    if len(raw.translate(None, _NOT_OPENING)) <= depth:
        return False
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = raw.translate(_ARRAYS_ONLY, _NOT_STRUCTURE)
    structure = _STRINGS.sub(b"", structure)
    for _ in range(depth):
        if not structure:
            break
        structure = structure.replace(b"[]", b"")
    return structure != b""


def _too_deep() -> BadRequest:
    return BadRequest(f"the body nests more than {DEPTH_MAX} levels of arrays and objects; flatten it")


def _excerpt(raw: msgspec.Raw | bytes) -> str:
    text = bytes(raw)[:41].decode(errors="replace")
    return text if len(text) <= 40 else text[:40] + "…"
