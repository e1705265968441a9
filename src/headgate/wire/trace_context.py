"""To which trace does a request belong, and what did its caller do before?

W3C Trace Context, read strictly: what is not exactly in its shape is as if it had not been sent, since whoever follows
a trace believes every part of it. A version that is not known yet may have more behind what is known, and is read as
far as that. Callers may also tell which stages of their own went before (`x-headgate-stages`), in the words of
Server-Timing: `prompt_building;dur=12.5, retrieval;dur=80`, in milliseconds. It too is taken whole or not at all.
"""

import re
from typing import Final, NamedTuple

from headgate.model.stage import CALLER_STAGE_CHARS_MAX, CALLER_STAGES_MAX
from headgate.model.units import MINUTE

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
CALLER_STAGES: Final = "x-headgate-stages"

STATE_BYTES_MAX: Final = 512
"""As many must be passed on; what is longer may be let go whole, and is."""
_STATE_MEMBERS_MAX: Final = 32
_STAGES_BYTES_MAX: Final = CALLER_STAGES_MAX * (CALLER_STAGE_CHARS_MAX + 24)
_STAGES_NS_MAX: Final = 24 * 60 * MINUTE
"""More than a day before a request was no work for it."""
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
    """Sixteen bytes."""
    span_id: bytes
    """Eight bytes: what of the caller's work asked us."""
    sampled: bool


def read_traceparent(value: bytes | None) -> TraceParent | None:
    """None where there is none, or none that can be believed."""
    found = None if value is None else _PARENT.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    version, trace_id, span_id = found[1], bytes.fromhex(found[2].decode()), bytes.fromhex(found[3].decode())
    if version == b"ff" or (version == b"00" and found[5] is not None) or not any(trace_id) or not any(span_id):
        return None
    return TraceParent(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def read_tracestate(value: bytes | None) -> str:
    """What goes along to engines as it came, without what is empty in it; nothing where any of it is malformed."""
    if value is None or len(value) > STATE_BYTES_MAX:
        return ""
    members = [stripped for each in value.split(b",") if (stripped := each.strip(b" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {each[1] for each in found if each is not None}
    # A key that stands twice, or does not match, is missing here.
    if len(members) > _STATE_MEMBERS_MAX or len(keys) != len(members):
        return ""
    return b",".join(members).decode("ascii")


def write_traceparent(trace_id: bytes, span_id: bytes, *, sampled: bool) -> str:
    return f"00-{trace_id.hex()}-{span_id.hex()}-{'01' if sampled else '00'}"


def is_sampled(trace_id: bytes, sample_ppm: int) -> bool:
    """Whether so many of a million traces include this one: the same answer wherever it is asked.

    As OpenTelemetry's `TraceIdRatioBased` has it: the lower half of the id is below the rate's share of all of them.
    """
    return int.from_bytes(trace_id[8:], "big") * _MILLION < sample_ppm << 64


def read_caller_stages(value: bytes | None) -> tuple[tuple[str, int], ...]:
    """The name and the nanoseconds of each, in their order; nothing where any of it is malformed or too much."""
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
