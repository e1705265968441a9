"""Tests for joining embedding requests and splitting the response."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.wire.batch_codec import BatchInputs, BatchSplitError
from headgate.wire.embeddings_codec import (
    EMBEDDINGS_CODEC,
    INPUTS_MAX,
    JOINED_BYTES_MAX,
    KEY_BYTES_MAX,
    EntryUsage,
    entry_bytes,
    join_inputs,
    parse_batch,
    response_end,
    response_start,
    split_proportionally,
    split_request,
)
from headgate.wire.request_body import RequestBody


def a_body(input: object = "hi", **fields: object) -> RequestBody:  # noqa: A002 (the name in the API)
    return RequestBody.parse(json.dumps({"model": "m", "input": input, **fields}).encode(), Api.EMBEDDINGS)


def inputs(input: object = "hi", **fields: object) -> BatchInputs:  # noqa: A002 (the name in the API)
    found = split_request(a_body(input, **fields))
    assert found is not None
    return found


def texts_of(found: BatchInputs) -> list[object]:
    return [json.loads(bytes(item)) for item in found.items]


def an_answer(count: int, *, prompt_tokens: int = 7, **fields: object) -> bytes:
    """Returns a response with the entries in reverse order. Each embedding starts with its index."""
    data = [{"object": "embedding", "index": index, "embedding": [index, 0.5]} for index in reversed(range(count))]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage} | fields).encode()


@pytest.mark.parametrize(
    ("given_input", "found"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["ü\n", ""], ["ü\n", ""]),
    ],
)
def test_inputs_are_texts_or_lists_of_token_ids(given_input: object, found: list[object]) -> None:
    assert texts_of(inputs(given_input)) == found


@pytest.mark.parametrize("given_input", [["a", [1]], [{"content": "a"}], [1, "a"], [[1], ["a"]], [[]], [True]])
def test_request_with_other_inputs_is_not_batched(given_input: object) -> None:
    assert split_request(a_body(given_input)) is None


def test_request_exceeding_the_limits_is_not_batched() -> None:
    assert split_request(a_body(["x" * JOINED_BYTES_MAX])) is None
    assert split_request(a_body(["x"] * (INPUTS_MAX + 1))) is None
    assert split_request(a_body([[1]] * (INPUTS_MAX + 1))) is None
    assert split_request(a_body(["\\"] * (INPUTS_MAX + 1))) is None
    assert split_request(a_body("x", unheard_of="y" * KEY_BYTES_MAX)) is None


def test_quotes_inside_texts_are_not_counted_as_inputs() -> None:
    assert len(inputs(['"' * INPUTS_MAX, "\\"]).items) == 2


def test_requests_with_equal_fields_have_equal_keys() -> None:
    one = inputs("a", dimensions=8, encoding_format="float", user="ann")
    other = inputs(["b", "c"], encoding_format="float", dimensions=8)

    assert one.key == other.key


@pytest.mark.parametrize(
    "other", [{"dimensions": 9}, {"encoding_format": "base64"}, {"priority": 1}, {"unheard_of": [1]}, {"input": [1, 2]}]
)
def test_requests_with_different_fields_have_different_keys(other: dict[str, object]) -> None:
    assert inputs("a", dimensions=8).key != inputs(**({"input": "a", "dimensions": 8} | other)).key


def test_joined_request_keeps_common_fields_but_not_the_user() -> None:
    body = a_body("a", dimensions=8, user="ann", unheard_of={"x": 1})
    items = (*inputs("a").items, *inputs(["b", "ü"]).items)

    sent = json.loads(join_inputs(body, items, callers=2).encode(served_model="engines-own"))

    assert sent == {"model": "engines-own", "input": ["a", "b", "ü"], "dimensions": 8, "unheard_of": {"x": 1}}


def test_part_of_one_list_keeps_the_user() -> None:
    sent = json.loads(
        join_inputs(a_body(["a", "b"], user="ann"), inputs("b").items, callers=1).encode(served_model="m")
    )

    assert sent == {"model": "m", "input": ["b"], "user": "ann"}


def test_entries_are_ordered_by_index() -> None:
    shared = parse_batch(an_answer(3), [1, 1, 1], counted=False)

    assert [json.loads(bytes(entry["embedding"])) for entry in shared.entries] == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert {name: json.loads(bytes(raw)) for name, raw in shared.rest.items()} == {"object": "list", "model": "m"}


def test_usage_is_divided_by_bytes_and_marked_as_estimated() -> None:
    shared = parse_batch(an_answer(2, prompt_tokens=9), [20, 10], counted=False)

    assert shared.usages == (EntryUsage(6, 6), EntryUsage(3, 3))
    assert shared.estimated


def test_usage_for_token_ids_equals_their_number() -> None:
    shared = parse_batch(an_answer(2, prompt_tokens=9), [7, 2], counted=True)

    assert shared.usages == (EntryUsage(7, 7), EntryUsage(2, 2))
    assert not shared.estimated


def test_usage_for_token_ids_is_estimated_if_the_engine_added_tokens() -> None:
    assert parse_batch(an_answer(2, prompt_tokens=11), [7, 2], counted=True).estimated


@pytest.mark.parametrize("told", [{"prompt_tokens": 1}, {"usage": {"prompt_tokens": 1, "total_tokens": 1}}])
def test_usage_per_entry_is_used_if_the_engine_reports_it(told: dict[str, object]) -> None:
    data = [{"index": 0, "embedding": [0], "prompt_tokens": 8}, {"index": 1, "embedding": [0], **told}]

    shared = parse_batch(an_answer(2, prompt_tokens=9, data=data), [1, 1], counted=False)

    assert shared.usages == (EntryUsage(8, 8), EntryUsage(1, 1))
    assert not shared.estimated


def test_usage_per_entry_is_ignored_if_the_sum_differs_from_the_total() -> None:
    data = [{"index": index, "embedding": [0], "prompt_tokens": 1} for index in (0, 1)]

    shared = parse_batch(an_answer(2, prompt_tokens=10, data=data), [1, 1], counted=False)

    assert shared.usages == (EntryUsage(5, 5), EntryUsage(5, 5))


@pytest.mark.parametrize(
    "usage", [None, {}, [], {"prompt_tokens": -1}, {"prompt_tokens": 10**30}, {"prompt_tokens": "7"}]
)
def test_missing_or_invalid_usage_is_not_divided(usage: object) -> None:
    shared = parse_batch(an_answer(2, usage=usage), [1, 1], counted=False)

    assert shared.usages == ()
    assert not shared.estimated


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{", "not a list of embeddings"),
        (b"[]", "not a list of embeddings"),
        (b'{"data":{}}', "not a list of embeddings"),
        (an_answer(1), "1 embeddings for 2 inputs"),
        (an_answer(3), "3 embeddings for 2 inputs"),
        (an_answer(2, data=[{"index": 0}, {"index": 0}]), "missing or invalid indexes"),
        (an_answer(2, data=[{"index": 0}, {"index": 2}]), "missing or invalid indexes"),
        (an_answer(2, data=[{"index": 0}, {}]), "missing or invalid indexes"),
        (an_answer(2, data=[{"index": 0}, {"index": -1}]), "missing or invalid indexes"),
    ],
)
def test_unsplittable_response_raises_an_error(answer: bytes, why: str) -> None:
    with pytest.raises(BatchSplitError, match=why):
        parse_batch(answer, [1, 1], counted=False)


def test_client_response_is_numbered_from_zero() -> None:
    shared = parse_batch(an_answer(3, id="e-1"), [1, 1, 1], counted=False)
    kept = shared.entries[1:]

    pieces = [response_start(shared.rest), *(entry_bytes(entry, index) for index, entry in enumerate(kept))]
    answer = json.loads(b"".join([*pieces, response_end(EntryUsage(4, 5))]))

    assert answer == {
        "object": "list",
        "model": "m",
        "id": "e-1",
        "data": [{"object": "embedding", "index": index, "embedding": [index + 1, 0.5]} for index in (0, 1)],
        "usage": {"prompt_tokens": 4, "total_tokens": 5},
    }


def test_response_without_usage_has_no_usage_field() -> None:
    assert json.loads(response_start({}) + response_end(None)) == {"object": "list", "data": []}


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_shares_add_up_to_the_total_and_are_off_by_less_than_one(whole: int, weights: list[int]) -> None:
    parts = split_proportionally(whole, weights)

    assert sum(parts) == whole
    heft = sum(weights)
    if heft:
        assert all(abs(part * heft - whole * weight) < heft for part, weight in zip(parts, weights, strict=True))


def test_splitting_among_no_weights_returns_an_empty_list() -> None:
    assert split_proportionally(0, []) == []


LISTS = st.one_of(
    st.text(),
    st.lists(st.text(), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), min_size=1, max_size=5),
)


@given(st.lists(LISTS, min_size=1, max_size=6))
def test_joined_request_contains_all_inputs_in_order(asked: list[object]) -> None:
    found = [inputs(each) for each in asked]
    items = [item for each in found for item in each.items]

    sent = json.loads(join_inputs(a_body(asked[0]), items, callers=len(asked)).encode(served_model="m"))

    assert sent["input"] == [text for each in found for text in texts_of(each)]
    assert all(len(each.items) == len(each.tokens) == len(each.weights) for each in found)


def test_parts_received_early_are_held_until_their_turn() -> None:
    first, second, third = EMBEDDINGS_CODEC.split_response(an_answer(3), [1, 1, 1], False)
    gathering = EMBEDDINGS_CODEC.assembly(3)

    assert (gathering.add(2, third), gathering.add(1, second)) == (b"", b"")
    both = gathering.buffered_bytes
    assert both > 20
    assert gathering.add(0, first).count(b'"index":') == 3
    assert (gathering.buffered_bytes, gathering.complete) == (0, True)
