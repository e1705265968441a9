"""Top-level fields of a request body.

A body is split into its top-level fields only. Values are kept as the bytes received, so that unknown fields reach the
engine unchanged. Malformed bodies are rejected here, because some engines report them as internal errors, which look
like engine failures.
"""

from typing import Final, TypeVar

import msgspec

DEPTH_MAX: Final = 64
"""Maximum nesting depth of arrays and objects. Engines fail in various ways at depths of several hundred."""

FIELDS_MAX: Final = 1024
"""Maximum number of top-level fields in a body."""
NAMES_CHARS_MAX: Final = 16 * 1024
"""Maximum total length of the field names in a body, in characters."""

Fields = dict[str, msgspec.Raw]

_T = TypeVar("_T")

FIELDS: Final = msgspec.json.Decoder(Fields)
STRING: Final = msgspec.json.Decoder(str)
BOOL: Final = msgspec.json.Decoder(bool)
INTEGER: Final = msgspec.json.Decoder(int)

_ARRAYS_ONLY: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))


class BadRequest(Exception):
    """The body is invalid. The message says what to change. `param` is the name of the invalid field, if known."""

    def __init__(self, message: str, param: str | None = None, *, log_message: str | None = None) -> None:
        """`log_message` is the message for logs and records, without any text from the body.

        Only the client sees that text.
        """
        super().__init__(message)
        self.message = message
        self.param = param
        self.log_message = message if log_message is None else log_message


def split_fields(raw: bytes) -> Fields:
    try:
        # The JSON decoder does not check the encoding of values it skips, and engines handle invalid UTF-8 differently.
        raw.decode()
        fields = FIELDS.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not valid UTF-8 at byte {error.start}; encode the JSON as UTF-8") from None
    except msgspec.ValidationError:
        raise BadRequest('the body must be a JSON object such as {"model": "…", …}') from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}; send one JSON object") from None
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and is_deeper_than(raw, DEPTH_MAX):
        raise _too_deep()
    if (len(raw) > NAMES_CHARS_MAX or len(fields) > FIELDS_MAX) and exceeds_field_limits(fields):
        limits = f"{FIELDS_MAX} top-level fields or {NAMES_CHARS_MAX} characters of field names"
        raise BadRequest(f"the body exceeds the limit of {limits}")
    return fields


def exceeds_field_limits(fields: Fields) -> bool:
    return len(fields) > FIELDS_MAX or sum(map(len, fields)) > NAMES_CHARS_MAX


def read_field(
    fields: Fields, name: str, decoder: msgspec.json.Decoder[_T], kind: str, *, inside: str | None = None
) -> _T | None:
    """Returns a field's value. None if the field is absent or null, which clients use interchangeably."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:  # Includes ValidationError, for a value of the wrong type.
        if bytes(raw) == b"null":
            return None  # Checked here, because a null is rare.
        path = name if inside is None else f"{inside}.{name}"
        raise wrong_type(path, kind, raw) from None


def is_given(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw) != b"null"


def wrong_type(path: str, kind: str, raw: msgspec.Raw | bytes) -> BadRequest:
    wrong = f'"{path}" must be {kind}'
    return BadRequest(f"{wrong}, not {_excerpt(raw)}", path, log_message=wrong)


def _excerpt(raw: msgspec.Raw | bytes) -> str:
    text = bytes(raw)[:41].decode(errors="replace")
    return text if len(text) <= 40 else text[:40] + "…"


def is_deeper_than(raw: bytes, depth: int) -> bool:
    """Returns whether valid JSON is nested deeper than `depth`, without parsing it.

    All strings are removed first, so that only the structure is left. Each round then removes the innermost level.
    """
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    # Two adjacent quotes are either an empty string, or the end of one string and the start of the next. Removing them
    # keeps string content inside strings. After that, every other piece between quotes is a string.
    structure = raw.translate(_ARRAYS_ONLY, _NOT_STRUCTURE).replace(b'""', b"")
    structure = b"".join(structure.split(b'"')[::2])
    for _ in range(depth):
        if not structure:
            break
        structure = structure.replace(b"[]", b"")
    return structure != b""


def _too_deep() -> BadRequest:
    return BadRequest(f"the body has more than {DEPTH_MAX} levels of nested arrays and objects; flatten it")
