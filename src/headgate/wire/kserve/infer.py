"""What does a caller send and hear who speaks KServe's protocol rather than OpenAI's?

Tensors travel on as the bytes they came as. They are JSON, or JSON followed by binary data (the binary tensor
extension), whose length a header tells; the JSON alone is read, and only to refuse what no engine should see
(`kserve_checks.py`). The model is named by the path, which keeps the caller's name of it from the engine.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

import msgspec

from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.measure import PromptLength
from headgate.wire.request import BadRequest, RequestBody, Trimmed, is_large

HEADER_LENGTH: Final = "inference-header-content-length"
"""The header that tells how many bytes of a body, or of an answer, are JSON; absent where all of it is."""

_ENCODER: Final = msgspec.json.Encoder()


class Asked(StrEnum):
    """What of a model is wanted, which is also how its path ends."""

    INFERENCE = "/infer"
    READINESS = "/ready"
    METADATA = ""


@dataclass(frozen=True, slots=True)
class InferBody(RequestBody):
    """What is asked of a model, as it came."""

    asked: Asked
    json_bytes: int | None
    """How many of its bytes are JSON, where the caller said so; the others are data."""
    raw: bytes | bytearray = field(repr=False)

    @classmethod
    def of(cls, raw: bytes | bytearray, *, model: str, asked: Asked, json_bytes: int | None = None) -> Self:
        """A body that has been checked. Its size is what it counts for."""
        return cls(
            api=Api.INFER,
            model=model,
            stream=False,
            service_tier=None,
            wants_usage=False,
            length=PromptLength(len(raw), len(raw)),
            is_large=is_large(raw),
            prefix=b"",
            asked=asked,
            json_bytes=json_bytes,
            raw=raw,
            _fields={},
            _stream_options={},
        )

    def shaped(self, caps: Caps, trimmed: Trimmed | None) -> tuple[Self, tuple[str, ...]]:
        """Itself: a class limits answers of tokens, and here are none."""
        return self, ()

    def encode(self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None) -> bytes:
        return bytes(self.raw)

    def encode_in_pieces(
        self, *, served_model: str, passes_priority: bool = False, cache_salt: str | None = None
    ) -> list[bytes | memoryview]:
        return [memoryview(self.raw)] if self.raw else []


def json_length(told: bytes | None, size: int) -> int | None:
    """How many bytes of a body of this size are JSON, by its header; None where there is none. Raises `BadRequest`."""
    if told is None:
        return None
    length = int(told) if told.isdigit() and len(told) <= 18 else -1
    if not 0 < length <= size:
        raise BadRequest(f"{HEADER_LENGTH} must be a number from 1 to the body's {size} bytes", HEADER_LENGTH)
    return length


def error_body(message: str) -> bytes:
    return _ENCODER.encode({"error": message})


def server_body(*, name: str, version: str) -> bytes:
    """What a server says of itself."""
    return _ENCODER.encode({"name": name, "version": version, "extensions": ["binary_tensor_data"]})
