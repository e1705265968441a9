"""Random scenarios with a small fleet and its clients, generated from a seed.

`python -m tests.simulation.virtual.random_scenarios SEED` runs one scenario and prints a fingerprint of the run.
"""

import sys
from dataclasses import replace
from hashlib import sha256
from random import Random

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.caps import Caps
from headgate.model.engine_profile import TINY, EngineProfile
from headgate.model.limits import Limits
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    HeadroomRules,
    HealthRules,
    Model,
    Policy,
    Pool,
    RetryRules,
    RoutingRules,
    ServiceClass,
    SheddingRules,
)
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, ModelName, PoolName, TenantId
from headgate.simulation.options import CallerBehaviour, Crash, EngineSpec, Hang, ScenarioFault, Slowdown
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.properties.model_host import ModelHost
from tests.simulation.virtual.scenes import run

CLASSES = tuple(ClassName(name) for name in ("interactive", "standard", "batch"))
POOLS = (PoolName("main"), PoolName("spare"))
MODEL = ModelName("m")


class CheckedScheduler:
    """Scheduler whose commands are checked against a reference model after every event."""

    def __init__(self, policy: Policy) -> None:
        self.model = ModelHost(policy, Instant(0))

    def handle(self, event: Event, now: Instant) -> list[Command]:
        return self.model.tell(event, Duration(now - self.model.now))

    def next_wakeup(self) -> Instant | None:
        return self.model.scheduler.next_wakeup()


def draw(seed: int) -> Scenario:
    random = Random(seed)
    span_s = random.uniform(5, 40)
    engines = tuple(_engine(number, random, span_s) for number in range(random.randint(1, 5)))
    tenants = [TenantId(f"t{number}") for number in range(random.randint(1, 6))]
    policy = _policy(random, tenants, sorted({each.pool for each in engines}))
    arrivals = _arrivals(random, tenants, span_s)
    return Scenario(
        title=f"drawn from {seed}",
        seed=seed,
        policy=policy,
        model=MODEL,
        engines=engines,
        callers={name: _callers(random) for name in CLASSES},
        arrivals=lambda: iter(arrivals),
        span_ns=_s(span_s),
        faults=tuple(_fault(random, engines, span_s) for _ in range(random.choice((0, 0, 1, 2, 5)))),
        decider=lambda: CheckedScheduler(policy),
        probe_interval_ns=_s(random.choice((0.25, 1.0, 5.0))),
        progress_interval_ns=_s(random.choice((0.25, 1.0))),
    )


def _s(seconds: float) -> Duration:
    return Duration(round(seconds * SECOND))


def _engine(number: int, random: Random, span_s: float) -> EngineSpec:
    profile: EngineProfile = replace(
        TINY,
        step_ps=random.choice((1, 10, 40)) * 10**9,
        prefill_token_ps=random.choice((2, 100, 1_000)) * 10**6,
        sequences_max=random.choice((2, 8, 32)),
        kv_blocks=random.choice((96, 256, 1_024)),
        context_tokens=1_500,
        prefix_cache=random.random() < 0.7,
    )
    return EngineSpec(
        id=EndpointId(f"e{number}"),
        pool=random.choice(POOLS) if number else POOLS[0],
        profile=profile,
        in_flight_max=random.choice((1, 2, 6, 20)),
        starts_at=Instant(_s(random.choice((0.0, 0.0, 0.0, random.uniform(0, span_s))))),
        cold_start_ns=_s(random.choice((0.0, 0.0, 0.0, random.uniform(0, 20)))),
    )


def _policy(random: Random, tenants: list[TenantId], pools: list[PoolName]) -> Policy:
    classes = tuple(
        ServiceClass(
            name,
            band=random.randint(0, 2),
            queue_wait_ns_max=_s(random.choice((0.5, 3, 30, 120))),
            queue_length_max=random.choice((3, 20, 2_000)),
            queue_length_per_tenant_max=random.choice((2, 10, 500)),
            first_token_ns_max=_s(random.choice((2, 60))),
            idle_ns_max=_s(random.choice((2, 30))),
            total_ns_max=_s(random.choice((8, 600))),
            caps=Caps(output_tokens=random.choice((None, 5, 60))),
            ttft_ns=_maybe(random, 0.5, 2, 20),
            tpot_ns=_maybe(random, 0.02, 0.05, 0.3),
            min_share_percent=random.choice((0, 0, 10, 30)),
            reserve_percent=random.choice((0, 0, 0, 20)),
            hedging=random.random() < 0.3,
        )
        for name in CLASSES
    )
    return Policy(
        classes=classes,
        tenants=tuple(Tenant(each, weight=random.choice((50, 100, 400)), limits=_limits(random)) for each in tenants),
        pools=tuple(_pool(random, each) for each in pools),
        models=(Model(MODEL, tuple(pools)),),
        retry=RetryRules(attempts_max=random.randint(1, 4), pool_retries_min=random.choice((0, 10))),
        health=HealthRules(
            consecutive_failures_max=random.randint(1, 4),
            stall_ns_max=_s(random.choice((1, 5, 30))),
            ejection_ns=_s(random.choice((0.5, 10))),
        ),
        headroom=HeadroomRules(long_prompt_tokens=random.choice((250, 1_000, 8_192))),
        admission=AdmissionRules(random.choice((None, 50, 100))),
        routing=RoutingRules(metrics_stale_ns=_s(random.choice((2, 30))), prefix_affinity=random.random() < 0.8),
        degradation=DegradationRules(enabled=random.random() < 0.3, escalate_after_ns=_s(0.5), recover_after_ns=_s(2)),
        shedding=SheddingRules(enabled=random.random() < 0.2),
    )


def _maybe(random: Random, *seconds: float) -> Duration | None:
    return _s(random.choice(seconds)) if random.random() < 0.6 else None


def _limits(random: Random) -> Limits:
    return Limits(60, 20_000, concurrency=5) if random.random() < 0.15 else Limits()


def _pool(random: Random, name: PoolName) -> Pool:
    """The pool's configured speed usually differs from that of its engines."""
    speed = EngineSpeed(
        step_ps=random.choice((1, 10, 40)) * 10**9,
        prefill_token_ps=random.choice((2, 100, 1_000)) * 10**6,
        chunk_tokens=random.choice((64, 512, 2_048)),
    )
    kv_tokens = random.choice((None, 1_600, 4_096, 16_384))
    return Pool(name, _s(random.choice((1, 30))), speed, kv_tokens)


def _callers(random: Random) -> CallerBehaviour:
    leave_s = random.choice((None, None, 0.3, 5.0))
    return CallerBehaviour(
        client_timeout_ns=None if leave_s is None else _s(leave_s),
        retries=random.choice((0, 0, 2, 5)),
        stream=random.random() < 0.7,
    )


def _arrivals(random: Random, tenants: list[TenantId], span_s: float) -> list[Arrival]:
    """Many requests arrive at the same time."""
    arrivals: list[Arrival] = []
    prefixes = [tuple(random.randrange(1_000) * 10 + part for part in range(2)) for _ in range(3)]
    for _ in range(random.choice((10, 60, 150))):
        moment = arrivals[-1].at if arrivals and random.random() < 0.3 else Instant(_s(random.uniform(0, span_s)))
        arrivals.append(
            Arrival(
                moment,
                # Some prompts are longer than any engine accepts.
                prompt_tokens=random.choice((1, 20, 300, 1_100, 1_600)),
                output_tokens=random.choice((1, 2, 15, 100, 300)),
                service_class=random.choice(CLASSES),
                tenant=random.choice(tenants),
                prefix=random.choice((*prefixes, ())),
            )
        )
    return sorted(arrivals, key=lambda each: each.at)


def _fault(random: Random, engines: tuple[EngineSpec, ...], span_s: float) -> ScenarioFault:
    endpoint_id, at = random.choice(engines).id, Instant(_s(random.uniform(0, span_s)))
    match random.choice(("crash", "hang", "slow")):
        case "crash":
            return Crash(endpoint_id, at, _s(random.uniform(0, 20)))
        case "hang":
            return Hang(endpoint_id, at, _s(random.uniform(0, 40)))
        case _:
            return Slowdown(endpoint_id, at, _s(random.uniform(0, 20)), random.choice((50, 500, 3_000)))


def fingerprint(seed: int) -> str:
    seen = run(draw(seed))
    return sha256(repr((seen.log, seen.stories, seen.samples, seen.ending)).encode()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(fingerprint(int(sys.argv[1])) + "\n")
