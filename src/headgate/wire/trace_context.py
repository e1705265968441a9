"""Reads W3C Trace Context headers and the client's own stages.

Headers are parsed strictly, and malformed ones are ignored, because a trace must not contain wrong data. For an unknown
version, only the known part is used. Clients may also report the stages that preceded the request, in the header
`x-headgate-client-stages`. It uses the Server-Timing format, in milliseconds: `prompt_building;dur=12.5,
retrieval;dur=80`. The header is ignored if any part of it is malformed.
"""

import re
from typing import Final, NamedTuple

from headgate.model.stage import CALLER_STAGE_CHARS_MAX, CALLER_STAGES_MAX
from headgate.model.units import MINUTE

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
CALLER_STAGES_HEADER: Final = "x-headgate-client-stages"

STATE_BYTES_MAX: Final = 512
"""Maximum size of `tracestate`. The standard requires forwarding up to this size. Larger values are dropped."""
_STATE_MEMBERS_MAX: Final = 32
_STAGES_BYTES_MAX: Final = CALLER_STAGES_MAX * (CALLER_STAGE_CHARS_MAX + 24)
_STAGES_NS_MAX: Final = 24 * 60 * MINUTE
"""Maximum total duration of the client's stages: one day. Anything longer cannot belong to the request."""
_MILLION: Final = 1_000_000
_SAMPLED: Final = 1

_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_STATE_KEY: Final = rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_STATE_VALUE: Final = rb"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER: Final = re.compile(rb"(" + _STATE_KEY + rb")=" + _STATE_VALUE)
_STAGE: Final = re.compile(
    rb"([a-z0-9_]{1,%d})[ \t]*;[ \t]*dur=([0-9]{1,9})(?:\.([0-9]{1,6}))?" % CALLER_STAGE_CHARS_MAX
)


class TraceParent(NamedTuple):
    trace_id: bytes
    """Trace ID, 16 bytes."""
    span_id: bytes
    """The client's span ID, 8 bytes."""
    sampled: bool


def read_traceparent(value: bytes | None) -> TraceParent | None:
    """Returns the parsed header, or None if it is missing or malformed."""
    found = None if value is None else _PARENT.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    version, trace_id, span_id = found[1], bytes.fromhex(found[2].decode()), bytes.fromhex(found[3].decode())
    if version == b"ff" or (version == b"00" and found[5] is not None) or not any(trace_id) or not any(span_id):
        return None
    return TraceParent(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def read_tracestate(value: bytes | None) -> str:
    """Returns the state to forward to engines, without empty members. Empty if any member is malformed."""
    if value is None or len(value) > STATE_BYTES_MAX:
        return ""
    members = [stripped for each in value.split(b",") if (stripped := each.strip(b" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {each[1] for each in found if each is not None}
    # If members are duplicate or malformed, the counts differ.
    if len(members) > _STATE_MEMBERS_MAX or len(keys) != len(members):
        return ""
    return b",".join(members).decode("ascii")


def write_traceparent(trace_id: bytes, span_id: bytes, *, sampled: bool) -> str:
    return f"00-{trace_id.hex()}-{span_id.hex()}-{'01' if sampled else '00'}"


def is_sampled(trace_id: bytes, sample_ppm: int) -> bool:
    """Returns whether a trace is sampled at this rate, in parts per million. The result is the same in every process.

    Like OpenTelemetry's `TraceIdRatioBased`, this compares the lower half of the trace ID with the rate.
    """
    return int.from_bytes(trace_id[8:], "big") * _MILLION < sample_ppm << 64


def read_caller_stages(value: bytes | None) -> tuple[tuple[str, int], ...]:
    """Returns the name and duration in nanoseconds of each stage, in order. Empty if malformed or above the limits."""
    if value is None or len(value) > _STAGES_BYTES_MAX:
        return ()
    parts = value.split(b",")
    if len(parts) > CALLER_STAGES_MAX:
        return ()
    stages: list[tuple[str, int]] = []
    for part in parts:
        if (found := _STAGE.fullmatch(part.strip(b" \t"))) is None:
            return ()
        stages.append((found[1].decode(), int(found[2]) * _MILLION + int((found[3] or b"0").ljust(6, b"0"))))
    return tuple(stages) if sum(length for _, length in stages) <= _STAGES_NS_MAX else ()
