"""Requests that overload four engines, with their objectives and cost.

In Azure's 2023 conversations, 30 % of the requests, chosen at random, are batch and the rest interactive. Their tenants
follow the client shares in the LMSYS arena. Azure's code completions, from a single tenant, are merged in 77 s later.
All times are divided by a factor, so that four engines cannot keep up. The seed determines classes and tenants; arrival
times and lengths are those of the traces.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from bench.policy.fleet import engines, pool
from headgate.model.engine_profile import H200_LLAMA_8B, RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.policy import Model, OptimizationGoal, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import (
    MILLISECOND,
    MINUTE,
    SECOND,
    ClassName,
    Duration,
    ModelName,
    PoolName,
    TenantId,
)
from headgate.simulation.options import CallerBehaviour, TraceTraffic
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.shares import tenant_shares
from headgate.simulation.workload.traffic import arrivals, span_ns

ENGINES = 4
MEAN_BATCH = 96
"""Assumed batch size over which the fixed part of a step is divided when estimating offered work."""

_POOL, _MODEL = PoolName("main"), ModelName("m")
_UNLIMITED = Duration(60 * MINUTE)
BATCH_FLOOR_PERCENT = 5
_HURRIED = CallerBehaviour(
    ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), client_timeout_ns=Duration(10 * SECOND)
)
CALLERS = {
    ClassName("interactive"): _HURRIED,
    ClassName("code"): _HURRIED,
    # Batch has only a TTFT objective; its token rate does not matter.
    ClassName("batch"): CallerBehaviour(ttft_ns=Duration(60 * SECOND), client_timeout_ns=Duration(120 * SECOND)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Four engines of one kind, and the replay speed of the traces."""

    name: str
    profile: EngineProfile
    speed_up: float
    load: float
    """Resulting load as a multiple of capacity, from the published table."""


FLEETS = {
    each.name: each
    for each in (
        Fleet(name="rtxpro6000", profile=RTXPRO6000_LLAMA_8B, speed_up=8.0, load=1.51),
        Fleet(name="h200", profile=H200_LLAMA_8B, speed_up=17.5, load=1.37),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One run, excluding the policy that makes the decisions."""

    fleet: Fleet
    data: Path
    """Directory that contains traces/."""
    seed: int
    load: float | None = None
    """Load as a multiple of capacity. None for the load in the published table."""
    first_s: float | None = None
    """Length of the run in seconds. None for the full traces."""
    scrape_every_ns: Duration = Duration(150 * MILLISECOND)
    batch_share: float = 0.3
    """Share of the conversations that are batch. The others are interactive."""

    @property
    def speed_up(self) -> float:
        return self.fleet.speed_up * (1.0 if self.load is None else self.load / self.fleet.load)

    def traffic(self) -> tuple[TraceTraffic, TraceTraffic]:
        traces = self.data / "traces"
        return (
            TraceTraffic(
                path=traces / "azure2023_conv.csv",
                classes=(("interactive", 1 - self.batch_share), ("batch", self.batch_share)),
                tenants=tenant_shares(traces / "lmsys_arena_27clients.csv"),
                speed_up=self.speed_up,
            ),
            TraceTraffic(
                path=traces / "azure2023_code.csv",
                classes=(("code", 1.0),),
                tenants=(("code", 1.0),),
                speed_up=self.speed_up,
                shift_ns=Duration(77 * SECOND),
            ),
        )

    def scenario(
        self, decider: Callable[[], Decider], *, in_flight_max: int | None = None, limits: bool = False
    ) -> Scenario:
        """Build the scenario. Only clients end an attempt, unless a class's usual `limits` also apply.

        An engine runs as many requests as it can, unless `in_flight_max` limits them.
        """
        traffic = self.traffic()
        span = span_ns(traffic)
        end = span if self.first_s is None else min(span, Duration(round(self.first_s * SECOND)))
        tenants = dict.fromkeys(name for each in traffic for name, _ in each.tenants or ())
        return Scenario(
            title=f"overload of four {self.fleet.name}",
            seed=self.seed,
            policy=self._policy(tenants, limits=limits),
            model=_MODEL,
            engines=engines(self.fleet.profile, ENGINES, pool_name=_POOL, in_flight_max=in_flight_max),
            callers=CALLERS,
            arrivals=lambda: takewhile(lambda each: each.at <= end, arrivals(traffic, seed=self.seed)),
            span_ns=end,
            decider=decider,
            scrape_interval_ns=self.scrape_every_ns,
        )

    def _policy(self, tenants: Iterable[str], *, limits: bool) -> Policy:
        """Return a policy with default settings, except for the classes' objectives and the engines' parameters."""
        classes = tuple(
            _class(name, band=1 if name == "batch" else 0, floor_percent=BATCH_FLOOR_PERCENT if name == "batch" else 0)
            for name in CALLERS
        )
        return Policy(
            classes=classes if limits else tuple(_unlimited(each) for each in classes),
            tenants=tuple(Tenant(TenantId(name)) for name in tenants),
            pools=(pool(_POOL, self.fleet.profile),),
            models=(Model(_MODEL, (_POOL,)),),
        )


def _class(name: ClassName, *, band: int, floor_percent: int) -> ServiceClass:
    """Return a class whose maximum queue wait is its clients' timeout."""
    callers = CALLERS[name]
    assert callers.client_timeout_ns is not None
    return ServiceClass(
        name,
        band,
        queue_wait_ns_max=callers.client_timeout_ns,
        ttft_ns=callers.ttft_ns,
        tpot_ns=callers.tpot_ns,
        min_share_percent=floor_percent,
        optimize_for=OptimizationGoal.COST if name == "batch" else OptimizationGoal.LATENCY,
    )


def _unlimited(service_class: ServiceClass) -> ServiceClass:
    return replace(service_class, first_token_ns_max=_UNLIMITED, idle_ns_max=_UNLIMITED, total_ns_max=_UNLIMITED)


def offered_load(requests: Iterable[Arrival], profile: EngineProfile, span: Duration, *, attention: bool) -> float:
    """Return the offered work as a multiple of the capacity of four engines.

    `attention` includes the part of the prompt's cost that grows with the square of its length.
    """
    decode_ps = profile.decode_sequence_ps + profile.step_ps / MEAN_BATCH
    work_ps = 0.0
    for each in requests:
        prompt, output = each.prompt_tokens, each.output_tokens
        work_ps += profile.prefill_token_ps * prompt
        work_ps += output * (decode_ps + profile.kv_token_ps * (prompt + output / 2))
        if attention:
            work_ps += profile.attention_ps * prompt * prompt / 2
    return work_ps / 1000 / span / ENGINES
