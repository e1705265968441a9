"""E11: measures the end-to-end latency of rankings beside long prompts of another tenant.

A search application sends ranking requests, whose responses are not streamed. After 30 seconds, another tenant begins
to send prompts of 6,000 to 8,000 tokens to the same engines, in a class of lower priority. The time before and after
is measured separately. The ranking class is compared with and without an `e2e` target.

Without the target, none of these prompts counts as long. With it, all of them use the long lane. They need more than
half of the engines, so the lane has three of four engines, except in one variant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, headgate_scheduler, percent, table
from bench.policy.fleet import MAIN, engines, pool
from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.outcome import Outcome
from headgate.model.policy import HeadroomRules, Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, Instant, ModelName, TenantId
from headgate.simulation.baselines.no_queue import RoundRobin
from headgate.simulation.options import CallerBehaviour, LogNormal, RateTraffic, Uniform
from headgate.simulation.report.latency_summary import percentile
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.traffic import arrivals

RANKING, DOCUMENTS = ClassName("ranking"), ClassName("documents")
E2E = Duration(300 * MILLISECOND)
P95_MAX_MS = 300
CALLERS = {
    RANKING: CallerBehaviour(e2e_ns=E2E, client_timeout_ns=Duration(2 * SECOND), stream=False, api=Api.RERANK),
    DOCUMENTS: CallerBehaviour(
        ttft_ns=Duration(10 * SECOND), tpot_ns=Duration(200 * MILLISECOND), client_timeout_ns=Duration(60 * SECOND)
    ),
}
RANKING_RATE, DOCUMENTS_RATE = 20.0, 10.0
QUIET_S = 30.0
"""Time before the neighbour starts, which the figures without a neighbour cover."""
_MODEL = ModelName("m")


@dataclass(frozen=True, slots=True)
class Variant:
    e2e: bool
    hedging: bool = False
    long_lane_percent: int = 75
    decider: Callable[[], Decider] = headgate_scheduler


VARIANTS = {
    "e2e": Variant(e2e=True),
    "e2e, hedging": Variant(e2e=True, hedging=True),
    "e2e, long lane 50 %": Variant(e2e=True, long_lane_percent=50),
    "without e2e": Variant(e2e=False),
    "round robin": Variant(e2e=False, decider=RoundRobin),
}


class PhaseReport(SimulationReport):
    """Report that also keeps the latencies of the ranking requests that arrived in each phase."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.latencies_ns: dict[bool, list[int]] = {False: [], True: []}
        """Latencies without and with the neighbour. A request that was not completed counts as infinitely late."""

    def request_ended(self, story: RequestTrace) -> None:
        super().request_ended(story)
        if story.service_class == RANKING:
            took = story.ended_at - story.arrived_at if story.outcome is Outcome.COMPLETED else _NEVER
            self.latencies_ns[story.arrived_at >= QUIET_S * SECOND].append(took)


_NEVER = 2**62


def run(seed: int, *, quick: bool) -> Figures:
    return {name: outcome(name, variant, seed, quick=quick) for name, variant in VARIANTS.items()}


def outcome(name: str, variant: Variant, seed: int, *, quick: bool) -> dict[str, Any]:
    print_progress(f"  seed {seed}: {name}")
    scene = scenario(variant, seed, noisy_s=60 if quick else 300)
    report = PhaseReport(scene)
    VirtualHost(scene, report).run()
    documents = report.classes[DOCUMENTS].tally
    return {
        "alone": _latencies(report.latencies_ns[False]),
        "beside_neighbour": _latencies(report.latencies_ns[True]),
        "documents_attainment": documents.attainment,
        "ranking_attempts": report.classes[RANKING].tally.amplification,
    }


def _latencies(took_ns: Sequence[int]) -> dict[str, float]:
    ordered = sorted(took_ns)
    of = {f"p{each}_ms": min(percentile(ordered, each), 10 * SECOND) / MILLISECOND for each in (50, 95, 99)}
    return of | {"in_time": sum(each <= E2E for each in ordered) / len(ordered)}


def scenario(variant: Variant, seed: int, *, noisy_s: float) -> Scenario:
    length = Duration(round((QUIET_S + noisy_s) * SECOND))
    ranking = RateTraffic(
        rate=RANKING_RATE,
        duration_ns=length,
        prompt=LogNormal(median=800, p95=2_000, max=3_000),
        # The simulated engine ends a response with its first token.
        output=Uniform(1, 1),
        classes=((RANKING, 1.0),),
        tenants=(("search", 1.0),),
    )
    documents = RateTraffic(
        rate=DOCUMENTS_RATE,
        duration_ns=Duration(round(noisy_s * SECOND)),
        shift_ns=Duration(round(QUIET_S * SECOND)),
        prompt=Uniform(6_000, 8_000),
        output=LogNormal(median=60, p95=200, max=400),
        classes=((DOCUMENTS, 1.0),),
        tenants=(("neighbour", 1.0),),
    )
    classes = tuple(
        ServiceClass(
            name,
            band,
            queue_wait_ns_max=callers.client_timeout_ns or Duration(0),
            ttft_ns=callers.ttft_ns,
            tpot_ns=callers.tpot_ns,
        )
        for band, (name, callers) in enumerate(CALLERS.items())
    )
    own = replace(classes[0], e2e_ns=E2E if variant.e2e else None, hedging=variant.hedging)
    return Scenario(
        title="rankings beside long prompts",
        seed=seed,
        policy=Policy(
            classes=(own, *classes[1:]),
            tenants=tuple(Tenant(TenantId(name)) for name in ("search", "neighbour")),
            pools=(pool(MAIN, RTXPRO6000_LLAMA_8B),),
            models=(Model(_MODEL, (MAIN,)),),
            headroom=HeadroomRules(long_lane_percent=variant.long_lane_percent),
        ),
        model=_MODEL,
        engines=engines(RTXPRO6000_LLAMA_8B, 4),
        callers=CALLERS,
        arrivals=lambda: arrivals((ranking, documents), seed=seed),
        span_ns=Duration(Instant(length)),
        decider=variant.decider,
    )


def bars(figures: Figures) -> list[Threshold]:
    ours, without = figures["e2e"], figures["without e2e"]
    beside = "beside the neighbour"
    return [
        Threshold(f"p95 of rankings {beside}, in ms", ours["beside_neighbour"]["p95_ms"], most=P95_MAX_MS),
        Threshold(f"share of rankings {beside} within e2e", ours["beside_neighbour"]["in_time"], least=0.95),
        Threshold("attainment of documents", ours["documents_attainment"], least=0.95),
        Threshold(
            f"p95 of rankings {beside} without e2e relative to e2e",
            without["beside_neighbour"]["p95_ms"] / ours["beside_neighbour"]["p95_ms"],
            least=1.2,
        ),
    ]


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            phase.replace("_", " "),
            *(f"{each[phase][key]:.0f} ms" for key in ("p50_ms", "p95_ms", "p99_ms")),
            percent(each[phase]["in_time"]),
            percent(each["documents_attainment"]) if phase == "beside_neighbour" else "",
            f"{each['ranking_attempts']:.3f}",
        )
        for name, each in figures.items()
        for phase in ("alone", "beside_neighbour")
    ]
    columns = ("p50", "p95", "p99", "within 300 ms", "documents in SLO", "attempts per ranking")
    return table(("policy", "rankings", *columns), rows)


EXPERIMENT = Experiment(
    name="ranking",
    title="E11: rankings beside long prompts",
    about=(
        "A search application sends 20 ranking requests per second (median prompt 800 tokens) to four simulated RTX "
        "PRO 6000 engines. After 30 seconds, another tenant adds ten prompts of 6,000 to 8,000 tokens per second in a "
        "class of lower priority. Without `e2e`, the ranking class has the higher priority but no target. With it, the "
        "prompts of the other tenant use the long lane of three engines (`headroom.long_lane_percent: 75`) or, in one "
        "variant, two. Latencies run from arrival to the end of the response, over all requests that arrived in the "
        "phase. A request that was not completed counts as infinitely late, shown as 10 s."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    seeds=(1, 2, 3),
)
