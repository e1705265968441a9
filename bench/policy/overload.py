"""E1: compares the scheduler with simpler gateways under overload.

Runs the workload defined in `bench/sim_overload_workload.py` at the loads listed there, and in a full run at other
loads too. The caps are the best ones that `just sim-overload` finds for the listed loads.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cli import print_progress
from bench.policy.chart import Line, draw
from bench.policy.experiment import (
    Experiment,
    Figures,
    Threshold,
    data_folder,
    headgate_scheduler,
    percent,
    run_scenario,
    seconds,
    table,
)
from bench.sim_overload_workload import FLEETS, Overload
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.report.json_report import json_report
from headgate.simulation.virtual.scenario import Decider

BEST_CAPS = {"rtxpro6000": 108, "h200": 164}
LOADS = (0.7, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
OURS, CAP, TURNS = "headgate", "static-cap", "round-robin"
POLICIES: Mapping[str, Callable[[int], Decider]] = {
    OURS: lambda _: headgate_scheduler(),
    CAP: StaticCap,
    "least-outstanding": lambda _: LeastOutstanding(),
    TURNS: lambda _: RoundRobin(),
    "saturation-gate": lambda _: SaturationGate(),
}
GOODPUT_OVER_CAP, GOODPUT_OVER_TURNS = 1.08, 2.4
ATTAINMENT = 0.97
PEAK_KEPT, TTFT_S = 0.9, 2.0


def run(seed: int, *, quick: bool) -> Figures:
    figures: dict[str, Any] = {}
    for name, fleet in FLEETS.items():
        overload = Overload(fleet=fleet, data=data_folder(), seed=seed)
        own = outcome(overload, OURS)
        others = {
            policy: outcome(overload, policy) for policy in (POLICIES if not quick else (CAP, TURNS)) if policy != OURS
        }
        figures[name] = {
            "goodput": own["goodput"],
            "interactive_attainment": own["interactive"],
            "interactive_p99_ttft_s": own["ttft_s_p99"],
            "best_cap_goodput": others[CAP]["goodput"],
            "round_robin_goodput": others[TURNS]["goodput"],
        }
        if not quick:
            figures[name]["at_the_tables_load"] = {OURS: own, **others}
            figures[name]["by_load"] = {
                str(load): {
                    policy: outcome(Overload(fleet=fleet, data=data_folder(), seed=seed, load=load), policy)
                    for policy in POLICIES
                }
                for load in LOADS
            }
    return figures


def outcome(overload: Overload, policy: str) -> dict[str, float]:
    print_progress(
        f"  seed {overload.seed}: {policy} on {overload.fleet.name} at {overload.load or overload.fleet.load:g}"
    )
    cap = BEST_CAPS[overload.fleet.name]
    report = run_scenario(overload.scenario(lambda: POLICIES[policy](cap), limits=policy == OURS))
    return key_figures(json_report(report))


def key_figures(figures: Mapping[str, Any]) -> dict[str, float]:
    classes, total = figures["classes"], figures["total"]
    return {
        "goodput": total["goodput_per_s"],
        "interactive": classes["interactive"]["attainment"],
        "code": classes["code"]["attainment"],
        "batch": classes["batch"]["attainment"],
        "ttft_s_p99": classes["interactive"]["ttft_s"]["p99"],
        "wasted": total["tokens_wasted_share"],
        "busy": figures["fleet"]["busy_share"],
    }


def bars(figures: Figures) -> list[Threshold]:
    found: list[Threshold] = []
    for name, of in figures.items():
        found += [
            Threshold(
                f"{name}: goodput relative to the best cap",
                of["goodput"] / of["best_cap_goodput"],
                least=GOODPUT_OVER_CAP,
            ),
            Threshold(
                f"{name}: goodput relative to round-robin",
                of["goodput"] / of["round_robin_goodput"],
                least=GOODPUT_OVER_TURNS,
            ),
            Threshold(f"{name}: interactive attainment", of["interactive_attainment"], least=ATTAINMENT),
        ]
        if by_load := of.get("by_load"):
            highest = max(each[OURS]["goodput"] for each in by_load.values())
            last = by_load[str(LOADS[-1])][OURS]
            found += [
                Threshold(
                    f"{name}: goodput at load {LOADS[-1]:g} relative to the peak",
                    last["goodput"] / highest,
                    least=PEAK_KEPT,
                ),
                Threshold(
                    f"{name}: interactive p99 TTFT in seconds at load {LOADS[-1]:g}", last["ttft_s_p99"], most=TTFT_S
                ),
            ]
    return found


def as_table(figures: Figures) -> str:
    rows: list[Sequence[object]] = []
    for name, of in figures.items():
        at = of.get("at_the_tables_load")
        if at is None:
            at = {OURS: _brief(of, "goodput", full=True), CAP: _brief(of, "best_cap_goodput")}
            at[TURNS] = _brief(of, "round_robin_goodput")
        rows += [_row(name, FLEETS[name].load, policy, each) for policy, each in at.items()]
        rows += [
            _row(name, load, policy, each)
            for load, policies in of.get("by_load", {}).items()
            for policy, each in policies.items()
        ]
    header = ("engine", "load", "policy", "goodput req/s", "interactive", "code", "batch", "p99 TTFT", "wasted", "busy")
    return table(header, rows)


def _brief(of: Mapping[str, Any], goodput: str, *, full: bool = False) -> dict[str, Any]:
    more = {"interactive": of["interactive_attainment"], "ttft_s_p99": of["interactive_p99_ttft_s"]} if full else {}
    return {"goodput": of[goodput], **more}


def _row(name: str, load: object, policy: str, of: Mapping[str, Any]) -> Sequence[object]:
    shares = [percent(of.get(each)) for each in ("interactive", "code", "batch")]
    ttft = seconds(of.get("ttft_s_p99"))
    return (
        name,
        load,
        policy,
        f"{of['goodput']:.1f}",
        *shares,
        ttft,
        percent(of.get("wasted")),
        percent(of.get("busy")),
    )


def charts(figures: Figures, folder: Path) -> list[str]:
    made: list[str] = []
    for name, of in figures.items():
        if by_load := of.get("by_load"):
            lines = [
                Line(policy, [float(load) for load in by_load], [each[policy]["goodput"] for each in by_load.values()])
                for policy in POLICIES
            ]
            file = f"overload-{name}.svg"
            draw(folder / file, lines, title=f"Four {name}", x="offered load", y="goodput, requests/s")
            made.append(file)
    return made


EXPERIMENT = Experiment(
    name="overload",
    title="E1: overload",
    about=(
        "The workload consists of Azure conversations and code on four simulated engines "
        "(`bench/sim_overload_workload.py`). Goodput is the number of requests per second that met all targets of "
        "their class, averaged over the arrival period. Attainment covers all arrivals. p99 TTFT covers interactive "
        "requests that received a first token. Wasted tokens are tokens computed for requests that missed their "
        "targets. Headgate runs with its default policy, except for the class targets and the engine speeds. "
        "`static-cap` uses the cap that is best at the first load listed for the engine (`just sim-overload --policy "
        "static-cap`)."
    ),
    run=run,
    table=as_table,
    thresholds=bars,
    charts=charts,
)
