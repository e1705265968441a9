"""Real vLLM with LoRA adapters behind gateways.

vLLM 0.32 on CPU computes requests of the base model with one of the adapters if they are in a batch with any other
request (`lora/ops/torch_ops/lora_ops.py` uses the index -1, which stands for no adapter, as that of the last one). The
base model is therefore asked only while there is no other request, and the other tests have a server of their own.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headgate.engines.endpoint_adapters import AdapterApi
from headgate.engines.metrics_page import read_series
from testing.gateway import Config, GatewayInLoop, a_config, gateway_in_loop
from testing.lora_adapters import write_adapter
from testing.real_engines import MODEL, RealEngine, environment_of, vllm
from tests.contracts.engines.adapters import check_adapters

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

MAX_LORAS = 2
PRELOADED = ("red", "green")
LOADED = "blue"
"""Adapter that the gateway loads."""
ADAPTERS = (*PRELOADED, LOADED)
PROMPTS = (
    "The capital of France is",
    "One, two, three,",
    "Once upon a time, there was a",
    "The opposite of hot is",
    "def add(a, b):",
    "Water boils at",
    "My favourite colour is",
    "The first president of the United States was",
    "Roses are red, violets are",
    "To be or not to be,",
)
TOKENS = 2
GAP_MIN = 0.3
"""Minimum difference of the log probabilities of the best two tokens. A computation in another batch may round
differently, but not by so much."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("adapters"), environment_of("vllm") / MODEL
    return {name: write_adapter(folder / name, model, seed=seed) for seed, name in enumerate(ADAPTERS)}


@pytest.fixture(scope="module")
def engine(sources: dict[str, Path]) -> Iterator[RealEngine]:
    with vllm(max_num_seqs=8, adapters={name: sources[name] for name in PRELOADED}, max_loras=MAX_LORAS) as engine:
        yield engine


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def complete(http: aiohttp.ClientSession, url: str, model: str, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, **fields}
    async with http.post(url + "/v1/completions", json=body) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return said["choices"][0]


async def telling_texts(http: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], str]:
    """The engine's own response by model and prompt, if rounding cannot change it and no other model gives it."""
    found: dict[tuple[str, str], str] = {}
    for prompt in PROMPTS:
        choices = await asyncio.gather(*(complete(http, url, name, prompt, logprobs=2) for name in ADAPTERS))
        choices.append(await complete(http, url, MODEL, prompt, logprobs=2))
        texts = [choice["text"] for choice in choices]
        for name, choice in zip((*ADAPTERS, MODEL), choices, strict=True):
            gaps = [max(best.values()) - min(best.values()) for best in choice["logprobs"]["top_logprobs"]]
            if min(gaps) >= GAP_MIN and texts.count(choice["text"]) == 1:
                found[name, prompt] = choice["text"]
    return found


async def adapters_in_engine(http: aiohttp.ClientSession, url: str) -> set[str]:
    async with http.get(url + "/v1/models") as answer:
        return {each["id"] for each in (await answer.json())["data"] if each["parent"]}


def config_for(engine: RealEngine, source: Path | None, **pool: Any) -> Config:
    config = a_config(engine.url, served_model=MODEL, model=MODEL, in_flight_max=4)
    adapters = [*PRELOADED, *([] if source is None else [{"name": LOADED, "source": str(source)}])]
    config["pools"]["small"] |= {"adapters": adapters, **pool}
    config["routing"] = {"adapter_load_penalty": "20ms"}
    return config


async def until_loaded(http: aiohttp.ClientSession, gateway: GatewayInLoop) -> None:
    async with asyncio.timeout(60):
        while True:
            body = {"model": LOADED, "prompt": "Hello", "max_tokens": 1}
            async with http.post(gateway.url + "/v1/completions", json=body) as answer:
                if answer.status == 200:
                    return
                assert answer.status == 503, await answer.text()
            await asyncio.sleep(0.05)


async def test_each_adapter_responds_through_two_gateways_within_the_limit_of_the_engine(
    engine: RealEngine, sources: dict[str, Path], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        gateways = []
        for number in range(2):
            folder = tmp_path / f"gateway-{number}"
            folder.mkdir()
            # The gateways have no common scheduler, so each gets its share of the slots.
            config = config_for(engine, sources[LOADED], max_lora=MAX_LORAS // 2)
            gateways.append(await stack.enter_async_context(gateway_in_loop(config, folder)))
        for gateway in gateways:
            await until_loaded(http, gateway)
        texts = await telling_texts(http, engine.url)
        asked = [(name, prompt) for name, prompt in texts if name != MODEL] * 4
        answers = await asyncio.gather(
            *(
                complete(http, gateway.url, name, prompt)
                for (name, prompt), gateway in zip(asked, itertools.cycle(gateways), strict=False)
            )
        )
        of_base = {key: await complete(http, gateways[0].url, *key) for key in texts if key[0] == MODEL}

    assert {name for name, _ in texts} == {*ADAPTERS, MODEL}, texts
    wrong = {key: answer["text"] for key, answer in zip(asked, answers, strict=True) if answer["text"] != texts[key]}
    assert wrong == {}
    assert {key: answer["text"] for key, answer in of_base.items()} == {key: texts[key] for key in of_base}
    async with http.get(engine.url + "/metrics") as answer:
        states = [state for state, _ in read_series(await answer.read(), "vllm:lora_requests_info")]
    in_use = [
        {name for label in ("running_lora_adapters", "waiting_lora_adapters") for name in state[label].split(",")}
        - {""}
        for state in states
    ]
    assert {state["max_lora"] for state in states} == {str(MAX_LORAS)}
    assert set().union(*in_use) == set(ADAPTERS)
    assert max(map(len, in_use)) == MAX_LORAS


async def test_vllm_keeps_the_contract_of_an_engine_with_adapters(
    engine: RealEngine, sources: dict[str, Path], http: aiohttp.ClientSession
) -> None:
    await AdapterApi(http, engine.url, api_key=None).unload(LOADED)

    spare = (LOADED, str(sources[LOADED]))
    await check_adapters(http, engine.url, base=MODEL, name=PRELOADED[0], spare=spare)


async def test_adapter_is_loaded_with_the_configuration_and_unloaded_when_it_is_removed(
    engine: RealEngine, sources: dict[str, Path], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await AdapterApi(http, engine.url, api_key=None).unload(LOADED)
    async with gateway_in_loop(config_for(engine, sources[LOADED]), tmp_path) as gateway:
        await until_loaded(http, gateway)
        assert await adapters_in_engine(http, engine.url) == set(ADAPTERS)

        await gateway.rewrite(config_for(engine, None))
        async with asyncio.timeout(60):
            while await adapters_in_engine(http, engine.url) != set(PRELOADED):
                await asyncio.sleep(0.05)
        async with http.post(gateway.url + "/v1/completions", json={"model": LOADED, "prompt": "Hello"}) as answer:
            assert answer.status == 404
        for name in PRELOADED:
            await complete(http, gateway.url, name, "Hello")
