"""Tests for a request's trace headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from headgate.model.stage import CALLER_STAGES_MAX
from headgate.wire.trace_context import (
    STATE_BYTES_MAX,
    TraceParent,
    is_sampled,
    read_caller_stages,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def parent(*, sampled: bool = True) -> TraceParent:
    return TraceParent(bytes.fromhex(TRACE), bytes.fromhex(SPAN), sampled)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", parent()),
        (f"00-{TRACE}-{SPAN}-00", parent(sampled=False)),
        (f"00-{TRACE}-{SPAN}-03", parent()),
        (f"00-{TRACE}-{SPAN}-fe", parent(sampled=False)),
        (f"cc-{TRACE}-{SPAN}-01", parent()),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", parent()),
        (f" 00-{TRACE}-{SPAN}-01\t", parent()),
    ],
)
def test_valid_traceparent_is_read(value: str, found: TraceParent) -> None:
    assert read_traceparent(value.encode()) == found


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-0٣",
        "x" * 100_000,
    ],
)
def test_malformed_traceparent_is_ignored(value: str) -> None:
    assert read_traceparent(value.encode()) is None


def test_missing_headers_are_accepted() -> None:
    assert read_traceparent(None) is None
    assert read_tracestate(None) == ""
    assert read_caller_stages(None) == ()


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any), st.booleans())
def test_traceparent_can_be_written_and_read_back(trace_id: bytes, span_id: bytes, sampled: bool) -> None:
    text = write_traceparent(trace_id, span_id, sampled=sampled)

    assert read_traceparent(text.encode()) == TraceParent(trace_id, span_id, sampled)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a=1", "a=1"),
        ("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("a=1,,\t ,b=2,", "a=1,b=2"),
        ("tenant@system=x y", "tenant@system=x y"),
        ("0tenant@s=x", "0tenant@s=x"),
        ("", ""),
    ],
)
def test_valid_tracestate_is_passed_through(value: str, found: str) -> None:
    assert read_tracestate(value.encode()) == found


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "A=1",
        "a=1,a=2",
        "a=1=2",
        "a=",
        "a=\x7f",
        "a=é",
        "0a=1",
        "a@=1",
        "a@0b=1",
        f"a={'x' * 257}",
        "a=1\r\nx: y",
        ",".join(f"k{number}=v" for number in range(33)),
        f"a={'x' * STATE_BYTES_MAX}",
    ],
)
def test_malformed_tracestate_is_dropped_completely(value: str) -> None:
    assert read_tracestate(value.encode()) == ""


@pytest.mark.parametrize("ppm", [0, 1, 100_000, 333_333, 999_999, 1_000_000])
@given(st.binary(min_size=16, max_size=16).filter(any))
def test_sampling_agrees_with_opentelemetry(ppm: int, trace_id: bytes) -> None:
    theirs = TraceIdRatioBased(ppm / 1_000_000).should_sample(None, int.from_bytes(trace_id), "any")

    lower = int.from_bytes(trace_id[8:])
    if abs(lower - ppm * 2**64 // 1_000_000) > 2**12:  # OpenTelemetry rounds the bound to a float.
        assert is_sampled(trace_id, ppm) == (theirs.decision is Decision.RECORD_AND_SAMPLE)


def test_ratio_zero_samples_nothing_and_one_samples_everything() -> None:
    assert is_sampled(b"\xff" * 16, 1_000_000)
    assert not is_sampled(b"\xff" * 8 + bytes(8), 0)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("retrieval;dur=80", (("retrieval", 80_000_000),)),
        ("prompt_building;dur=12.5, retrieval;dur=80", (("prompt_building", 12_500_000), ("retrieval", 80_000_000))),
        ("a ; dur=0.000001,a;dur=0", (("a", 1), ("a", 0))),
    ],
)
def test_stages_reported_by_the_client_are_read(value: str, found: tuple[tuple[str, int], ...]) -> None:
    assert read_caller_stages(value.encode()) == found


@pytest.mark.parametrize(
    "value",
    [
        "",
        ",",
        "a",
        "a;dur",
        "a;dur=",
        "a;dur=-1",
        "a;dur=1e9",
        "a;dur=1.",
        "a;dur=.5",
        "a;dur=1;desc=x",
        "A;dur=1",
        "a b;dur=1",
        "é;dur=1",
        "a;dur=٣",
        f"{'x' * 41};dur=1",
        "a;dur=1,",
        "a;dur=1\r\nx: y",
        "a;dur=90000000",
        ",".join(["a;dur=1"] * (CALLER_STAGES_MAX + 1)),
        "a;dur=1,b;dur=x",
        "a;dur=1.1234567",
        "x" * 100000,
    ],
)
def test_malformed_or_excessive_stages_are_ignored_completely(value: str) -> None:
    assert read_caller_stages(value.encode()) == ()


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_accepted(value: bytes) -> None:
    for name, length in read_caller_stages(value):
        assert name.isascii()
        assert length >= 0
    assert read_tracestate(value).isascii()
    read_traceparent(value)
