"""Checks tensor and request parameters before any engine receives them.

The engine checks the tensors themselves. Parameters can ask for more than inference: memory shared with the engine,
priority over other requests, or a sequence whose requests must all go to the same engine. The first two would affect
other tenants, and a gateway with several engines cannot guarantee the third.

The checked bytes are forwarded unchanged. Duplicate fields are therefore rejected: the gateway would check the last
value, but Triton uses the first.
"""

from itertools import chain
from typing import Final

import msgspec

from headgate.wire.fields import FIELDS, BadRequest, Fields, read_field, wrong_type
from headgate.wire.outline import unique_fields

_SHARED_MEMORY: Final = "shared_memory_"
_REJECTED_PARAMETERS: Final = {
    "priority": "priority is set by the class; choose one with the x-headgate-class header",
    "sequence_id": "requests in a sequence may go to different engines; send independent requests",
    "sequence_start": "requests in a sequence may go to different engines; send independent requests",
    "sequence_end": "requests in a sequence may go to different engines; send independent requests",
}


_TENSORS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def read_unique_fields(raw: bytes | msgspec.Raw, place: str | None) -> Fields:
    """Returns the fields of an object and rejects duplicates. Raises `DecodeError` if it is not an object."""
    fields = unique_fields(raw)
    if fields is None:
        where = "the body" if place is None else f'"{place}"'
        raise BadRequest(f"{where} contains a field more than once; remove the duplicates", place)
    return fields


def check_tensors(fields: Fields, name: str) -> None:
    """Checks the inputs or requested outputs of a request."""
    raw = fields[name]
    try:
        tensors = [read_unique_fields(each, name) for each in _TENSORS.decode(raw)]
        parameters = [read_unique_fields(each["parameters"], name) for each in tensors if "parameters" in each]
    except (msgspec.DecodeError, RecursionError):
        raise wrong_type(name, "an array of tensors", raw) from None
    for parameter in chain.from_iterable(parameters):
        if parameter.startswith(_SHARED_MEMORY):
            reason = "shared memory is not supported; send the data in the request"
            kept = f'"{name}" has a parameter "{_SHARED_MEMORY}…": {reason}'
            raise BadRequest(f'"{name}" has the parameter "{parameter}": {reason}', name, log_message=kept)


def check_parameters(fields: Fields, name: str) -> None:
    """Checks the parameters of the request itself."""
    parameters = read_field(fields, name, FIELDS, "an object") or {}
    for parameter, reason in _REJECTED_PARAMETERS.items():
        if parameter in parameters:
            raise BadRequest(f'"{name}.{parameter}" is not supported: {reason}', f"{name}.{parameter}")
