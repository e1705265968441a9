"""Is it told when an engine does not say what decisions rest on?

A router whose metric has changed its name routes at random, and nobody notices.
"""

import logging
from pathlib import Path

import pytest

from testing.fake_engine import FakeEngine
from testing.gateway import Config, RunningGateway, a_config, chat
from tests.lessons.scraped import ScrapedEngine, patient_gateway, series_of

RENAMED = (
    b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:num_preemptions_total 0\n"
    b"vllm:kv_cache_usage_fraction 0.5\n"
)
"""A version of vLLM that calls one of its metrics as none before it."""


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if record.getMessage() == message]  # type: ignore[attr-defined]


async def looks(gateway: RunningGateway, engine: ScrapedEngine, count: int = 6) -> None:
    """So many metrics pages have been read from here on."""
    enough = engine.pages.served + count
    await gateway.until(lambda _: engine.pages.served >= enough)


async def first_looked_at(gateway: RunningGateway) -> Config:
    """What is known of the only engine once its metrics were asked for."""

    def looked(status: Config) -> bool:
        [engine] = status["engines"]
        asked = engine["telemetry_age_s"] is not None or engine["problems"]
        return asked and engine["version"] is not None

    return (await gateway.until(looked))["engines"][0]


async def missing(gateway: RunningGateway) -> dict[str, float]:
    """By signal, whether the only endpoint fails to tell it."""
    found = await series_of(gateway)
    names = [name for name in found if name.startswith("headgate_endpoint_signal_missing{")]
    return {name.partition("signal=")[2].rstrip("}"): found[name] for name in names}


async def test_what_an_engine_is_and_where_each_signal_comes_from_is_known_at_the_start(tmp_path: Path) -> None:
    async with ScrapedEngine() as engine:
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)
            series = await missing(gateway)

    assert (found["dialect"], found["version"], found["models"]) == ("vllm", "0.0-fake", ["fake"])
    assert found["signals"] == {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_used_fraction": "vllm:kv_cache_usage_perc",
        "preemptions": "vllm:num_preemptions_total",
    }
    assert (found["signals_missing"], found["problems"]) == ([], [])
    assert series == {"running": 0, "waiting": 0, "kv_used_fraction": 0, "preemptions": 0}


async def test_an_older_name_of_a_metric_is_shown_as_the_source(tmp_path: Path) -> None:
    async with ScrapedEngine() as engine:
        engine.metrics = RENAMED.replace(b"kv_cache_usage_fraction", b"gpu_cache_usage_perc")
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)

    assert found["signals"]["kv_used_fraction"] == "vllm:gpu_cache_usage_perc"
    assert found["problems"] == []


async def test_a_signal_that_is_missing_from_the_start_is_told_once_in_every_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        engine.metrics = RENAMED
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)
            await looks(gateway, engine)
            series = await missing(gateway)
            async with gateway.post(chat()) as answer:
                assert answer.status == 200

    assert found["signals_missing"] == ["kv_used_fraction"]
    problem = "/metrics lacks vllm:kv_cache_usage_perc; is this engine really vllm?"
    assert found["problems"] == [problem]
    assert found["telemetry"]["running"] == 3, "what it does tell is used"
    assert series == {"running": 0, "waiting": 0, "kv_used_fraction": 1, "preemptions": 0}
    assert [line["missing"] for line in told(caplog, "endpoint does not tell its load")] == [
        f"kv_used_fraction; {problem}"
    ]


async def test_a_signal_that_goes_missing_and_comes_back_is_told_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            await looks(gateway, engine, 2)
            engine.metrics = RENAMED
            await looks(gateway, engine)
            during = await missing(gateway)
            engine.metrics = None
            await looks(gateway, engine)
            after = await missing(gateway)

    assert (during["kv_used_fraction"], after["kv_used_fraction"]) == (1, 0)
    assert len(told(caplog, "endpoint does not tell its load")) == 1
    assert len(told(caplog, "endpoint tells its load again")) == 1


async def test_one_page_that_is_not_answered_alarms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            await looks(gateway, engine, 2)
            engine.metrics_status = 500
            await looks(gateway, engine, 1)
            during = await gateway.until(lambda status: status["engines"][0]["problems"])
            series = await missing(gateway)
            engine.metrics_status = 200
            await looks(gateway, engine, 2)

    [found] = during["engines"]
    assert found["telemetry_age_s"] is not None, "what was last told is still known"
    assert found["signals_missing"] == []
    assert sum(series.values()) == 0
    assert told(caplog, "endpoint does not tell its load") == []


async def test_metrics_that_are_switched_off_are_told_with_the_switch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        engine.metrics_status, engine.metrics = 404, b'{"detail":"Not Found"}'
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)
            await looks(gateway, engine)
            series = await missing(gateway)

    assert found["problems"] == ["GET /metrics answered 404: Not Found; start vLLM without --disable-log-stats"]
    assert series == {"running": 1, "waiting": 1, "kv_used_fraction": 1, "preemptions": 1}
    assert len(told(caplog, "endpoint does not tell its load")) == 1


async def test_an_engine_of_which_nothing_is_known_promises_nothing_and_alarms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with FakeEngine() as engine:
        async with patient_gateway(a_config(engine.url, engine="openai_compatible"), tmp_path) as gateway:
            status = await gateway.status()
            series = await missing(gateway)

    assert status["engines"][0]["signals_missing"] == ["running", "waiting", "kv_used_fraction", "preemptions"]
    assert series == {}
    assert told(caplog, "endpoint does not tell its load") == []


async def test_without_any_signal_requests_go_by_what_is_in_flight_and_not_by_chance(tmp_path: Path) -> None:
    async with ScrapedEngine() as engine, ScrapedEngine() as other:
        engine.metrics = other.metrics = b"nothing that anybody knows 1\n"
        async with patient_gateway(a_config(engine.url, other.url), tmp_path) as gateway:
            for _ in range(20):
                async with gateway.post(chat()) as answer:
                    assert answer.status == 200

    assert (len(engine.requests), len(other.requests)) == (10, 10)
