"""Request and response bodies in KServe's protocol.

Tensors are forwarded unchanged. They are either JSON, or JSON followed by binary data (the binary tensor extension),
with the length of the JSON part in a header. Only the JSON is parsed, to reject values that must not reach an engine
(`tensor_checks.py`). The model name is in the path, so the body does not contain it.
"""

from dataclasses import field
from enum import StrEnum
from typing import Final, Self

import msgspec

from headgate.model.caps import Caps
from headgate.model.message import message
from headgate.model.ticket import Api
from headgate.wire.prompt_length import PromptLength
from headgate.wire.request_body import BadRequest, RequestBody, Trimmed, is_large

JSON_LENGTH_HEADER: Final = "inference-header-content-length"
"""Header with the length of the JSON part of a request or response body. Absent if the whole body is JSON."""

_ENCODER: Final = msgspec.json.Encoder()


class ModelOperation(StrEnum):
    """Operation on a model. The value is the last part of its path."""

    INFERENCE = "/infer"
    READINESS = "/ready"
    METADATA = ""


@message
class InferBody(RequestBody):
    """KServe request body, as received."""

    operation: ModelOperation
    json_bytes: int | None
    """Length of the JSON part, in bytes. None if the whole body is JSON."""
    raw: bytes | bytearray = field(repr=False)

    @classmethod
    def of(
        cls, raw: bytes | bytearray, *, model: str, operation: ModelOperation, json_bytes: int | None = None
    ) -> Self:
        """Creates a body from bytes that have been checked. Its size counts as its prompt length."""
        return cls(
            api=Api.INFER,
            model=model,
            stream=False,
            service_tier=None,
            wants_usage=False,
            length=PromptLength(len(raw), len(raw)),
            is_large=is_large(raw),
            prefix=b"",
            operation=operation,
            json_bytes=json_bytes,
            raw=raw,
            _fields={},
            _stream_options={},
        )

    @property
    def returns_json(self) -> bool:
        """Tensors may be binary, and a response about a model may be empty."""
        return False

    def apply_caps(self, caps: Caps, trimmed: Trimmed | None) -> tuple[Self, tuple[str, ...]]:
        """Returns the body unchanged, because caps apply only to generated tokens."""
        return self, ()

    def encode(self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None) -> bytes:
        return bytes(self.raw)

    def encode_in_pieces(
        self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None
    ) -> list[bytes | memoryview]:
        return [memoryview(self.raw)] if self.raw else []


def json_length(header: bytes | None, size: int) -> int | None:
    """Parses the header with the JSON length.

    Returns None if there is no header. Raises `BadRequest` if the value is above `size`.
    """
    if header is None:
        return None
    length = int(header) if header.isdigit() and len(header) <= 18 else -1
    if not 0 < length <= size:
        raise BadRequest(f"{JSON_LENGTH_HEADER} must be from 1 to {size}, the size of the body", JSON_LENGTH_HEADER)
    return length


def error_body(message: str) -> bytes:
    return _ENCODER.encode({"error": message})


def server_body(*, name: str, version: str) -> bytes:
    """Returns the server metadata."""
    return _ENCODER.encode({"name": name, "version": version, "extensions": ["binary_tensor_data"]})
