"""A missing engine signal is reported.

If an engine renames a metric, a router that depends on it routes at random without any visible error.
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
"""Metrics page of a vLLM version that has renamed one metric."""


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if record.getMessage() == message]  # type: ignore[attr-defined]


async def looks(gateway: RunningGateway, engine: ScrapedEngine, count: int = 6) -> None:
    """Wait until `count` more scrapes have completed."""
    enough = engine.pages.served + count
    await gateway.wait_for_status(lambda _: engine.pages.served >= enough)


async def first_looked_at(gateway: RunningGateway) -> Config:
    """Return the status of the only engine after its first scrape."""

    def looked(status: Config) -> bool:
        [engine] = status["engines"]
        asked = engine["telemetry_age_s"] is not None or engine["problems"]
        return asked and engine["version"] is not None

    return (await gateway.wait_for_status(looked))["engines"][0]


async def missing(gateway: RunningGateway) -> dict[str, float]:
    """Return the only endpoint's missing-signal metric, by signal."""
    found = await series_of(gateway)
    names = [name for name in found if name.startswith("headgate_engine_metric_missing{")]
    return {name.partition("metric=")[2].rstrip("}"): found[name] for name in names}


async def test_status_shows_dialect_version_and_signal_sources_at_start(tmp_path: Path) -> None:
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


async def test_older_metric_name_is_shown_as_signal_source(tmp_path: Path) -> None:
    async with ScrapedEngine() as engine:
        engine.metrics = RENAMED.replace(b"kv_cache_usage_fraction", b"gpu_cache_usage_perc")
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)

    assert found["signals"]["kv_used_fraction"] == "vllm:gpu_cache_usage_perc"
    assert found["problems"] == []


async def test_signal_missing_from_the_start_appears_in_status_metrics_and_log(
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
    problem = "/metrics lacks vllm:kv_cache_usage_perc; check that this engine is vllm"
    assert found["problems"] == [problem]
    assert found["telemetry"]["running"] == 3, "the other signals must still be used"
    assert series == {"running": 0, "waiting": 0, "kv_used_fraction": 1, "preemptions": 0}
    assert [line["missing"] for line in told(caplog, "endpoint is not reporting its load")] == [
        f"kv_used_fraction; {problem}"
    ]


async def test_signal_loss_and_recovery_are_logged_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    assert len(told(caplog, "endpoint is not reporting its load")) == 1
    assert len(told(caplog, "endpoint is reporting its load again")) == 1


async def test_single_failed_scrape_is_not_reported_as_a_missing_signal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            await looks(gateway, engine, 2)
            engine.metrics_status = 500
            await looks(gateway, engine, 1)
            during = await gateway.wait_for_status(lambda status: status["engines"][0]["problems"])
            series = await missing(gateway)
            engine.metrics_status = 200
            await looks(gateway, engine, 2)

    [found] = during["engines"]
    assert found["telemetry_age_s"] is not None, "the last known values must be kept"
    assert found["signals_missing"] == []
    assert sum(series.values()) == 0
    assert told(caplog, "endpoint is not reporting its load") == []


async def test_disabled_metrics_are_reported_with_the_option_to_enable_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with ScrapedEngine() as engine:
        engine.metrics_status, engine.metrics = 404, b'{"detail":"Not Found"}'
        async with patient_gateway(a_config(engine.url), tmp_path) as gateway:
            found = await first_looked_at(gateway)
            await looks(gateway, engine)
            series = await missing(gateway)

    assert found["problems"] == ["GET /metrics returned 404: Not Found; start vLLM without --disable-log-stats"]
    assert series == {"running": 1, "waiting": 1, "kv_used_fraction": 1, "preemptions": 1}
    assert len(told(caplog, "endpoint is not reporting its load")) == 1


async def test_openai_compatible_engine_without_signals_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    async with FakeEngine() as engine:
        async with patient_gateway(a_config(engine.url, engine="openai_compatible"), tmp_path) as gateway:
            status = await gateway.status()
            series = await missing(gateway)

    assert status["engines"][0]["signals_missing"] == ["running", "waiting", "kv_used_fraction", "preemptions"]
    assert series == {}
    assert told(caplog, "endpoint is not reporting its load") == []


async def test_requests_are_balanced_by_in_flight_counts_without_signals(tmp_path: Path) -> None:
    async with ScrapedEngine() as engine, ScrapedEngine() as other:
        engine.metrics = other.metrics = b"nothing that anybody knows 1\n"
        async with patient_gateway(a_config(engine.url, other.url), tmp_path) as gateway:
            for _ in range(20):
                async with gateway.post(chat()) as answer:
                    assert answer.status == 200

    assert (len(engine.requests), len(other.requests)) == (10, 10)
