"""Responses assembled from llama.cpp streams equal its non-streaming responses."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from headgate.engines.joined_response import JoinedResponse
from headgate.model.ticket import Api
from testing.real_engines import RealEngine, llamacpp
from tests.engines.calls import Engines, a_call, read_all

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

ALWAYS = {"temperature": 0, "seed": 1}
TRIES = 4
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CHATS: dict[str, dict[str, object]] = {
    "max_tokens": {"max_tokens": 8},
    "natural end": {"max_tokens": 64, "stop": [".", "!", "?"]},
    "empty output": {"max_tokens": 8, "logit_bias": [[2, 100]]},
    "log probabilities": {"max_tokens": 6, "logprobs": True, "top_logprobs": 3},
    "two choices": {"max_tokens": 6, "n": 2},
    "JSON schema": {"max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "tools": {"max_tokens": 12, "tools": [TOOL], "tool_choice": "required"},
    "multi-token characters": {
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "Repeat: 😀 日本語 ñ"}],
        "grammar": 'root ::= "😀日本語ñ\\n\\"" [0-9]+',
    },
}
COMPLETIONS: dict[str, dict[str, object]] = {
    "max_tokens": {"max_tokens": 8},
    "stop string": {"prompt": "One, two, three, four,", "max_tokens": 20, "stop": ["seven"]},
    "log probabilities": {"max_tokens": 5, "logprobs": 3},
    "two choices": {"max_tokens": 5, "n": 2},
    "two prompts": {"max_tokens": 5, "prompt": ["One, two,", "A, B,"]},
}
ASKED = [pytest.param(Api.CHAT, fields, id=f"chat, {name}") for name, fields in CHATS.items()]
ASKED += [pytest.param(Api.COMPLETIONS, fields, id=f"completion, {name}") for name, fields in COMPLETIONS.items()]


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with llamacpp(parallel=4) as engine:
        yield engine


def comparable(body: bytes) -> Any:
    """Response, excluding the fields that differ between any two responses to the same request."""
    answer = json.loads(body)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 0
    assert answer.pop("timings")["predicted_n"] > 0
    return answer


@pytest.mark.parametrize(("api", "fields"), ASKED)
async def test_joined_response_equals_the_non_streaming_response(
    engine: RealEngine, api: Api, fields: dict[str, object]
) -> None:
    call = a_call(api, **ALWAYS | fields)
    path = "/v1/chat/completions" if api is Api.CHAT else "/v1/completions"
    async with Engines() as engines, aiohttp.ClientSession() as direct:

        async def whole() -> bytes:
            async with direct.post(engine.url + path, data=call.body.encode(served_model=engine.model)) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json")
                return await answer.read()

        await whole()  # Once the prompt is cached, all later results are identical to the last digit.
        # Parts of one request that reach the engine separately run in different batches and may be rounded differently.
        for left in reversed(range(TRIES)):
            answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
            joined = comparable(await read_all(answer))
            answer.close()
            assert isinstance(answer, JoinedResponse)
            told = comparable(await whole())
            if joined == told or not left:
                break
        assert joined == told


async def test_request_that_llamacpp_cannot_stream_is_sent_without_streaming(engine: RealEngine) -> None:
    call = a_call(tools=[TOOL], logprobs=True, max_tokens=2, temperature=0, ignore_eos=True)
    async with Engines() as engines:
        answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
        body = json.loads(await read_all(answer))

    assert answer.status == 200
    assert len(body["choices"][0]["logprobs"]["content"]) == 2


async def test_invalid_request_gets_the_same_status_with_and_without_streaming(engine: RealEngine) -> None:
    call = a_call(max_tokens=4, messages=[{"role": "user", "content": "word " * 4000}])
    async with Engines() as engines:
        answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
        body = await read_all(answer)

    assert answer.status == 400
    assert json.loads(body)["error"]["type"] == "exceed_context_size_error"
    assert answer.is_request_error(body)
