"""Do tensors travel as they came, and is refused what no engine should see of them?"""

import json

import pytest

from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.kserve.infer import Asked, InferBody, error_body, json_length, server_body
from headgate.wire.request import BadRequest, RequestBody

TENSOR = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}


def parsed(**fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps({"inputs": [TENSOR]} | fields).encode(), Api.INFER)


def refusal(**fields: object) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    return caught.value.message, caught.value.param


def test_a_body_of_tensors_needs_no_model_and_streams_nothing() -> None:
    body = parsed(stream=True, id="x", outputs=[{"name": "embedding", "parameters": {"binary_data": True}}])

    assert (body.model, body.stream, body.n, body.output_tokens_max, body.prefix) == ("", False, 1, None, b"")


@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_no_tensor_names_memory_that_others_share_with_the_engine(name: str) -> None:
    tensor = {"name": "text", "parameters": {"shared_memory_region": "theirs", "shared_memory_byte_size": 64}}

    message, param = refusal(**{name: [tensor]})

    assert message.startswith(f'"{name}" has the parameter "shared_memory_region": memory is not shared')
    assert param == name


@pytest.mark.parametrize("parameter", ["priority", "sequence_id", "sequence_start", "sequence_end"])
def test_no_request_goes_before_others_or_binds_an_engine(parameter: str) -> None:
    message, param = refusal(parameters={parameter: 1})

    assert message.startswith(f'"parameters.{parameter}" is not taken: ')
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
def test_nothing_is_given_twice_for_the_engine_to_take_the_other(body: bytes, where: str) -> None:
    with pytest.raises(BadRequest, match=f"^{where} gives a field twice, and an engine may take either"):
        RequestBody.parse(body, Api.INFER)


@pytest.mark.parametrize("inputs", ["text", 5, {"name": "x"}, [5], [["x"]]])
def test_inputs_are_an_array_of_tensors(inputs: object) -> None:
    message, param = refusal(inputs=inputs)

    assert message.startswith('"inputs" must be an array of tensors, not ')
    assert param == "inputs"


def test_a_body_without_inputs_is_refused() -> None:
    assert refusal(inputs=None)[1] == "inputs"
    assert refusal(inputs=[]) == ('"inputs" is empty; put at least one element into it', "inputs")


def test_what_came_is_what_is_sent_and_a_class_takes_nothing_from_it() -> None:
    raw = b'{"inputs":[]}\x00\x01'
    body = InferBody.of(raw, model="m", asked=Asked.INFERENCE, json_bytes=13)

    assert body.capped(Caps(output_tokens=1, n=1)) == (body, ())
    assert body.encode(served_model="served") == raw
    assert b"".join(body.encode_in_pieces(served_model="served")) == raw
    assert (body.prompt_bytes, body.is_large) == (len(raw), False)
    assert "\\x00" not in repr(body)


@pytest.mark.parametrize(("told", "length"), [(None, None), (b"1", 1), (b"9", 9)])
def test_the_header_tells_how_much_is_json(told: bytes | None, length: int | None) -> None:
    assert json_length(told, 9) == length


@pytest.mark.parametrize("told", [b"", b"0", b"10", b"-1", b"1.5", b"x", b"9" * 30, "٣".encode()])
def test_a_header_that_cannot_be_is_refused(told: bytes) -> None:
    with pytest.raises(
        BadRequest, match="inference-header-content-length must be a number from 1 to the body's 9 bytes"
    ):
        json_length(told, 9)


def test_errors_and_servers_are_told_in_the_shapes_of_the_protocol() -> None:
    assert json.loads(error_body("no")) == {"error": "no"}
    assert json.loads(server_body(name="headgate", version="1")) == {
        "name": "headgate",
        "version": "1",
        "extensions": ["binary_tensor_data"],
    }
