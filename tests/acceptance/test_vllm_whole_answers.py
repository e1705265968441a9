"""Responses assembled from vLLM streams equal its non-streaming responses."""

import json
from typing import Any

import aiohttp
import pytest

from headgate.engines.joined_response import JoinedResponse
from headgate.model.ticket import Api
from testing.real_engines import RealEngine
from tests.engines.calls import Engines, a_call, read_all

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

ALWAYS = {"temperature": 0, "seed": 1}
TRIES = 4
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
ASSISTANT = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "Well,"}]
SAMPLED = {"n": 2, "temperature": 0.8}
CHATS: dict[str, dict[str, object]] = {
    "max_tokens": {"max_tokens": 4},
    "natural end": {"max_tokens": 64},
    "stop string": {"max_tokens": 64, "stop": [".", "!", "?"]},
    "empty output": {"max_tokens": 8, "logit_bias": {"2": 100}},
    "log probabilities": {"max_tokens": 6, "logprobs": True, "top_logprobs": 3},
    "log probabilities with stop string": {"max_tokens": 64, "logprobs": True, "stop": ["!"]},
    "two choices": {"max_tokens": 6} | SAMPLED,
    "JSON schema": {"max_tokens": 60, "response_format": FORMAT},
    "any JSON": {"max_tokens": 40, "response_format": {"type": "json_object"}},
    "service tier": {"max_tokens": 4, "service_tier": "default"},
    "multi-token characters": {
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "Repeat: 😀 日本語 ñ"}],
    },
}
COMPLETIONS: dict[str, dict[str, object]] = {
    "max_tokens": {"max_tokens": 8},
    "stop string": {"prompt": "One, two, three, four,", "max_tokens": 20, "stop": ["seven"]},
    "empty output": {"max_tokens": 8, "logit_bias": {"2": 100}},
    "log probabilities": {"max_tokens": 5, "logprobs": 3},
    "log probabilities of partial characters": {"prompt": "日本語 日本語 日本", "max_tokens": 10, "logprobs": 2},
    "two choices": {"max_tokens": 5} | SAMPLED,
    "two prompts": {"max_tokens": 5, "prompt": ["One, two,", "A, B,"]},
    "token prompt": {"max_tokens": 5, "prompt": [5, 6, 7]},
}
WHOLE: dict[str, dict[str, object]] = {
    "required tool": {"max_tokens": 60, "tools": [TOOL], "tool_choice": "required"},
    "named tool": {
        "max_tokens": 60,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "tools": {"max_tokens": 20, "tools": [TOOL]},
    "prompt log probabilities": {"max_tokens": 4, "prompt_logprobs": 1},
    "token ids": {"max_tokens": 4, "return_token_ids": True},
    "echo": {
        "max_tokens": 4,
        "echo": True,
        "add_generation_prompt": False,
        "continue_final_message": True,
        "messages": ASSISTANT,
    },
}
WHOLE_COMPLETIONS: dict[str, dict[str, object]] = {
    "echo": {"max_tokens": 5, "echo": True},
    "echo with log probabilities": {"max_tokens": 5, "echo": True, "logprobs": 1},
    "prompt log probabilities": {"max_tokens": 4, "prompt_logprobs": 1},
    "token ids": {"max_tokens": 4, "return_token_ids": True},
}
CASES = [
    pytest.param(api, fields, is_joined, id=f"{api.value}, {name}")
    for api, requests, is_joined in (
        (Api.CHAT, CHATS, True),
        (Api.COMPLETIONS, COMPLETIONS, True),
        (Api.CHAT, WHOLE, False),
        (Api.COMPLETIONS, WHOLE_COMPLETIONS, False),
    )
    for name, fields in requests.items()
]


@pytest.fixture(scope="module")
def engine(shared_vllm: RealEngine) -> RealEngine:
    return shared_vllm


def comparable(body: bytes) -> Any:
    """Response, excluding the fields that differ between any two responses to the same request."""
    answer = json.loads(body)
    assert answer.pop("id").startswith(("chatcmpl-", "cmpl-"))
    assert answer.pop("created") > 0
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call.pop("id")
    return answer


@pytest.mark.parametrize(("api", "fields", "is_joined"), CASES)
async def test_joined_response_equals_the_non_streaming_response(
    engine: RealEngine, api: Api, fields: dict[str, object], is_joined: bool
) -> None:
    call = a_call(api, **ALWAYS | fields)
    path = "/v1/chat/completions" if api is Api.CHAT else "/v1/completions"
    async with Engines() as engines, aiohttp.ClientSession() as direct:
        asked = engines(engine.url, dialect="vllm", served_model=engine.model, watches=True)
        body, headers = call.body.encode(served_model=engine.model), {"content-type": "application/json"}
        # Parts of one request that reach the engine separately run in different batches and may be rounded differently.
        for left in reversed(range(TRIES)):
            answer = await asked.ask(call)
            joined = comparable(await read_all(answer))
            answer.close()
            assert isinstance(answer, JoinedResponse) is is_joined
            async with direct.post(engine.url + path, data=body, headers=headers) as response:
                assert (response.status, response.content_type) == (200, "application/json")
                whole = comparable(await response.read())
            if joined == whole or not left:
                break
        assert joined == whole


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"messages": [{"role": "user", "content": "word " * 4000}]}, id="too long"),
        pytest.param({"temperature": -1}, id="value out of range"),
        pytest.param({"stream_options": {"include_usage": True}}, id="stream options"),
    ],
)
async def test_invalid_request_gets_the_same_status_with_and_without_streaming(
    engine: RealEngine, fields: dict[str, object]
) -> None:
    call = a_call(max_tokens=4, **fields)
    async with Engines() as engines:
        answer = await engines(engine.url, dialect="vllm", served_model=engine.model, watches=True).ask(call)
        body = await read_all(answer)

    assert answer.status == 400
    assert answer.is_request_error(body)
