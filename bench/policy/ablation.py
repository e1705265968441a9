"""E9: measures the effect of each scheduler mechanism.

Runs the E1 overload once with the full scheduler and once without each mechanism.
"""

from dataclasses import replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, data_folder, percent, seconds, table
from bench.policy.overload import key_figures
from bench.policy.variations import WITHOUT, Variation
from bench.sim_overload_workload import FLEETS, Overload
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.latency_summary import LatencySummary, empty_durations
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.request_result import RequestResult
from headgate.simulation.report.tally import RequestTally
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import RequestTrace
from headgate.simulation.virtual.scenario import Scenario

ALL = "none (full scheduler)"
QUICK_S = 100.0
QUICK = (
    "early rejection and expiry",
    "both TPOT gates",
    "pending prefill gate",
    "tenant fairness",
    "priority bands",
    "degradation",
)


class UnservedReport(SimulationReport):
    """Report that also records how long rejected, abandoned or cancelled requests waited."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.unserved_wait_ns = empty_durations()

    def request_ended(self, story: RequestTrace) -> None:
        super().request_ended(story)
        if RequestTally().add(story, self.callers(story.service_class)) in (
            RequestResult.REJECTED,
            RequestResult.DROPPED,
            RequestResult.CANCELLED,
        ):
            self.unserved_wait_ns.append(story.ended_at - story.arrived_at)


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        overload = Overload(fleet=FLEETS[name], data=data_folder(), seed=seed, first_s=QUICK_S if quick else None)
        parts = {ALL: Variation()} | {each: WITHOUT[each] for each in (QUICK if quick else WITHOUT)}
        figures[name] = {without: outcome(overload, without, variation) for without, variation in parts.items()}
    return figures


def outcome(overload: Overload, name: str, variation: Variation) -> dict[str, Any]:
    print_progress(f"  seed {overload.seed}: {overload.fleet.name} without {name}")
    scene = overload.scenario(variation.scheduler, limits=True)
    scene = replace(scene, policy=variation.policy(scene.policy))
    report = UnservedReport(scene)
    VirtualHost(scene, report).run()
    refused = LatencySummary.of(report.unserved_wait_ns)
    fairness = report.classes[next(iter(report.classes))].fairness
    return key_figures(json_report(report)) | {
        "unserved_wait_s": None if refused is None else round(refused.mean / 1e9, 3),
        "worst_tenant": None if fairness.worst is None else fairness.worst[1].attainment,
    }


def bars(figures: Figures) -> list[Threshold]:
    """Targets for the mechanisms that matter under overload."""
    found: list[Threshold] = []
    for name, of in figures.items():
        for part in ("early rejection and expiry", "pending prefill gate"):
            ratio = of[part]["goodput"] / of[ALL]["goodput"]
            found.append(Threshold(f"{name}: goodput without {part} relative to the full scheduler", ratio, most=0.95))
        for part in ("priority bands", "tenant fairness"):
            ratio = of[part]["worst_tenant"] / of[ALL]["worst_tenant"]
            found.append(
                Threshold(
                    f"{name}: worst interactive tenant's attainment without {part} relative to the full scheduler",
                    ratio,
                    most=1.0,
                )
            )
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            without,
            f"{each['goodput']:.1f}",
            f"{100 * (each['goodput'] / of[ALL]['goodput'] - 1):+.1f} %",
            *(percent(each[key]) for key in ("interactive", "worst_tenant", "code", "batch")),
            seconds(each["ttft_s_p99"]),
            percent(each["wasted"]),
            seconds(each["unserved_wait_s"]),
        )
        for name, of in figures.items()
        for without, each in of.items()
    ]
    header = (
        "engine",
        "removed mechanism",
        "goodput req/s",
        "difference",
        "interactive",
        "worst interactive tenant",
        "code",
        "batch",
        "p99 TTFT",
        "wasted",
        "time to rejection",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="ablation",
    title="E9: effect of each mechanism",
    about=(
        "Each run repeats the E1 overload workload without one scheduler mechanism "
        "(`bench/policy/variations.py`). The load is the first one listed for the engine in the E1 table. Time to "
        "rejection is the mean wait of requests that were not served. E4 measures the effect of prefix routing, "
        "E3 that of the long lane and E5 that of retry budgets. Hedging is off unless a class enables it."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    seeds=(1, 2, 3),
)
