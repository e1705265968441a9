"""Tests for lowering a request's values to its class's caps."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.caps import Caps, ReasoningEffort
from headgate.model.ticket import Api
from headgate.wire.request_body import BadRequest, RequestBody

OPEN = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None)
TURNS = [{"role": role, "content": text} for text in "123" for role in ("user", "assistant")]


def a_body(api: Api = Api.CHAT, **fields: object) -> RequestBody:
    prompts: dict[Api, dict[str, object]] = {
        Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
        Api.COMPLETIONS: {"prompt": "hi"},
        Api.EMBEDDINGS: {"input": "hi"},
        Api.RESPONSES: {"input": "hi"},
        Api.MESSAGES: {"messages": [{"role": "user", "content": "hi"}]},
        Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    }
    return RequestBody.parse(json.dumps({"model": "m"} | prompts[api] | fields).encode(), api)


def sent(body: RequestBody) -> dict[str, object]:
    return json.loads(body.encode(served_model="m"))


def shaped(caps: Caps, api: Api = Api.CHAT, **fields: object) -> tuple[dict[str, object], tuple[str, ...]]:
    """Returns the changed fields, with None for removed ones, and the reported changes."""
    before = a_body(api, **fields)
    after, told = before.capped(caps)
    old, new = sent(before), sent(after)
    return {name: new.get(name) for name in old | new if old.get(name) != new.get(name)}, told


def test_body_within_its_caps_is_returned_as_the_same_object() -> None:
    body = a_body(max_tokens=10, n=8, top_logprobs=20, logprobs=True, temperature=0.5)

    for caps in (Caps(), OPEN, Caps(output_tokens=10)):
        assert body.capped(caps) == (body, ())
        assert body.capped(caps)[0] is body


@pytest.mark.parametrize(
    ("api", "asked", "changed"),
    [
        (Api.CHAT, {"max_tokens": 101}, {"max_tokens": 100}),
        (Api.CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": 100}),
        (Api.CHAT, {"max_tokens": 9, "max_completion_tokens": 500}, {"max_completion_tokens": 100}),
        (Api.CHAT, {"max_tokens": 900, "max_completion_tokens": 9}, {"max_tokens": 100}),
        (Api.CHAT, {}, {"max_tokens": 100}),
        (Api.CHAT, {"max_tokens": None}, {"max_tokens": 100}),
        (Api.CHAT, {"max_tokens": 9, "n_predict": -1}, {"n_predict": 100}),
        # A field that only some engines support limits only those engines.
        (Api.CHAT, {"n_predict": 900}, {"n_predict": 100, "max_tokens": 100}),
        (Api.CHAT, {"n_predict": 1}, {"max_tokens": 100}),
        (Api.COMPLETIONS, {"max_completion_tokens": 1}, {"max_tokens": 100}),
        (Api.RESPONSES, {"n_predict": 1}, {"max_output_tokens": 100}),
        (Api.COMPLETIONS, {"max_tokens": 900}, {"max_tokens": 100}),
        (Api.COMPLETIONS, {}, {"max_tokens": 100}),
        (Api.RESPONSES, {"max_output_tokens": 900}, {"max_output_tokens": 100}),
        (Api.MESSAGES, {"max_tokens": 900}, {"max_tokens": 100}),
        (Api.MESSAGES, {}, {"max_tokens": 100}),
        (Api.RESPONSES, {}, {"max_output_tokens": 100}),
        # Engines reject a minimum above the maximum.
        (Api.CHAT, {"max_tokens": 900, "min_tokens": 800}, {"max_tokens": 100, "min_tokens": 100}),
    ],
)
def test_output_limit_is_lowered_in_every_field(api: Api, asked: dict[str, object], changed: dict[str, object]) -> None:
    assert shaped(Caps(output_tokens=100), api, **asked) == (changed, ("output_tokens=100",))


@pytest.mark.parametrize(
    ("api", "asked"),
    [
        (Api.CHAT, {"max_tokens": 100}),
        (Api.CHAT, {"max_completion_tokens": 5, "min_tokens": 5}),
        (Api.COMPLETIONS, {"max_tokens": 0, "echo": True}),
        (Api.EMBEDDINGS, {}),
        (Api.MESSAGES, {"max_tokens": 100, "thinking": {"type": "disabled"}}),
        (Api.COUNT_TOKENS, {"max_tokens": 900}),
    ],
)
def test_output_within_the_cap_is_unchanged(api: Api, asked: dict[str, object]) -> None:
    assert shaped(Caps(output_tokens=100), api, **asked) == ({}, ())


@pytest.mark.parametrize(
    ("caps", "api", "asked", "changed", "told"),
    [
        (Caps(n=4), Api.CHAT, {"n": 5}, {"n": 4}, ("n=4",)),
        (Caps(n=4), Api.CHAT, {"n_cmpl": 100}, {"n_cmpl": 4}, ("n=4",)),
        (Caps(), Api.CHAT, {"n": 128}, {"n": 8}, ("n=8",)),
        (Caps(best_of=4), Api.COMPLETIONS, {"best_of": 9}, {"best_of": 4}, ("best_of=4",)),
        # An engine cannot return more choices than it generates.
        (Caps(best_of=4), Api.COMPLETIONS, {"best_of": 9, "n": 6}, {"best_of": 4, "n": 4}, ("n=4", "best_of=4")),
        (Caps(logprobs=5), Api.CHAT, {"logprobs": True, "top_logprobs": 9}, {"top_logprobs": 5}, ("logprobs=5",)),
        (Caps(logprobs=0), Api.CHAT, {"logprobs": True, "top_logprobs": 9}, {"top_logprobs": 0}, ("logprobs=0",)),
        (Caps(logprobs=5), Api.CHAT, {"n_probs": 9}, {"n_probs": 5}, ("logprobs=5",)),
        (Caps(logprobs=5), Api.COMPLETIONS, {"logprobs": 9}, {"logprobs": 5}, ("logprobs=5",)),
        (Caps(logprobs=5), Api.RESPONSES, {"top_logprobs": 9}, {"top_logprobs": 5}, ("logprobs=5",)),
        (Caps(), Api.CHAT, {"prompt_logprobs": 5}, {"prompt_logprobs": None}, ("prompt_logprobs=0",)),
        (Caps(), Api.CHAT, {"prompt_logprobs": 0}, {"prompt_logprobs": None}, ("prompt_logprobs=0",)),
        (Caps(prompt_logprobs=3), Api.CHAT, {"prompt_logprobs": -1}, {"prompt_logprobs": 3}, ("prompt_logprobs=3",)),
        (Caps(prompt_logprobs=3), Api.CHAT, {"prompt_logprobs": 9}, {"prompt_logprobs": 3}, ("prompt_logprobs=3",)),
        (Caps(prompt_logprobs=3), Api.CHAT, {"prompt_logprobs": 3}, {}, ()),
        (OPEN, Api.CHAT, {"prompt_logprobs": -1, "n": 100, "top_logprobs": 20}, {}, ()),
        # An echo includes the prompt's log probabilities even though they are not requested by name.
        (Caps(), Api.COMPLETIONS, {"echo": True, "logprobs": 2}, {"logprobs": None}, ("prompt_logprobs=0",)),
        (
            Caps(prompt_logprobs=1),
            Api.COMPLETIONS,
            {"echo": True, "logprobs": 2},
            {"logprobs": 1},
            ("prompt_logprobs=1",),
        ),
        (Caps(), Api.COMPLETIONS, {"echo": False, "logprobs": 2}, {}, ()),
    ],
)
def test_each_cap_lowers_its_fields(
    caps: Caps, api: Api, asked: dict[str, object], changed: dict[str, object], told: tuple[str, ...]
) -> None:
    assert shaped(caps, api, **asked) == (changed, told)


@pytest.mark.parametrize(
    ("asked", "given"),
    [("none", "none"), ("low", "low"), ("medium", "low"), ("high", "low"), ("xhigh", "low"), ("of an engine", "low")],
)
def test_reasoning_effort_is_lowered_and_unknown_efforts_exceed_every_cap(asked: str, given: str) -> None:
    caps = Caps(reasoning_effort=ReasoningEffort.LOW)
    chat, told = a_body(reasoning_effort=asked).capped(caps)
    response, told_too = a_body(Api.RESPONSES, reasoning={"summary": "auto", "effort": asked}).capped(caps)

    assert sent(chat)["reasoning_effort"] == given
    assert sent(response)["reasoning"] == {"summary": "auto", "effort": given}
    assert told == told_too == (() if asked == given else ("reasoning_effort=low",))
    assert a_body(reasoning_effort=asked).capped(Caps())[1] == ()
    assert a_body(Api.RESPONSES, reasoning={}).capped(caps)[1] == ()


def test_changes_are_reported_in_a_fixed_order() -> None:
    caps = Caps(
        output_tokens=10,
        n=2,
        best_of=2,
        logprobs=1,
        reasoning_effort=ReasoningEffort.LOW,
        prompt_tokens=1,
        trim_prompt=True,
    )
    asked = {
        "reasoning_effort": "high",
        "prompt_logprobs": 3,
        "top_logprobs": 5,
        "n": 9,
        "best_of": 9,
        "max_tokens": 99,
    }

    assert a_body(messages=TURNS, **asked).capped(caps)[1] == (
        "output_tokens=10",
        "n=2",
        "best_of=2",
        "logprobs=1",
        "prompt_logprobs=0",
        "reasoning_effort=low",
        "turns_dropped=2",
    )


def test_turns_are_dropped_if_the_class_trims_prompts() -> None:
    body = a_body(messages=TURNS)
    trimmed, told = body.capped(Caps(prompt_tokens=1, trim_prompt=True))

    assert sent(trimmed)["messages"] == TURNS[-2:]
    assert told == ("turns_dropped=2",)
    assert trimmed.prompt_bytes == body.prompt_bytes_kept == len(json.dumps(TURNS[-2:])) - 1
    assert body.capped(Caps(prompt_tokens=1))[0] is body
    assert body.capped(Caps(prompt_tokens=body.prompt_bytes // 4, trim_prompt=True))[0] is body


def test_only_conversations_are_trimmed() -> None:
    caps = Caps(prompt_tokens=1, trim_prompt=True)
    for body in (a_body(Api.COMPLETIONS, prompt="long " * 99), a_body(Api.RESPONSES, input=TURNS), a_body()):
        assert body.prompt_bytes_kept == body.prompt_bytes
        assert body.capped(caps)[0] is body


_CAPS = st.builds(
    Caps,
    prompt_tokens=st.none() | st.integers(1, 60),
    trim_prompt=st.booleans(),
    output_tokens=st.none() | st.integers(1, 50),
    n=st.none() | st.integers(1, 8),
    best_of=st.none() | st.integers(1, 8),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
    reasoning_effort=st.none() | st.sampled_from(ReasoningEffort),
)
_ASKED = st.fixed_dictionaries(
    {"messages": st.integers(1, 4).map(lambda turns: TURNS[: 2 * turns])},
    optional={
        "max_tokens": st.none() | st.integers(1, 100),
        "max_completion_tokens": st.integers(1, 100),
        "min_tokens": st.integers(0, 100),
        "n_predict": st.integers(-1, 100),
        "n": st.integers(1, 20),
        "best_of": st.integers(1, 20),
        "top_logprobs": st.integers(0, 20),
        "prompt_logprobs": st.integers(-1, 30),
        "reasoning_effort": st.sampled_from([*ReasoningEffort, "odd"]),
        "unknown": st.integers() | st.text(),
        "tools": st.just([{"type": "function"}]),
    },
)


@given(asked=_ASKED, caps=_CAPS)
def test_capping_is_idempotent(asked: dict[str, object], caps: Caps) -> None:
    once, _ = a_body(**asked).capped(caps)

    assert once.capped(caps) == (once, ())
    assert once.capped(caps)[0] is once


@given(asked=_ASKED, caps=_CAPS)
def test_capping_only_lowers_values_and_keeps_other_fields(asked: dict[str, object], caps: Caps) -> None:
    body = a_body(**asked)
    after, told = body.capped(caps)
    old, new = sent(body), sent(after)

    for name in ("model", "unknown", "tools"):
        assert new.get(name) == old.get(name)
    numbers = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "top_logprobs")
    for name in numbers:
        if old.get(name) is not None:
            assert int(str(new[name])) <= int(str(old[name]))
    assert (not told) == (old == new)
    assert sent(body) == old


@pytest.mark.parametrize(
    ("most", "asked", "sent"),
    [
        (2000, {"type": "enabled", "budget_tokens": 4000}, {"type": "enabled", "budget_tokens": 1999}),
        (2000, {"type": "enabled", "budget_tokens": 2000}, {"type": "enabled", "budget_tokens": 1999}),
        (1024, {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}),
        (100, {"type": "enabled", "budget_tokens": 4000}, {"type": "disabled"}),
    ],
)
def test_thinking_budget_stays_below_the_output_cap(most: int, asked: object, sent: object) -> None:
    changed, told = shaped(Caps(output_tokens=most), Api.MESSAGES, max_tokens=9000, thinking=asked)

    assert changed == {"max_tokens": most, "thinking": sent}
    assert told == (f"output_tokens={most}",)


def test_thinking_budget_is_capped_even_if_nothing_else_exceeds_a_cap() -> None:
    asked = {"type": "enabled", "budget_tokens": 2**31 - 1}
    changed, told = shaped(Caps(output_tokens=2000), Api.MESSAGES, max_tokens=1900, thinking=asked)

    assert (changed, told) == ({"thinking": {"type": "enabled", "budget_tokens": 1999}}, ())


@pytest.mark.parametrize("budget", [-1, 2**31, 10**400, "many"])
def test_thinking_budget_out_of_range_is_rejected(budget: object) -> None:
    with pytest.raises(BadRequest, match="budget_tokens"):
        a_body(Api.MESSAGES, max_tokens=9, thinking={"type": "enabled", "budget_tokens": budget})


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1999}, None])
def test_thinking_within_the_output_cap_is_unchanged(thinking: object) -> None:
    assert shaped(Caps(output_tokens=2000), Api.MESSAGES, max_tokens=2000, thinking=thinking) == ({}, ())


@pytest.mark.parametrize(
    ("most", "asked", "sent"),
    [
        (ReasoningEffort.MEDIUM, "max", "medium"),
        (ReasoningEffort.MEDIUM, "high", "medium"),
        (ReasoningEffort.NONE, "high", "low"),
        (ReasoningEffort.MINIMAL, "medium", "low"),
    ],
)
def test_effort_of_a_message_is_lowered(most: ReasoningEffort, asked: str, sent: str) -> None:
    changed, told = shaped(Caps(reasoning_effort=most), Api.MESSAGES, output_config={"effort": asked, "x": 1})

    assert changed == {"output_config": {"effort": sent, "x": 1}}
    assert told == (f"reasoning_effort={sent}",)


def test_low_effort_of_a_message_is_unchanged() -> None:
    assert shaped(Caps(reasoning_effort=ReasoningEffort.NONE), Api.MESSAGES, output_config={"effort": "low"}) == (
        {},
        (),
    )
