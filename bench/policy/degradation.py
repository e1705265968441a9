"""Effect of degradation under overload.

Runs the E1 overload without degradation, with degradation, with degradation and classes that allow shorter responses,
and with a shedder that rejects by priority.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.cli import print_progress
from bench.policy.ablation import UnservedReport
from bench.policy.experiment import (
    Experiment,
    Figures,
    Threshold,
    data_folder,
    headgate_scheduler,
    percent,
    seconds,
    table,
)
from bench.policy.overload import key_figures
from bench.sim_overload_workload import FLEETS, Overload
from headgate.model.caps import Caps
from headgate.model.policy import DegradationStep, Policy
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.virtual.host import VirtualHost

LOADS = (1.5, 3.0)
OUTPUT_TOKENS = 128
NOTHING, LADDER, VARIANTS, SHEDDER = "none", "degradation", "degradation, shorter responses", "shedder"
QUICK_S = 100.0


def _with_protections(policy: Policy, *, ladder: bool = False, shedder: bool = False) -> Policy:
    return replace(
        policy,
        degradation=replace(policy.degradation, enabled=ladder),
        shedding=replace(policy.shedding, enabled=shedder),
    )


def _with_shorter_answers(policy: Policy) -> Policy:
    """Shorten batch responses from level 1 on and all responses from level 2 on."""
    shorter = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, output_tokens=OUTPUT_TOKENS)
    return replace(
        policy,
        classes=tuple(replace(each, degradation_steps=(DegradationStep(1, shorter),)) for each in policy.classes),
    )


DEGRADATIONS: dict[str, Callable[[Policy], Policy]] = {
    NOTHING: _with_protections,
    LADDER: lambda policy: _with_protections(policy, ladder=True),
    VARIANTS: lambda policy: _with_shorter_answers(_with_protections(policy, ladder=True)),
    SHEDDER: lambda policy: _with_protections(policy, shedder=True),
}


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        for load in LOADS[-1:] if quick else LOADS:
            overload = Overload(
                fleet=FLEETS[name], data=data_folder(), seed=seed, load=load, first_s=QUICK_S if quick else None
            )
            figures[f"{name} at {load:g}"] = {what: _outcome(overload, what) for what in DEGRADATIONS}
    return figures


def _outcome(overload: Overload, what: str) -> dict[str, Any]:
    print_progress(f"  seed {overload.seed}: {overload.fleet.name} at {overload.load:g}, degradation: {what}")
    scene = overload.scenario(headgate_scheduler, limits=True)
    scene = replace(scene, policy=DEGRADATIONS[what](scene.policy))
    report = UnservedReport(scene)
    VirtualHost(scene, report).run()
    refused = LatencySummary.of(report.unserved_wait_ns)
    return key_figures(json_report(report)) | {
        "unserved_wait_s": None if refused is None else round(refused.mean / 1e9, 3)
    }


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for case, of in figures.items():
        ladder, shorter = (of[what]["goodput"] / of[NOTHING]["goodput"] for what in (LADDER, VARIANTS))
        found.append(Threshold(f"{case}: goodput with degradation only relative to no degradation", ladder, least=0.99))
        found.append(
            Threshold(
                f"{case}: goodput with degradation and shorter responses relative to no degradation",
                shorter,
                least=1.05,
            )
        )
        kept = of[LADDER]["interactive"] - of[NOTHING]["interactive"]
        found.append(Threshold(f"{case}: change in interactive attainment with degradation only", kept, least=-0.005))
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            case,
            what,
            f"{each['goodput']:.1f}",
            f"{100 * (each['goodput'] / of[NOTHING]['goodput'] - 1):+.1f} %",
            *(percent(each[key]) for key in ("interactive", "code", "batch")),
            seconds(each["ttft_s_p99"]),
            seconds(each["unserved_wait_s"]),
        )
        for case, of in figures.items()
        for what, each in of.items()
    ]
    header = ("engine, load", "degradation", "goodput req/s", "difference", "interactive", "code", "batch")
    return table((*header, "p99 TTFT", "time to rejection"), rows)


EXPERIMENT = Experiment(
    name="degradation",
    title="Effect of degradation under overload",
    about=(
        "These runs repeat the E1 overload workload at 1.5 and 3 times the capacity of the engines. The batch "
        "class has the objective `cost`, and the other classes have the objective `latency`. In the runs with "
        f"shorter responses, every class has a {OUTPUT_TOKENS}-token variant, which batch uses from level 1 and the "
        "other classes use from level 2. Time to rejection is the mean wait of requests that were not served."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
)
