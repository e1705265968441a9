"""Limits apply to every prompt field and every form of prompt."""

import json
from pathlib import Path

import pytest

from headgate.wire.keys import digest, format_digest
from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, Config, a_config, gateway_in_loop
from tests.security.raw import connected

SECRET = "of the tests, and long enough"
LONG = "x" * 40_000


def capped(url: str, limits: dict[str, int]) -> Config:
    tenants = {"acme": {"keys": [format_digest(digest(SECRET.encode(), "sk-acme"))], "limits": limits}}
    config = a_config(url, key_secret=SECRET, tenants=tenants)
    del config["anonymous_tenant"]
    return config | {"classes": {"interactive": {"caps": {"prompt_tokens": 8_000}}}}


def request_of(path: str, body: dict[str, object]) -> bytes:
    content = json.dumps({"model": "m"} | body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-acme\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize(
    "hidden",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}]},
        {"functions": [{"name": "f", "description": LONG}]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"description": LONG}}}},
        {"documents": [{"text": LONG}]},
        {"chat_template": LONG},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}] * 9}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "x", "y": LONG}]}]},
    ],
    ids=lambda hidden: next(iter(hidden)),
)
async def test_prompt_cap_counts_every_field_that_becomes_tokens(tmp_path: Path, hidden: dict[str, object]) -> None:
    async with FakeEngine() as engine, gateway_in_loop(capped(engine.url, {}), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(request_of(CHAT, {"messages": [{"role": "user", "content": "hi"}]} | hidden))
            answer = await caller.answer()

    assert answer.status == 413
    assert 'class "interactive" allows at most 8000' in answer.error["message"]
    assert not engine.requests


@pytest.mark.parametrize(
    ("prompts", "limits", "said"),
    [
        (400, {}, "the request has 400 prompts"),
        (3, {"concurrency": 2}, "send at most 2 prompts per request"),
    ],
)
async def test_limits_count_each_prompt_in_an_array(
    tmp_path: Path, prompts: int, limits: dict[str, int], said: str
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(capped(engine.url, limits), tmp_path) as gateway:
        async with connected(gateway.url) as caller:
            await caller.send(request_of("/v1/completions", {"prompt": ["hi"] * prompts, "max_tokens": 9}))
            answer = await caller.answer()

    assert answer.status == 413
    assert said in answer.error["message"]
    assert not engine.requests
