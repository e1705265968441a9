"""Which parameters may tensors bring along, before any engine sees them?

Tensors themselves are the engine's to judge. What their parameters can ask for is more than an inference: memory that
others share with the engine, a place before other callers' requests, a sequence whose parts must meet the same engine.
The first two would reach over to other tenants, the third is nothing that a gateway over several engines can promise.

The bytes that are looked at here travel on as they are. So nothing may be given twice: of two values we would look at
the last, and Triton takes the first.
"""

from itertools import chain
from typing import Final

import msgspec

from headgate.wire.fields import FIELDS, BadRequest, Fields, not_of_kind, read
from headgate.wire.outline import fields_once

_SHARED_MEMORY: Final = "shared_memory_"
_NOT_TAKEN: Final = {
    "priority": "it would go before what other callers have sent; name a class in the header x-headgate-class",
    "sequence_id": "a sequence must stay at one engine, which is not promised here; send each request by itself",
    "sequence_start": "a sequence must stay at one engine, which is not promised here; send each request by itself",
    "sequence_end": "a sequence must stay at one engine, which is not promised here; send each request by itself",
}


_TENSORS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def check_once(raw: bytes | msgspec.Raw, place: str | None) -> Fields:
    """The fields of an object, each of which it may give once. Raises `DecodeError` where it is no object."""
    fields = fields_once(raw)
    if fields is None:
        where = "the body" if place is None else f'"{place}"'
        raise BadRequest(f"{where} gives a field twice, and an engine may take either; give each once", place)
    return fields


def check_tensors(fields: Fields, name: str) -> None:
    """The inputs of a request, or the outputs that it asks for."""
    raw = fields[name]
    try:
        tensors = [check_once(each, name) for each in _TENSORS.decode(raw)]
        parameters = [check_once(each["parameters"], name) for each in tensors if "parameters" in each]
    except (msgspec.DecodeError, RecursionError):
        raise not_of_kind(name, "an array of tensors", raw) from None
    for parameter in chain.from_iterable(parameters):
        if parameter.startswith(_SHARED_MEMORY):
            reason = "memory is not shared with callers; send the data with the request"
            kept = f'"{name}" has a parameter "{_SHARED_MEMORY}…": {reason}'
            raise BadRequest(f'"{name}" has the parameter "{parameter}": {reason}', name, kept=kept)


def check_parameters(fields: Fields, name: str) -> None:
    """What a request says of itself as a whole."""
    parameters = read(fields, name, FIELDS, "an object") or {}
    for parameter, reason in _NOT_TAKEN.items():
        if parameter in parameters:
            raise BadRequest(f'"{name}.{parameter}" is not taken: {reason}', f"{name}.{parameter}")
