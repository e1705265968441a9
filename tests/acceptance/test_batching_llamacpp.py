"""Batched embedding requests with real llama.cpp."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from testing.gateway import a_config, gateway_in_loop
from testing.real_engines import MODEL, llamacpp

pytestmark = [pytest.mark.llamacpp, pytest.mark.timeout(900)]

TEXTS = [f"the number {number}" for number in range(14)]


def apart(one: list[float], other: list[float]) -> float:
    """Largest difference between the components of two vectors."""
    return max(abs(left - right) for left, right in zip(one, other, strict=True))


async def test_batched_embeddings_equal_single_embeddings_and_invalid_input_fails_alone(
    tmp_path: Path,
) -> None:
    with llamacpp(parallel=4, ctx=1024, embeddings=True) as engine:
        config = a_config(engine.url, engine="llamacpp", served_model=MODEL, in_flight_max=32)
        config["pools"]["small"]["batching"] = {"batch_size_max": 4, "delay_max": "200ms"}
        async with gateway_in_loop(config, tmp_path) as gateway:

            async def embed(given: object, url: str = gateway.url, model: str = "m") -> tuple[int, Any]:
                body = {"model": model, "input": given}
                async with gateway.http.post(url + "/v1/embeddings", json=body) as answer:
                    return answer.status, await answer.json()

            alone = [await embed(text, engine.url, MODEL) for text in TEXTS]
            together = await asyncio.gather(*(embed(text) for text in TEXTS), embed("far too long " * 400))
            lone = await embed("far too long " * 400)
            _, listed = await embed(TEXTS)
            status = await gateway.status()

    assert [status for status, _ in alone] == [200] * len(TEXTS)
    assert [status for status, _ in together[:-1]] == [200] * len(TEXTS)
    for code, refusal in (together[-1], lone):
        assert code == 400
        assert "is too large to process" in refusal["error"]["message"]
    assert status["counted"]["pools"]["small"]["retries"] == 0
    assert [entry["index"] for entry in listed["data"]] == list(range(len(TEXTS)))
    for (_, one), (_, other), entry in zip(alone, together[:-1], listed["data"], strict=True):
        [own] = one["data"]
        assert apart(own["embedding"], other["data"][0]["embedding"]) < 0.02
        assert apart(own["embedding"], entry["embedding"]) < 0.02
    tokens = sum(one["usage"]["prompt_tokens"] for _, one in alone)
    assert listed["usage"]["prompt_tokens"] == tokens
    assert sum(other["usage"]["prompt_tokens"] for _, other in together[:-1]) == tokens
    assert [endpoint["state"] for endpoint in status["endpoints"]] == ["ready"]
