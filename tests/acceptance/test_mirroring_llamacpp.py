"""A mirror on a second real llama.cpp engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import a_config, gateway_in_loop
from testing.real_engines import MODEL, llamacpp

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

REQUESTS = 40


async def test_half_of_the_requests_are_copied_to_the_second_engine(tmp_path: Path) -> None:
    with llamacpp(parallel=4, ctx=2048) as stable, llamacpp(parallel=4, ctx=2048) as candidate:
        route = {"pools": ["small"], "mirror": {"pools": ["candidate"], "percent": 50}}
        models = {"m": {"pools": ["small"], "routes": [route]}}
        config = a_config(stable.url, engine="llamacpp", served_model=MODEL, in_flight_max=4, models=models)
        config["pools"]["candidate"] = config["pools"]["small"] | {"endpoints": [candidate.url]}
        async with gateway_in_loop(config, tmp_path) as gateway:
            selected: list[str] = []
            for _ in range(REQUESTS):
                body: dict[str, Any] = {"model": "m", "max_tokens": 2}
                body["messages"] = [{"role": "user", "content": "Hi"}]
                async with gateway.post(body) as answer:
                    assert answer.status == 200, await answer.text()
                    request_id = answer.headers["x-request-id"]
                async with gateway.http.get(f"{gateway.admin_url}/explain/{request_id}") as page:
                    steps = (await page.json())["steps"]
                selected += [request_id for each in steps if each["kind"] == "mirrored"]
            await gateway.wait_until_idle()
            copies = [await explained(gateway.http, f"{gateway.admin_url}/explain/{each}-mirror") for each in selected]

    assert len(selected) == pytest.approx(REQUESTS / 2, abs=15)
    sent = [each for each in copies if each["outcome"] != "queue_full"]
    assert sent
    assert {each["outcome"] for each in sent} == {"completed"}
    assert {step["pool"] for each in sent for step in each["steps"] if step["kind"] == "dispatched"} == {"candidate"}


async def explained(http: Any, url: str) -> dict[str, Any]:
    """Returns the explanation of a copy that has ended."""
    async with asyncio.timeout(60):
        while True:
            async with http.get(url) as page:
                found = await page.json()
            if found["outcome"] is not None:
                return found
            await asyncio.sleep(0.05)
