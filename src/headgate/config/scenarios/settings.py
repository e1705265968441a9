"""Scenario settings: the validated file as plain values, independent of YAML and textual units."""

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, ModelName, PoolName
from headgate.simulation.options import CallerBehaviour, EngineSpec, RandomFaults, ScaledPool, ScenarioFault, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSettings:
    title: str
    scheduler: str
    cap: int | None
    """Concurrency limit per engine for the `static-cap` scheduler. If None, the smallest `in_flight_max` is used."""
    queue_length_max: int
    """Maximum queue length for the `static-cap` scheduler."""
    policy: Policy
    """Policy with the tenants in the file. Traces may add more tenants."""
    model: ModelName
    """Model used in all requests."""
    engines: tuple[EngineSpec, ...]
    scaling: Mapping[PoolName, ScaledPool]
    """Pools that are autoscaled."""
    callers: Mapping[ClassName, CallerBehaviour]
    objectives: Mapping[ClassName, float]
    """Share of good requests that each class needs, for capacity plans."""
    traffic: tuple[Traffic, ...]
    zones: Mapping[PoolName, tuple[str, ...]]
    """Zones of each pool's engines, for capacity plans. The engines are assigned to them in turn."""
    faults: tuple[ScenarioFault | RandomFaults, ...]
    duration_ns: Duration | None
    """Time after which no more requests arrive. None means no limit."""
    probe_every_ns: Duration
    scrape_every_ns: Duration
    progress_every_ns: Duration
    gpus: Mapping[PoolName, int]
    """GPUs of one engine in each pool, for capacity plans."""
    alternatives: tuple[tuple[str, "ScenarioSettings"], ...] = ()
    """The scenario with other fleets, by name, for capacity plans."""
    warnings: tuple[str, ...] = ()
