"""Which requests overload four engines, who wants what of them, and what do they weigh?

Azure's conversations of 2023, 30 % of them batch by chance and the rest interactive, their tenants drawn by the shares
of the LMSYS arena's clients; merged with Azure's code completions, one tenant, 77 s later. All times are divided by a
factor, so that four engines cannot keep up. A seed draws labels and tenants; the moments and lengths are the traces'.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from bench.policy.fleet import engines, pool
from headgate.model.engine_profile import H200_LLAMA_8B, RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.policy import Model, Policy, Promise, ServiceClass
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
from headgate.simulation.virtual.scenario import Callers, Decider, Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.traffic import TraceTraffic, arrivals, client_shares, span_ns

ENGINES = 4
MEAN_BATCH = 96
"""Among so many sequences a step's fixed part is shared, when work is reckoned beforehand."""

_POOL, _MODEL = PoolName("main"), ModelName("m")
_UNLIMITED = Duration(60 * MINUTE)
BATCH_FLOOR_PERCENT = 5
_HURRIED = Callers(ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), leave_ns=Duration(10 * SECOND))
CALLERS = {
    ClassName("interactive"): _HURRIED,
    ClassName("code"): _HURRIED,
    # A target for the first token only: who reads the answer tomorrow does not care how fast it is written.
    ClassName("batch"): Callers(ttft_ns=Duration(60 * SECOND), leave_ns=Duration(120 * SECOND)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Four engines of one kind, and how fast the traces are played to them."""

    name: str
    profile: EngineProfile
    speed_up: float
    load: float
    """What that speed means for them, as the published table says."""


FLEETS = {
    each.name: each
    for each in (
        Fleet(name="rtxpro6000", profile=RTXPRO6000_LLAMA_8B, speed_up=8.0, load=1.51),
        Fleet(name="h200", profile=H200_LLAMA_8B, speed_up=17.5, load=1.37),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One run, all but who decides."""

    fleet: Fleet
    data: Path
    """The folder that holds traces/."""
    seed: int
    load: float | None = None
    """None is the table's."""
    first_s: float | None = None
    """Only so many seconds of it."""
    scrape_every_ns: Duration = Duration(150 * MILLISECOND)

    @property
    def speed_up(self) -> float:
        return self.fleet.speed_up * (1.0 if self.load is None else self.load / self.fleet.load)

    def traffic(self) -> tuple[TraceTraffic, TraceTraffic]:
        traces = self.data / "traces"
        return (
            TraceTraffic(
                path=traces / "azure2023_conv.csv",
                classes=(("interactive", 0.7), ("batch", 0.3)),
                tenants=client_shares(traces / "lmsys_arena_27clients.csv"),
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
        """Only callers end an attempt, unless the usual `limits` of a class hold too. An engine takes as many at once
        as it can, unless told otherwise.
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
            scrape_every_ns=self.scrape_every_ns,
        )

    def _policy(self, tenants: Iterable[str], *, limits: bool) -> Policy:
        """All of it as it comes, apart from what the classes are promised and what the engines are."""
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
    """As long as its callers wait, a request may."""
    callers = CALLERS[name]
    assert callers.leave_ns is not None
    return ServiceClass(
        name,
        band,
        queue_wait_ns_max=callers.leave_ns,
        ttft_ns=callers.ttft_ns,
        tpot_ns=callers.tpot_ns,
        floor_percent=floor_percent,
        promise=Promise.COST if name == "batch" else Promise.LATENCY,
    )


def _unlimited(service_class: ServiceClass) -> ServiceClass:
    return replace(service_class, first_token_ns_max=_UNLIMITED, idle_ns_max=_UNLIMITED, total_ns_max=_UNLIMITED)


def offered_load(requests: Iterable[Arrival], profile: EngineProfile, span: Duration, *, attention: bool) -> float:
    """How much work arrives in the time in which four engines could do one.

    With or without the part of a prompt's work that grows with its square.
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
