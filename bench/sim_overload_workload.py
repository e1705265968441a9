"""Which requests overload four engines, who wants what of them, and what do they weigh?

Azure's conversations of 2023, 30 % of them batch by chance and the rest interactive, their tenants drawn by the shares
of the LMSYS arena's clients; merged with Azure's code completions, one tenant, 77 s later. All times are divided by a
factor, so that four engines cannot keep up. A seed draws labels and tenants; the moments and lengths are the traces'.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import (
    MILLISECOND,
    MINUTE,
    SECOND,
    ClassName,
    Duration,
    EndpointId,
    ModelName,
    PoolName,
    TenantId,
)
from headgate.simulation.engine.profile import H200_LLAMA_8B, RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.simulation.virtual.scenario import Callers, Decider, EngineSpec, Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.traffic import TraceTraffic, arrivals, client_shares, span_ns

ENGINES = 4
MEAN_BATCH = 96
"""Among so many sequences a step's fixed part is shared, when work is reckoned beforehand."""

_POOL, _MODEL = PoolName("main"), ModelName("m")
_UNLIMITED = Duration(60 * MINUTE)
"""Only callers end an attempt."""
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
    queue_wait_s: tuple[float, float] = (1.5, 55.0)
    """How long interactive and code, and batch, may wait where a scheduler minds: most of the time to first token."""

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

    def scenario(self, decider: Callable[[], Decider], *, in_flight_max: int) -> Scenario:
        traffic = self.traffic()
        span = span_ns(traffic)
        end = span if self.first_s is None else min(span, Duration(round(self.first_s * SECOND)))
        tenants = dict.fromkeys(name for each in traffic for name, _ in each.tenants or ())
        return Scenario(
            title=f"overload of four {self.fleet.name}",
            seed=self.seed,
            policy=self._policy(tenants),
            model=_MODEL,
            engines=tuple(
                EngineSpec(
                    id=EndpointId(f"main/{number}"),
                    pool=_POOL,
                    profile=self.fleet.profile,
                    in_flight_max=in_flight_max,
                )
                for number in range(ENGINES)
            ),
            callers=CALLERS,
            arrivals=lambda: takewhile(lambda each: each.at <= end, arrivals(traffic, seed=self.seed)),
            span_ns=end,
            decider=decider,
            scrape_every_ns=self.scrape_every_ns,
        )

    def _policy(self, tenants: Iterable[str]) -> Policy:
        hurried_s, batch_s = self.queue_wait_s
        waits = {"interactive": (0, hurried_s), "code": (0, hurried_s), "batch": (1, batch_s)}
        return Policy(
            classes=tuple(
                ServiceClass(
                    ClassName(name),
                    band,
                    queue_wait_ns_max=Duration(round(wait_s * SECOND)),
                    queue_length_max=100_000,
                    queue_length_per_tenant_max=100_000,
                    first_token_ns_max=_UNLIMITED,
                    idle_ns_max=_UNLIMITED,
                    total_ns_max=_UNLIMITED,
                )
                for name, (band, wait_s) in waits.items()
            ),
            tenants=tuple(Tenant(TenantId(name)) for name in tenants),
            pools=(Pool(_POOL),),
            models=(Model(_MODEL, (_POOL,)),),
        )


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
