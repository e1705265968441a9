"""Are our messages those that protobuf itself reads and writes?"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fleets.keda.messages import (
    Activity,
    MetricSpec,
    MetricsRequest,
    MetricValue,
    ScaledObjectRef,
    read_metrics_request,
    read_ref,
    write_activity,
    write_spec,
    write_value,
)
from headgate.fleets.keda.protobuf import MalformedMessage, fields, number_field, text_field
from tests.fleets.keda_stubs import stubs

texts = st.text(st.characters(codec="utf-8"), max_size=300)
counts = st.integers(0, 2**53)
refs = st.builds(ScaledObjectRef, texts, texts, st.dictionaries(texts, texts, max_size=5))


def theirs(ref: ScaledObjectRef) -> object:
    return stubs().messages.ScaledObjectRef(name=ref.name, namespace=ref.namespace, scalerMetadata=ref.metadata)


@given(refs)
def test_what_protobuf_writes_of_an_object_we_read(ref: ScaledObjectRef) -> None:
    assert read_ref(theirs(ref).SerializeToString()) == ref


@given(refs, texts)
def test_what_protobuf_writes_of_a_question_for_metrics_we_read(ref: ScaledObjectRef, metric: str) -> None:
    asked = stubs().messages.GetMetricsRequest(scaledObjectRef=theirs(ref), metricName=metric)

    assert read_metrics_request(asked.SerializeToString()) == MetricsRequest(ref, metric)


def test_a_question_without_anything_is_one_with_everything_empty() -> None:
    assert read_metrics_request(b"") == MetricsRequest(ScaledObjectRef("", "", {}), "")


@pytest.mark.parametrize("active", [True, False])
def test_protobuf_reads_what_we_write_of_activity(active: bool) -> None:
    found = stubs().messages.IsActiveResponse.FromString(write_activity(Activity(active)))

    assert found.result is active


@given(texts, counts)
def test_protobuf_reads_what_we_write_of_a_metric(metric: str, number: int) -> None:
    [spec] = stubs().messages.GetMetricSpecResponse.FromString(write_spec(MetricSpec(metric, number))).metricSpecs
    [value] = stubs().messages.GetMetricsResponse.FromString(write_value(MetricValue(metric, number))).metricValues

    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (metric, number, float(number))
    assert (value.metricName, value.metricValue, value.metricValueFloat) == (metric, number, float(number))


@given(refs)
def test_our_bytes_are_protobufs_own(ref: ScaledObjectRef) -> None:
    messages = stubs().messages
    spec = messages.GetMetricSpecResponse(
        metricSpecs=[messages.MetricSpec(metricName=ref.name, targetSize=1, targetSizeFloat=1.0)]
    )

    assert write_spec(MetricSpec(ref.name, 1)) == spec.SerializeToString()


def test_a_field_of_a_later_version_is_passed_over() -> None:
    later = text_field(1, "a") + number_field(9, 5) + b"\x51" + bytes(8) + b"\x5d" + bytes(4)

    assert read_ref(later) == ScaledObjectRef("a", "", {})


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    with suppress(MalformedMessage):
        assert isinstance(read_ref(data), ScaledObjectRef)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\x05ab", "5 bytes are announced and 2 are left"),
        (b"\x08" + b"\xff" * 11, "a number does not end"),
        (b"\x0b", "there is no kind 3 of field"),
        (b"\x0a\x02\xff\xfe", "not UTF-8"),
        (b"\x08\x01", "a number stands where a text"),
    ],
)
def test_what_is_no_message_is_refused_with_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(MalformedMessage, match=said):
        read_ref(data)


@given(st.integers(-(2**63), 2**64 - 1).filter(bool))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    assert list(fields(number_field(7, value))) == [(7, value % 2**64)]
