"""Does every error that we make say which outcome it is and where to read about it?"""

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
        ({}, "docs/reference/errors/{}.md"),
        ({"error_docs": BASE}, BASE + "/{}"),
        ({"error_docs": BASE + "/"}, BASE + "/{}"),
    ],
)
async def test_a_refusal_ends_with_its_outcome_and_the_page(
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
        'model "nobody" does not exist or this key may not use it; GET /v1/models lists those it may '
        f"(model_not_found); see {page.format('model_not_found')}"
    )
    assert no_body == (
        f'"model" is missing; name one of the models that GET /v1/models lists (invalid); see {page.format("invalid")}'
    )
    assert no_path == f"there is nothing at this path (invalid); see {page.format('invalid')}"


async def test_an_error_inside_a_stream_names_its_page_too(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(tokens=8, cut_after=3)
        async with gateway_in_loop(a_config(engine.url, error_docs=BASE), tmp_path) as gateway:
            async with gateway.post(chat(stream=True)) as answer:
                last = events_of(await answer.read())[-1]

    error = json.loads(last)["error"]
    assert error["code"] == "stream_interrupted"
    assert error["message"].endswith(f" (engine_failed); see {BASE}/engine_failed")


async def test_an_engines_own_refusal_is_passed_on_as_it_came(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        engine.behaviour = Behaviour(status=400, error="too many dragons")
        async with gateway_in_loop(a_config(engine.url, error_docs=BASE), tmp_path) as gateway:
            async with gateway.post(chat()) as answer:
                body = await answer.text()

    assert "too many dragons" in body
    assert "docs" not in body


async def test_a_reload_changes_the_address(tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        config = a_config(engine.url)
        async with gateway_in_loop(config, tmp_path) as gateway:
            await gateway.rewrite(config | {"error_docs": BASE})
            async with gateway.post({}) as answer:
                message = (await answer.json())["error"]["message"]

    assert message.endswith(f"(invalid); see {BASE}/invalid")
