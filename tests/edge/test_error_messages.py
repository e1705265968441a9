"""Tests for the outcome and documentation link in error messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from testing.fake_engine import Behaviour, FakeEngine
from testing.gateway import a_config, chat, events_of, gateway_in_loop

BASE = "https://docs.example.com/errors"


@pytest.mark.parametrize(
    ("settings", "page"),
    [
        ({}, "/errors/{}"),
        ({"error_docs_url": BASE}, BASE + "/{}"),
        ({"error_docs_url": BASE + "/"}, BASE + "/{}"),
    ],
)
async def test_rejection_ends_with_its_outcome_and_documentation_page(
    tmp_path: Path, settings: dict[str, Any], page: str
) -> None:
    async with FakeEngine() as engine, gateway_in_loop(a_config(engine.url, **settings), tmp_path) as gateway:
        async with gateway.post(chat(model="nobody")) as by_the_scheduler:
            no_model = (await by_the_scheduler.json())["error"]["message"]
        async with gateway.post({}) as at_the_door:
            no_body = (await at_the_door.json())["error"]["message"]
        async with gateway.post({}, path="/v3") as nowhere:
            no_path = (await nowhere.json())["error"]["message"]

    assert no_model == (
        'model "nobody" does not exist or this API key may not use it; GET /v1/models lists the available models '
        f"(model_not_found); see {page.format('model_not_found')}"
    )
    assert no_body == (
        '"model" is missing; use one of the models listed by GET /v1/models (invalid_request); '
        f"see {page.format('invalid_request')}"
    )
    assert no_path == f"unknown path (invalid_request); see {page.format('invalid_request')}"


async def test_error_in_a_stream_ends_with_its_documentation_page(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=8, cut_after=3)
        async with gateway_in_loop(a_config(engine.url, error_docs_url=BASE), tmp_path) as gateway:
            async with gateway.post(chat(stream=True)) as answer:
                last = events_of(await answer.read())[-1]

    error = json.loads(last)["error"]
    assert error["code"] == "stream_interrupted"
    assert error["message"].endswith(f" (engine_error); see {BASE}/engine_error")


async def test_engine_rejection_is_passed_through_unchanged(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=400, error="too many images")
        async with gateway_in_loop(a_config(engine.url, error_docs_url=BASE), tmp_path) as gateway:
            async with gateway.post(chat()) as answer:
                body = await answer.text()

    assert "too many images" in body
    assert "docs" not in body


async def test_reload_changes_the_documentation_address(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            await gateway.rewrite(config | {"error_docs_url": BASE})
            async with gateway.post({}) as answer:
                message = (await answer.json())["error"]["message"]

    assert message.endswith(f"(invalid_request); see {BASE}/invalid_request")
