"""E8: measures the effect of wrong predictions.

Runs the E1 overload with a scheduler that underestimates or overestimates response lengths, or starts with the wrong
engine speed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.cli import print_progress
from bench.policy.experiment import Experiment, Figures, Threshold, data_folder, percent, run_scenario, seconds, table
from bench.policy.overload import key_figures
from bench.policy.variations import Variation, all_times, combined, output_times, prefill_times
from bench.sim_overload_workload import FLEETS, Overload
from headgate.simulation.report.json_report import json_report

RIGHT = "correct"
CASES: Mapping[str, Variation] = {
    RIGHT: Variation(),
    "response length x 0.5": output_times(0.5),
    "response length x 0.7": output_times(0.7),
    "response length x 1.4": output_times(1.4),
    "response length x 2": output_times(2.0),
    "prefill time x 0.7": prefill_times(0.7),
    "prefill time x 1.3": prefill_times(1.3),
    "all times x 0.7": all_times(0.7),
    "all times x 1.3": all_times(1.3),
    "response length x 0.5, prefill time x 0.7": combined(output_times(0.5), prefill_times(0.7)),
    "response length x 2, prefill time x 1.3": combined(output_times(2.0), prefill_times(1.3)),
}
QUICK = (RIGHT, "response length x 0.5", "response length x 2", "prefill time x 0.7", "prefill time x 1.3")
QUICK_S = 100.0
KEPT = 0.85


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        overload = Overload(fleet=FLEETS[name], data=data_folder(), seed=seed, first_s=QUICK_S if quick else None)
        figures[name] = {case: outcome(overload, case) for case in (QUICK if quick else CASES)}
    return figures


def outcome(overload: Overload, case: str) -> dict[str, float]:
    print_progress(f"  seed {overload.seed}: {overload.fleet.name}, {case}")
    scene = overload.scenario(CASES[case].scheduler, limits=True)
    return key_figures(json_report(run_scenario(replace(scene, policy=CASES[case].policy(scene.policy)))))


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for name, of in figures.items():
        worst = min(of, key=lambda case: of[case]["goodput"])
        ratio = of[worst]["goodput"] / of[RIGHT]["goodput"]
        found.append(Threshold(f"{name}: goodput with {worst} relative to correct predictions", ratio, least=KEPT))
        worst = min(of, key=lambda case: of[case]["interactive"])
        ratio = of[worst]["interactive"] / of[RIGHT]["interactive"]
        found.append(
            Threshold(f"{name}: interactive attainment with {worst} relative to correct predictions", ratio, least=KEPT)
        )
    return found


def as_table(figures: Figures) -> str:
    rows = [
        (
            name,
            case,
            f"{each['goodput']:.1f}",
            f"{each['goodput'] / of[RIGHT]['goodput']:.3f}",
            *(percent(each[key]) for key in ("interactive", "code", "batch")),
            seconds(each["ttft_s_p99"]),
            percent(each["wasted"]),
        )
        for name, of in figures.items()
        for case, each in of.items()
    ]
    header = (
        "engine",
        "predictions",
        "goodput req/s",
        "relative goodput",
        "interactive",
        "code",
        "batch",
        "p99 TTFT",
        "wasted",
    )
    return table(header, rows)


EXPERIMENT = Experiment(
    name="wrong-predictions",
    title="E8: wrong predictions",
    about=(
        "Each run repeats the E1 overload workload at the first load listed for the engine in the E1 table, with wrong "
        "predictions. Response lengths are learned as usual and then multiplied by a factor. The scheduler starts with "
        "the pool's configured engine speeds and refines them."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    seeds=(1, 2, 3),
)
