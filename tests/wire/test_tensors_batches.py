"""Tests for joining KServe inference requests and splitting the response."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.batch_codec import BatchInputs, BatchSplitError
from headgate.wire.kserve.infer import InferBody, ModelOperation
from headgate.wire.tensors_codec import JOINED_BYTES_MAX, ROWS_MAX, TENSORS_CODEC, TEXTS_MAX, TensorAssembly


def a_tensor(rows: int = 1, width: int = 2, *, name: str = "x", data: object = None, **fields: object) -> object:
    values = [f"{row}.{at}" for row in range(rows) for at in range(width)] if data is None else data
    return {"name": name, "shape": [rows, width], "datatype": "BYTES", "data": values} | fields


def a_body(*tensors: object, **fields: object) -> InferBody:
    raw = json.dumps({"inputs": tensors or [a_tensor()], **fields}).encode()
    return InferBody.of(raw, model="m", operation=ModelOperation.INFERENCE)


def inputs(*tensors: object, **fields: object) -> BatchInputs:
    found = TENSORS_CODEC.split_request(a_body(*tensors, **fields))
    assert found is not None
    return found


def said(body: InferBody) -> dict[str, object]:
    return json.loads(bytes(body.raw))


def test_rows_from_joined_requests_are_concatenated() -> None:
    one = a_body(a_tensor(1, name="x"), a_tensor(1, 1, name="y", data=[1.50]))
    other = a_body(a_tensor(2, name="x"), a_tensor(2, 1, name="y", data=[2, 3]))
    items = [item for body in (one, other) for item in TENSORS_CODEC.split_request(body).items]  # type: ignore[union-attr]

    joined = TENSORS_CODEC.join_inputs(one, items, 2)

    assert isinstance(joined, InferBody)
    assert said(joined) == {
        "inputs": [
            a_tensor(3, name="x", data=["0.0", "0.1", "0.0", "0.1", "1.0", "1.1"], parameters={}),
            a_tensor(3, 1, name="y", data=[1.5, 2, 3], parameters={}),
        ]
    }


def test_requests_with_different_numbers_of_rows_have_equal_keys() -> None:
    assert inputs(a_tensor(1)).key == inputs(a_tensor(3)).key


@pytest.mark.parametrize(
    ("tensor", "fields"),
    [
        (a_tensor(1, 3), {}),
        (a_tensor(name="y"), {}),
        (a_tensor(datatype="FP32"), {}),
        (a_tensor(), {"parameters": {"a": 1}}),
        (a_tensor(), {"outputs": [{"name": "z"}]}),
        (a_tensor(parameters={"a": 1}), {}),
    ],
)
def test_requests_with_different_fields_have_different_keys(tensor: object, fields: dict[str, object]) -> None:
    assert inputs().key != inputs(tensor, **fields).key


@pytest.mark.parametrize(
    "body",
    [
        a_body(id="7"),
        a_body(a_tensor(2), a_tensor(1, name="y")),
        a_body(a_tensor(data=[["0", "1"]])),
        a_body(a_tensor(data=["0"])),
        a_body(a_tensor(0, data=[])),
        a_body(a_tensor(ROWS_MAX + 1, 1)),
        a_body({"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}),
        a_body(outputs=[{"name": "z", "parameters": {"binary_data": True}}]),
        a_body({"name": "x", "shape": [], "datatype": "FP32", "data": [1]}),
        a_body(a_tensor(data=["x" * JOINED_BYTES_MAX, ""])),
        a_body(more="x" * 5_000),
        InferBody.of(b"{", model="m", operation=ModelOperation.INFERENCE),
        InferBody.of(b"", model="m", operation=ModelOperation.READINESS),
        InferBody.of(b"{}1234", model="m", operation=ModelOperation.INFERENCE, json_bytes=2),
    ],
)
def test_unsupported_request_is_not_batched(body: InferBody) -> None:
    assert TENSORS_CODEC.split_request(body) is None


def an_answer(rows: int, *tensors: object, **fields: object) -> bytes:
    outputs = tensors or [a_tensor(rows, name="z")]
    return json.dumps({"model_name": "m", "outputs": outputs, **fields}).encode()


def test_rows_are_returned_in_request_order() -> None:
    outputs = a_tensor(3, 1, name="z", data=[10, 11, 12]), a_tensor(3, 2, name="s", data=[1, 2, 3, 4, 5, 6])
    parts = TENSORS_CODEC.split_response(an_answer(3, *outputs), [1, 1, 1], False)
    gathering = TENSORS_CODEC.assembly(2)

    assert gathering.add(1, parts[0]) == b""
    assert not gathering.complete
    answer = json.loads(gathering.add(0, parts[2]))

    assert gathering.complete
    assert answer == {
        "model_name": "m",
        "outputs": [
            a_tensor(2, 1, name="z", data=[12, 10], parameters={}),
            a_tensor(2, 2, name="s", data=[5, 6, 1, 2], parameters={}),
        ],
    }


@pytest.mark.parametrize(
    "answer", [b"{", b"{}", an_answer(1), an_answer(3), an_answer(2, {"name": "z", "shape": [2], "datatype": "FP32"})]
)
def test_unsplittable_response_raises_an_error(answer: bytes) -> None:
    with pytest.raises(BatchSplitError):
        TENSORS_CODEC.split_response(answer, [1, 1], False)


NUMBERS = st.lists(st.integers(-9, 9), min_size=1, max_size=4)


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_joining_and_splitting_restores_the_rows(callers: list[list[int]]) -> None:
    bodies = [a_body(a_tensor(len(rows), 1, data=rows)) for rows in callers]
    items = [item for body in bodies for item in TENSORS_CODEC.split_request(body).items]  # type: ignore[union-attr]
    joined = TENSORS_CODEC.join_inputs(bodies[0], items, len(bodies))
    assert isinstance(joined, InferBody)
    [sent] = said(joined)["inputs"]  # type: ignore[misc]
    parts = iter(TENSORS_CODEC.split_response(an_answer(1, sent), [1] * len(items), False))

    for rows in callers:
        gathering = TENSORS_CODEC.assembly(len(rows))
        told = b"".join(gathering.add(at, next(parts)) for at in range(len(rows)))
        [tensor] = json.loads(told)["outputs"]
        assert (tensor["data"], tensor["shape"]) == (rows, [len(rows), 1])


@pytest.mark.parametrize(
    "data",
    [b'"0,1"', b'{"0":1,"1":2}', b"[[0],[1]]", b"[0,[1]]", b'["0",["1"]]', b"[0]", b"[]", b"null", b"[0,1,2]"],
)
def test_data_other_than_a_flat_list_matching_its_shape_is_not_batched(data: bytes) -> None:
    tensor = b'{"name":"x","shape":[1,2],"datatype":"BYTES","data":%b}' % data
    body = InferBody.of(b'{"inputs":[%b]}' % tensor, model="m", operation=ModelOperation.INFERENCE)

    assert TENSORS_CODEC.split_request(body) is None


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_keep_every_digit(rows: int) -> None:
    data = b", ".join([b"0.10", b"1e-3", b"-7", b"true"] * rows)
    raw = b'{"inputs":[{"name":"x","shape":[%d,4],"datatype":"FP64","data":[ %b ]}]}' % (rows, data)
    body = InferBody.of(raw, model="m", operation=ModelOperation.INFERENCE)
    found = TENSORS_CODEC.split_request(body)
    assert found is not None

    joined = bytes(TENSORS_CODEC.join_inputs(body, found.items, 1).raw)  # type: ignore[attr-defined]

    assert joined.replace(b" ", b"").count(b"0.10,1e-3,-7,true") == rows


def test_request_with_too_many_texts_is_not_batched() -> None:
    assert TENSORS_CODEC.split_request(a_body(a_tensor(1, TEXTS_MAX))) is not None
    assert TENSORS_CODEC.split_request(a_body(a_tensor(1, TEXTS_MAX + 1))) is None


def test_buffered_rows_are_limited_by_bytes() -> None:
    answer = json.dumps({"model_name": "m", "outputs": [a_tensor(4, 1, data=["x" * 38] * 4)]}).encode()
    parts = TENSORS_CODEC.split_response(answer, [1] * 4, False)
    three, four = TensorAssembly(3, buffered_bytes_max=100), TensorAssembly(4, buffered_bytes_max=100)
    for place in range(2):
        three.add(place, parts[place])
        four.add(place, parts[place])

    assert (three.buffered_bytes, three.complete) == (80, False)
    assert json.loads(three.add(2, parts[2]))["outputs"][0]["shape"] == [3, 1]
    assert (three.buffered_bytes, three.complete) == (0, True)
    with pytest.raises(BatchSplitError, match="100 bytes"):
        four.add(2, parts[2])


def test_part_of_a_response_does_not_keep_the_rest_in_memory() -> None:
    parts = TENSORS_CODEC.split_response(json.dumps({"a": 1, "outputs": [a_tensor(2)]}).encode(), [1, 1], False)

    assert [len(bytes(kind.data)) for kind in parts[0].kinds] == [2]  # type: ignore[attr-defined]
