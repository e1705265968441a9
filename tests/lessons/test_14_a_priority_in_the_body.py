"""`priority` in a request body reaches only engines that support it.

vLLM supports it (lower values first) if started with `--scheduling-policy priority`. Otherwise vLLM rejects such a
request with a client error. Other engines ignore the field or fail.
"""

from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, Config, a_config, chat, gateway_in_loop

PATHS: dict[str, Config] = {
    CHAT: chat(),
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}


def with_priority(engine: FakeEngine, *, kind: str = "vllm", passes: bool | None = None) -> Config:
    config = a_config(engine.url, engine=kind)
    if passes is not None:
        config["pools"]["small"]["forward_priority"] = passes
    return config


NO_PRIORITIES: list[Any] = ["high", "1", 1.5, True, [1], {}, 2**31, -(2**31) - 1]


@pytest.mark.parametrize("path", PATHS)
async def test_invalid_priority_is_rejected_as_a_client_error(tmp_path: Path, path: str) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_priority(engine, passes=True), tmp_path) as gateway:
            for value in NO_PRIORITIES:
                async with gateway.post(PATHS[path] | {"priority": value}, path) as answer:
                    error = (await answer.json())["error"]

                told = answer.status, error["type"], error["param"]
                assert told == (400, "invalid_request_error", "priority"), value
                assert answer.headers["x-should-retry"] == "false"

    assert engine.requests == [], "no invalid request may reach the engine"


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "openai_compatible"])
async def test_priority_is_removed_by_default(tmp_path: Path, kind: str) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_priority(engine, kind=kind), tmp_path) as gateway:
            for path, body in PATHS.items():
                async with gateway.post(body | {"priority": -5, "seed": 7}, path) as answer:
                    assert answer.status == 200, await answer.text()

    assert [received.path for received in engine.requests] == list(PATHS)
    assert ["priority" in received.json for received in engine.requests] == [False] * len(PATHS)
    assert [received.json["seed"] for received in engine.requests] == [7] * len(PATHS), "other fields must be passed on"


@pytest.mark.parametrize("stream", [True, False])
async def test_priority_is_passed_unchanged_if_enabled(tmp_path: Path, stream: bool) -> None:
    values = [-(2**31), -5, 0, 3, 2**31 - 1]
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_priority(engine, passes=True), tmp_path) as gateway:
            for value in values:
                async with gateway.post(chat(priority=value, stream=stream)) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

    assert [received.json["priority"] for received in engine.requests] == values


@pytest.mark.parametrize("passes", [True, False])
async def test_null_priority_is_treated_as_missing(tmp_path: Path, passes: bool) -> None:
    async with FakeEngine() as engine:
        async with gateway_in_loop(with_priority(engine, passes=passes), tmp_path) as gateway:
            for body in (chat(), chat(priority=None)):
                async with gateway.post(body) as answer:
                    assert answer.status == 200, await answer.text()

    assert [received.json.get("priority") for received in engine.requests] == [None, None]
