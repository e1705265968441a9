"""Scenarios for the APIs without generated tokens that real engines must pass through the gateway."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from headgate.engines.dialects import DIALECTS
from headgate.model.ticket import Api
from testing.forms import SPEECH
from testing.gateway import RunningGateway, gateway_in_loop
from testing.real_engines import RealEngine
from tests.acceptance.scenarios import config_for

RANKED = {"query": "What is Paris?", "documents": ["Paris is a city.", "Bananas are yellow.", "So are lemons."]}
SCORED = {"text_1": "What is Paris?", "text_2": ["Paris is a city.", "Bananas are yellow."]}


def sdk(gateway: RunningGateway) -> AsyncOpenAI:
    """A client whose paths begin at the root of the gateway, so that `post` reaches all of them."""
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


async def send(client: AsyncOpenAI, path: str, **fields: Any) -> Any:
    return await client.post(path, cast_to=object, body={"model": "chat", **fields})


async def the_tokenizer_is_reached(engine: RealEngine, dialect: str, folder: Path) -> None:
    """Check tokens and texts, and that an API that the engine lacks causes one clear error."""
    field = "content" if dialect == "llamacpp" else "prompt"
    async with gateway_in_loop(config_for(engine, dialect=dialect), folder) as gateway, sdk(gateway) as client:
        tokens = (await send(client, "/tokenize", **{field: "Say hello to Paris"}))["tokens"]
        text = await send(client, "/detokenize", tokens=tokens)
        missing: list[NotFoundError] = []
        for path, fields in (("/v1/score", SCORED), ("/v2/rerank", RANKED), ("/pooling", {"input": "hi"})):
            try:
                await send(client, path, **fields)
            except NotFoundError as error:
                missing.append(error)
        [endpoint] = (await gateway.status())["endpoints"]

    assert len(tokens) >= 3
    assert "Say hello to Paris" in text["content" if dialect == "llamacpp" else "prompt"]
    assert len(missing) == 3
    for error, api in zip(missing, (Api.SCORE, Api.RERANK, Api.POOLING), strict=True):
        assert f"the engine does not offer {DIALECTS[dialect].paths[api]} for this model" in str(error)
        assert error.response.headers["x-headgate-attempts"] == "1"
    assert endpoint["state"] == "ready"


async def a_text_model_transcribes_nothing(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect=dialect), folder) as gateway, sdk(gateway) as client:
        for kind in ("transcriptions", "translations"):
            with pytest.raises(NotFoundError, match=f"does not offer /v1/audio/{kind} for this model") as caught:
                await client.post(
                    f"/v1/audio/{kind}",
                    cast_to=object,
                    files={"file": ("speech.wav", SPEECH)},
                    body={"model": "chat"},
                    options={"headers": {"content-type": "multipart/form-data"}},
                )
            assert caught.value.response.headers["x-headgate-attempts"] == "1"
        [endpoint] = (await gateway.status())["endpoints"]

    assert endpoint["state"] == "ready"


async def documents_are_ranked(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect=dialect), folder) as gateway, sdk(gateway) as client:
        answers = [await send(client, path, **RANKED) for path in ("/v1/rerank", "/rerank", "/v2/rerank")]
        await gateway.wait_until_idle()
        async with gateway.http.get(gateway.admin_url + "/metrics") as page:
            lines = (await page.text()).splitlines()

    for answer in answers:
        assert sorted(result["index"] for result in answer["results"]) == [0, 1, 2]
        assert {isinstance(result["relevance_score"], float) for result in answer["results"]} == {True}
    booked = sum(float(line.split()[-1]) for line in lines if line.startswith("headgate_tokens_total{"))
    assert booked == sum(answer["usage"]["prompt_tokens"] for answer in answers) > 0


async def texts_are_scored_and_pooled(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect=dialect), folder) as gateway, sdk(gateway) as client:
        scored = await send(client, "/v1/score", **SCORED)
        pooled = await send(client, "/pooling", input=["a cat", "a dog"])

    assert [score["index"] for score in scored["data"]] == [0, 1]
    assert [len(each["data"]) > 100 for each in pooled["data"]] == [True, True]
    assert pooled["usage"]["prompt_tokens"] > 0


async def texts_are_classified(engine: RealEngine, dialect: str, folder: Path) -> None:
    async with gateway_in_loop(config_for(engine, dialect=dialect), folder) as gateway, sdk(gateway) as client:
        answers = [await send(client, path, input=["a cat", "a dog"]) for path in ("/classify", "/v1/classify")]

    for answer in answers:
        assert [abs(sum(each["probs"]) - 1) < 0.01 for each in answer["data"]] == [True, True]
