"""Random world generated from a seed, in which an incident happens.

A world has two to four engines of one of three kinds, four to six tenants with different shares, two classes, and a
load well below the capacity. The start and strength of the incident are random too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from math import exp, log
from operator import attrgetter
from random import Random

from bench.policy.fleet import MAIN, engines, pool, speed_of
from headgate.core.cost import cost_ns
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import H100X8_LLAMA_70B, H200_LLAMA_8B, RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.policy import Model, OptimizationGoal, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, TenantId
from headgate.model.verdict import Incident
from headgate.simulation.options import CallerBehaviour, EngineSpec, LogNormal, RateTraffic, ScenarioFault, Slowdown
from headgate.simulation.virtual.link_latencies import LinkLatencies
from headgate.simulation.virtual.scenario import Scenario, ScenarioChange
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS, Arrival
from headgate.simulation.workload.lengths import NORMAL_P95
from headgate.simulation.workload.rate_arrivals import rate_arrivals

INTERACTIVE, BATCH = ClassName("interactive"), ClassName("batch")
MODEL = ModelName("m")
TAIL_S = 80
"""Duration of the run after the start of the incident, in seconds."""
AlterArrival = Callable[[Arrival], Iterator[Arrival]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    seed: int
    profile: EngineProfile
    endpoints: int
    load: float
    """Load as a fraction of the engine capacity."""
    prompt: LogNormal
    output: LogNormal
    tenants: tuple[tuple[str, float], ...]
    interactive: float
    """Share of interactive requests."""
    begins_s: int
    tail_s: int = TAIL_S
    ttft_ns: Duration
    tpot_ns: Duration
    cached: float = 0.0
    """Fraction of a prompt that all prompts of its tenant share."""
    kv_told: bool = True
    in_flight_max: int = 256
    slowest: float = 1.0
    """Speed of the first endpoint relative to the others."""

    def rng(self, about: str) -> Random:
        return Random(f"{self.seed} {about}")

    @property
    def begins(self) -> Instant:
        return Instant(self.begins_s * SECOND)

    @property
    def span_ns(self) -> Duration:
        return Duration((self.begins_s + self.tail_s) * SECOND)

    @property
    def capacity(self) -> float:
        """Approximate capacity of all engines, in requests per second."""
        return (self.endpoints - 1 + self.slowest) / self.cost_s(mean_of(self.prompt), mean_of(self.output))

    @property
    def rate(self) -> float:
        return self.load * self.capacity

    def cost_s(self, prompt: float, output: float) -> float:
        cached = round(prompt * self.cached)
        return cost_ns(speed_of(self.profile), round(prompt), round(output), cached=cached, batch=48) / SECOND


def mean_of(lengths: LogNormal) -> float:
    spread = log(lengths.p95 / lengths.median) / NORMAL_P95
    return lengths.median * exp(spread * spread / 2)


def world(seed: int) -> World:
    chance = Random(f"{seed} world")
    profile, prompt, output, tpot_ms = chance.choice(
        (
            (RTXPRO6000_LLAMA_8B, 1_600, 160, 80),
            (H200_LLAMA_8B, 3_200, 320, 50),
            (H100X8_LLAMA_70B, 900, 130, 150),
        )
    )
    prompt, output = round(prompt * chance.uniform(0.7, 1.4)), round(output * chance.uniform(0.7, 1.4))
    names = ("acme", "bolt", "coil", "dune", "echo", "flux")[: chance.randint(4, 6)]
    return World(
        seed=seed,
        profile=profile,
        endpoints=chance.randint(2, 4),
        load=chance.uniform(0.35, 0.6),
        prompt=LogNormal(median=prompt, p95=round(prompt * chance.uniform(2, 3.5)), max=6 * prompt),
        output=LogNormal(median=output, p95=round(output * chance.uniform(2, 3)), max=5 * output),
        tenants=tuple((each, chance.uniform(1, 3)) for each in names),
        interactive=chance.uniform(0.6, 0.95),
        begins_s=chance.randint(70, 100),
        ttft_ns=Duration(round(chance.uniform(1.5, 3) * SECOND)),
        tpot_ns=Duration(round(tpot_ms * chance.uniform(1, 1.4)) * MILLISECOND),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: its scenario and the expected incident."""

    name: str
    incident: Incident
    world: World
    scenario: Scenario
    costs: bool = False
    """Whether the harm is higher cost instead of missed targets."""


def case(
    name: str,
    incident: Incident,
    of: World,
    *,
    alter: AlterArrival | None = None,
    more: tuple[RateTraffic, ...] = (),
    faults: tuple[ScenarioFault, ...] = (),
    changes: tuple[ScenarioChange, ...] = (),
    specs: tuple[EngineSpec, ...] | None = None,
    ways: LinkLatencies | None = None,
    costs: bool = False,
    callers: Mapping[ClassName, CallerBehaviour] | None = None,
    policy: Policy | None = None,
) -> Case:
    manners = CallerBehaviour(ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns, client_timeout_ns=Duration(10 * SECOND))
    scenario = Scenario(
        title=name,
        seed=of.seed,
        policy=policy or policy_of(of),
        model=MODEL,
        engines=specs or engines(of.profile, of.endpoints, in_flight_max=of.in_flight_max),
        callers=callers or {INTERACTIVE: manners, BATCH: CallerBehaviour(client_timeout_ns=Duration(300 * SECOND))},
        arrivals=lambda: _arrivals(of, alter, more),
        span_ns=of.span_ns,
        faults=faults,
        changes=changes,
        link_latencies=ways,
        decider=Scheduler,
    )
    return Case(name=name, incident=incident, world=of, scenario=scenario, costs=costs)


def policy_of(of: World) -> Policy:
    served = pool(MAIN, of.profile)
    return Policy(
        classes=(
            ServiceClass(
                INTERACTIVE, 0, queue_wait_ns_max=Duration(10 * SECOND), ttft_ns=of.ttft_ns, tpot_ns=of.tpot_ns
            ),
            ServiceClass(
                BATCH,
                1,
                queue_wait_ns_max=Duration(300 * SECOND),
                optimize_for=OptimizationGoal.COST,
                min_share_percent=5,
            ),
        ),
        tenants=tuple(Tenant(TenantId(name)) for name, _ in of.tenants),
        pools=(served if of.kv_told else replace(served, kv_tokens=None),),
        models=(Model(MODEL, (MAIN,)),),
    )


def traffic(
    of: World,
    rate: float,
    *,
    since_s: float = 0,
    lasts_s: float | None = None,
    prompt: LogNormal | None = None,
    tenants: tuple[tuple[str, float], ...] | None = None,
) -> RateTraffic:
    span_s = of.begins_s + of.tail_s
    return RateTraffic(
        rate=rate,
        shift_ns=Duration(round(since_s * SECOND)),
        duration_ns=Duration(round((span_s - since_s if lasts_s is None else lasts_s) * SECOND)),
        prompt=prompt or of.prompt,
        output=of.output,
        classes=((str(INTERACTIVE), of.interactive), (str(BATCH), 1 - of.interactive)),
        tenants=tenants or of.tenants,
    )


def _arrivals(of: World, alter: AlterArrival | None, more: tuple[RateTraffic, ...]) -> Iterator[Arrival]:
    whole = (traffic(of, of.rate), *more)
    streams = [rate_arrivals(each, seed=of.seed, source=f"case {place}") for place, each in enumerate(whole)]
    merged: Iterator[Arrival] = merge(*streams, key=attrgetter("at"))
    if of.cached:
        merged = _with_prefixes(of, merged)
    return merged if alter is None else _in_order(each for one in merged for each in alter(one))


def _with_prefixes(of: World, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    place = {name: number for number, (name, _) in enumerate(of.tenants)}
    for number, each in enumerate(arrivals):
        blocks = each.prompt_tokens // PREFIX_BLOCK_TOKENS
        shared = round(blocks * of.cached)
        begin = 1_000 * (1 + place[each.tenant])
        own = 1_000_000 + 1_000 * number
        names = (*(begin + block for block in range(shared)), *(own + block for block in range(shared, blocks)))
        yield replace(each, prefix=names)


def _in_order(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Sort the arrivals, because altering an arrival can move it a few seconds past its successors."""
    return iter(sorted(arrivals, key=attrgetter("at")))


def endpoint(number: int) -> EndpointId:
    return EndpointId(f"{MAIN}/{number}")


def older_hardware(of: World) -> Slowdown:
    """Fault that slows down the first endpoint for the whole run."""
    return Slowdown(endpoint(0), Instant(0), of.span_ns, round(1_000 * of.slowest))
