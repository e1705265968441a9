"""Scenarios for the virtual host tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import TINY, EngineProfile
from headgate.model.policy import HealthRules, Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import (
    MILLISECOND,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    TenantId,
)
from headgate.simulation.options import CallerBehaviour, EngineSpec, ScenarioFault
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival

MODEL, POOL = ModelName("m"), PoolName("main")
INTERACTIVE, BATCH = ClassName("interactive"), ClassName("batch")
SLOW = replace(TINY, step_ps=10_000_000_000)
"""A step takes slightly more than 10 ms."""


def seconds(value: float) -> Duration:
    return Duration(round(value * SECOND))


def at(value: float) -> Instant:
    return Instant(round(value * SECOND))


def arrival(when: float, *, prompt: int = 100, output: int = 10, service_class: ClassName = INTERACTIVE) -> Arrival:
    return Arrival(at(when), prompt, output, service_class, TenantId("acme"))


def engine(number: int, *, profile: EngineProfile = SLOW, places: int = 8, **fields: object) -> EngineSpec:
    return EngineSpec(id=EndpointId(f"main/{number}"), pool=POOL, profile=profile, in_flight_max=places, **fields)  # type: ignore[arg-type]


def a_scenario(
    arrivals: Sequence[Arrival],
    *,
    engines: Sequence[EngineSpec] = (engine(0),),
    callers: CallerBehaviour | None = None,
    faults: tuple[ScenarioFault, ...] = (),
    health: HealthRules | None = None,
    **class_settings: object,
) -> Scenario:
    policy = Policy(
        classes=(ServiceClass(INTERACTIVE, 0, **class_settings), ServiceClass(BATCH, 1)),  # type: ignore[arg-type]
        tenants=(Tenant(TenantId("acme")),),
        pools=(Pool(POOL),),
        models=(Model(MODEL, (POOL,)),),
        health=health or HealthRules(),
    )
    return Scenario(
        title="a scene",
        seed=1,
        policy=policy,
        model=MODEL,
        engines=tuple(engines),
        callers={INTERACTIVE: callers or CallerBehaviour(), BATCH: CallerBehaviour()},
        arrivals=lambda: iter(arrivals),
        span_ns=Duration(max(each.at for each in arrivals) + 100 * MILLISECOND),
        faults=faults,
        decider=Scheduler,
    )


@dataclass
class Seen:
    """Records everything that happens in a run."""

    stories: list[RequestTrace] = field(default_factory=list)
    samples: list[FleetSample] = field(default_factory=list)
    ending: RunSummary | None = None
    log: list[tuple[Event, list[Command], Instant]] = field(default_factory=list)

    def request_ended(self, story: RequestTrace) -> None:
        self.stories.append(story)

    def sample_taken(self, sample: FleetSample) -> None:
        self.samples.append(sample)

    def run_ended(self, ending: RunSummary) -> None:
        self.ending = ending

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self.log.append((event, list(commands), now))

    def events(self, kind: type) -> list[tuple[Event, Instant]]:
        return [(event, now) for event, _, now in self.log if isinstance(event, kind)]

    def commands(self, kind: type) -> list[Command]:
        return [command for _, commands, _ in self.log for command in commands if isinstance(command, kind)]


def run(scenario: Scenario, *, samples: int = 10) -> Seen:
    seen = Seen()
    VirtualHost(scenario, seen, observers=(seen,), samples=samples).run()
    return seen
