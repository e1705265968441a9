"""How are several small predictions asked as one, and how is the one answer shared out?

A request of KServe's protocol brings tensors whose first dimension counts its rows; that this is so for a model is what
whoever configures batching for its pool says. Rows of several requests with the same tensors, parameters and wanted
outputs stand one after the other in one request, and the rows of the answer go back in that order. Only plain JSON with
flat data is joined. A request with an id of its own goes as it came, since the answer repeats it, and so does one with
binary data: it is large or does not mind to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, cast

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.batches import HELD_BYTES_MAX, Inputs, Joinery, Part, Unshareable
from headgate.wire.fields import Fields
from headgate.wire.kserve.infer import Asked, InferBody
from headgate.wire.request import RequestBody

JOINED_BYTES_MAX: Final = 256 * 1024
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""The values of an answer are looked at one by one, which takes far longer than to pass it on."""
ROWS_MAX: Final = 2_048
TEXTS_MAX: Final = 4_096
"""So many values of a tensor may be texts, whose ends are found more slowly than those of numbers."""
KEY_BYTES_MAX: Final = 4_096

_BETWEEN: Final = b"\x00"
"""Stands between the tensors of one row. In right JSON this byte stands nowhere."""
_NO_DATA: Final = msgspec.Raw(b"[]")
_ENCODER: Final = msgspec.json.Encoder()
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw
    parameters: msgspec.Raw = msgspec.Raw(b"{}")

    def rows(self) -> list[bytes]:
        """The values of each row; of none where the data do not fill the shape, or are no plain values."""
        raw = bytes(self.data)
        count = self.shape[0] if self.shape and raw[:1] == b"[" else 0
        inner = raw[1:-1].strip()
        if count == 1 and inner.count(b",") + 1 == prod(self.shape) and b'"' not in inner and not _nests(inner):
            return [inner]
        values = _values(inner) if 1 <= count <= ROWS_MAX else []
        if not values or prod(self.shape) != len(values):
            return []
        width = len(values) // count
        return [b",".join(values[at * width : (at + 1) * width]) for at in range(count)]


def _values(inner: bytes) -> list[bytes]:
    """What stands in a list; nothing where one of them is a list itself, or too many are texts."""
    if b'"' not in inner:
        return [] if _nests(inner) else inner.split(b",")
    if inner.count(b'"') > 4 * TEXTS_MAX:
        return []
    listed = [bytes(value) for value in _LIST.decode(b"[" + inner + b"]")]
    nested = any(value[:1] in (b"[", b"{") for value in listed)
    return [] if nested or len(listed) > TEXTS_MAX else listed


def _nests(inner: bytes) -> bool:
    return b"[" in inner or b"{" in inner


_TENSORS: Final = msgspec.json.Decoder(list[_Tensor])


def inputs_of(body: RequestBody) -> Inputs | None:
    if not isinstance(body, InferBody) or body.asked is not Asked.INFERENCE or body.json_bytes is not None:
        return None
    raw = bytes(body.raw) if len(body.raw) <= JOINED_BYTES_MAX else b""
    if b"binary" in raw or _BETWEEN in raw:
        return None
    try:
        fields = _OBJECT.decode(raw)
        tensors = _TENSORS.decode(fields.pop("inputs", b""))
    except _UNREADABLE:
        return None
    kinds = [(tensor.name, tensor.shape[1:], tensor.datatype, tensor.parameters) for tensor in tensors]
    key = b"tensors" + _ENCODER.encode([kinds, dict(sorted(fields.items()))])
    if "id" in fields or len(key) > KEY_BYTES_MAX:
        return None
    rows = [tensor.rows() for tensor in tensors]
    if not rows or not rows[0] or any(len(each) != len(rows[0]) for each in rows):
        return None
    items = tuple(msgspec.Raw(_BETWEEN.join(each)) for each in zip(*rows, strict=True))
    weights = tuple(max(1, len(memoryview(item))) for item in items)
    return Inputs(key, items, tuple(-(-weight // BYTES_PER_TOKEN) for weight in weights), weights, counted=False)


def joined(first: RequestBody, items: Sequence[msgspec.Raw], callers: int) -> RequestBody:
    del callers
    body = cast("InferBody", first)
    fields = _OBJECT.decode(bytes(body.raw))
    tensors = _TENSORS.decode(fields["inputs"])
    columns = zip(*(bytes(item).split(_BETWEEN) for item in items), strict=True)
    stacked = [_stacked(tensor, rows) for tensor, rows in zip(tensors, columns, strict=True)]
    fields["inputs"] = msgspec.Raw(b"[" + b",".join(stacked) + b"]")
    return InferBody.of(_ENCODER.encode(fields), model=body.model, asked=body.asked)


def _stacked(tensor: _Tensor, rows: Sequence[bytes]) -> bytes:
    """The tensor with these rows, which are copied as they are."""
    data = msgspec.Raw(b"[" + b",".join(rows) + b"]")
    return _ENCODER.encode(msgspec.structs.replace(tensor, shape=[len(rows), *tensor.shape[1:]], data=data))


@dataclass(frozen=True, slots=True)
class TensorPart(Part):
    """One row of every output."""

    outputs: tuple[bytes, ...]
    kinds: tuple[_Tensor, ...]
    """The outputs without their data, by whose names and shapes it goes."""
    rest: Fields


def parts_of(answer: bytes | bytearray, weights: Sequence[int], counted: bool) -> Sequence[Part]:  # noqa: FBT001 (of a joinery)
    del counted
    try:
        fields = _OBJECT.decode(answer)
        tensors = tuple(_TENSORS.decode(fields.pop("outputs", b"")))
    except _UNREADABLE:
        raise Unshareable("the engine's answer has no outputs in plain JSON") from None
    rows = [tensor.rows() for tensor in tensors]
    if not rows or any(len(each) != len(weights) for each in rows):
        raise Unshareable(f"the engine answered {len(weights)} rows with outputs of another number")
    # What is kept of it is copied, or all of it would be held for as long as any row is.
    rest = {name: value.copy() for name, value in fields.items()}
    kinds = tuple(msgspec.structs.replace(each, data=_NO_DATA, parameters=each.parameters.copy()) for each in tensors)
    return [TensorPart(estimated=False, outputs=outputs, kinds=kinds, rest=rest) for outputs in zip(*rows, strict=True)]


@dataclass(slots=True)
class TensorGathering:
    """Rows of several outputs cannot be told before the last of them has come."""

    total: int
    held: int = 0
    held_bytes_max: int = HELD_BYTES_MAX
    parts: dict[int, TensorPart] = field(default_factory=dict[int, TensorPart])

    @property
    def over(self) -> bool:
        return len(self.parts) == self.total

    def take(self, place: int, part: Part) -> bytes:
        self.parts[place] = came = cast("TensorPart", part)
        self.held += sum(map(len, came.outputs))
        if not self.over:
            if self.held >= self.held_bytes_max:
                raise Unshareable(f"the rows of one answer come to {self.held_bytes_max} bytes or more")
            return b""
        self.held = 0
        ordered = [self.parts[at] for at in range(self.total)]
        columns = zip(*(each.outputs for each in ordered), strict=True)
        stacked = [_stacked(tensor, rows) for tensor, rows in zip(ordered[0].kinds, columns, strict=True)]
        outputs = msgspec.Raw(b"[" + b",".join(stacked) + b"]")
        return _ENCODER.encode(ordered[0].rest | {"outputs": outputs})


TENSORS: Final = Joinery(inputs_of, joined, parts_of, TensorGathering, ANSWER_BYTES_MAX)
