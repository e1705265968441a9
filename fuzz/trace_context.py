"""Fuzz target: trace headers are accepted completely or not at all, and headers sent to engines can be parsed again."""

from headgate.model.stage import CALLER_STAGES_MAX
from headgate.wire.trace_context import (
    STATE_BYTES_MAX,
    read_caller_stages,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)


def one_input(data: bytes) -> None:
    parent = read_traceparent(data)
    if parent is not None:
        written = write_traceparent(parent.trace_id, parent.span_id, sampled=parent.sampled)
        assert read_traceparent(written.encode()) == parent
    state = read_tracestate(data)
    assert len(state) <= STATE_BYTES_MAX
    assert "\r" not in state
    assert "\n" not in state
    assert read_tracestate(state.encode()) == state
    stages = read_caller_stages(data)
    assert len(stages) <= CALLER_STAGES_MAX
    assert all(name.isascii() and length >= 0 for name, length in stages)
