"""How does a scenario's file become a simulation?

Plain settings and a seed in, the values of the simulation out. Traces are looked into beforehand where nothing else
says who asks: the scheduler refuses tenants that its policy does not name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, groupby, takewhile
from random import Random
from types import MappingProxyType
from typing import assert_never

from headgate.config.scenarios.load import CAPPED
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
from headgate.config.scenarios.traffic import EVERYONE
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import PROFILES
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, Instant, TenantId, seconds
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.engine.pace import NOMINAL
from headgate.simulation.virtual.faults import Place, RandomFaults, draw, place_of
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
    names_tenants,
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


REQUESTS_QUIET_MAX = 5_000_000
"""More requests than these take long enough to be told before they begin."""

REQUEST_COSTS_S = 300e-6
"""What simulating one request takes, roughly: docs/project/simulation-accuracy.md has figures."""


def scenario(settings: ScenarioSettings, seed: int) -> Scenario:
    """Reads what it must of the traces. Raises `Problem` where one is not what it should be.

    Its `arrivals` raise it too, where none would come.
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
        probe_every_ns=settings.probe_every_ns,
        scrape_every_ns=settings.scrape_every_ns,
        progress_every_ns=settings.progress_every_ns,
    )


def _cap(settings: ScenarioSettings) -> int:
    return settings.cap or min(each.in_flight_max for each in settings.engines)


def _span_ns(traffic: tuple[Traffic, ...], duration_ns: Duration | None) -> Duration:
    """How long requests arrive. A single one has no span, and gets a second so that rates are numbers."""
    span = span_ns(traffic)
    return max(SECOND, span if duration_ns is None else min(span, duration_ns))


def _arrivals(traffic: tuple[Traffic, ...], seed: int, duration_ns: Duration | None) -> Arrivals:
    all_of_it = arrivals(traffic, seed=seed)
    first = next(all_of_it, None)
    if first is None:
        why = dict.fromkeys(_why_nobody_asks(each, seed) for each in traffic)
        raise Problem(f"no request arrives: {'; '.join(why)}")
    if duration_ns is not None and first.at >= duration_ns:
        late = f"the first would come after {seconds(Duration(first.at))}, and duration is {seconds(duration_ns)}"
        raise Problem(f"no request arrives: {late}; raise duration, or lower shift or raise speed_up of the traffic")
    whole = chain((first,), all_of_it)
    return whole if duration_ns is None else takewhile(lambda each: each.at < duration_ns, whole)


def _why_nobody_asks(traffic: Traffic, seed: int) -> str:
    if isinstance(traffic, PoissonTraffic):
        length = seconds(traffic.length_ns)
        return f"at {traffic.rate:g} a second none was drawn within {length}; raise rate, or for or duration"
    name = (traffic.path if isinstance(traffic, TraceTraffic) else traffic.rates).name
    if next(arrivals((replace(traffic, keep=1.0),), seed=seed), None) is not None:
        return f"{name} has some, and keep {traffic.keep:g} keeps none of them; raise keep"
    return f"{name} has none from start on, as long as for says; lower start, or raise for"


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
        asynchronous=settings.asynchronous,
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


def _trace_tenants(settings: TraceSettings) -> Shares | None:
    """None where the trace itself says whose each request is."""
    if settings.tenants is None and settings.tenants_like is None and not names_tenants(settings.path):
        return EVERYONE
    return _tenants(settings)


def _lengths(settings: LengthSettings) -> Lengths:
    if settings.median is None or settings.p95 is None:
        return Uniform(settings.least, settings.most)
    return LogNormal(median=settings.median, p95=settings.p95, most=settings.most)


def _policy(policy: Policy, traffic: tuple[Traffic, ...]) -> Policy:
    """With everyone in it who asks, whether the file names them or not."""
    named = {str(each.id): each for each in policy.tenants}
    asking = dict.fromkeys(name for each in traffic for name in _who(each))
    others = tuple(Tenant(TenantId(name)) for name in asking if name not in named)
    return replace(policy, tenants=(*policy.tenants, *others))


def _who(traffic: Traffic) -> Iterable[str]:
    match traffic:
        case ServeGenTraffic():
            return sorted({each.client for each in read_rates(traffic.rates)})
        case TraceTraffic(path=path, tenants=None):
            return (name for name, _ in client_shares(path))
        case _:
            return (name for name, _ in traffic.tenants or ())


def _check_classes(settings: TraceSettings, known: set[str]) -> None:
    path = settings.path
    named = {row.service_class for row in read_trace(path)}
    if None in named:
        which = "no class" if named == {None} else "a class for some rows only"
        some = ", ".join(sorted(known))
        raise Problem(f"{settings.place}: {path.name} names {which}; add classes: NAME (there is {some})")
    if unknown := sorted(str(each) for each in named if each is not None and each not in known):
        listed = ", ".join(f'"{each}"' for each in unknown)
        raise Problem(f"{path} names class {listed}, which the scenario does not have; add it to classes")


# ---------------------------------------------------------------------------------------------------------- warnings


def warnings_of_many(settings: ScenarioSettings) -> tuple[str, ...]:
    """Whether the run takes so long that it is hardly meant."""
    expected = sum(_expected(each, settings.duration_ns) for each in settings.traffic)
    if expected <= REQUESTS_QUIET_MAX:
        return ()
    minutes = expected * REQUEST_COSTS_S / 60
    takes = f"{minutes / 60:,.0f} hours" if minutes >= 120 else f"{minutes:.0f} minutes"
    return (f"about {expected / 1e6:,.0f} million requests; this takes about {takes}; lower rate, for or duration",)


def _expected(traffic: TrafficSettings, duration_ns: Duration | None) -> float:
    """How many requests come by plain chance; those of traces are known to be few enough to be read at once."""
    if not isinstance(traffic, PoissonSettings):
        return 0.0
    left_ns = traffic.length_ns if duration_ns is None else duration_ns - traffic.shift_ns
    return traffic.rate * max(0, min(traffic.length_ns, left_ns)) / SECOND


def warnings(simulated: Scenario) -> tuple[str, ...]:
    """What is not wrong, but hardly meant: faults after the traffic, whose end the file alone does not tell."""
    late = [each for each in simulated.faults if each.at >= simulated.span_ns]
    told: list[str] = []
    for (kind, at), same in groupby(late, key=lambda each: (type(each).__name__.lower(), each.at)):
        first, *others = (each.endpoint_id for each in same)
        who = f"{first} and {len(others)} more" if others else first
        end = seconds(simulated.span_ns)
        told.append(f"{kind} of {who} at {seconds(Duration(at))}: requests arrive only until {end}; lower at")
    return tuple(told)


# ------------------------------------------------------------------------------------------------------------ faults


def _faults(
    settings: tuple[FaultSettings, ...], engines: tuple[EngineSpec, ...], span: Duration, seed: int
) -> tuple[Fault, ...]:
    """Those that are written, then those that are drawn, which keep out of the way of all others."""
    found = [_fault(each) for each in settings if not isinstance(each, RandomFaultSettings)]
    starting = [Place(each.id, Instant(0), _up_at(each)) for each in engines if _up_at(each)]
    for number, each in enumerate(settings):
        if isinstance(each, RandomFaultSettings):
            taken = [*starting, *(place_of(fault) for fault in found)]
            chance = Random(f"{seed} faults {number}")  # noqa: S311 -- seeded chance is the point
            found += draw(_random(each), [spec.id for spec in engines], span_ns=span, chance=chance, taken=taken)
    return tuple(found)


def _up_at(spec: EngineSpec) -> Duration:
    return Duration(spec.starts_at + spec.cold_start_ns)


def _fault(settings: CrashSettings | HangSettings | SlowSettings) -> Fault:
    match settings:
        case CrashSettings():
            return Crash(settings.endpoint_id, settings.at, settings.back_after_ns)
        case HangSettings():
            return Hang(settings.endpoint_id, settings.at, settings.lasts_ns)
        case SlowSettings():
            return Slow(settings.endpoint_id, settings.at, settings.lasts_ns, _thousandths(settings.speed))
        case _:
            assert_never(settings)


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
