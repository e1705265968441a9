"""Is an engine known by its own pages, whatever it was started with?"""

from pathlib import Path

import aiohttp
import pytest

from headgate.engines.recognise import Recognised, Unrecognised, recognise
from testing.fake_engine import FakeEngine
from tests.engines.listeners import listening, say_nothing

RECORDED = Path(__file__).parent / "recorded"


async def recognised(url: str, *, timeout_s: float = 2.0) -> Recognised:
    async with aiohttp.ClientSession() as session:
        return await recognise(session, url, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("page", "dialect"),
    [
        ((RECORDED / "vllm-0.32.0.txt").read_bytes(), "vllm"),
        ((RECORDED / "llamacpp-2026.10.txt").read_bytes(), "llamacpp"),
        (b"sglang:num_running_reqs 3\n", "sglang"),
        (b"process_open_fds 3\n", "openai_compatible"),
    ],
)
async def test_metrics_betray_the_engine(page: bytes, dialect: str) -> None:
    async with FakeEngine() as engine:
        engine.metrics = page
        found = await recognised(engine.url)

    assert (found.dialect.name, found.models) == (dialect, ("fake",))


async def test_without_metrics_the_owner_of_its_models_does() -> None:
    async with FakeEngine() as engine:
        engine.metrics_status = 404
        engine.owned_by = "llamacpp"
        engine.props = {"total_slots": 2, "build_info": "b6000"}
        found = await recognised(engine.url)

    assert (found.dialect.name, found.version, found.places) == ("llamacpp", "b6000", 2)


async def test_places_that_are_no_number_are_not_believed() -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": "many"}
        found = await recognised(engine.url)

    assert (found.version, found.places) == (None, None)


async def test_an_engine_that_says_nothing_is_given_up_in_time() -> None:
    async with listening(say_nothing) as url:
        with pytest.raises(Unrecognised, match="GET /v1/models failed: no answer in time; start the engine"):
            await recognised(url, timeout_s=0.05)


async def test_an_engine_without_a_model_is_no_use() -> None:
    async with FakeEngine(models=()) as engine:
        with pytest.raises(Unrecognised, match="lists no model; load one into the engine"):
            await recognised(engine.url)
