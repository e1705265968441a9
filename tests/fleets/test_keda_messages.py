"""The generated messages match externalscaler.proto and work with the installed protobuf version."""

from contextlib import suppress
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headgate.fleets.keda.externalscaler_pb2 import GetMetricSpecResponse, MetricSpec, ScaledObjectRef
from tests.fleets.keda_stubs import FOLDER, SOURCES, protoc


@pytest.mark.parametrize("name", ["externalscaler_pb2.py", "externalscaler_pb2.pyi"])
def test_generated_messages_match_the_proto_file(name: str, tmp_path: Path) -> None:
    protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")

    assert (tmp_path / FOLDER / name).read_text() == (SOURCES / FOLDER / name).read_text(), "run `just proto`"


def test_messages_have_the_bytes_keda_expects() -> None:
    spec = MetricSpec(metricName="m", targetSize=1, targetSizeFloat=1)

    assert GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString() == (
        b"\x0a\x0e" + b"\x0a\x01m" + b"\x10\x01" + b"\x19\x00\x00\x00\x00\x00\x00\xf0\x3f"
    )
    assert ScaledObjectRef.FromString(b"\x0a\x01n\x12\x01s\x1a\x09\x0a\x04pool\x12\x01p") == ScaledObjectRef(
        name="n", namespace="s", scalerMetadata={"pool": "p"}
    )


def test_field_from_a_later_version_is_skipped() -> None:
    later = b"\x0a\x01a" + b"\x48\x05" + b"\x51" + bytes(8) + b"\x5d" + bytes(4)

    assert ScaledObjectRef.FromString(later).name == "a"


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    with suppress(DecodeError):
        assert isinstance(ScaledObjectRef.FromString(data), ScaledObjectRef)


def test_keda_and_trace_messages_share_one_protobuf_runtime() -> None:
    assert Span(name="a").SerializeToString()
    assert ScaledObjectRef(name="a").SerializeToString()
