"""Does each request get from a batch what it would have got alone?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.wire.batches import Inputs, Unshareable
from headgate.wire.embeddings import (
    EMBEDDINGS,
    INPUTS_MAX,
    JOINED_BYTES_MAX,
    KEY_BYTES_MAX,
    Tokens,
    closing,
    entry_bytes,
    inputs_of,
    joined,
    opening,
    share,
    taken_apart,
)
from headgate.wire.request import RequestBody


def a_body(input: object = "hi", **fields: object) -> RequestBody:  # noqa: A002 (the wire's word)
    return RequestBody.parse(json.dumps({"model": "m", "input": input, **fields}).encode(), Api.EMBEDDINGS)


def inputs(input: object = "hi", **fields: object) -> Inputs:  # noqa: A002 (the wire's word)
    found = inputs_of(a_body(input, **fields))
    assert found is not None
    return found


def texts_of(found: Inputs) -> list[object]:
    return [json.loads(bytes(item)) for item in found.items]


def an_answer(count: int, *, prompt_tokens: int = 7, **fields: object) -> bytes:
    """Whose entries say which input they are of, told in reverse."""
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
def test_what_is_neither_goes_as_it_came(given_input: object) -> None:
    assert inputs_of(a_body(given_input)) is None


def test_what_is_too_long_to_be_taken_apart_goes_as_it_came() -> None:
    assert inputs_of(a_body(["x" * JOINED_BYTES_MAX])) is None
    assert inputs_of(a_body(["x"] * (INPUTS_MAX + 1))) is None
    assert inputs_of(a_body([[1]] * (INPUTS_MAX + 1))) is None
    assert inputs_of(a_body(["\\"] * (INPUTS_MAX + 1))) is None
    assert inputs_of(a_body("x", unheard_of="y" * KEY_BYTES_MAX)) is None


def test_quotes_inside_of_texts_are_not_taken_for_further_inputs() -> None:
    assert len(inputs(['"' * INPUTS_MAX, "\\"]).items) == 2


def test_who_says_the_same_may_be_asked_together() -> None:
    one = inputs("a", dimensions=8, encoding_format="float", user="ann")
    other = inputs(["b", "c"], encoding_format="float", dimensions=8)

    assert one.key == other.key


@pytest.mark.parametrize(
    "other", [{"dimensions": 9}, {"encoding_format": "base64"}, {"priority": 1}, {"unheard_of": [1]}, {"input": [1, 2]}]
)
def test_who_says_something_else_may_not(other: dict[str, object]) -> None:
    assert inputs("a", dimensions=8).key != inputs(**({"input": "a", "dimensions": 8} | other)).key


def test_a_joined_request_says_what_each_said_but_for_its_caller() -> None:
    body = a_body("a", dimensions=8, user="ann", unheard_of={"x": 1})
    items = (*inputs("a").items, *inputs(["b", "ü"]).items)

    sent = json.loads(joined(body, items, callers=2).encode(served_model="engines-own"))

    assert sent == {"model": "engines-own", "input": ["a", "b", "ü"], "dimensions": 8, "unheard_of": {"x": 1}}


def test_a_part_of_one_callers_list_still_says_whose_it_is() -> None:
    sent = json.loads(joined(a_body(["a", "b"], user="ann"), inputs("b").items, callers=1).encode(served_model="m"))

    assert sent == {"model": "m", "input": ["b"], "user": "ann"}


def test_entries_go_by_their_index_and_not_by_their_place() -> None:
    shared = taken_apart(an_answer(3), [1, 1, 1], counted=False)

    assert [json.loads(bytes(entry["embedding"])) for entry in shared.entries] == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert {name: json.loads(bytes(raw)) for name, raw in shared.rest.items()} == {"object": "list", "model": "m"}


def test_usage_is_in_proportion_to_the_bytes_and_says_so() -> None:
    shared = taken_apart(an_answer(2, prompt_tokens=9), [20, 10], counted=False)

    assert shared.usages == (Tokens(6, 6), Tokens(3, 3))
    assert shared.estimated


def test_usage_of_token_ids_is_their_number() -> None:
    shared = taken_apart(an_answer(2, prompt_tokens=9), [7, 2], counted=True)

    assert shared.usages == (Tokens(7, 7), Tokens(2, 2))
    assert not shared.estimated


def test_usage_of_token_ids_to_which_the_engine_added_its_own_is_an_estimate() -> None:
    assert taken_apart(an_answer(2, prompt_tokens=11), [7, 2], counted=True).estimated


@pytest.mark.parametrize("told", [{"prompt_tokens": 1}, {"usage": {"prompt_tokens": 1, "total_tokens": 1}}])
def test_what_an_engine_says_of_each_entry_is_taken_at_its_word(told: dict[str, object]) -> None:
    data = [{"index": 0, "embedding": [0], "prompt_tokens": 8}, {"index": 1, "embedding": [0], **told}]

    shared = taken_apart(an_answer(2, prompt_tokens=9, data=data), [1, 1], counted=False)

    assert shared.usages == (Tokens(8, 8), Tokens(1, 1))
    assert not shared.estimated


def test_words_about_entries_that_do_not_come_to_the_whole_are_not_believed() -> None:
    data = [{"index": index, "embedding": [0], "prompt_tokens": 1} for index in (0, 1)]

    shared = taken_apart(an_answer(2, prompt_tokens=10, data=data), [1, 1], counted=False)

    assert shared.usages == (Tokens(5, 5), Tokens(5, 5))


@pytest.mark.parametrize(
    "usage", [None, {}, [], {"prompt_tokens": -1}, {"prompt_tokens": 10**30}, {"prompt_tokens": "7"}]
)
def test_without_usage_there_is_none_to_share(usage: object) -> None:
    shared = taken_apart(an_answer(2, usage=usage), [1, 1], counted=False)

    assert shared.usages == ()
    assert not shared.estimated


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{", "not a list of embeddings"),
        (b"[]", "not a list of embeddings"),
        (b'{"data":{}}', "not a list of embeddings"),
        (an_answer(1), "2 inputs with 1 embeddings"),
        (an_answer(3), "2 inputs with 3 embeddings"),
        (an_answer(2, data=[{"index": 0}, {"index": 0}]), "do not say which inputs"),
        (an_answer(2, data=[{"index": 0}, {"index": 2}]), "do not say which inputs"),
        (an_answer(2, data=[{"index": 0}, {}]), "do not say which inputs"),
        (an_answer(2, data=[{"index": 0}, {"index": -1}]), "do not say which inputs"),
    ],
)
def test_an_answer_that_cannot_be_told_apart_is_nobodys(answer: bytes, why: str) -> None:
    with pytest.raises(Unshareable, match=why):
        taken_apart(answer, [1, 1], counted=False)


def test_a_caller_gets_an_answer_of_its_own_numbered_from_nought() -> None:
    shared = taken_apart(an_answer(3, id="e-1"), [1, 1, 1], counted=False)
    kept = shared.entries[1:]

    pieces = [opening(shared.rest), *(entry_bytes(entry, index) for index, entry in enumerate(kept))]
    answer = json.loads(b"".join([*pieces, closing(Tokens(4, 5))]))

    assert answer == {
        "object": "list",
        "model": "m",
        "id": "e-1",
        "data": [{"object": "embedding", "index": index, "embedding": [index + 1, 0.5]} for index in (0, 1)],
        "usage": {"prompt_tokens": 4, "total_tokens": 5},
    }


def test_an_answer_without_usage_has_none() -> None:
    assert json.loads(opening({}) + closing(None)) == {"object": "list", "data": []}


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_shares_come_to_the_whole_and_none_is_off_by_one_or_more(whole: int, weights: list[int]) -> None:
    parts = share(whole, weights)

    assert sum(parts) == whole
    heft = sum(weights)
    if heft:
        assert all(abs(part * heft - whole * weight) < heft for part, weight in zip(parts, weights, strict=True))


def test_nothing_is_shared_among_nobody() -> None:
    assert share(0, []) == []


LISTS = st.one_of(
    st.text(),
    st.lists(st.text(), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), min_size=1, max_size=5),
)


@given(st.lists(LISTS, min_size=1, max_size=6))
def test_whatever_is_joined_reaches_the_engine_as_it_was_asked(asked: list[object]) -> None:
    found = [inputs(each) for each in asked]
    items = [item for each in found for item in each.items]

    sent = json.loads(joined(a_body(asked[0]), items, callers=len(asked)).encode(served_model="m"))

    assert sent["input"] == [text for each in found for text in texts_of(each)]
    assert all(len(each.items) == len(each.tokens) == len(each.weights) for each in found)


def test_what_has_come_before_its_turn_is_counted_until_it_goes() -> None:
    first, second, third = EMBEDDINGS.parts_of(an_answer(3), [1, 1, 1], False)
    gathering = EMBEDDINGS.gathering(3)

    assert (gathering.take(2, third), gathering.take(1, second)) == (b"", b"")
    both = gathering.held
    assert both > 20
    assert gathering.take(0, first).count(b'"index":') == 3
    assert (gathering.held, gathering.over) == (0, True)
