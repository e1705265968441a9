"""Builders for reports from hand-made or random request traces."""

from collections.abc import Iterator
from random import Random
from typing import Any

from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import TINY
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
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
from headgate.simulation.options import CallerBehaviour, Crash, EngineSpec, ScenarioFault, Slowdown
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.run_observer import EndpointSample, EngineTotals, FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival

MS, S = MILLISECOND, SECOND

CALLERS = {
    ClassName("interactive"): CallerBehaviour(
        ttft_ns=Duration(2 * S), tpot_ns=Duration(100 * MS), client_timeout_ns=Duration(10 * S)
    ),
    ClassName("batch"): CallerBehaviour(ttft_ns=Duration(60 * S), e2e_ns=Duration(90 * S), retries=2),
    ClassName("whole"): CallerBehaviour(e2e_ns=Duration(20 * S), stream=False),
}
FAULTS: tuple[ScenarioFault, ...] = (
    Crash(EndpointId("main/1"), Instant(30 * S), Duration(20 * S)),
    Slowdown(EndpointId("main/0"), Instant(2 * S), Duration(5 * S), 300),
)


def a_scenario(
    *, engines: int = 2, span_s: float = 120, faults: tuple[ScenarioFault, ...] = (), **fields: Any
) -> Scenario:
    given: dict[str, Any] = {
        "title": "A <made-up> run",
        "seed": 7,
        "policy": Policy(classes=tuple(ServiceClass(ClassName(name), 0) for name in ("interactive", "batch", "whole"))),
        "model": ModelName("m"),
        "engines": tuple(
            EngineSpec(id=EndpointId(f"main/{number}"), pool=PoolName("main"), profile=TINY, in_flight_max=8)
            for number in range(engines)
        ),
        "callers": CALLERS,
        "arrivals": no_arrivals,
        "span_ns": Duration(round(span_s * S)),
        "faults": faults,
        "decider": Scheduler,
    }
    return Scenario(**(given | fields))


def no_arrivals() -> Iterator[Arrival]:
    return iter(())


def a_story(**fields: Any) -> RequestTrace:
    """Returns a request that meets its objectives: first token after 1 s, then ten tokens at 50 ms each."""
    given: dict[str, Any] = {
        "number": 0,
        "service_class": ClassName("interactive"),
        "tenant": TenantId("acme"),
        "arrived_at": Instant(10 * S),
        "prompt_tokens": 100,
        "full_output_tokens": 11,
        "tries": 1,
        "attempts": 1,
        "waited_ns": 400 * MS,
        "outcome": Outcome.COMPLETED,
        "first_token_at": Instant(11 * S),
        "ended_at": Instant(11 * S + 500 * MS),
        "output_tokens": 11,
        "prompt_tokens_computed": 100,
        "output_tokens_computed": 11,
        "engine_ps": 3 * 10**11,
    }
    return RequestTrace(**(given | fields))


def refused(outcome: Outcome = Outcome.QUEUE_FULL, **fields: Any) -> RequestTrace:
    nothing: dict[str, Any] = {"attempts": 0, "waited_ns": 0, "first_token_at": None, "ended_at": Instant(10 * S)}
    nothing |= {"output_tokens": 0, "prompt_tokens_computed": 0, "output_tokens_computed": 0, "engine_ps": 0}
    return a_story(outcome=outcome, **(nothing | fields))


def chance_stories(seed: int, count: int, *, tenants: int = 9, span_s: int = 120) -> list[RequestTrace]:
    chance = Random(f"{seed} stories")
    return [_chance_story(chance, number, tenants=tenants, span_s=span_s) for number in range(count)]


def _chance_story(chance: Random, number: int, *, tenants: int, span_s: int) -> RequestTrace:
    arrived = chance.randrange(span_s * S)
    outcome = chance.choice([Outcome.COMPLETED] * 12 + list(Outcome))
    attempts = chance.choice([1, 1, 1, 2, 3]) if outcome is Outcome.COMPLETED else chance.choice([0, 0, 1, 2])
    began = outcome is Outcome.COMPLETED or (attempts > 0 and chance.random() < 0.3)
    first = arrived + round(chance.lognormvariate(0, 1.3) * S)
    tokens = chance.choice([0, 1, 2, chance.randrange(400)]) if began else 0
    return RequestTrace(
        number=number,
        service_class=ClassName(chance.choice(["interactive"] * 3 + ["batch", "whole", "unheard-of"])),
        tenant=TenantId(f"t{min(chance.randrange(tenants), chance.randrange(tenants))}"),
        arrived_at=Instant(arrived),
        prompt_tokens=chance.randrange(1, 4000),
        full_output_tokens=400,
        tries=chance.choice([1, 1, 1, 2, 3]),
        attempts=attempts,
        waited_ns=chance.randrange(3 * S),
        outcome=outcome,
        first_token_at=Instant(first) if began else None,
        ended_at=Instant(first + tokens * chance.randrange(20 * MS, 140 * MS)),
        output_tokens=tokens,
        prompt_tokens_computed=attempts * chance.randrange(4000),
        output_tokens_computed=tokens * max(attempts, 1),
        engine_ps=attempts * chance.randrange(10**11),
    )


def chance_samples(seed: int, count: int, *, engines: int = 2, span_s: int = 120) -> list[FleetSample]:
    chance = Random(f"{seed} samples")
    samples: list[FleetSample] = []
    for number in range(count):
        queued = {ClassName("batch"): chance.randrange(40)}
        if number >= count // 3:  # A class can appear later than others.
            queued[ClassName("interactive")] = chance.randrange(9)
        endpoints = tuple(
            EndpointSample(chance.randrange(8), chance.randrange(4), chance.random()) for _ in range(engines)
        )
        samples.append(FleetSample(Instant(round(number * span_s * S / count)), queued, endpoints))
    return samples


def an_ending(scenario: Scenario, *, at_s: float = 130, busy: float = 0.75) -> RunSummary:
    up_ns = round(at_s * S)
    return RunSummary(
        Instant(up_ns),
        events=1234,
        engines=tuple(
            EngineTotals(
                spec.id,
                spec.pool,
                spec.profile.name,
                up_ns=up_ns,
                paid_ns=up_ns,
                worked_ps=round(up_ns * 1000 * busy),
                steps=500,
                prompt_tokens=9000,
                generated_tokens=4000,
                prefix_queried_tokens=80,
                prefix_hit_tokens=20,
                preemptions=3,
            )
            for spec in scenario.engines
        ),
    )


def a_report(
    *stories: RequestTrace, samples: int = 0, scenario: Scenario | None = None, **fields: Any
) -> SimulationReport:
    scenario = scenario or a_scenario()
    report = SimulationReport(scenario, **fields)
    for story in stories:
        report.request_ended(story)
    for sample in chance_samples(1, samples, engines=len(scenario.engines)):
        report.sample_taken(sample)
    report.run_ended(an_ending(scenario))
    return report


def a_full_report(
    seed: int = 1, *, count: int = 1500, tenants: int = 9, engines: int = 2, **fields: Any
) -> SimulationReport:
    scenario = a_scenario(engines=engines, faults=FAULTS)
    return a_report(*chance_stories(seed, count, tenants=tenants), samples=150, scenario=scenario, **fields)
