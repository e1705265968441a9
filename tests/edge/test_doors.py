"""Tests for the APIs in the table of doors, through the gateway."""

from pathlib import Path
from typing import Any

import pytest

from headgate.model.ticket import TOKENIZER_APIS, Api
from headgate.wire.doors import DOORS
from testing.fake_engine import Behaviour, FakeEngine
from testing.fake_responses import WITHOUT_OUTPUT
from testing.gateway import NO_TARGETS, a_config, gateway_in_loop

ASKED: dict[Api, dict[str, Any]] = {
    Api.RERANK: {"query": "hi", "documents": ["a", "b", "c"]},
    Api.SCORE: {"text_1": "hi", "text_2": ["a", "b", "c"]},
    Api.CLASSIFY: {"input": ["a", "b", "c"]},
    Api.POOLING: {"input": ["a", "b", "c"]},
    Api.TOKENIZE: {"prompt": "hi"},
    Api.DETOKENIZE: {"tokens": [1, 2]},
}
PATHS = [(api, path) for api, door in DOORS.items() for path in door.paths]


def ask(api: Api) -> dict[str, Any]:
    return {"model": "m", **ASKED[api]}


@pytest.mark.parametrize(("api", "path"), PATHS)
async def test_request_is_forwarded_billed_and_explained(tmp_path: Path, api: Api, path: str) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
            async with gateway.post(ask(api), path) as answer:
                body = await answer.json()
            await gateway.wait_until_idle()
            async with gateway.http.get(gateway.admin_url + "/metrics") as page:
                metrics = (await page.text()).splitlines()
            request_id = answer.headers["x-request-id"]
            async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
                explained = await page.text()
        [received] = engine.requests

    assert answer.status == 200
    assert body.items() >= WITHOUT_OUTPUT[DOORS[api].paths[0]].items()
    sent = received.json
    assert len(str(sent.pop("cache_salt", ""))) == (0 if api in TOKENIZER_APIS else 64)
    assert (received.path, sent) == (DOORS[api].paths[0], ask(api) | {"model": "fake"})
    [booked] = [
        line for line in metrics if line.startswith('headgate_tokens_total{class="interactive",direction="prompt"}')
    ]
    assert float(booked.split()[-1]) == (0 if path.endswith("tokenize") else 7), "only reported usage counts"
    assert f"{api} for model m" in explained


@pytest.mark.parametrize(("api", "path"), PATHS)
async def test_engine_without_this_api_gets_one_request(tmp_path: Path, api: Api, path: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=501)
        async with gateway.post(ask(api), path) as answer:
            message = (await answer.json())["error"]
        [endpoint] = (await gateway.status())["endpoints"]

    assert (answer.status, answer.headers["x-headgate-attempts"], len(engine.requests)) == (404, "1", 1)
    assert f"the engine does not offer {DOORS[api].paths[0]} for this model" in str(message)
    assert endpoint["state"] == "ready"


@pytest.mark.parametrize(("api", "path"), PATHS)
async def test_missing_model_is_a_failure_of_the_engine(tmp_path: Path, api: Api, path: str) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        engine.behaviour = Behaviour(status=404, error="The model `m` does not exist.")
        async with gateway.post(ask(api), path) as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (502, "engine_error")
    assert int(answer.headers["x-headgate-attempts"]) == len(engine.requests) > 1


@pytest.mark.parametrize("api", [Api.RERANK, Api.SCORE, Api.CLASSIFY, Api.POOLING])
async def test_number_of_inputs_is_capped(tmp_path: Path, api: Api) -> None:
    async with FakeEngine() as engine:
        classes = {"interactive": {**NO_TARGETS, "caps": {"inputs": 2}}}
        async with gateway_in_loop(a_config(engine.url, classes=classes), tmp_path) as gateway:
            async with gateway.post(ask(api), DOORS[api].paths[0]) as answer:
                error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (413, "request_too_large")
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        # Each document repeats the query.
        {"query": "x" * 80_000, "documents": ["a"] * 30_000},
        {"query": "a", "documents": ["a"] * 30_000, "instruction": "x" * 80_000},
        {"query": "a", "documents": ["a"] * 70_000, "padding": "max_length"},
    ],
    ids=["query", "instruction", "padding"],
)
async def test_pairs_with_too_many_tokens_are_rejected(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        async with gateway.post({"model": "m", **fields}, "/v1/rerank") as answer:
            error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (413, "request_too_large")
    assert "the limit is 16777216 prompts and 536870912 tokens; send fewer or shorter prompts" in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "word " * 1_000}),
        ("/detokenize", {"tokens": [1] * 1_000}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "word " * 1_000}]}),
    ],
)
async def test_prompt_of_the_tokenizer_is_capped(tmp_path: Path, path: str, fields: dict[str, Any]) -> None:
    async with FakeEngine() as engine:
        classes = {"interactive": {**NO_TARGETS, "caps": {"prompt_tokens": 500}}}
        async with gateway_in_loop(a_config(engine.url, classes=classes), tmp_path) as gateway:
            async with gateway.post({"model": "m", **fields}, path) as answer:
                message = (await answer.json())["error"]["message"]

    assert answer.status == 413
    assert 'but class "interactive" allows at most 500' in message
    assert path not in [each.path for each in (*engine.requests, *engine.probes)]


async def test_rejections_have_the_format_of_openai(tmp_path: Path) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url), tmp_path) as gateway:
        for path in ("/v2/rerank", "/v1/rerank"):
            async with gateway.post({"model": "m", "query": "a"}, path) as answer:
                error = (await answer.json())["error"]
            assert (answer.status, error["param"], error["code"]) == (400, "documents", "invalid_request_error")
            async with gateway.http.get(gateway.url + path) as wrong:
                assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


async def test_class_rule_may_name_an_api(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url, class_rules=[{"class": "batch", "apis": ["rerank", "score"]}])
        async with gateway_in_loop(config, tmp_path) as gateway:
            for path, name in (("/v1/rerank", "batch"), ("/classify", "interactive")):
                async with gateway.post(ask(Api.RERANK) | ask(Api.CLASSIFY), path) as answer:
                    assert answer.headers["x-headgate-class"] == name
