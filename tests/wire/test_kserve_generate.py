"""Tests for translating OpenAI requests into inputs for a Triton text model."""

import json
from typing import Any

import pytest

from headgate.model.ticket import Api
from headgate.wire.fields import BadRequest
from headgate.wire.kserve.chat_template import CHAT_TEMPLATES
from headgate.wire.kserve.generate import (
    CHAT_TOKENS_DEFAULT,
    COMPLETION_TOKENS_DEFAULT,
    TextModel,
    build_request,
    read_model,
)

HI = [{"role": "user", "content": "hi"}]


def metadata(*inputs: str, texts: tuple[str, ...] = ("text_input",), output: str = "text_output") -> bytes:
    tensors = [{"name": name, "datatype": "BYTES"} for name in texts]
    tensors += [{"name": name, "datatype": "INT32"} for name in inputs]
    return json.dumps({"name": "m", "inputs": tensors, "outputs": [{"name": output, "datatype": "BYTES"}]}).encode()


def a_model(*inputs: str, config: bytes = b"") -> TextModel:
    model = read_model(metadata(*inputs), config)
    assert model is not None
    return model


def sent(model: TextModel, api: Api = Api.CHAT, **fields: object) -> dict[str, Any]:
    prompt: dict[str, object] = {"messages": HI} if api is Api.CHAT else {"prompt": "once"}
    return json.loads(build_request(json.dumps({"model": "m"} | prompt | fields).encode(), api, model).body)


def refusal(api: Api = Api.CHAT, **fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        sent(a_model(), api, **fields)
    return caught.value


# Model description


def test_usual_tensor_names_are_preferred_over_others() -> None:
    usual = read_model(metadata(texts=("prompt", "text_input")), b"")
    other = read_model(metadata(texts=("prompt",), output="answer"), b"")

    assert usual is not None
    assert other is not None
    assert (usual.text_input, usual.text_output) == ("text_input", "text_output")
    assert (other.text_input, other.text_output) == ("prompt", "answer")
    assert read_model(metadata(texts=()), b"") is None


@pytest.mark.parametrize("page", [b"", b"[]", b"not json", b'{"inputs": 5}', b"\xff", b"[" * 100_000])
def test_invalid_model_metadata_is_ignored(page: bytes) -> None:
    assert read_model(page, b"") is None


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (b"", "plain"),
        (b"not json", "plain"),
        (b'{"parameters":{"headgate_chat_template":{"string_value":"chatml"}}}', "chatml"),
        (b'{"parameters":{"headgate_chat_template":{"string_value":"unheard of"}}}', "plain"),
        (b'{"parameters":{"another":{"string_value":"chatml"}}}', "plain"),
    ],
)
def test_chat_format_is_read_from_the_model_configuration(config: bytes, form: str) -> None:
    assert a_model(config=config).chat_template is CHAT_TEMPLATES[form]


# Prompt


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("plain", "System: be brief\n\nUser: hi\n\nAssistant: hello\n\nUser: and?\n\nAssistant:"),
        (
            "chatml",
            (
                "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
            ),
        ),
        (
            "llama3",
            (
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\nhello<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nand?<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n"
            ),
        ),
    ],
)
def test_conversation_becomes_one_text_ending_with_the_assistant_prefix(form: str, text: str) -> None:
    config = json.dumps({"parameters": {"headgate_chat_template": {"string_value": form}}}).encode()
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and?"},
    ]

    assert sent(a_model(config=config), messages=messages)["text_input"] == text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "tool", "content": "5"},
    ],
)
def test_non_text_message_is_rejected(message: object) -> None:
    assert refusal(messages=[message]).param == "messages"


def test_completion_has_exactly_one_prompt() -> None:
    assert sent(a_model(), Api.COMPLETIONS)["text_input"] == "once"
    assert sent(a_model(), Api.COMPLETIONS, prompt=["once"])["text_input"] == "once"
    assert refusal(Api.COMPLETIONS, prompt=["a", "b"]).param == "prompt"
    assert "the wrong type" in refusal(Api.COMPLETIONS, prompt=[1, 2]).message


# Sampling parameters


def test_parameters_are_sent_under_the_models_input_names() -> None:
    model = a_model("max_tokens", "temperature", "random_seed", "min_length", "stop_words", "beam_width")

    assert sent(
        model, max_tokens=5, temperature=0, seed=7, min_tokens=2, stop=["a", "b"], beam_width=3, top_p=0.5, user="u"
    ) == {
        "text_input": "User: hi\n\nAssistant:",
        "stream": True,
        "max_tokens": 5,
        "temperature": 0.0,
        "random_seed": 7,
        "min_length": 2,
        "stop_words": ["a", "b"],
        "beam_width": 3,
        "top_p": 0.5,
    }


def test_parameters_are_sent_as_one_text_if_the_model_accepts_that() -> None:
    asked = sent(a_model("sampling_parameters"), max_completion_tokens=5, stop="a", seed=7, ignore_eos=True)

    assert asked.keys() == {"text_input", "stream", "sampling_parameters"}
    assert json.loads(asked["sampling_parameters"]) == {"max_tokens": 5, "stop": ["a"], "seed": 7, "ignore_eos": True}


def test_model_is_asked_for_token_counts_and_finish_reason_if_supported() -> None:
    switches = {
        "return_num_input_tokens",
        "return_num_output_tokens",
        "return_finish_reason",
        "exclude_input_in_output",
    }

    asked = sent(a_model(*switches))

    assert {name for name in switches if asked.get(name) is True} == switches
    assert not switches & sent(a_model()).keys()


def test_output_limit_has_a_default() -> None:
    assert sent(a_model())["max_tokens"] == CHAT_TOKENS_DEFAULT
    assert sent(a_model(), Api.COMPLETIONS)["max_tokens"] == COMPLETION_TOKENS_DEFAULT


def test_multiple_stop_texts_require_a_model_input() -> None:
    assert sent(a_model(), stop=["a"])["stop"] == "a"
    assert refusal(stop=["a", "b"]).param == "stop"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("logprobs", True),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("n", 2),
        ("best_of", 2),
    ],
)
def test_unsupported_field_rejection_names_the_field(name: str, value: object) -> None:
    bad = refusal(**{name: value})

    assert bad.param == name
    assert name in bad.message


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"logprobs": False}, {"n": 1}, {"response_format": {"type": "text"}}, {"tools": None}]
)
def test_unsupported_field_without_effect_is_accepted(fields: dict[str, object]) -> None:
    assert sent(a_model(), **fields)["text_input"] == "User: hi\n\nAssistant:"


@pytest.mark.parametrize("fields", [{"temperature": "hot"}, {"max_tokens": 1.5}, {"stop": 5}, {"seed": "x"}])
def test_field_with_wrong_type_is_rejected(fields: dict[str, object]) -> None:
    assert "a field has the wrong type" in refusal(**fields).message
