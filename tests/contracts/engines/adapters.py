"""Contract of an engine with LoRA adapters, for the fake engine and for real vLLM."""

from typing import Any

import aiohttp

from headgate.engines.endpoint_adapters import AdapterApi
from headgate.engines.metrics_page import label_values


async def completion(http: aiohttp.ClientSession, url: str, model: str) -> tuple[int, Any]:
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    async with http.post(url + "/v1/completions", json=body) as answer:
        return answer.status, await answer.json()


async def parents(http: aiohttp.ClientSession, url: str) -> dict[str, str | None]:
    async with http.get(url + "/v1/models") as answer:
        return {each["id"]: each["parent"] for each in (await answer.json())["data"]}


async def check_adapters(
    http: aiohttp.ClientSession, url: str, *, base: str, name: str, spare: tuple[str, str]
) -> None:
    """Check an engine with adapter `name` and without `spare`, a name and its source."""
    listed = await parents(http, url)
    assert listed[base] is None
    assert listed[name] == base
    assert [status for status, _ in [await completion(http, url, each) for each in (name, base, spare[0])]] == [
        *(200, 200, 404)
    ]
    async with http.get(url + "/metrics") as answer:
        [limit] = label_values(await answer.read(), "vllm:lora_requests_info", "max_lora")
    assert int(limit) >= 1

    api = AdapterApi(http, url, api_key=None)
    assert await api.load(*spare) is None
    assert await api.load(*spare) is None, "an adapter that is there already must be no error"
    assert (await parents(http, url))[spare[0]] == base
    assert (await completion(http, url, spare[0]))[0] == 200
    assert await api.unload(spare[0]) is None
    assert await api.unload(spare[0]) is None, "an adapter that is not there must be no error"
    assert spare[0] not in await parents(http, url)
    problem = await api.load("missing", "/missing/adapter")
    assert problem is not None
    assert "POST /v1/load_lora_adapter returned 4" in problem
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in problem
