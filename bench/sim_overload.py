"""Compare Headgate with simple gateway policies under overload, in the simulator.

    just sim-overload [--profile NAME ...] [--policy NAME ...] [--seeds N ...] [--loads X ...] [--json]

Runs the workload in `bench/sim_overload_workload.py` through each policy in virtual time, and prints the results next
to those from a prototype of the policy and its baselines. An oracle chooses the caps: it tries many on the same
requests and takes the one with the highest goodput. `headgate` has no cap and uses its default rules.

Progress goes to stderr, a table to stdout. With --json the output is one line of JSON instead.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.sim_overload_workload import FLEETS, Overload, offered_load
from headgate.core.scheduler import Scheduler
from headgate.model.units import MILLISECOND, Duration
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.saturation_gate import SaturationGate
from headgate.simulation.baselines.static_cap import StaticCap
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Decider
from headgate.simulation.workload.traffic import arrivals, span_ns

CAPS = (16, 32, 64, 128, 256)
"""Caps that the oracle tries first. It then searches around the best cap in ever smaller steps."""
CAP_STEP_MIN = 4
UNCAPPED = 1_000_000
FIGURES = ("goodput_per_s", "interactive_in_slo", "ttft_s_p99", "wasted_share")


@dataclass(frozen=True, slots=True)
class ComparedPolicy:
    make: Callable[[int], Decider]
    """Creates the policy for a given cap."""
    tuned: bool = False
    """Whether the oracle chooses the cap."""
    scrape_every_ns: Duration | None = None
    limits: bool = False
    """Whether the usual timeouts apply to attempts. If not, only clients end an attempt."""


CONTENDERS = {
    "round-robin": ComparedPolicy(lambda _: RoundRobin()),
    "least-outstanding": ComparedPolicy(lambda _: LeastOutstanding()),
    "saturation-gate": ComparedPolicy(lambda _: SaturationGate()),
    "saturation-gate-blind": ComparedPolicy(
        lambda _: SaturationGate(counts_sent=False), scrape_every_ns=Duration(50 * MILLISECOND)
    ),
    "static-cap": ComparedPolicy(StaticCap, tuned=True),
    "static-cap-queue": ComparedPolicy(lambda cap: StaticCap(cap, queue_length_max=100_000), tuned=True),
    "static-cap-queue-drop": ComparedPolicy(
        lambda cap: StaticCap(cap, queue_length_max=100_000, expires_late=True), tuned=True
    ),
    "headgate": ComparedPolicy(lambda _: Scheduler(), limits=True),
}

TABLE = {
    ("rtxpro6000", "round-robin"): (18.7, 0.16, 10.1, 0.65),
    ("rtxpro6000", "saturation-gate"): (12.5, 0.23, 2.5, 0.78),
    ("rtxpro6000", "static-cap"): (40.9, 0.77, 2.0, 0.03),
    ("h200", "round-robin"): (35.6, 0.07, 10.0, 0.70),
    ("h200", "static-cap"): (99.6, 0.82, 2.0, 0.01),
    ("rtxpro6000", "headgate"): (46.4, 0.98, 1.8, 0.012),
    ("h200", "headgate"): (108.8, 0.98, 1.9, 0.013),
}
"""Prototype results at the load of the published table, in the order of `FIGURES`."""


@dataclass(frozen=True, slots=True)
class Run:
    overload: Overload
    policy: str
    cap: int = UNCAPPED


@dataclass(frozen=True, slots=True)
class Result:
    cap: int | None
    goodput_per_s: float
    interactive_in_slo: float
    ttft_s_p99: float
    """99th percentile over the interactive requests that got a first token."""
    wasted_share: float
    """Share of the tokens computed for requests that missed their objectives."""
    in_slo: dict[str, float]
    """Attainment by class. Rejected requests and clients that disconnect count as misses."""
    run_s: float
    """Duration of the run on this machine."""


def run_one(run: Run) -> Result:
    contender = CONTENDERS[run.policy]
    overload = run.overload
    if contender.scrape_every_ns is not None:
        overload = replace(overload, scrape_every_ns=contender.scrape_every_ns)
    scenario = overload.scenario(lambda: contender.make(run.cap), limits=contender.limits)
    report = SimulationReport(scenario)
    started = time.perf_counter()
    VirtualHost(scenario, report).run()
    took = time.perf_counter() - started
    figures: dict[str, Any] = json_report(report)
    classes = figures["classes"]
    return Result(
        cap=run.cap if contender.tuned else None,
        goodput_per_s=figures["total"]["goodput_per_s"],
        interactive_in_slo=classes["interactive"]["attainment"],
        ttft_s_p99=classes["interactive"]["ttft_s"]["p99"],
        wasted_share=figures["total"]["tokens_wasted_share"],
        in_slo={name: each["attainment"] for name, each in classes.items()},
        run_s=round(took, 2),
    )


def best_result(overload: Overload, policy: str, every: Callable[[Iterable[Run]], Iterable[Result]]) -> Result:
    """Return the result for the best cap. Goodput rises, then falls with the cap, so the search narrows in steps."""
    if not CONTENDERS[policy].tuned:
        return next(iter(every([Run(overload, policy)])))
    found: dict[int, Result] = {}
    caps, step = list(CAPS), 0
    while caps:
        found.update(zip(caps, every([Run(overload, policy, cap) for cap in caps]), strict=True))
        top = max(found, key=lambda cap: (found[cap].goodput_per_s, -cap))
        step = step // 2 if step else top // 2
        if step < CAP_STEP_MIN:
            break
        caps = [cap for cap in (top - step, top + step) if cap > 0 and cap not in found]
        while not caps and (step := step // 2) >= CAP_STEP_MIN:
            caps = [cap for cap in (top - step, top + step) if cap not in found]
    result = found[top]
    print_progress(f"  {overload.fleet.name} {policy}: best cap {result.cap} of {len(found)} tried")
    return result


# ------------------------------------------------------------------------------------------------------------ output


def load_line(overload: Overload) -> str:
    traffic = overload.traffic()
    requests, span = list(arrivals(traffic, seed=overload.seed)), span_ns(traffic)
    plain, whole = (offered_load(requests, overload.fleet.profile, span, attention=each) for each in (False, True))
    return (
        f"{overload.fleet.name}: {len(requests)} requests in {span / 1e9:.1f} s, "
        f"{plain:.3f} times the capacity of four engines ({whole:.3f} including attention within prompts)"
    )


def row(name: str, results: Sequence[Result], expected: tuple[float, ...] | None) -> str:
    """Format the means over the seeds and, if the prototype has this row, their ratio to the prototype's."""
    means = [mean(getattr(each, figure) for each in results) for figure in FIGURES]
    caps = "/".join(str(each.cap) for each in results if each.cap is not None)
    shown = f"{means[0]:8.1f} {means[1]:8.1%} {means[2]:7.2f} s {means[3]:7.1%}"
    beside = ""
    if expected is not None:
        ratios = " ".join(f"{ours / theirs:6.2f}" for ours, theirs in zip(means, expected, strict=True))
        beside = f"{expected[0]:8.1f} {expected[1]:6.0%} {expected[2]:6.1f} s {expected[3]:6.0%}  {ratios}"
    return f"{name:24}{caps:>14} {shown}  {beside}".rstrip()


HEADER = (
    f"{'':24}{'cap':>14} {'goodput':>8} {'in SLO':>8} {'p99 TTFT':>9} {'wasted':>7}"
    f"  {'prototype: same four columns':>31}   ratio"
)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim-overload", description="Compare gateway policies under overload.")
    parser.add_argument("--profile", nargs="+", choices=tuple(FLEETS), default=list(FLEETS))
    parser.add_argument("--policy", nargs="+", choices=tuple(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--loads", nargs="+", type=float, help="loads to run instead, as multiples of capacity")
    parser.add_argument("--cap", type=int, help="use this cap instead of the oracle's")
    parser.add_argument("--first", type=float, metavar="S", help="simulate only the first S seconds")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    return parser.parse_args(words)


def all_results(asked: argparse.Namespace, data: Path, pool: Executor) -> Iterable[tuple[Overload, str, list[Result]]]:
    for name in asked.profile:
        for load in asked.loads or [None]:
            overload = Overload(fleet=FLEETS[name], data=data, seed=0, load=load, first_s=asked.first)
            for policy in asked.policy:
                print_progress(f"{name} {policy} at {load or overload.fleet.load:g} times capacity")
                results = [results_of(replace(overload, seed=seed), policy, asked.cap, pool) for seed in asked.seeds]
                yield overload, policy, results


def results_of(overload: Overload, policy: str, cap: int | None, pool: Executor) -> Result:
    if cap is not None and CONTENDERS[policy].tuned:
        return run_one(Run(overload, policy, cap))
    return best_result(overload, policy, lambda runs: pool.map(run_one, list(runs)))


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    asked = arguments(words)
    data = os.environ.get("HEADGATE_DATA")
    if data is None:
        print_progress(
            "HEADGATE_DATA must name the directory that contains traces/ (their sources: docs/reference/scenarios.md)"
        )
        return 2
    with ProcessPoolExecutor(asked.processes) as pool:
        rows = all_results(asked, Path(data), pool)
        if asked.json:
            print(json.dumps([_plain(*each) for each in rows]))
        else:
            _print_table(rows, asked.seeds[0])
    return 0


def _print_table(rows: Iterable[tuple[Overload, str, list[Result]]], seed: int) -> None:
    shown: Overload | None = None
    for overload, policy, results in rows:
        if overload != shown:
            shown = overload
            print(f"\n{load_line(replace(overload, seed=seed))}\n{HEADER}")
        print(
            row(policy, results, TABLE.get((overload.fleet.name, policy)) if overload.load is None else None),
            flush=True,
        )


def _plain(overload: Overload, policy: str, results: list[Result]) -> dict[str, object]:
    load = overload.fleet.load if overload.load is None else overload.load
    return {"profile": overload.fleet.name, "load": load, "policy": policy, "runs": [asdict(each) for each in results]}


if __name__ == "__main__":
    sys.exit(main())
