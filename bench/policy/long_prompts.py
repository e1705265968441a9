"""E3: measures the effect of long prompts on short requests.

Short requests use half the capacity of four engines. Prompts of 24,000 to 40,000 tokens, each of which occupies an
engine for more than a second, use another fifth. The short requests are compared with a run without long prompts. A
full run repeats this with Mooncake's conversations, whose prompts have up to 126,000 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import (
    Experiment,
    Figures,
    Threshold,
    data_folder,
    headgate_scheduler,
    percent,
    run_scenario,
    table,
)
from bench.policy.fleet import MAIN, engines, pool
from headgate.model.engine_profile import H200_LLAMA_8B, RTXPRO6000_LLAMA_8B, EngineProfile
from headgate.model.policy import HeadroomRules, Model, Policy, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, ModelName, TenantId
from headgate.simulation.baselines.no_queue import LeastOutstanding
from headgate.simulation.options import CallerBehaviour, LogNormal, RateTraffic, TraceTraffic, Uniform
from headgate.simulation.report.json_report import json_report
from headgate.simulation.virtual.scenario import Decider, Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.shares import tenant_shares
from headgate.simulation.workload.traffic import arrivals

SHORT, LONG, LONGER = ClassName("short"), ClassName("long"), ClassName("longer")
LONG_FROM, LONGER_FROM = 8_192, 40_000
CALLERS = {
    SHORT: CallerBehaviour(
        ttft_ns=Duration(2 * SECOND), tpot_ns=Duration(100 * MILLISECOND), client_timeout_ns=Duration(10 * SECOND)
    ),
    LONG: CallerBehaviour(
        ttft_ns=Duration(16 * SECOND), tpot_ns=Duration(200 * MILLISECOND), client_timeout_ns=Duration(60 * SECOND)
    ),
    LONGER: CallerBehaviour(
        ttft_ns=Duration(40 * SECOND), tpot_ns=Duration(200 * MILLISECOND), client_timeout_ns=Duration(120 * SECOND)
    ),
}
"""Targets by class. The TTFT target grows with length: about 1 s per 2,000 tokens in the class's longest prompt."""
SHORT_RATE, LONG_RATE = 35.0, 0.4
P99_OVER_MAX = 1.2
NO_LANE = HeadroomRules(long_lane_percent=10_000)
_MODEL = ModelName("m")


def run(seed: int, *, quick: bool) -> Figures:
    figures = {"synthetic": compared(synthetic(seed, 150 if quick else 400), seed, RTXPRO6000_LLAMA_8B, quick=quick)}
    if not quick:
        figures["mooncake"] = compared(mooncake(seed), seed, H200_LLAMA_8B, quick=False)
    return figures


def compared(requests: Sequence[Arrival], seed: int, profile: EngineProfile, *, quick: bool) -> dict[str, Any]:
    """Figures without long prompts, with them, and with them but with the long lane disabled."""
    short = [each for each in requests if each.service_class == SHORT]

    def outcome(
        name: str, wanted: Sequence[Arrival], decider: Callable[[], Decider] = headgate_scheduler, **rules: Any
    ) -> Any:
        print_progress(f"  seed {seed}: {name}, {len(wanted)} requests")
        classes = json_report(run_scenario(scenario(wanted, seed, profile, decider, **rules)))["classes"]
        return {
            each: {key: of["ttft_s"][key] for key in ("p50", "p99")} | {"attainment": of["attainment"]}
            for each, of in classes.items()
        }

    runs = {"without long prompts": outcome("without", short), "headgate": outcome("headgate", requests)}
    runs["without long lane"] = outcome("no lane", requests, headroom=NO_LANE)
    if not quick:
        runs["least-outstanding"] = outcome("least-outstanding", requests, LeastOutstanding)
    ttft = {name: each[SHORT]["p99"] for name, each in runs.items()}
    base = ttft["without long prompts"]
    return {"runs": runs, "short_p99_over_without": {name: round(each / base, 4) for name, each in ttft.items()}}


def synthetic(seed: int, length_s: float) -> list[Arrival]:
    length = Duration(round(length_s * SECOND))
    output = LogNormal(median=130, p95=450, max=1_000)
    short = RateTraffic(
        rate=SHORT_RATE,
        duration_ns=length,
        prompt=LogNormal(median=400, p95=1_600, max=4_000),
        output=output,
        classes=((SHORT, 1.0),),
        tenants=tuple((f"team-{number}", 1.0 / number) for number in range(1, 9)),
    )
    long = RateTraffic(
        rate=LONG_RATE,
        duration_ns=length,
        prompt=Uniform(24_000, 40_000),
        output=output,
        classes=((LONG, 1.0),),
        # The same tenants send short and long prompts. A long prompt that waits for the lane must not delay short ones.
        tenants=tuple((f"team-{number}", 1.0 / number) for number in range(1, 9)),
    )
    return list(arrivals((short, long), seed=seed))


def mooncake(seed: int) -> list[Arrival]:
    """Mooncake conversations at 1.6 times the recorded speed, with classes by prompt length."""
    traces = data_folder() / "traces"
    trace = TraceTraffic(
        path=traces / "mooncake_conversation.jsonl",
        classes=((SHORT, 1.0),),
        tenants=tenant_shares(traces / "lmsys_arena_27clients.csv"),
        jitter_ns=Duration(3 * SECOND),
        speed_up=1.6,
    )
    return [replace(each, service_class=_class_of(each.prompt_tokens)) for each in arrivals((trace,), seed=seed)]


def _class_of(prompt_tokens: int) -> ClassName:
    return SHORT if prompt_tokens < LONG_FROM else LONG if prompt_tokens < LONGER_FROM else LONGER


def scenario(
    requests: Sequence[Arrival],
    seed: int,
    profile: EngineProfile,
    decider: Callable[[], Decider],
    headroom: HeadroomRules | None = None,
) -> Scenario:
    classes = tuple(
        ServiceClass(
            name,
            0,
            queue_wait_ns_max=callers.client_timeout_ns or Duration(0),
            ttft_ns=callers.ttft_ns,
            tpot_ns=callers.tpot_ns,
        )
        for name, callers in CALLERS.items()
    )
    policy = Policy(
        classes=classes,
        tenants=tuple(Tenant(TenantId(name)) for name in sorted({each.tenant for each in requests})),
        pools=(pool(MAIN, profile),),
        models=(Model(_MODEL, (MAIN,)),),
    )
    return Scenario(
        title="long prompts among short ones",
        seed=seed,
        policy=policy if headroom is None else replace(policy, headroom=headroom),
        model=_MODEL,
        engines=engines(profile, 4),
        callers=CALLERS,
        arrivals=lambda: iter(requests),
        span_ns=Duration(requests[-1].at),
        decider=decider,
    )


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for name, of in figures.items():
        ratio = of["short_p99_over_without"]["headgate"]
        found.append(
            Threshold(
                f"{name}: p99 TTFT of short requests relative to a run without long prompts", ratio, most=P99_OVER_MAX
            )
        )
        long = min(each["attainment"] for key, each in of["runs"]["headgate"].items() if key != SHORT)
        found.append(Threshold(f"{name}: attainment of long prompts", long, least=0.95))
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            policy,
            f"{each[SHORT]['p50'] * 1000:.0f} ms",
            f"{each[SHORT]['p99'] * 1000:.0f} ms",
            f"{of['short_p99_over_without'][policy]:.2f}",
            percent(each[SHORT]["attainment"]),
            *(percent(each[key]["attainment"]) if key in each else "" for key in (LONG, LONGER)),
            f"{each[LONG]['p99']:.1f} s" if LONG in each else "",
        )
        for name, of in figures.items()
        for policy, each in of["runs"].items()
    ]
    header = (
        "traffic",
        "policy",
        "short p50 TTFT",
        "short p99 TTFT",
        "relative p99",
        "short in SLO",
        "long in SLO",
        "longer in SLO",
        "long p99 TTFT",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="long-prompts",
    title="E3: long prompts among short ones",
    about=(
        "The synthetic traffic has 35 short requests per second (median prompt 400 tokens) and, every five seconds, "
        "two prompts of 24,000 to 40,000 tokens, on four RTX PRO 6000 engines. The Mooncake traffic replays "
        "conversations at 1.6 times the recorded speed on four H200 engines. Its short prompts have fewer than 8,192 "
        "tokens, and its longer prompts have at least 40,000. The TTFT target is 2 s for short, 16 s for long and 40 s "
        "for longer prompts. With the long lane, at most half of the endpoints process long prompts at the same time. "
        "Without it, all of them may do so. Relative p99 is the p99 TTFT of short requests divided by the p99 TTFT "
        "without long prompts."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
)
