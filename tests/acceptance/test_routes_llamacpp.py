"""Weighted routes to two real llama.cpp engines."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import GatewayInLoop, a_config, gateway_in_loop
from testing.real_engines import MODEL, llamacpp

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

USERS = 120


async def engine_of(gateway: GatewayInLoop, user: str) -> str:
    """Sends a request of a user and returns the route that served it."""
    body: dict[str, Any] = {"model": "m", "user": user, "max_tokens": 1}
    body["messages"] = [{"role": "user", "content": "Hi"}]
    async with gateway.post(body) as answer:
        assert answer.status == 200, await answer.text()
        request_id = answer.headers["x-request-id"]
    async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as answer:
        [step] = [each for each in (await answer.json())["steps"] if each["kind"] == "dispatched"]
    assert step["route"] == step["pool"]
    return step["route"]


async def test_users_are_divided_by_weight_between_two_models_and_stay_there(tmp_path: Path) -> None:
    with llamacpp(parallel=4, ctx=2048) as stable, llamacpp(parallel=4, ctx=2048) as candidate:
        routes = [{"pools": ["small"], "weight": 3}, {"pools": ["candidate"], "weight": 1}]
        models = {"m": {"pools": ["small"], "routes": routes, "sticky": "user"}}
        config = a_config(stable.url, engine="llamacpp", served_model=MODEL, in_flight_max=4, models=models)
        config["pools"]["candidate"] = config["pools"]["small"] | {"endpoints": [candidate.url]}
        async with gateway_in_loop(config, tmp_path) as gateway:
            users = [f"user{number}" for number in range(USERS)]
            first = dict(zip(users, await asyncio.gather(*(engine_of(gateway, user) for user in users)), strict=True))
            again = {user: await engine_of(gateway, user) for user in users[:20]}

    shares = Counter(first.values())
    assert again == {user: first[user] for user in again}
    assert shares["candidate"] == pytest.approx(USERS / 4, abs=12), shares
