"""Batch codec for KServe inference requests.

Batching for a pool assumes that the first dimension of the model's tensors is the batch dimension. The rows of several
requests with the same tensors, parameters and requested outputs are sent in one request, and the rows of the response
are returned in the same order. Only plain JSON with flat data is batched. Requests with an `id` are sent unchanged,
because the response repeats the `id`. Requests with binary data are also sent unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, cast

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.batch_codec import BUFFERED_BYTES_MAX, BatchCodec, BatchInputs, BatchSplitError, ResponsePart
from headgate.wire.fields import Fields
from headgate.wire.kserve.infer import InferBody, ModelOperation
from headgate.wire.request_body import RequestBody

JOINED_BYTES_MAX: Final = 256 * 1024
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a response that can be split, in bytes.

Splitting examines each value and is slower than forwarding.
"""
ROWS_MAX: Final = 2_048
TEXTS_MAX: Final = 4_096
"""Maximum number of text values in a tensor. Texts are slower to split than numbers."""
KEY_BYTES_MAX: Final = 4_096

_SEPARATOR: Final = b"\x00"
"""Separator between the tensors of one row. This byte does not occur in valid JSON."""
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
        """Returns the values in each row. Empty if the data does not match the shape or contains nested values."""
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
    """Returns the elements of a list. Empty if it has nested values or too many texts."""
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


def split_request(body: RequestBody) -> BatchInputs | None:
    if not isinstance(body, InferBody) or body.operation is not ModelOperation.INFERENCE or body.json_bytes is not None:
        return None
    raw = bytes(body.raw) if len(body.raw) <= JOINED_BYTES_MAX else b""
    if b"binary" in raw or _SEPARATOR in raw:
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
    items = tuple(msgspec.Raw(_SEPARATOR.join(each)) for each in zip(*rows, strict=True))
    weights = tuple(max(1, len(memoryview(item))) for item in items)
    return BatchInputs(
        key, items, tuple(-(-weight // BYTES_PER_TOKEN) for weight in weights), weights, are_token_ids=False
    )


def join_inputs(first: RequestBody, items: Sequence[msgspec.Raw], callers: int) -> RequestBody:
    del callers
    body = cast("InferBody", first)
    fields = _OBJECT.decode(bytes(body.raw))
    tensors = _TENSORS.decode(fields["inputs"])
    columns = zip(*(bytes(item).split(_SEPARATOR) for item in items), strict=True)
    stacked = [_stack(tensor, rows) for tensor, rows in zip(tensors, columns, strict=True)]
    fields["inputs"] = msgspec.Raw(b"[" + b",".join(stacked) + b"]")
    return InferBody.of(_ENCODER.encode(fields), model=body.model, operation=body.operation)


def _stack(tensor: _Tensor, rows: Sequence[bytes]) -> bytes:
    """Returns the tensor with these rows."""
    data = msgspec.Raw(b"[" + b",".join(rows) + b"]")
    return _ENCODER.encode(msgspec.structs.replace(tensor, shape=[len(rows), *tensor.shape[1:]], data=data))


@dataclass(frozen=True, slots=True)
class TensorPart(ResponsePart):
    """One row of every output."""

    outputs: tuple[bytes, ...]
    kinds: tuple[_Tensor, ...]
    """Output tensors without their data, for their names and shapes."""
    rest: Fields


def split_response(answer: bytes | bytearray, weights: Sequence[int], counted: bool) -> Sequence[ResponsePart]:  # noqa: FBT001 (signature of a batch codec)
    del counted
    try:
        fields = _OBJECT.decode(answer)
        tensors = tuple(_TENSORS.decode(fields.pop("outputs", b"")))
    except _UNREADABLE:
        raise BatchSplitError("the engine's response has no outputs in plain JSON") from None
    rows = [tensor.rows() for tensor in tensors]
    if not rows or any(len(each) != len(weights) for each in rows):
        raise BatchSplitError(
            f"the engine's outputs do not have exactly one row for each of the {len(weights)} input rows"
        )
    # Values that are kept are copied. Otherwise each row would keep the whole response in memory.
    rest = {name: value.copy() for name, value in fields.items()}
    kinds = tuple(msgspec.structs.replace(each, data=_NO_DATA, parameters=each.parameters.copy()) for each in tensors)
    return [TensorPart(estimated=False, outputs=outputs, kinds=kinds, rest=rest) for outputs in zip(*rows, strict=True)]


@dataclass(slots=True)
class TensorAssembly:
    """Assembles a response. Nothing can be forwarded until the last row has arrived."""

    total: int
    buffered_bytes: int = 0
    buffered_bytes_max: int = BUFFERED_BYTES_MAX
    parts: dict[int, TensorPart] = field(default_factory=dict[int, TensorPart])

    @property
    def complete(self) -> bool:
        return len(self.parts) == self.total

    def add(self, place: int, part: ResponsePart) -> bytes:
        self.parts[place] = came = cast("TensorPart", part)
        self.buffered_bytes += sum(map(len, came.outputs))
        if not self.complete:
            if self.buffered_bytes >= self.buffered_bytes_max:
                raise BatchSplitError(f"the rows of one response reach the limit of {self.buffered_bytes_max} bytes")
            return b""
        self.buffered_bytes = 0
        ordered = [self.parts[at] for at in range(self.total)]
        columns = zip(*(each.outputs for each in ordered), strict=True)
        stacked = [_stack(tensor, rows) for tensor, rows in zip(ordered[0].kinds, columns, strict=True)]
        outputs = msgspec.Raw(b"[" + b",".join(stacked) + b"]")
        return _ENCODER.encode(ordered[0].rest | {"outputs": outputs})


TENSORS_CODEC: Final = BatchCodec(split_request, join_inputs, split_response, TensorAssembly, ANSWER_BYTES_MAX)
