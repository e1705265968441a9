"""Parses the fields of a request body that decisions depend on."""

from typing import Final

from headgate.model.ticket import ANTHROPIC_APIS, APIS_WITHOUT_OUTPUT, Api
from headgate.wire.fields import (
    BOOL,
    FIELDS,
    FIELDS_MAX,
    NAMES_CHARS_MAX,
    STRING,
    BadRequest,
    Fields,
    exceeds_field_limits,
    read_field,
    split_fields,
)
from headgate.wire.kserve.tensor_checks import read_unique_fields
from headgate.wire.prefix_hashes import HASHED_BYTES_MIN, prefix_hashes
from headgate.wire.prompt_length import PromptLength, measure_prompt
from headgate.wire.request_checks import check_fields

LARGE_BYTES: Final = 256 * 1024
LARGE_VALUES: Final = 4096
"""Maximum number of arrays and objects, or of strings, in a body that does not count as large.

More would delay all streams.
"""

_INFER: Final = Api.INFER
_STANDARD_TIER: Final = "standard_only"
"""The service tier of the Messages API that excludes paid priority. It chooses no class."""


def is_large(raw: bytes | bytearray) -> bool:
    """Returns whether parsing the body would delay other requests, because of its size or its number of values."""
    if not LARGE_VALUES < len(raw) <= LARGE_BYTES:
        return len(raw) > LARGE_BYTES
    return raw.count(b"{") + raw.count(b"[") > LARGE_VALUES or raw.count(b'"') > 2 * LARGE_VALUES


def parse_fields(raw: bytes, api: Api) -> tuple[str, bool, str | None, bool, PromptLength, bool, bytes, Fields, Fields]:
    """Returns the fields of a `RequestBody` after the API, in order. Raises `BadRequest`."""
    fields = split_fields(raw)
    if api is _INFER:
        read_unique_fields(raw, None)
    # Most requests have only a few of these fields.
    stream = wants_usage = False
    options: Fields = {}
    service_tier = None
    if "stream" in fields:
        stream = read_field(fields, "stream", BOOL, "true or false") or False
    if "stream_options" in fields:
        options = read_field(fields, "stream_options", FIELDS, "an object") or {}
        wants_usage = read_field(options, "include_usage", BOOL, "true or false", inside="stream_options") or False
    model = read_model(fields, api)
    if "service_tier" in fields:
        service_tier = read_field(fields, "service_tier", STRING, "a string")
        if service_tier == _STANDARD_TIER and api in ANTHROPIC_APIS:
            service_tier = None
    if len(raw) > NAMES_CHARS_MAX or len(options) > FIELDS_MAX:
        _check_lengths(model, service_tier, options)
    check_fields(fields, api)
    length = measure_prompt(fields, api)
    prefix = prefix_hashes(fields, api, length) if length.text >= HASHED_BYTES_MIN else b""
    return (
        model,
        # Embeddings and tensors are never streamed.
        stream and api not in APIS_WITHOUT_OUTPUT,
        service_tier,
        stream and wants_usage,
        length,
        is_large(raw),
        prefix,
        fields,
        options,
    )


def _check_lengths(model: str, service_tier: str | None, options: Fields) -> None:
    """Rejects long names, because names are stored and compared."""
    for name, value in ("model", model), ("service_tier", service_tier or ""):
        if len(value) > NAMES_CHARS_MAX:
            raise BadRequest(f'"{name}" has {len(value)} characters; the limit is {NAMES_CHARS_MAX}', name)
    if exceeds_field_limits(options):
        raise BadRequest(f'"stream_options" has more than {FIELDS_MAX} fields or very long names', "stream_options")


def read_model(fields: Fields, api: Api) -> str:
    model = read_field(fields, "model", STRING, "a string")
    if api is _INFER:
        # The model is in the path.
        return model or ""
    if model is None:
        raise BadRequest('"model" is missing; use one of the models listed by GET /v1/models', "model")
    if not model.strip():
        raise BadRequest('"model" is empty; use one of the models listed by GET /v1/models', "model")
    return model
