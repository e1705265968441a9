"""How does a scenario's file become a simulation?

Plain settings and a seed in, the values of the simulation out. Traces are looked into beforehand where nothing else
says who asks: the scheduler refuses tenants that its policy does not name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import assert_never

from headgate.config.scenarios.load import CAPPED, MODEL
from headgate.config.scenarios.settings import (
    CallerSettings,
    CrashSettings,
    EngineSettings,
    FaultSettings,
    HangSettings,
    LengthSettings,
    PoissonSettings,
    RandomFaultSettings,
    ScenarioSettings,
    ServeGenSettings,
    SlowSettings,
    TraceSettings,
    TrafficSettings,
)
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, EndpointId, TenantId
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.engine.pace import NOMINAL
from headgate.simulation.engine.profile import PROFILES
from headgate.simulation.virtual.faults import RandomFaults, draw
from headgate.simulation.virtual.scenario import Callers, Crash, Decider, EngineSpec, Fault, Hang, Scenario, Slow
from headgate.simulation.workload.arrival import Arrivals
from headgate.simulation.workload.lengths import Lengths, LogNormal, Uniform
from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.servegen_files import read_rates
from headgate.simulation.workload.traces import read_trace
from headgate.simulation.workload.traffic import (
    PoissonTraffic,
    ServeGenTraffic,
    Shares,
    TraceTraffic,
    Traffic,
    arrivals,
    client_shares,
    span_ns,
)

SCHEDULERS: Mapping[str, Callable[[ScenarioSettings], Decider]] = MappingProxyType(
    {
        "headgate": lambda _: Scheduler(),
        "round-robin": lambda _: RoundRobin(),
        "least-outstanding": lambda _: LeastOutstanding(),
        CAPPED: lambda settings: StaticCap(_cap(settings), waiting_max=settings.waiting_max),
        "saturation-gate": lambda _: SaturationGate(),
    }
)
"""What a scenario calls a scheduler -> how one is made."""


def scenario(settings: ScenarioSettings, seed: int) -> Scenario:
    """Reads what it must of the traces. Raises `Problem` where one is not what it should be."""
    traffic = tuple(_traffic(each) for each in settings.traffic)
    span = _span_ns(traffic, settings.duration_ns)
    engines = tuple(_engine(each) for each in settings.engines)
    make = SCHEDULERS[settings.scheduler]
    return Scenario(
        title=settings.title,
        seed=seed,
        policy=_policy(settings.policy, traffic),
        model=MODEL,
        engines=engines,
        callers={name: _callers(each) for name, each in settings.callers.items()},
        arrivals=lambda: _arrivals(traffic, seed, settings.duration_ns),
        span_ns=span,
        faults=_faults(settings.faults, [each.id for each in engines], span, seed),
        decider=lambda: make(settings),
        probe_every_ns=settings.probe_every_ns,
        progress_every_ns=settings.progress_every_ns,
    )


def _cap(settings: ScenarioSettings) -> int:
    return settings.cap or min(each.in_flight_max for each in settings.engines)


def _span_ns(traffic: tuple[Traffic, ...], duration_ns: Duration | None) -> Duration:
    """How long requests arrive. A single one has no span, and gets a second so that rates are numbers."""
    span = span_ns(traffic)
    if span <= 0 and next(arrivals(traffic, seed=0), None) is None:
        raise Problem("no request arrives; see start, for and keep of the traffic")
    return max(SECOND, span if duration_ns is None else min(span, duration_ns))


def _arrivals(traffic: tuple[Traffic, ...], seed: int, duration_ns: Duration | None) -> Arrivals:
    all_of_it = arrivals(traffic, seed=seed)
    return all_of_it if duration_ns is None else takewhile(lambda each: each.at < duration_ns, all_of_it)


def _callers(settings: CallerSettings) -> Callers:
    return Callers(
        ttft_ns=settings.ttft_ns,
        tpot_ns=settings.tpot_ns,
        e2e_ns=settings.e2e_ns,
        leave_ns=settings.leave_ns,
        retries=settings.retries,
        stream=settings.stream,
    )


def _engine(settings: EngineSettings) -> EngineSpec:
    size = settings.size
    profile = replace(
        PROFILES[settings.profile],
        chunk_tokens=size.chunk_tokens,
        sequences_max=size.sequences_max,
        kv_blocks=size.kv_blocks,
        block_tokens=size.block_tokens,
        context_tokens=size.context_tokens,
    )
    return EngineSpec(
        id=settings.id,
        pool=settings.pool,
        profile=profile,
        in_flight_max=settings.in_flight_max,
        starts_at=settings.starts_at,
        cold_start_ns=settings.cold_start_ns,
    )


# ----------------------------------------------------------------------------------------------------------- traffic


def _traffic(settings: TrafficSettings) -> Traffic:
    match settings:
        case TraceSettings():
            return TraceTraffic(
                path=settings.path,
                classes=settings.classes,
                tenants=_tenants(settings),
                speed_up=settings.speed_up,
                shift_ns=settings.shift_ns,
                jitter_ns=settings.jitter_ns,
                keep=settings.keep,
                start_ns=settings.start_ns,
                length_ns=settings.length_ns,
            )
        case ServeGenSettings():
            return ServeGenTraffic(
                rates=settings.rates,
                lengths=settings.lengths,
                classes=settings.classes,
                start_ns=settings.start_ns,
                length_ns=settings.length_ns,
                keep=settings.keep,
                speed_up=settings.speed_up,
            )
        case PoissonSettings():
            return PoissonTraffic(
                rate=settings.rate,
                shift_ns=settings.shift_ns,
                length_ns=settings.length_ns,
                prompt=_lengths(settings.prompt),
                output=_lengths(settings.output),
                classes=settings.classes,
                tenants=_tenants(settings) or (),
            )
        case _:
            assert_never(settings)


def _tenants(settings: TraceSettings | PoissonSettings) -> Shares | None:
    return settings.tenants if settings.tenants_like is None else client_shares(settings.tenants_like)


def _lengths(settings: LengthSettings) -> Lengths:
    if settings.median is None or settings.p95 is None:
        return Uniform(settings.least, settings.most)
    return LogNormal(median=settings.median, p95=settings.p95, most=settings.most)


def _policy(policy: Policy, traffic: tuple[Traffic, ...]) -> Policy:
    """With everyone in it who asks."""
    names = dict.fromkeys(name for each in traffic for name in _who(each))
    classes = {str(each.name) for each in policy.classes}
    for each in traffic:
        if isinstance(each, TraceTraffic) and each.classes is None:
            _check_classes(each.path, classes)
    return replace(policy, tenants=tuple(Tenant(TenantId(name)) for name in names))


def _who(traffic: Traffic) -> Iterable[str]:
    match traffic:
        case ServeGenTraffic():
            return sorted({each.client for each in read_rates(traffic.rates)})
        case TraceTraffic(path=path, tenants=None):
            return (name for name, _ in client_shares(path))
        case _:
            return (name for name, _ in traffic.tenants or ())


def _check_classes(path: Path, known: set[str]) -> None:
    named = {row.service_class for row in read_trace(path)}
    if unknown := sorted(str(each) for each in named if each is not None and each not in known):
        listed = ", ".join(f'"{each}"' for each in unknown)
        raise Problem(f"{path} names class {listed}, which the scenario does not have; add it to classes")


# ------------------------------------------------------------------------------------------------------------ faults


def _faults(
    settings: tuple[FaultSettings, ...], endpoints: list[EndpointId], span: Duration, seed: int
) -> tuple[Fault, ...]:
    found: list[Fault] = []
    for number, each in enumerate(settings):
        match each:
            case CrashSettings():
                found.append(Crash(each.endpoint_id, each.at, each.back_after_ns))
            case HangSettings():
                found.append(Hang(each.endpoint_id, each.at, each.lasts_ns))
            case SlowSettings():
                found.append(Slow(each.endpoint_id, each.at, each.lasts_ns, _thousandths(each.speed)))
            case RandomFaultSettings():
                chance = Random(f"{seed} faults {number}")  # noqa: S311 -- seeded chance is the point
                found += draw(_random(each), endpoints, span_ns=span, chance=chance)
            case _:
                assert_never(each)
    return tuple(found)


def _random(settings: RandomFaultSettings) -> RandomFaults:
    return RandomFaults(
        crashes=settings.crashes,
        hangs=settings.hangs,
        slows=settings.slows,
        lasts_ns_min=settings.lasts_ns_min,
        lasts_ns_max=settings.lasts_ns_max,
        speed_min=_thousandths(settings.speed_min),
        speed_max=_thousandths(settings.speed_max),
    )


def _thousandths(speed: float) -> int:
    return max(1, round(speed * NOMINAL))
