"""Requests that would harm an engine do not reach it.

Harmful values are rejected with 400 before dispatch. Values above a class's caps are lowered, and the response says so.
Values that only the engine can check are forwarded unchanged, and its rejection is returned to the caller.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import GatewayInLoop, a_config, chat, gateway_in_loop
from tests.security.raw import Answer, connected, request_of

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat("hi"),
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
}


@dataclass(frozen=True)
class Stage:
    engine: FakeEngine
    gateway: GatewayInLoop

    async def ask(self, path: str, **fields: Any) -> tuple[Answer, list[dict[str, Any]]]:
        """Send a request; return the response and the bodies that the engine received."""
        self.engine.requests.clear()
        body = json.dumps(BODIES[path] | fields).encode()
        async with connected(self.gateway.url) as caller:
            await caller.send(request_of(body, first=f"POST {path} HTTP/1.1".encode()))
            answer = await caller.answer()
        return answer, [dict(each.json) for each in self.engine.requests]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with FakeEngine() as engine:
        config = a_config(engine.url, health={"consecutive_failures_max": 1})
        async with gateway_in_loop(config, tmp_path_factory.mktemp("death")) as gateway:
            yield Stage(engine, gateway)


COUNTS = [0, -1, 129, 10**9, 2**31, 2**64, 10**100, 1.5, 1e300, "3", "", True, [], [1], {}]
NUMBERS = [-1, 2**31, 2**40, 2**64, 10**400, 1.5, "10", True, [], {}]
DEADLY: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        "n": COUNTS,
        "best_of": COUNTS,
        "max_tokens": [*NUMBERS, 0],
        "max_completion_tokens": [*NUMBERS, 0],
        "min_tokens": NUMBERS,
        "top_logprobs": [*NUMBERS, 10**9, 21],
        "prompt_logprobs": [-2, 10**10, 1.5, "all", True, []],
        "logprobs": [5, "yes", []],
        "cache_salt": ["", 5, 1.5, True, [], {}, ["a"], "a" * 10_000],
        "priority": ["high", 1.5, True, [], {}, 2**31, -(2**40)],
        "stream": ["yes", 1, [], {}],
        "stream_options": ["yes", 1, [], True],
        "service_tier": [1, [], {}],
        "messages": ["hi", {}, [], 5, None],
        "model": ["", " ", 5, [], {}, None],
        "reasoning_effort": [5, [], {}],
    },
    COMPLETIONS: {"n": COUNTS, "best_of": COUNTS, "logprobs": [21, 10**9, -1, "5", True], "prompt": [{}, [], None, 5]},
    RESPONSES: {
        "max_output_tokens": [*NUMBERS, 0],
        "background": [True, "yes"],
        "previous_response_id": ["resp_of_somebody_else"],
        "top_logprobs": [10**9],
        "cache_salt": ["", 5],
    },
    EMBEDDINGS: {"cache_salt": ["", 5], "priority": ["high"], "input": [None, [], {}, 5]},
}
# These fields would make the engine connect to an address chosen by the caller.
ELSEWHERE = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1},
    "ec_transfer_params": {"remote_host": "127.0.0.1"},
    "disaggregated_params": {"ctx_info_endpoint": "127.0.0.1:1"},
    "bootstrap_host": "127.0.0.1",
    "bootstrap_port": 1,
    "bootstrap_room": 1,
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "name"), [(path, name) for path in DEADLY for name in DEADLY[path]])
async def test_harmful_value_is_rejected_before_dispatch(stage: Stage, path: str, name: str) -> None:
    taken = []
    for value in DEADLY[path][name]:
        answer, engine_got = await stage.ask(path, **{name: value})
        if answer.status != 400 or engine_got:
            taken.append((repr(value)[:40], answer.status))
        else:
            assert answer.error["param"] == name
            assert len(answer.body) < 2048

    assert taken == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ELSEWHERE)
async def test_fields_with_remote_addresses_are_rejected(stage: Stage, path: str, name: str) -> None:
    answer, engine_got = await stage.ask(path, **{name: ELSEWHERE[name]})

    assert (answer.status, engine_got) == (400, [])
    assert answer.error["param"] == name


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "name", "asked", "at_most"),
    [
        (CHAT, "n", 100, 8),
        (COMPLETIONS, "n", 100, 8),
        (COMPLETIONS, "best_of", 100, 8),
        (CHAT, "prompt_logprobs", 20, 0),
        (CHAT, "prompt_logprobs", -1, 0),
        (COMPLETIONS, "prompt_logprobs", 1000, 0),
    ],
)
async def test_value_over_the_class_cap_is_lowered_and_reported(
    stage: Stage, path: str, name: str, asked: int, at_most: int
) -> None:
    answer, [engine_got] = await stage.ask(path, **{name: asked})

    assert answer.status == 200
    # Engines treat None as if the field were missing; -1 would mean the whole vocabulary.
    assert 0 <= (engine_got.get(name) or 0) <= at_most
    assert answer.headers[b"x-headgate-degraded"].startswith(name.encode())


@pytest.mark.asyncio(loop_scope="module")
async def test_request_within_the_caps_reports_no_degradation(stage: Stage) -> None:
    answer, _ = await stage.ask(CHAT, n=2)

    assert answer.headers[b"x-headgate-degraded"] == b"none"


FOR_THE_ENGINE: dict[str, Any] = {
    "stop": ["x"] * 10_000,
    "logit_bias": {str(number): 100 for number in range(10_000)},
    "guided_regex": "(a+)+$" * 100,
    "guided_json": {"type": "object"},
    "structured_outputs": {"regex": "(.*)*x"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "temperature": 1e300,
    "seed": -(2**63),
    "chat_template": "{% for x in range(10**9) %}{% endfor %}",
    "chat_template_kwargs": {"a": 1},
    "truncate_prompt_tokens": -5,
    "tools": [{"type": "function", "function": {"name": "f" * 10_000}}],
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "name",
    # Bodies with this many strings are parsed by the process for large bodies.
    [pytest.param(each, marks=[pytest.mark.process] * (each in ("stop", "logit_bias"))) for each in FOR_THE_ENGINE],
)
async def test_value_meant_for_the_engine_is_forwarded_unchanged_or_rejected(stage: Stage, name: str) -> None:
    value = FOR_THE_ENGINE[name]
    answer, engine_got = await stage.ask(CHAT, **{name: value})

    assert answer.status in {200, 400}
    assert [each[name] for each in engine_got] == ([value] if answer.status == 200 else [])


@pytest.mark.asyncio(loop_scope="module")
async def test_deeply_nested_schema_is_rejected(stage: Stage) -> None:
    schema: Any = {"type": "string"}
    for _ in range(100):
        schema = {"type": "object", "properties": {"a": schema}}
    answer, engine_got = await stage.ask(CHAT, response_format={"type": "json_schema", "json_schema": schema})

    assert (answer.status, engine_got) == (400, [])


@pytest.mark.asyncio(loop_scope="module")
async def test_engine_rejection_is_returned_and_ejects_no_endpoint(stage: Stage) -> None:
    stage.engine.script.append(Behaviour(status=400, error="your regex has no end"))
    answer, engine_got = await stage.ask(CHAT, guided_regex="(")

    assert (answer.status, len(engine_got)) == (400, 1)
    assert [each["state"] for each in (await stage.gateway.status())["endpoints"]] == ["ready"]
