"""Builds a simulation from the settings of a scenario and a seed.

If the settings do not list a trace's tenants, the trace is read beforehand, because the scheduler rejects tenants that
are not in its policy.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, groupby, takewhile
from random import Random
from types import MappingProxyType
from typing import assert_never

from headgate.config.scenarios.load import STATIC_CAP
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
from headgate.config.scenarios.traffic import DEFAULT_TENANTS
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, Instant, TenantId, format_seconds
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.engine.work_clock import NOMINAL_SPEED
from headgate.simulation.virtual.random_faults import FaultWindow, RandomFaults, draw_faults, window_of
from headgate.simulation.virtual.scenario import (
    CallerBehaviour,
    Crash,
    Decider,
    EngineSpec,
    Hang,
    Scenario,
    ScenarioFault,
    Slowdown,
)
from headgate.simulation.workload.arrival import Arrivals
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.lengths import LengthDistribution, LogNormal, Uniform
from headgate.simulation.workload.servegen_files import read_rates
from headgate.simulation.workload.trace_files import read_trace
from headgate.simulation.workload.traffic import (
    PoissonTraffic,
    ServeGenTraffic,
    Shares,
    TraceTraffic,
    Traffic,
    arrivals,
    has_tenants,
    span_ns,
    tenant_shares,
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


REQUESTS_WARN_ABOVE = 5_000_000
"""Expected request count above which a warning about the run's duration is printed."""

SECONDS_PER_REQUEST = 300e-6
"""Approximate time to simulate one request, in seconds. See docs/project/simulation-accuracy.md."""


def build_scenario(settings: ScenarioSettings, seed: int) -> Scenario:
    """Builds a scenario and reads the traces that it needs. Raises `WorkloadError` if one is invalid.

    `arrivals` raises it too if no request would arrive.
    """
    traffic = tuple(_traffic(each) for each in settings.traffic)
    for each in settings.traffic:
        if isinstance(each, TraceSettings) and each.classes is None:
            _check_classes(each, {str(known.name) for known in settings.policy.classes})
    span = _span_ns(traffic, settings.duration_ns)
    engines = tuple(_engine(each) for each in settings.engines)
    make = SCHEDULERS[settings.scheduler]
    return Scenario(
        title=settings.title,
        seed=seed,
        policy=_policy(settings.policy, traffic),
        model=settings.model,
        engines=engines,
        callers={name: _callers(each) for name, each in settings.callers.items()},
        arrivals=lambda: _arrivals(traffic, seed, settings.duration_ns),
        span_ns=span,
        faults=_faults(settings.faults, engines, span, seed),
        decider=lambda: make(settings),
        probe_interval_ns=settings.probe_every_ns,
        scrape_interval_ns=settings.scrape_every_ns,
        progress_interval_ns=settings.progress_every_ns,
    )


def _cap(settings: ScenarioSettings) -> int:
    return settings.cap or min(each.in_flight_max for each in settings.engines)


def _span_ns(traffic: tuple[Traffic, ...], duration_ns: Duration | None) -> Duration:
    """Returns how long requests keep arriving. The result is at least one second, so that rates are defined."""
    span = span_ns(traffic)
    return max(SECOND, span if duration_ns is None else min(span, duration_ns))


def _arrivals(traffic: tuple[Traffic, ...], seed: int, duration_ns: Duration | None) -> Arrivals:
    all_of_it = arrivals(traffic, seed=seed)
    first = next(all_of_it, None)
    if first is None:
        why = dict.fromkeys(_no_arrivals_reason(each, seed) for each in traffic)
        raise WorkloadError(f"no request arrives: {'; '.join(why)}")
    if duration_ns is not None and first.at >= duration_ns:
        arrival, duration = format_seconds(Duration(first.at)), format_seconds(duration_ns)
        late = f"the first would arrive after {arrival}, but duration is {duration}"
        raise WorkloadError(f"no request arrives: {late}; raise duration, or change the traffic's shift or speed_up")
    whole = chain((first,), all_of_it)
    return whole if duration_ns is None else takewhile(lambda each: each.at < duration_ns, whole)


def _no_arrivals_reason(traffic: Traffic, seed: int) -> str:
    if isinstance(traffic, PoissonTraffic):
        length = format_seconds(traffic.duration_ns)
        return f"none was drawn at {traffic.rate:g} per second within {length}; raise rate or duration"
    name = (traffic.path if isinstance(traffic, TraceTraffic) else traffic.rates).name
    if next(arrivals((replace(traffic, keep=1.0),), seed=seed), None) is not None:
        return f"sample {traffic.keep:g} drops all requests of {name}; raise sample"
    return f"{name} has no request in the selected range; lower start or raise duration"


def _callers(settings: CallerSettings) -> CallerBehaviour:
    return CallerBehaviour(
        ttft_ns=settings.ttft_ns,
        tpot_ns=settings.tpot_ns,
        e2e_ns=settings.e2e_ns,
        client_timeout_ns=settings.timeout_ns,
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
        async_scheduling=settings.async_scheduling,
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
                tenants=_trace_tenants(settings),
                speed_up=settings.speed_up,
                shift_ns=settings.shift_ns,
                jitter_ns=settings.jitter_ns,
                keep=settings.keep,
                start_ns=settings.start_ns,
                duration_ns=settings.length_ns,
            )
        case ServeGenSettings():
            return ServeGenTraffic(
                rates=settings.rates,
                lengths=settings.lengths,
                classes=settings.classes,
                start_ns=settings.start_ns,
                duration_ns=settings.length_ns,
                keep=settings.keep,
                speed_up=settings.speed_up,
            )
        case PoissonSettings():
            return PoissonTraffic(
                rate=settings.rate,
                shift_ns=settings.shift_ns,
                duration_ns=settings.length_ns,
                prompt=_lengths(settings.prompt),
                output=_lengths(settings.output),
                classes=settings.classes,
                tenants=_tenants(settings) or (),
            )
        case _:
            assert_never(settings)


def _tenants(settings: TraceSettings | PoissonSettings) -> Shares | None:
    return settings.tenants if settings.tenants_like is None else tenant_shares(settings.tenants_like)


def _trace_tenants(settings: TraceSettings) -> Shares | None:
    """Returns the tenants and their shares; None if the trace gives the tenant of each request."""
    if settings.tenants is None and settings.tenants_like is None and not has_tenants(settings.path):
        return DEFAULT_TENANTS
    return _tenants(settings)


def _lengths(settings: LengthSettings) -> LengthDistribution:
    if settings.median is None or settings.p95 is None:
        return Uniform(settings.tokens_min, settings.tokens_max)
    return LogNormal(median=settings.median, p95=settings.p95, max=settings.tokens_max)


def _policy(policy: Policy, traffic: tuple[Traffic, ...]) -> Policy:
    """Returns the policy with all tenants in the traffic added."""
    named = {str(each.id): each for each in policy.tenants}
    asking = dict.fromkeys(name for each in traffic for name in _tenant_names(each))
    others = tuple(Tenant(TenantId(name)) for name in asking if name not in named)
    return replace(policy, tenants=(*policy.tenants, *others))


def _tenant_names(traffic: Traffic) -> Iterable[str]:
    match traffic:
        case ServeGenTraffic():
            return sorted({each.client for each in read_rates(traffic.rates)})
        case TraceTraffic(path=path, tenants=None):
            return (name for name, _ in tenant_shares(path))
        case _:
            return (name for name, _ in traffic.tenants or ())


def _check_classes(settings: TraceSettings, known: set[str]) -> None:
    path = settings.path
    named = {row.service_class for row in read_trace(path)}
    if None in named:
        which = "no class" if named == {None} else "a class for only some rows"
        some = ", ".join(sorted(known))
        raise WorkloadError(f"{settings.place}: {path.name} has {which}; add classes: NAME, one of: {some}")
    if unknown := sorted(str(each) for each in named if each is not None and each not in known):
        listed = ", ".join(f'"{each}"' for each in unknown)
        raise WorkloadError(f"{path} uses unknown class {listed}; add it to the scenario's classes")


# ---------------------------------------------------------------------------------------------------------- warnings


def size_warnings(settings: ScenarioSettings) -> tuple[str, ...]:
    """Warns if the run would take a very long time."""
    expected = sum(_expected_requests(each, settings.duration_ns) for each in settings.traffic)
    if expected <= REQUESTS_WARN_ABOVE:
        return ()
    minutes = expected * SECONDS_PER_REQUEST / 60
    takes = f"{minutes / 60:,.0f} hours" if minutes >= 120 else f"{minutes:.0f} minutes"
    return (f"about {expected / 1e6:,.0f} million requests take about {takes}; lower rate, for or duration",)


def _expected_requests(traffic: TrafficSettings, duration_ns: Duration | None) -> float:
    """Returns the expected number of Poisson arrivals. Traces count as 0, because any trace that can be read is short
    enough.
    """
    if not isinstance(traffic, PoissonSettings):
        return 0.0
    left_ns = traffic.length_ns if duration_ns is None else duration_ns - traffic.shift_ns
    return traffic.rate * max(0, min(traffic.length_ns, left_ns)) / SECOND


def late_fault_warnings(simulated: Scenario) -> tuple[str, ...]:
    """Warns about faults scheduled after the traffic ends. The end is known only once the traces have been read."""
    late = [each for each in simulated.faults if each.at >= simulated.span_ns]
    told: list[str] = []
    for (kind, at), same in groupby(late, key=lambda each: (type(each).__name__.lower(), each.at)):
        first, *others = (each.endpoint_id for each in same)
        who = f"{first} and {len(others)} more" if others else first
        end = format_seconds(simulated.span_ns)
        told.append(f"{kind} of {who} at {format_seconds(Duration(at))}: requests arrive only until {end}; lower at")
    return tuple(told)


# ------------------------------------------------------------------------------------------------------------ faults


def _faults(
    settings: tuple[FaultSettings, ...], engines: tuple[EngineSpec, ...], span: Duration, seed: int
) -> tuple[ScenarioFault, ...]:
    """Returns the configured faults, followed by random faults that do not overlap with others."""
    found = [_fault(each) for each in settings if not isinstance(each, RandomFaultSettings)]
    starting = [FaultWindow(each.id, Instant(0), _ready_at(each)) for each in engines if _ready_at(each)]
    for number, each in enumerate(settings):
        if isinstance(each, RandomFaultSettings):
            taken = [*starting, *(window_of(fault) for fault in found)]
            chance = Random(f"{seed} faults {number}")  # noqa: S311 -- results must depend on the seed
            found += draw_faults(_random(each), [spec.id for spec in engines], span_ns=span, rng=chance, occupied=taken)
    return tuple(found)


def _ready_at(spec: EngineSpec) -> Duration:
    return Duration(spec.starts_at + spec.cold_start_ns)


def _fault(settings: CrashSettings | HangSettings | SlowSettings) -> ScenarioFault:
    match settings:
        case CrashSettings():
            return Crash(settings.endpoint_id, settings.at, settings.back_after_ns)
        case HangSettings():
            return Hang(settings.endpoint_id, settings.at, settings.duration_ns)
        case SlowSettings():
            return Slowdown(settings.endpoint_id, settings.at, settings.duration_ns, _thousandths(settings.speed))
        case _:
            assert_never(settings)


def _random(settings: RandomFaultSettings) -> RandomFaults:
    return RandomFaults(
        crashes=settings.crashes,
        hangs=settings.hangs,
        slowdowns=settings.slows,
        duration_ns_min=settings.duration_ns_min,
        duration_ns_max=settings.duration_ns_max,
        speed_min=_thousandths(settings.speed_min),
        speed_max=_thousandths(settings.speed_max),
    )


def _thousandths(speed: float) -> int:
    return max(1, round(speed * NOMINAL_SPEED))
