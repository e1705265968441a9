"""Request bodies of OpenAI's audio APIs: a form with an audio file and text fields.

The text fields are kept as JSON values, so that they are checked, read and removed like those of all other APIs:
`user=x` is a string, `timestamp_granularities[]=word` an array, and `metadata[team]=x` an object. For an engine, the
form is encoded again with a new boundary that the client cannot know. A client can therefore not add a field or a
second model that only the engine would find.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import field
from typing import Final, Self, cast

import msgspec

from headgate.model.caps import Caps
from headgate.model.message import message
from headgate.model.ticket import Api
from headgate.wire.audio_length import WAV_HEADER_BYTES, audio_bytes
from headgate.wire.body_fields import LARGE_BYTES, read_model
from headgate.wire.fields import STRING, BadRequest, Fields, read_field
from headgate.wire.multipart import FormPart
from headgate.wire.prompt_length import PromptLength
from headgate.wire.request_body import RequestBody, Trimmed
from headgate.wire.request_checks import check_fields

TEXT_BYTES_MAX: Final = 512 * 1024
"""Maximum total size of all fields except the file. Speaker references are base64-encoded audio of a few seconds."""
USAGE_FIELD: Final = "stream_include_usage"
"""Form field of vLLM that requests usage in a stream."""

_FILE: Final = "file"
_PROMPT_FIELDS: Final = ("prompt", "hotwords")
_PLAIN_FORMATS: Final = ("text", "srt", "vtt")
_GATEWAY_FIELDS: Final = ("cache_salt", "priority")
"""Fields that control the gateway or the operator's engines. No engine has them in its audio APIs."""
_FLAGS: Final = {"true": b"true", "1": b"true", "false": b"false", "0": b"false", "": b"false"}
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_NAME: Final = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_EXTENSION: Final = re.compile(r"\.[0-9A-Za-z]{1,8}\Z")
_TRUE: Final = b"true"
_ENCODER: Final = msgspec.json.Encoder()

_Texts = str | list[str] | dict[str, str]


@message
class TranscriptionBody(RequestBody):
    """Form with an audio file, as received, and its text fields."""

    format: str
    """Requested format of the response."""
    boundary: str
    """Boundary of the form for the engine."""
    file: FormPart
    raw: bytes | bytearray = field(repr=False)
    text_bytes: int = 0
    """Total size of all fields except the file, as received."""

    @classmethod
    def of(cls, raw: bytes | bytearray, api: Api, parts: list[FormPart]) -> Self:
        """Creates a body from its parts. Raises `BadRequest`."""
        file = _find_file(parts)
        fields = _read_texts(raw, parts)
        model = read_model(fields, api)
        stream = _read_flag(fields, "stream")
        wants_usage = _read_flag(fields, USAGE_FIELD)
        check_fields(fields, api)
        size = file.end - file.start
        audio = audio_bytes(bytes(raw[file.start : file.start + min(size, WAV_HEADER_BYTES)]), size)
        prompt = sum(len(memoryview(fields[name])) for name in _PROMPT_FIELDS if name in fields)
        return cls(
            api=api,
            model=model,
            stream=stream,
            service_tier=read_field(fields, "service_tier", STRING, "a string"),
            wants_usage=wants_usage,
            length=PromptLength(audio + prompt, audio + prompt, media=True),
            is_large=len(raw) > LARGE_BYTES,
            prefix=b"",
            format=read_field(fields, "response_format", STRING, "a string") or "json",
            boundary=f"headgate-{secrets.token_hex(16)}",
            file=file,
            raw=raw,
            text_bytes=sum(part.end - part.start for part in parts if not part.is_file),
            _fields=fields,
            _stream_options={},
        )

    @property
    def content(self) -> memoryview:
        """Content of the file."""
        return memoryview(self.raw)[self.file.start : self.file.end]

    @property
    def copied_bytes(self) -> int:
        # The fields as JSON, in which quotes and backslashes are escaped, and once more in the form for the engine.
        return sum(len(memoryview(each)) for each in self._fields.values()) + self.text_bytes

    def encoded_fields(self) -> bytes:
        """Returns all other fields, encoded in the same way for equal fields in the same order."""
        return _ENCODER.encode(self._fields)

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def returns_json(self) -> bool:
        return self.format not in _PLAIN_FORMATS

    @property
    def requires_stream(self) -> bool:
        """Models that cannot stream ignore the field, as in OpenAI's API."""
        return False

    def apply_caps(self, caps: Caps, trimmed: Trimmed | None) -> tuple[Self, tuple[str, ...]]:
        """Returns the body unchanged. The length of a transcript follows from the audio."""
        return self, ()

    def encode(self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None) -> bytes:
        return b"".join(
            self.encode_in_pieces(served_model=served_model, passes_priority=passes_priority, cache_salt=cache_salt)
        )

    def encode_in_pieces(
        self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None
    ) -> list[bytes | memoryview]:
        delimiter = f"--{self.boundary}\r\nContent-Disposition: form-data; name="
        fields = self.fields() | {"model": msgspec.Raw(_ENCODER.encode(served_model))}
        head = "".join(
            f'{delimiter}"{name}"\r\n\r\n{text}\r\n'
            for base, value in fields.items()
            if base not in _GATEWAY_FIELDS
            for name, text in _texts_of(base, value)
        )
        file = self.file
        # Engines need the kind of the file. Its name may be private.
        extension = _EXTENSION.search(file.filename)
        head += f'{delimiter}"{_FILE}"; filename="audio{extension[0] if extension else ""}"\r\n'
        head += f"Content-Type: {file.content_type or 'application/octet-stream'}\r\n\r\n"
        return [head.encode(), self.content, f"\r\n--{self.boundary}--\r\n".encode()]


def _find_file(parts: list[FormPart]) -> FormPart:
    files = [part for part in parts if part.is_file or part.name == _FILE]
    if len(files) == 1 and files[0].is_file and files[0].name == _FILE:
        return files[0]
    other = next((part.name for part in files if part.name != _FILE), None)
    if other is not None:
        raise BadRequest(f'"{other}" must not be a file; only "{_FILE}" is one', other)
    if len(files) > 1:
        raise BadRequest(f'"{_FILE}" is given {len(files)} times; send one audio file', _FILE)
    raise BadRequest(f'"{_FILE}" must be an uploaded audio file, as in `curl -F {_FILE}=@speech.wav`', _FILE)


def _read_texts(raw: bytes | bytearray, parts: list[FormPart]) -> Fields:
    """Returns the text fields as JSON values."""
    found: dict[str, _Texts] = {}
    total_bytes = 0
    for part in parts:
        if part.is_file:
            continue
        total_bytes += part.end - part.start
        if total_bytes > TEXT_BYTES_MAX:
            raise BadRequest(f"the fields exceed the limit of {TEXT_BYTES_MAX} bytes in total; send audio as a file")
        # JSON takes six bytes for each of these, so a request would take much more memory than its size.
        if _CONTROL.search(raw, part.start, part.end) is not None:
            raise BadRequest(f'"{part.name}" contains a control character', part.name)
        try:
            text = raw[part.start : part.end].decode()
        except UnicodeDecodeError:
            raise BadRequest(f'"{part.name}" is not valid UTF-8', part.name) from None
        _add(found, part.name, text)
    return {name: msgspec.Raw(_ENCODER.encode(value)) for name, value in found.items()}


def _add(found: dict[str, _Texts], name: str, text: str) -> None:
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        raise BadRequest("a field has an invalid name; names have the form NAME, NAME[] or NAME[KEY]", name)
    base, key = parsed[1], parsed[2]
    present = found.get(base)
    match present:
        case None:
            found[base] = text if key is None else {key: text} if key else [text]
        case list() if key == "":
            present.append(text)
        case dict() if key and key not in present:
            present[key] = text
        case _:
            raise BadRequest(f'"{name}" is given more than once; send it once, or as "{base}[]" for a list', name)


def _read_flag(fields: Fields, name: str) -> bool:
    """Returns a flag, and normalizes it, so that all engines read it in the same way."""
    text = read_field(fields, name, STRING, "true or false")
    if text is None:
        return False
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise BadRequest(f'"{name}" must be true or false', name)
    fields[name] = msgspec.Raw(flag)
    return flag == _TRUE


def _texts_of(base: str, value: msgspec.Raw) -> Iterator[tuple[str, str]]:
    """Returns the names and values of the form fields for this value."""
    content = cast("_Texts | bool", msgspec.json.decode(value))
    match content:
        case bool():
            yield base, "true" if content else "false"
        case str():
            yield base, content
        case list():
            for text in content:
                yield f"{base}[]", text
        case dict():
            for key, text in content.items():
                yield f"{base}[{key}]", text
