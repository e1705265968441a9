"""What do the endpoints' engines tell of themselves, and what do they not?

What an engine does not tell is not there, rather than zero. Endpoints that the scheduler does not know have no pool and
are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headgate.model.units import EndpointId, PoolName
from headgate.ports.engine import Telemetry
from headgate.telemetry.page import Family, family


@dataclass(frozen=True, slots=True)
class EngineSignals:
    missing: Mapping[tuple[EndpointId, str], bool] = field(default_factory=dict[tuple[EndpointId, str], bool])
    """For each signal that an endpoint's kind of engine tells, whether it is missing."""
    age_s: Mapping[EndpointId, float] = field(default_factory=dict[EndpointId, float])
    """How long ago each endpoint last told anything; those that never did are not there."""
    told: Mapping[EndpointId, Telemetry] = field(default_factory=dict[EndpointId, Telemetry])
    """What each told of late; those whose word is stale are not there."""


def with_gpus(
    told: Mapping[EndpointId, Telemetry], gpus: Mapping[EndpointId, Mapping[str, float]]
) -> dict[EndpointId, Telemetry]:
    """What engines told, with what was told of their GPUs; the engine's own word counts for more."""
    joined = dict(told)
    for endpoint_id, gpu in gpus.items():
        telemetry = told.get(endpoint_id, Telemetry())
        joined[endpoint_id] = replace(telemetry, further={**gpu, **telemetry.further})
    return joined


def _further(name: str) -> Callable[[Telemetry], float | None]:
    return lambda telemetry: telemetry.further.get(name)


_FIGURES: Final[Mapping[str, Callable[[Telemetry], float | None]]] = {
    "headgate_engine_running": lambda each: each.running,
    "headgate_engine_waiting": lambda each: each.waiting,
    "headgate_engine_kv_used_ratio": lambda each: each.kv_used_fraction,
    "headgate_engine_preemptions_total": lambda each: each.preemptions,
    "headgate_engine_prefix_queries_total": _further("prefix_queries"),
    "headgate_engine_prefix_hits_total": _further("prefix_hits"),
    "headgate_gpu_utilisation_ratio": _further("gpu_utilisation"),
    "headgate_gpu_memory_used_bytes": _further("gpu_memory_used_bytes"),
    "headgate_gpu_memory_total_bytes": _further("gpu_memory_total_bytes"),
}


def engine_metrics(signals: EngineSignals, pool_of: Mapping[EndpointId, PoolName]) -> Iterator[Family]:
    """Every signal that is to be expected is there, also when it is told: an alert on a missing one needs the zero."""
    missing = family("headgate_endpoint_signal_missing")
    for key, is_missing in signals.missing.items():
        missing.add(key, float(is_missing))
    yield missing
    ages = family("headgate_endpoint_telemetry_age_seconds")
    for endpoint_id, age_s in signals.age_s.items():
        ages.add((endpoint_id,), age_s)
    yield ages
    known = [(pool_of[each], each, told) for each, told in signals.told.items() if each in pool_of]
    for name, figure in _FIGURES.items():
        told_of = family(name)
        for pool, endpoint_id, telemetry in known:
            if (value := figure(telemetry)) is not None:
                told_of.add((pool, endpoint_id), value)
        yield told_of
