"""E8: what if predictions are wrong?

The overload of E1, with a scheduler that takes answers for half or twice as long as they are, or is told a wrong
speed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.command import tell
from bench.policy.experiment import Bar, Experiment, Figures, data, percent, played, seconds, table
from bench.policy.overload import told
from bench.policy.variations import Variation, all_times, output_times, prefill_times, together
from bench.sim_overload_workload import FLEETS, Overload
from headgate.simulation.report.figures import figures_of

RIGHT = "right"
CASES: Mapping[str, Variation] = {
    RIGHT: Variation(),
    "answers x 0.5": output_times(0.5),
    "answers x 0.7": output_times(0.7),
    "answers x 1.4": output_times(1.4),
    "answers x 2": output_times(2.0),
    "prompts' time x 0.7": prefill_times(0.7),
    "prompts' time x 1.3": prefill_times(1.3),
    "all times x 0.7": all_times(0.7),
    "all times x 1.3": all_times(1.3),
    "answers x 0.5, prompts' time x 0.7": together(output_times(0.5), prefill_times(0.7)),
    "answers x 2, prompts' time x 1.3": together(output_times(2.0), prefill_times(1.3)),
}
QUICK = (RIGHT, "answers x 0.5", "answers x 2", "prompts' time x 0.7", "prompts' time x 1.3")
QUICK_S = 100.0
KEPT = 0.85


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name in ("rtxpro6000",) if quick else FLEETS:
        overload = Overload(fleet=FLEETS[name], data=data(), seed=seed, first_s=QUICK_S if quick else None)
        figures[name] = {case: outcome(overload, case) for case in (QUICK if quick else CASES)}
    return figures


def outcome(overload: Overload, case: str) -> dict[str, float]:
    tell(f"  seed {overload.seed}: {overload.fleet.name}, {case}")
    scene = overload.scenario(CASES[case].scheduler, limits=True)
    return told(figures_of(played(replace(scene, policy=CASES[case].policy(scene.policy)))))


def bars(figures: Figures) -> list[Bar]:
    found: list[Bar] = []
    for name, of in figures.items():
        worst = min(of, key=lambda case: of[case]["goodput"])
        ratio = of[worst]["goodput"] / of[RIGHT]["goodput"]
        found.append(Bar(f"{name}: goodput with {worst}, over that with right predictions", ratio, least=KEPT))
        worst = min(of, key=lambda case: of[case]["interactive"])
        ratio = of[worst]["interactive"] / of[RIGHT]["interactive"]
        found.append(Bar(f"{name}: interactive attainment with {worst}, over that with right ones", ratio, least=KEPT))
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
        "over right",
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
        "The overload of E1 at the table's loads. Lengths of answers are learned as ever and then multiplied; "
        "speeds are what the policy says of the pool, from which the scheduler learns."
    ),
    run=run,
    table=as_table,
    bars=bars,
    seeds=(1, 2, 3),
)
