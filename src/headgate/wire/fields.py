"""What fields does a body have?

A body is split into its top-level fields and no further: each value stays the bytes it came as, so that fields which
nobody here knows reach the engine untouched. What is refused here would otherwise be an engine's problem, and for some
engines a malformed body is an internal error that looks like their own failure.
"""

from typing import Final, TypeVar

import msgspec

DEPTH_MAX: Final = 64
"""How deep arrays and objects may nest. Engines fail in ways of their own at depths of some hundreds."""

FIELDS_MAX: Final = 1024
NAMES_CHARS_MAX: Final = 16 * 1024
"""How many fields one body may have, and how long all their names may be together."""

Fields = dict[str, msgspec.Raw]

_T = TypeVar("_T")

FIELDS: Final = msgspec.json.Decoder(Fields)
STRING: Final = msgspec.json.Decoder(str)
BOOL: Final = msgspec.json.Decoder(bool)
INTEGER: Final = msgspec.json.Decoder(int)

_ARRAYS_ONLY: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))


class BadRequest(Exception):
    """The body cannot be understood. The message says what to change; `param` names the field, if it is one."""

    def __init__(self, message: str, param: str | None = None, *, kept: str | None = None) -> None:
        """`kept` is the message without any words of the body, where it has some: only the caller is told those."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.kept = message if kept is None else kept


def split(raw: bytes) -> Fields:
    try:
        # Values that are only skipped are not checked for their encoding, and engines differ in what they make of it.
        raw.decode()
        fields = FIELDS.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 at byte {error.start}; encode the JSON as UTF-8") from None
    except msgspec.ValidationError:
        raise BadRequest('the body must be a JSON object such as {"model": "…", …}') from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}; send one JSON object") from None
    if is_deeper_than(raw, DEPTH_MAX):
        raise _too_deep()
    if (len(raw) > NAMES_CHARS_MAX or len(fields) > FIELDS_MAX) and too_many(fields):
        limits = f"{FIELDS_MAX} fields at its top, nor names of more than {NAMES_CHARS_MAX} characters"
        raise BadRequest(f"the body may not have more than {limits}")
    return fields


def too_many(fields: Fields) -> bool:
    return len(fields) > FIELDS_MAX or sum(map(len, fields)) > NAMES_CHARS_MAX


def read(
    fields: Fields, name: str, decoder: msgspec.json.Decoder[_T], kind: str, *, inside: str | None = None
) -> _T | None:
    """The field's value; None where it is absent or null, which callers use alike."""
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:  # Its subclass ValidationError too: a value of another type.
        path = name if inside is None else f"{inside}.{name}"
        raise not_of_kind(path, kind, raw) from None


def is_given(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw) != b"null"


def not_of_kind(path: str, kind: str, raw: msgspec.Raw | bytes) -> BadRequest:
    wrong = f'"{path}" must be {kind}'
    return BadRequest(f"{wrong}, not {_excerpt(raw)}", path, kept=wrong)


def _excerpt(raw: msgspec.Raw | bytes) -> str:
    text = bytes(raw)[:41].decode(errors="replace")
    return text if len(text) <= 40 else text[:40] + "…"


def is_deeper_than(raw: bytes, depth: int) -> bool:
    """Whether valid JSON nests deeper, found without walking it.

    Strings go first, so that only structure is left; then each round takes away the innermost level of all.
    """
    if raw.count(b"[") + raw.count(b"{") <= depth:
        return False
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    # Two quotes side by side are an empty string, or end one and begin another: without them, what is inside of strings
    # stays inside. Then every other piece between quotes is a string.
    structure = raw.translate(_ARRAYS_ONLY, _NOT_STRUCTURE).replace(b'""', b"")
    structure = b"".join(structure.split(b'"')[::2])
    for _ in range(depth):
        if not structure:
            break
        structure = structure.replace(b"[]", b"")
    return structure != b""


def _too_deep() -> BadRequest:
    return BadRequest(f"the body nests more than {DEPTH_MAX} levels of arrays and objects; flatten it")
