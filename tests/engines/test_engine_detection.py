"""The engine kind is detected from the pages that an engine serves."""

from pathlib import Path

import aiohttp
import pytest

from headgate.engines.engine_detection import DetectedEngine, DetectionError, detect_engine
from testing.fake_engine import FakeEngine
from tests.engines.listeners import listening, say_nothing

RECORDED = Path(__file__).parent / "recorded"


async def recognised(url: str, *, timeout_s: float = 2.0) -> DetectedEngine:
    async with aiohttp.ClientSession() as session:
        return await detect_engine(session, url, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("page", "dialect"),
    [
        ((RECORDED / "vllm-0.32.0.txt").read_bytes(), "vllm"),
        ((RECORDED / "llamacpp-2026.10.txt").read_bytes(), "llamacpp"),
        (b"sglang:num_running_reqs 3\n", "sglang"),
        (b"process_open_fds 3\n", "openai_compatible"),
    ],
)
async def test_engine_is_recognised_by_its_metrics(page: bytes, dialect: str) -> None:
    async with FakeEngine() as engine:
        engine.metrics = page
        found = await recognised(engine.url)

    assert (found.dialect.name, found.models) == (dialect, ("fake",))


async def test_engine_without_metrics_is_recognised_by_the_model_owner() -> None:
    async with FakeEngine() as engine:
        engine.metrics_status = 404
        engine.owned_by = "llamacpp"
        engine.props = {"total_slots": 2, "build_info": "b6000"}
        found = await recognised(engine.url)

    assert (found.dialect.name, found.version, found.concurrency) == ("llamacpp", "b6000", 2)


async def test_malformed_slot_count_is_ignored() -> None:
    async with FakeEngine() as engine:
        engine.metrics = (RECORDED / "llamacpp-2026.10.txt").read_bytes()
        engine.props = {"total_slots": "many"}
        found = await recognised(engine.url)

    assert (found.version, found.concurrency) == (None, None)


async def test_silent_engine_is_not_recognised_after_the_timeout() -> None:
    async with listening(say_nothing) as url:
        with pytest.raises(DetectionError, match="GET /v1/models failed: no response in time; start the engine"):
            await recognised(url, timeout_s=0.05)


async def test_engine_without_models_is_not_recognised() -> None:
    async with FakeEngine(models=()) as engine:
        with pytest.raises(DetectionError, match="returned an empty list of models; load a model into the engine"):
            await recognised(engine.url)
