"""Log from the virtual host with four small engines under overload. The engines crash, hang and slow down."""

from dataclasses import replace
from random import Random

from headgate.core.scheduler import Scheduler
from headgate.model.engine_profile import TINY
from headgate.model.money import Budget, NanoUsd, Period, Price
from headgate.model.policy import HealthRules
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
from headgate.simulation.options import CallerBehaviour, Crash, EngineSpec, Hang, Slowdown
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival, Arrivals
from testing.builders import a_class, a_model, a_policy, a_pool, duration
from tests.replay.recorder import Recorder

_SPAN = Duration(24 * SECOND)
_SPENT_AT_ONCE = Budget(Period.DAY, NanoUsd(1_000), hard=False)
_TENANTS = ("acme", "bolt", "corn")


class _Nobody:
    """Audience that ignores all results."""

    def request_ended(self, story: RequestTrace) -> None: ...

    def sample_taken(self, sample: FleetSample) -> None: ...

    def run_ended(self, ending: RunSummary) -> None: ...


def imagine() -> Recorder:
    recorder = Recorder()
    VirtualHost(_scenario(), _Nobody(), observers=(recorder,)).run()
    return recorder


def _scenario() -> Scenario:
    ids = [EndpointId(f"p/e{number}") for number in range(4)]
    return Scenario(
        title="Trouble",
        seed=11,
        policy=a_policy(
            classes=(
                replace(a_class("interactive", queue_wait=1), cold_start_wait_ns_max=duration(2)),
                replace(a_class("batch", band=1, queue_wait=20), budgets=(_SPENT_AT_ONCE,)),
            ),
            tenants=_TENANTS,
            pools=(replace(a_pool("p"), hold_max=8, prices=(Price(per_hour=NanoUsd(3_600_000_000_000)),)),),
            models=(a_model("m", "p"),),
            health=HealthRules(consecutive_failures_max=2, stall_ns_max=duration(2), ejection_ns=duration(1)),
        ),
        model=ModelName("m"),
        engines=tuple(
            EngineSpec(
                id=each, pool=PoolName("p"), profile=TINY, in_flight_max=3, cold_start_ns=Duration(200 * MILLISECOND)
            )
            for each in ids
        ),
        callers={
            ClassName("interactive"): CallerBehaviour(client_timeout_ns=Duration(3 * SECOND // 2), retries=2),
            ClassName("batch"): CallerBehaviour(stream=False),
        },
        arrivals=_arrivals,
        span_ns=_SPAN,
        faults=(
            Crash(ids[0], Instant(5 * SECOND), recover_after_ns=Duration(3 * SECOND)),
            Hang(ids[1], Instant(10 * SECOND), duration_ns=Duration(5 * SECOND)),
            Slowdown(ids[2], Instant(12 * SECOND), duration_ns=Duration(8 * SECOND), speed=200),
            Crash(ids[1], Instant(22 * SECOND), recover_after_ns=Duration(SECOND)),
        ),
        decider=Scheduler,
    )


def _arrivals() -> Arrivals:
    chance, at = Random("11 arrivals"), 100 * MILLISECOND
    while at < _SPAN:
        name = ClassName(chance.choice(("interactive", "interactive", "batch")))
        tokens = chance.randint(50, 1_500), chance.randint(10, 300)
        yield Arrival(Instant(at), *tokens, name, TenantId(chance.choice(_TENANTS)))
        at += round(chance.expovariate(75) * SECOND)
