"""The fake engine keeps the contract of an engine with LoRA adapters. Real vLLM: tests/acceptance."""

import aiohttp

from testing.fake_engine import FakeEngine
from tests.contracts.engines.adapters import check_adapters


async def test_fake_engine_has_adapters_like_vllm() -> None:
    async with FakeEngine() as engine, aiohttp.ClientSession() as http:
        engine.adapters, engine.max_lora = {"a": "/a"}, 2
        engine.unknown_models_are_rejected = True
        await check_adapters(http, engine.url, base="fake", name="a", spare=("b", "/b"))
