"""Metrics for engines, this process and verdicts."""

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.model.verdict import Cause, Incident
from headgate.ports.engine import Telemetry
from headgate.telemetry.engine_metrics import EngineReadings, engine_metrics, with_gpus
from headgate.telemetry.exposition import MetricFamily, exposition_text
from headgate.telemetry.process_metrics import cpu_seconds, process_metrics, process_stats
from headgate.telemetry.verdict_metrics import CurrentVerdict, verdict_metrics


def told(*families: MetricFamily) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition_text(families).decode())
        for sample in family.samples
    }


def test_engine_metrics_contain_only_reported_values() -> None:
    whole = Telemetry(3, 2, 0.75, 9, {"prefix_queries": 100.0, "prefix_hits": 40.0, "gpu_utilisation": 0.5})
    signals = EngineReadings(told={"p/a": whole, "p/b": Telemetry(waiting=1), "gone/c": Telemetry(running=1)})

    assert told(*engine_metrics(signals, {"p/a": "p", "p/b": "p"})) == {
        "headgate_engine_requests_running p p/a": 3,
        "headgate_engine_requests_waiting p p/a": 2,
        "headgate_engine_requests_waiting p p/b": 1,
        "headgate_engine_kv_cache_usage_ratio p p/a": 0.75,
        "headgate_engine_preemptions_total p p/a": 9,
        "headgate_engine_prefix_cache_queries_total p p/a": 100,
        "headgate_engine_prefix_cache_hits_total p p/a": 40,
        "headgate_gpu_utilization_ratio p p/a": 0.5,
    }


def test_gpu_values_from_the_engine_take_precedence_over_machine_values() -> None:
    engines = {"p/a": Telemetry(1, extra={"gpu_utilisation": 0.9}), "p/b": Telemetry(2)}
    gpus = {each: {"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0} for each in ("p/a", "p/c")}

    assert with_gpus(engines, gpus) == {
        "p/a": Telemetry(1, extra={"gpu_utilisation": 0.9, "gpu_memory_used_bytes": 1.0}),
        "p/b": Telemetry(2),
        "p/c": Telemetry(extra={"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0}),
    }


def test_pool_without_a_verdict_has_no_verdict_metrics() -> None:
    found = told(*verdict_metrics(["small"], ()))

    assert {name.split()[1] for name in found} == {"gateway"}
    assert {name for name, value in found.items() if value} == {
        "headgate_verdict gateway healthy",
        "headgate_incident gateway healthy",
    }


def test_verdict_metrics_set_exactly_one_cause_and_incident_per_pool_and_gateway() -> None:
    present = (
        CurrentVerdict("small", Cause.COMPUTE, Incident.LONG_PROMPTS),
        CurrentVerdict("large", Cause.HEALTHY, Incident.HEALTHY),
        CurrentVerdict(None, Cause.SCHEDULER, Incident.SCHEDULER_BEHIND),
        CurrentVerdict("gone", Cause.CLIENT, Incident.RETRY_STORM),
    )

    found = told(*verdict_metrics(["small", "large"], present))

    assert len(found) == 3 * (len(Cause) + len(Incident))
    assert {name for name, value in found.items() if value} == {
        "headgate_verdict gateway scheduler",
        "headgate_incident gateway scheduler_behind",
        "headgate_verdict small compute",
        "headgate_incident small long_prompts",
        "headgate_verdict large healthy",
        "headgate_incident large healthy",
    }


def test_process_metrics_report_cpu_time_and_memory() -> None:
    before_s = cpu_seconds()
    found = told(*process_metrics(process_stats(1.5)))

    assert before_s <= found["headgate_process_cpu_seconds_total"] <= cpu_seconds()
    status = Path("/proc/self/status").read_text()
    resident_kb = int(status.partition("VmRSS:")[2].split()[0])
    assert found["headgate_process_resident_memory_bytes"] == pytest.approx(1024 * resident_kb, rel=0.2)
    assert found["headgate_scheduler_busy_seconds_total"] == 1.5


def test_process_metrics_omit_memory_if_it_cannot_be_read(tmp_path: Path) -> None:
    found = told(*process_metrics(process_stats(0.0, statm=str(tmp_path / "none"))))

    assert sorted(found) == ["headgate_process_cpu_seconds_total", "headgate_scheduler_busy_seconds_total"]
    assert os.times().user >= 0
