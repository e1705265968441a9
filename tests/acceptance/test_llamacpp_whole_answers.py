"""Is an answer that was joined from a stream of real llama.cpp the one that it gives whole?"""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from headgate.engines.joined import JoinedAnswer
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
    "to the end": {"max_tokens": 64, "stop": [".", "!", "?"]},
    "nothing said": {"max_tokens": 8, "logit_bias": [[2, 100]]},
    "log probabilities": {"max_tokens": 6, "logprobs": True, "top_logprobs": 3},
    "two choices": {"max_tokens": 6, "n": 2},
    "a schema": {"max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "tools": {"max_tokens": 12, "tools": [TOOL], "tool_choice": "required"},
    "characters of several tokens": {
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "Repeat: 😀 日本語 ñ"}],
        "grammar": 'root ::= "😀日本語ñ\\n\\"" [0-9]+',
    },
}
COMPLETIONS: dict[str, dict[str, object]] = {
    "max_tokens": {"max_tokens": 8},
    "a stop": {"prompt": "One, two, three, four,", "max_tokens": 20, "stop": ["seven"]},
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
    """Without what differs between any two answers to the same request."""
    answer = json.loads(body)
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 0
    assert answer.pop("timings")["predicted_n"] > 0
    return answer


@pytest.mark.parametrize(("api", "fields"), ASKED)
async def test_the_joined_answer_is_the_whole_one(engine: RealEngine, api: Api, fields: dict[str, object]) -> None:
    call = a_call(api, **ALWAYS | fields)
    path = "/v1/chat/completions" if api is Api.CHAT else "/v1/completions"
    async with Engines() as engines, aiohttp.ClientSession() as direct:

        async def whole() -> bytes:
            async with direct.post(engine.url + path, data=call.body.encode(served_model=engine.model)) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json")
                return await answer.read()

        await whole()  # With the prompt in its cache the engine computes the others alike, to the last digit.
        # Parts of one request that reach the engine separately run in different batches and may be rounded differently.
        for left in reversed(range(TRIES)):
            answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
            joined = comparable(await read_all(answer))
            answer.close()
            assert isinstance(answer, JoinedAnswer)
            told = comparable(await whole())
            if joined == told or not left:
                break
        assert joined == told


async def test_what_llamacpp_refuses_to_stream_is_asked_whole(engine: RealEngine) -> None:
    call = a_call(tools=[TOOL], logprobs=True, max_tokens=2, temperature=0, ignore_eos=True)
    async with Engines() as engines:
        answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
        body = json.loads(await read_all(answer))

    assert answer.status == 200
    assert len(body["choices"][0]["logprobs"]["content"]) == 2


async def test_a_mistake_in_the_request_has_the_status_that_it_has_whole(engine: RealEngine) -> None:
    call = a_call(max_tokens=4, messages=[{"role": "user", "content": "word " * 4000}])
    async with Engines() as engines:
        answer = await engines(engine.url, dialect="llamacpp", served_model=engine.model).ask(call)
        body = await read_all(answer)

    assert answer.status == 400
    assert json.loads(body)["error"]["type"] == "exceed_context_size_error"
    assert answer.blames_request(body)
