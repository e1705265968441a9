"""Tests for validating request fields that could harm an engine."""

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.wire.request_body import BadRequest, RequestBody

PROMPTS: dict[Api, dict[str, object]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"prompt": "hi"},
    Api.EMBEDDINGS: {"input": "hi"},
    Api.RESPONSES: {"input": "hi"},
    Api.INFER: {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]},
    Api.MESSAGES: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    Api.RERANK: {"query": "hi", "documents": ["a", "b"]},
    Api.SCORE: {"text_1": "hi", "text_2": ["a", "b"]},
    Api.CLASSIFY: {"input": "hi"},
    Api.POOLING: {"input": ["hi", "ho"]},
    Api.TOKENIZE: {"prompt": "hi"},
    Api.DETOKENIZE: {"tokens": [1, 2]},
}
GENERATING = [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES]


def parsed(api: Api, **fields: object) -> RequestBody:
    return RequestBody.parse(json.dumps({"model": "m"} | PROMPTS[api] | fields).encode(), api)


def refusal(api: Api, **fields: object) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        parsed(api, **fields)
    return caught.value.message, caught.value.param


@pytest.mark.parametrize(
    ("api", "name", "good", "bad", "kind"),
    [
        (Api.CHAT, "n", [1, 128], [0, -1, 129, 2**70, 1.0, "2", True, []], "an integer from 1 to 128"),
        (Api.COMPLETIONS, "best_of", [1, 128], [0, 129, "x"], "an integer from 1 to 128"),
        (Api.RESPONSES, "n_cmpl", [1], [0, 129], "an integer from 1 to 128"),
        (Api.CHAT, "max_tokens", [1, 2**31 - 1], [0, -1, 2**31, 1.5, "9"], "an integer from 1 to 2147483647"),
        (Api.CHAT, "max_completion_tokens", [1], [0], "an integer from 1 to 2147483647"),
        (Api.RESPONSES, "max_output_tokens", [1], [0, None, {}], "an integer from 1 to 2147483647"),
        (Api.MESSAGES, "max_tokens", [1, 2**31 - 1], [0, -1, 2**31, "9"], "an integer from 1 to 2147483647"),
        (Api.MESSAGES, "n_predict", [-1, 0, 5], [-2, "a"], "an integer from -1 to 2147483647"),
        (Api.MESSAGES, "prompt_logprobs", [-1, 0, 5], [-2, "text"], "an integer from -1 to 2147483647"),
        (Api.MESSAGES, "thinking", [{"type": "enabled", "budget_tokens": 1024}, {}], [True, "yes"], "an object"),
        (Api.MESSAGES, "output_config", [{"effort": "max"}, {}], [5, "high"], "an object"),
        (Api.COMPLETIONS, "max_tokens", [1], [-1, 2**31], "an integer from 0 to 2147483647"),
        (Api.CHAT, "min_tokens", [0, 5], [-1, "a"], "an integer from 0 to 2147483647"),
        (Api.CHAT, "n_predict", [-1, 0, 5], [-2, "a"], "an integer from -1 to 2147483647"),
        (Api.CHAT, "logprobs", [True, False], [1, 5, "true"], "true or false"),
        (Api.COMPLETIONS, "logprobs", [0, 20], [-1, 21, True], "an integer from 0 to 20"),
        (Api.CHAT, "top_logprobs", [0, 20], [-1, 21], "an integer from 0 to 20"),
        (Api.RESPONSES, "top_logprobs", [0, 20], [-1, 21], "an integer from 0 to 20"),
        (Api.COMPLETIONS, "n_probs", [0, 20], [21], "an integer from 0 to 20"),
        (Api.CHAT, "prompt_logprobs", [-1, 0, 5000], [-2, "all", 2**40], "an integer from -1 to 2147483647"),
        (Api.COMPLETIONS, "echo", [True], ["yes"], "true or false"),
        (Api.CHAT, "reasoning_effort", ["low", "ultra"], [3, {}], "a string"),
        (Api.RESPONSES, "reasoning", [{}, {"effort": "low"}, {"effort": None}], ["low", 3], "an object"),
    ],
)
def test_field_value_is_validated(api: Api, name: str, good: list[object], bad: list[object], kind: str) -> None:
    for value in [*good, None]:
        assert parsed(api, **{name: value}).model == "m"
    for value in bad:
        if value is not None:
            assert refusal(api, **{name: value}) == (f'"{name}" must be {kind}, not {json.dumps(value)}', name)


@pytest.mark.parametrize("api", list(PROMPTS))
def test_priority_must_fit_in_32_bits(api: Api) -> None:
    kind = "an integer from -2147483648 to 2147483647"
    for value in (0, 5, -(2**31), 2**31 - 1, None):
        assert parsed(api, priority=value).model == "m"
    for value in ("high", "1", 1.5, 2**31, -(2**31) - 1, True, [1]):
        assert refusal(api, priority=value) == (f'"priority" must be {kind}, not {json.dumps(value)}', "priority")


@pytest.mark.parametrize("api", list(PROMPTS))
def test_cache_salt_must_be_a_short_string(api: Api) -> None:
    for value in ("a", "é" * 256, None):
        assert parsed(api, cache_salt=value).model == "m"
    for value in ("", "a" * 257, 5, ["a"], {}):
        message, param = refusal(api, cache_salt=value)
        assert message.startswith('"cache_salt" must be a string of 1 to 256 characters, not ')
        assert param == "cache_salt"


def test_zero_output_tokens_require_echo() -> None:
    assert parsed(Api.COMPLETIONS, max_tokens=0, echo=True).model == "m"
    expected = ('"max_tokens" may be 0 only with "echo": true; set it to at least 1', "max_tokens")
    assert refusal(Api.COMPLETIONS, max_tokens=0) == expected
    assert refusal(Api.COMPLETIONS, max_tokens=0, echo=False) == expected


@pytest.mark.parametrize(
    "name",
    [
        "kv_transfer_params",
        "ec_transfer_params",
        "disaggregated_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    ],
)
@pytest.mark.parametrize("api", list(PROMPTS))
def test_fields_for_engine_to_engine_traffic_are_rejected(api: Api, name: str) -> None:
    assert refusal(api, **{name: {"remote_host": "10.0.0.1"}}) == (
        f'"{name}" is reserved for traffic between engines; remove it',
        name,
    )
    assert parsed(api, **{name: None}).model == "m"


def test_stateful_responses_are_rejected() -> None:
    assert refusal(Api.RESPONSES, previous_response_id="resp_1")[1] == "previous_response_id"
    assert refusal(Api.RESPONSES, background=True)[1] == "background"
    assert parsed(Api.RESPONSES, previous_response_id=None, background=False, store=True).model == "m"


def test_reasoning_effort_must_be_a_string() -> None:
    assert refusal(Api.RESPONSES, reasoning={"effort": 3}) == (
        '"reasoning.effort" must be a string, not 3',
        "reasoning.effort",
    )


def test_embeddings_ignore_generation_fields() -> None:
    body = parsed(Api.EMBEDDINGS, n=1000, max_tokens=0, logprobs="x")

    assert json.loads(body.encode(served_model="own"))["n"] == 1000


_ANY = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)


@pytest.mark.parametrize("api", GENERATING)
@given(
    fields=st.dictionaries(
        st.sampled_from(
            [
                "n",
                "best_of",
                "max_tokens",
                "max_output_tokens",
                "logprobs",
                "top_logprobs",
                "prompt_logprobs",
                "priority",
            ]
        ),
        _ANY,
    )
)
def test_any_field_value_is_passed_through_or_named_in_the_rejection(api: Api, fields: dict[str, object]) -> None:
    try:
        body = parsed(api, **fields)
    except BadRequest as refused:
        param, sent = refused.param, None
    else:
        param, sent = None, json.loads(body.encode(served_model="m", passes_priority=True))

    if sent is None:
        assert param in fields
    else:
        assert {name: sent[name] for name in fields} == fields


def test_rejection_does_not_depend_on_the_order_of_the_fields() -> None:
    wrong: dict[str, object] = {"max_tokens": 0, "n": 0, "priority": "high"}

    for names in permutations(wrong):
        assert refusal(Api.CHAT, **{name: wrong[name] for name in names})[1] == "priority"
