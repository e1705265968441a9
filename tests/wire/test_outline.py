"""Tests that a body built from its outline equals the parsed body."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.edge.large_bodies.messages import (
    LENGTH_PREFIX,
    RESPONSE_DECODER,
    InvalidBody,
    ParseBody,
    ParsedBody,
    frame,
)
from headgate.edge.large_bodies.reader import handle
from headgate.model.caps import Caps
from headgate.model.ticket import Api
from headgate.wire.fields import FIELDS_MAX, NAMES_CHARS_MAX
from headgate.wire.outline import value_spans
from headgate.wire.request_body import LARGE_BYTES, BadRequest, RequestBody

PROMPTS: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": 'a"[\\é'}]},
    Api.COMPLETIONS: {"prompt": "Once"},
    Api.EMBEDDINGS: {"input": ["a", "b"]},
    Api.RESPONSES: {"input": "hi", "instructions": "be brief"},
    Api.INFER: {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, 2]}]},
    Api.MESSAGES: {"system": "be brief", "messages": [{"role": "user", "content": 'a"[\\é'}]},
    Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    Api.RERANK: {"query": "hi", "documents": ["a", "b"]},
    Api.SCORE: {"text_1": "hi", "text_2": ["a", "b"]},
    Api.CLASSIFY: {"input": "hi"},
    Api.POOLING: {"input": ["hi", "ho"]},
    Api.TOKENIZE: {"prompt": "hi"},
    Api.DETOKENIZE: {"tokens": [1, 2]},
}
LONG = "x" * (NAMES_CHARS_MAX + 1)

WHITESPACE = st.text(alphabet=" \t\r\n", max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OPTIONS = st.none() | st.dictionaries(st.sampled_from(["include_usage", "other", 'q"\\é']), VALUES, max_size=3)
NAMES = st.sampled_from(
    ["model", "stream", "service_tier", "n", "max_tokens", "messages", "prompt", "input", "reasoning"]
)


@st.composite
def bodies(draw: st.DrawFn, api: Api) -> bytes:
    """Mostly valid bodies, with fields in any order, duplicate fields and whitespace."""
    right = {"model": "m"} | PROMPTS[api]
    pairs: list[tuple[str, Any]] = list(right.items())
    if draw(st.booleans()):
        pairs.append(("stream_options", draw(OPTIONS)))
    pairs += draw(st.lists(st.tuples(st.just("stream"), st.booleans()), max_size=1))
    pairs += draw(st.lists(st.tuples(st.text(max_size=6), VALUES), max_size=4))
    pairs += draw(st.lists(st.tuples(NAMES, VALUES), max_size=1))
    pairs = draw(st.permutations(pairs))
    space = draw(st.lists(WHITESPACE, min_size=4, max_size=4))
    escaped = draw(st.booleans())

    def told(value: object) -> str:
        return json.dumps(value, ensure_ascii=escaped)

    fields = [f"{space[0]}{told(name)}{space[1]}:{space[2]}{told(value)}{space[3]}" for name, value in pairs]
    raw = f"{space[1]}{{{','.join(fields)}}}{space[2]}".encode(errors="replace")
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


def read_elsewhere(raw: bytes, api: Api) -> RequestBody:
    """Parses a body as the separate process does, and rebuilds it from that process's response."""
    message = frame(handle(ParseBody(api, len(raw)), raw))
    match RESPONSE_DECODER.decode(message[LENGTH_PREFIX.size :]):
        case ParsedBody(outline):
            return RequestBody.from_outline(bytearray(raw), api, outline)
        case InvalidBody(message, param):
            raise BadRequest(message, param)
        case other:
            raise AssertionError(other)


def outcome(read: Callable[[bytes, Api], RequestBody], raw: bytes, api: Api) -> RequestBody | tuple[str, str | None]:
    """Returns the body, or the message and parameter of its rejection."""
    try:
        return read(raw, api)
    except BadRequest as bad:
        return bad.message, bad.param


@pytest.mark.parametrize("api", PROMPTS)
@given(data=st.data())
def test_body_parsed_in_the_process_equals_the_parsed_body(api: Api, data: st.DataObject) -> None:
    raw = data.draw(bodies(api))

    found, parsed = outcome(read_elsewhere, raw, api), outcome(RequestBody.parse, raw, api)

    assert found == parsed
    if isinstance(found, tuple) or isinstance(parsed, tuple):
        return
    assert found.encode(served_model="own", cache_salt="s") == parsed.encode(served_model="own", cache_salt="s")
    caps = Caps(output_tokens=1, n=1)
    assert found.capped(caps) == parsed.capped(caps)


def test_duplicate_field_has_the_position_of_its_last_value() -> None:
    raw = b'\n{ "a\\"}":[1, 2] ,\t"b" : {"a": 3} , "a\\"}":"x,y" }'

    places = value_spans(raw)

    assert {name: raw[start:end] for name, (start, end) in places.items()} == {'a"}': b'"x,y"', "b": b'{"a": 3}'}
    assert list(places) == ['a"}', "b"]


def test_spans_in_a_nested_object_are_found() -> None:
    raw = b'{"x": {"include_usage" : true}}'
    inner = value_spans(raw)["x"]

    ((start, end),) = value_spans(raw, inner).values()

    assert raw[start:end] == b"true"


def refusal(**fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        RequestBody.parse(json.dumps({"model": "m", "prompt": "x"} | fields).encode(), Api.COMPLETIONS)
    return caught.value


def test_number_and_length_of_names_are_limited() -> None:
    many = {str(number): 0 for number in range(FIELDS_MAX + 1)}

    assert refusal(**many).param is None
    assert refusal(**{LONG: 0}).param is None
    assert refusal(stream_options=many).param == "stream_options"
    assert refusal(stream_options={LONG: 0}).param == "stream_options"
    assert refusal(model=LONG).param == "model"
    assert refusal(service_tier=LONG).param == "service_tier"


@pytest.mark.parametrize("length", [10, LARGE_BYTES])
@pytest.mark.parametrize("place", ["before", "after", "alone"])
def test_body_pieces_add_up_to_the_body(length: int, place: str) -> None:
    prompt, rest = {"prompt": "x" * length}, {"stream": True, "cache_salt": "s", "priority": 3, 'é"': [1]}
    fields = {"before": prompt | rest, "after": rest | prompt, "alone": prompt}[place]
    body = RequestBody.parse(json.dumps({"model": "m"} | fields).encode(), Api.COMPLETIONS)

    pieces = body.encode_in_pieces(served_model="own", cache_salt="t")

    assert b"".join(pieces) == body.encode(served_model="own", cache_salt="t")
    assert body.is_large == (length == LARGE_BYTES)
    assert any(isinstance(piece, memoryview) for piece in pieces) == body.is_large
