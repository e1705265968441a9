"""Builds a simulation from the settings of a scenario and a seed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from headgate.config.scenarios.load import STATIC_CAP
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import TenantId
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.options import Traffic
from headgate.simulation.virtual.random_faults import resolve_faults
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.scenario_traffic import (
    check_classes,
    check_models,
    limited_arrivals,
    limited_span_ns,
    tenant_names,
    with_tenants,
)

SCHEDULERS: Mapping[str, Callable[[ScenarioSettings], Decider]] = MappingProxyType(
    {
        "headgate": lambda _: Scheduler(),
        "round-robin": lambda _: RoundRobin(),
        "least-outstanding": lambda _: LeastOutstanding(),
        STATIC_CAP: lambda settings: StaticCap(_cap(settings), queue_length_max=settings.queue_length_max),
        "saturation-gate": lambda _: SaturationGate(),
    }
)
"""Factory for each scheduler, by its name in a scenario."""
SCALABLE_SCHEDULERS = ("headgate",)
"""Schedulers whose state the autoscaler can read."""


def build_scenario(settings: ScenarioSettings, seed: int) -> Scenario:
    """Builds a scenario and reads the traces that it needs. Raises `WorkloadError` if one is invalid.

    `arrivals` raises it too if no request would arrive.
    """
    traffic = tuple(with_tenants(each) for each in settings.traffic)
    for each in traffic:
        check_classes(each, {str(known.name) for known in settings.policy.classes})
        check_models(each, {str(known.name) for known in settings.policy.models})
    if settings.scaling and settings.scheduler not in SCALABLE_SCHEDULERS:
        pools = ", ".join(settings.scaling)
        raise WorkloadError(
            f"scheduler {settings.scheduler} cannot be autoscaled; use headgate, or remove scaling from {pools}"
        )
    span = limited_span_ns(traffic, settings.duration_ns)
    make = SCHEDULERS[settings.scheduler]
    return Scenario(
        title=settings.title,
        seed=seed,
        policy=_policy(settings.policy, traffic),
        model=settings.model,
        engines=settings.engines,
        scaling=settings.scaling,
        callers=settings.callers,
        arrivals=lambda: limited_arrivals(traffic, seed, settings.duration_ns),
        span_ns=span,
        faults=resolve_faults(settings.faults, settings.engines, span, seed),
        decider=lambda: make(settings),
        probe_interval_ns=settings.probe_every_ns,
        scrape_interval_ns=settings.scrape_every_ns,
        progress_interval_ns=settings.progress_every_ns,
    )


def _cap(settings: ScenarioSettings) -> int:
    return settings.cap or min(each.in_flight_max for each in settings.engines)


def _policy(policy: Policy, traffic: tuple[Traffic, ...]) -> Policy:
    """Returns the policy with all tenants in the traffic added."""
    named = {str(each.id) for each in policy.tenants}
    asking = dict.fromkeys(name for each in traffic for name in tenant_names(each))
    others = tuple(Tenant(TenantId(name)) for name in asking if name not in named)
    return replace(policy, tenants=(*policy.tenants, *others))
