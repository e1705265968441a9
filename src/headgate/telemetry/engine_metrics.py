"""Metrics reported by engines, and expected signals that are missing.

A value that an engine does not report is omitted rather than exposed as zero. Endpoints that the scheduler does not
know are omitted because they have no pool.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headgate.model.units import EndpointId, PoolName
from headgate.ports.engine import Telemetry
from headgate.telemetry.exposition import MetricFamily, family


@dataclass(frozen=True, slots=True)
class EngineReadings:
    missing: Mapping[tuple[EndpointId, str], bool] = field(default_factory=dict[tuple[EndpointId, str], bool])
    """For each signal that an endpoint's engine should report, whether it is missing."""
    age_s: Mapping[EndpointId, float] = field(default_factory=dict[EndpointId, float])
    """Time since each endpoint's last report. Endpoints that have never reported have no entry."""
    told: Mapping[EndpointId, Telemetry] = field(default_factory=dict[EndpointId, Telemetry])
    """Latest report from each endpoint. Stale reports are omitted."""


def with_gpus(
    told: Mapping[EndpointId, Telemetry], gpu_readings: Mapping[EndpointId, Mapping[str, float]]
) -> dict[EndpointId, Telemetry]:
    """Engine reports merged with GPU metrics. The engine's own values take precedence."""
    joined = dict(told)
    for endpoint_id, gpu in gpu_readings.items():
        telemetry = told.get(endpoint_id, Telemetry())
        joined[endpoint_id] = replace(telemetry, extra={**gpu, **telemetry.extra})
    return joined


def _extra(name: str) -> Callable[[Telemetry], float | None]:
    return lambda telemetry: telemetry.extra.get(name)


_VALUES: Final[Mapping[str, Callable[[Telemetry], float | None]]] = {
    "headgate_engine_requests_running": lambda each: each.running,
    "headgate_engine_requests_waiting": lambda each: each.waiting,
    "headgate_engine_kv_cache_usage_ratio": lambda each: each.kv_used_fraction,
    "headgate_engine_preemptions_total": lambda each: each.preemptions,
    "headgate_engine_prefix_cache_queries_total": _extra("prefix_queries"),
    "headgate_engine_prefix_cache_hits_total": _extra("prefix_hits"),
    "headgate_gpu_utilization_ratio": _extra("gpu_utilisation"),
    "headgate_gpu_memory_used_bytes": _extra("gpu_memory_used_bytes"),
    "headgate_gpu_memory_total_bytes": _extra("gpu_memory_total_bytes"),
}


def engine_metrics(readings: EngineReadings, pool_of: Mapping[EndpointId, PoolName]) -> Iterator[MetricFamily]:
    """Engine metrics. Every expected signal has a sample, which is 0 if the engine reports the signal, because alerts
    rely on the zero.
    """
    missing = family("headgate_engine_metric_missing")
    for key, is_missing in readings.missing.items():
        missing.add(key, float(is_missing))
    yield missing
    ages = family("headgate_engine_metrics_age_seconds")
    for endpoint_id, age_s in readings.age_s.items():
        ages.add((endpoint_id,), age_s)
    yield ages
    known = [(pool_of[each], each, told) for each, told in readings.told.items() if each in pool_of]
    for name, figure in _VALUES.items():
        told_of = family(name)
        for pool, endpoint_id, telemetry in known:
            if (value := figure(telemetry)) is not None:
                told_of.add((pool, endpoint_id), value)
        yield told_of
