"""Is it told what engines tell of themselves, what this process uses, and what is the matter?"""

import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.model.verdict import Cause, Incident
from headgate.ports.engine import Telemetry
from headgate.telemetry.engines import EngineSignals, engine_metrics, with_gpus
from headgate.telemetry.page import Family, page
from headgate.telemetry.process import cpu_seconds, process_figures, process_metrics
from headgate.telemetry.verdicts import Present, verdict_metrics


def told(*families: Family) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page(families).decode())
        for sample in family.samples
    }


def test_what_an_engine_tells_is_told_of_it_and_what_it_does_not_is_not_there() -> None:
    whole = Telemetry(3, 2, 0.75, 9, {"prefix_queries": 100.0, "prefix_hits": 40.0, "gpu_utilisation": 0.5})
    signals = EngineSignals(told={"p/a": whole, "p/b": Telemetry(waiting=1), "gone/c": Telemetry(running=1)})

    assert told(*engine_metrics(signals, {"p/a": "p", "p/b": "p"})) == {
        "headgate_engine_running p p/a": 3,
        "headgate_engine_waiting p p/a": 2,
        "headgate_engine_waiting p p/b": 1,
        "headgate_engine_kv_used_ratio p p/a": 0.75,
        "headgate_engine_preemptions_total p p/a": 9,
        "headgate_engine_prefix_queries_total p p/a": 100,
        "headgate_engine_prefix_hits_total p p/a": 40,
        "headgate_gpu_utilisation_ratio p p/a": 0.5,
    }


def test_what_an_engine_says_of_its_gpus_counts_for_more_than_what_is_said_of_its_machine() -> None:
    engines = {"p/a": Telemetry(1, further={"gpu_utilisation": 0.9}), "p/b": Telemetry(2)}
    gpus = {each: {"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0} for each in ("p/a", "p/c")}

    assert with_gpus(engines, gpus) == {
        "p/a": Telemetry(1, further={"gpu_utilisation": 0.9, "gpu_memory_used_bytes": 1.0}),
        "p/b": Telemetry(2),
        "p/c": Telemetry(further={"gpu_utilisation": 0.5, "gpu_memory_used_bytes": 1.0}),
    }


def test_of_a_pool_that_nobody_has_looked_at_nothing_is_told() -> None:
    found = told(*verdict_metrics(["small"], ()))

    assert {name.split()[1] for name in found} == {"gateway"}
    assert {name for name, value in found.items() if value} == {
        "headgate_verdict gateway healthy",
        "headgate_incident gateway healthy",
    }


def test_every_pool_and_the_gateway_have_every_cause_and_exactly_one_is_present() -> None:
    present = (
        Present("small", Cause.COMPUTE, Incident.LONG_PROMPTS),
        Present("large", Cause.HEALTHY, Incident.HEALTHY),
        Present(None, Cause.SCHEDULER, Incident.SCHEDULER_BEHIND),
        Present("gone", Cause.CLIENT, Incident.RETRY_STORM),
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


def test_what_this_process_uses_is_told() -> None:
    before_s = cpu_seconds()
    found = told(*process_metrics(process_figures(1.5)))

    assert before_s <= found["headgate_process_cpu_seconds_total"] <= cpu_seconds()
    status = Path("/proc/self/status").read_text()
    resident_kb = int(status.partition("VmRSS:")[2].split()[0])
    assert found["headgate_process_resident_bytes"] == pytest.approx(1024 * resident_kb, rel=0.2)
    assert found["headgate_decide_seconds_total"] == 1.5


def test_where_the_system_does_not_tell_its_memory_the_rest_is_told(tmp_path: Path) -> None:
    found = told(*process_metrics(process_figures(0.0, statm=str(tmp_path / "none"))))

    assert sorted(found) == ["headgate_decide_seconds_total", "headgate_process_cpu_seconds_total"]
    assert os.times().user >= 0
