"""Tests for validating KServe inference requests."""

import json

import pytest

from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.kserve.infer import InferBody, ModelOperation, error_body, json_length, server_body
from headgate.wire.request_body import BadRequest, RequestBody

TENSOR = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}


def parsed(**fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps({"inputs": [TENSOR]} | fields).encode(), Api.INFER)


def refusal(**fields: object) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    return caught.value.message, caught.value.param


def test_inference_body_has_no_model_and_does_not_stream() -> None:
    body = parsed(stream=True, id="x", outputs=[{"name": "embedding", "parameters": {"binary_data": True}}])

    assert (body.model, body.stream, body.n, body.output_tokens_max, body.prefix) == ("", False, 1, None, b"")


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_shared_memory_tensor_is_rejected(name: str) -> None:
    tensor = {"name": "text", "parameters": {"shared_memory_region": "theirs", "shared_memory_byte_size": 64}}

    message, param = refusal(**{name: [tensor]})

    assert message.startswith(f'"{name}" has the parameter "shared_memory_region": shared memory is not supported')
    assert param == name


@pytest.mark.parametrize("parameter", ["priority", "sequence_id", "sequence_start", "sequence_end"])
def test_priority_and_sequence_parameters_are_rejected(parameter: str) -> None:
    message, param = refusal(parameters={parameter: 1})

    assert message.startswith(f'"parameters.{parameter}" is not supported: ')
    assert param == f"parameters.{parameter}"
    assert parsed(parameters={"delay_ms": 1}).api is Api.INFER


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"inputs":[{"parameters":{"shared_memory_region":"theirs"}}],"inputs":[{"name":"x"}]}', "the body"),
        (b'{"inputs":[{"name":"x"}],"parameters":{"priority":1},"parameters":{}}', "the body"),
        (b'{"inputs":[{"parameters":{"shared_memory_region":"theirs"},"parameters":{}}]}', '"inputs"'),
        (b'{"inputs":[{"name":"x"}],"outputs":[{"parameters":{"a":1,"\\u0061":2}}]}', '"outputs"'),
    ],
)
def test_duplicate_field_is_rejected(body: bytes, where: str) -> None:
    with pytest.raises(BadRequest, match=f"^{where} contains a field more than once"):
        RequestBody.parse(body, Api.INFER)


@pytest.mark.parametrize("inputs", ["text", 5, {"name": "x"}, [5], [["x"]]])
def test_inputs_must_be_an_array_of_tensors(inputs: object) -> None:
    message, param = refusal(inputs=inputs)

    assert message.startswith('"inputs" must be an array of tensors, not ')
    assert param == "inputs"


def test_body_without_inputs_is_rejected() -> None:
    assert refusal(inputs=None)[1] == "inputs"
    assert refusal(inputs=[]) == ('"inputs" is empty; it must have at least one element', "inputs")


def test_body_is_sent_unchanged_and_not_capped() -> None:
    raw = b'{"inputs":[]}\x00\x01'
    body = InferBody.of(raw, model="m", operation=ModelOperation.INFERENCE, json_bytes=13)

    assert body.capped(Caps(output_tokens=1, n=1)) == (body, ())
    assert body.encode(served_model="served") == raw
    assert b"".join(body.encode_in_pieces(served_model="served")) == raw
    assert (body.prompt_bytes, body.is_large) == (len(raw), False)
    assert "\\x00" not in repr(body)


@pytest.mark.parametrize(("told", "length"), [(None, None), (b"1", 1), (b"9", 9)])
def test_header_specifies_the_length_of_the_json_part(told: bytes | None, length: int | None) -> None:
    assert json_length(told, 9) == length


@pytest.mark.parametrize("told", [b"", b"0", b"10", b"-1", b"1.5", b"x", b"9" * 30, "٣".encode()])
def test_invalid_length_header_is_rejected(told: bytes) -> None:
    with pytest.raises(BadRequest, match="inference-header-content-length must be from 1 to 9, the size of the body"):
        json_length(told, 9)


def test_error_and_server_bodies_follow_the_kserve_protocol() -> None:
    assert json.loads(error_body("no")) == {"error": "no"}
    assert json.loads(server_body(name="headgate", version="1")) == {
        "name": "headgate",
        "version": "1",
        "extensions": ["binary_tensor_data"],
    }
