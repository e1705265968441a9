"""Measure a cell's added latency, its scheduler's throughput, and its fairness across gateways.

    just bench-cell [--quick] [--assert] [--parts added throughput fairness] [--store redis|valkey]

Three measurements run on a real store: the time a cell adds to the first byte (added_latency.py), requests per second
through one scheduler (throughput.py), and the effect of a burst at one gateway on the clients of another (fairness.py).

Progress goes to stderr, a table to stdout. The last line is the results as JSON. A result that was not measured is
null.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.cell_overhead import added_latency, fairness, throughput
from bench.cell_process import CellProcessFailed
from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.cpu_cores import TooFewCores, started_on, two_cores
from bench.python_yardstick import Yardstick
from testing.processes import MissingProgram, ProcessFailedError
from testing.stores import redis, valkey

PARTS = ("added", "throughput", "fairness")
STORES = {"redis": redis, "valkey": valkey}
AT_MOST = {"added_ms_p50": 2.0, "added_ms_p99": 10.0, "fairness_added_ms_p99": 5.0}
AT_LEAST = {"requests_per_s": 2_000.0}
SCHEDULER_CPU = ("scheduler_cpu_us_per_request", "scheduler_cpu_over_yardstick")
YARDSTICK_ROUNDS = 3_000
IN_CI = 2.0
"""Factor by which CI relaxes the limits, because other load on the machine inflates every absolute number."""
IN_CI_TAIL = 8.0
"""Factor by which CI relaxes p99 limits. The p99 of two short rounds depends on a few requests and varies by 20 ms
between runs on shared cores. A request stuck behind the burst would be a full second late."""


def measure_parts(parts: Sequence[str], store_name: str, *, quick: bool) -> dict[str, object]:
    cores = two_cores()
    figures: dict[str, object] = dict.fromkeys((*AT_MOST, *AT_LEAST, *SCHEDULER_CPU))
    with STORES[store_name]() as store, tempfile.TemporaryDirectory(prefix="headgate-bench-cell-") as name:
        folder = Path(name)
        if "added" in parts:
            print_progress("measuring added time to first byte at 200 requests/s")
            more = added_latency.measure(store, folder, cores, rounds=3 if quick else 10, seconds=3.0 if quick else 5.0)
            figures |= {f"added_ms_{each}": more.ms(each) for each in ("p50", "p99")}
            figures |= {f"added_same_process_ms_{each}": more.same_process_ms(each) for each in ("p50", "p99")}
            figures |= {"local_ms": more.local_ms, "cell_ms": more.cell_ms, "same_process_ms": more.same_ms}
        if "throughput" in parts:
            print_progress("measuring requests per second through one scheduler with eight members")
            rates = (500, 2_000) if quick else throughput.RATES
            curve = throughput.measure(store, cores, rates=rates, seconds=4.0 if quick else 10.0)
            with started_on(cores.target):
                figures |= curve_figures(curve, Yardstick().us_per_round(YARDSTICK_ROUNDS))
        if "fairness" in parts:
            print_progress("measuring interactive requests at one gateway during a batch burst at another")
            fair = fairness.measure(store, folder, cores, rounds=2 if quick else 6, seconds=6.0 if quick else 10.0)
            figures["fairness_added_ms_p99"] = fair.added_ms("p99")
            figures["fairness_added_ms_p50"] = fair.added_ms("p50")
            figures |= {"fairness_local_ms": fair.local_ms, "fairness_cell_ms": fair.cell_ms}
    return figures


def curve_figures(curve: Sequence[throughput.Point], yardstick_us: float) -> dict[str, object]:
    """Return the highest sustained rate and the scheduler's CPU time per request at that rate.

    `yardstick_us` is the time for one round of the yardstick on the scheduler's core.
    """
    best = max((each for each in curve if each.sustained), key=lambda each: each.ended_per_s, default=None)
    return {
        "requests_per_s": 0.0 if best is None else best.ended_per_s,
        "scheduler_cpu_us_per_request": None if best is None else best.scheduler_cpu_us,
        "scheduler_cpu_over_yardstick": None if best is None else round(best.scheduler_cpu_us / yardstick_us, 2),
        "curve": [asdict(each) for each in curve],
    }


def missed_thresholds(figures: Mapping[str, object], *, allowed: float = IN_CI, tail: float = IN_CI_TAIL) -> list[str]:
    said: list[str] = []
    for name, most in AT_MOST.items():
        figure = figures[name]
        bar = most * (tail if name.endswith("p99") else allowed)
        if isinstance(figure, float | int) and figure > bar:
            said.append(f"missed: {name} is {figure:g}; the limit here is {bar:g}")
    for name, least in AT_LEAST.items():
        figure = figures[name]
        if isinstance(figure, float | int) and figure < least / allowed:
            said.append(f"missed: {name} is {figure:g}; the minimum here is {least / allowed:g}")
    return said


def noise_warnings(figures: Mapping[str, object]) -> list[str]:
    """Return warnings about differences smaller than the run-to-run variation without a cell."""
    said: list[str] = []
    for side, added_name in (("local_ms", "added_ms_p99"), ("fairness_local_ms", "fairness_added_ms_p99")):
        alone = figures.get(side)
        if isinstance(alone, dict) and alone["p99"] > AT_MOST[added_name] + 5 * alone["p50"]:
            said.append(
                f"{added_name} is unreliable: without a cell p99 is {alone['p99']:.1f} ms, p50 {alone['p50']:.1f} ms. "
                "The machine is under other load; repeat the measurement when it is quiet."
            )
    return said


def table_of(figures: Mapping[str, object]) -> str:
    bars = {**{name: f"at most {bar:g}" for name, bar in AT_MOST.items()}}
    bars |= {name: f"at least {bar:g}" for name, bar in AT_LEAST.items()}
    wrong = {sentence.split()[1] for sentence in missed_thresholds(figures, allowed=1.0, tail=1.0)}
    lines = [
        f"{name:34}{figure if figure is not None else 'not measured':>14}"
        + (f"   {bars[name]}: {'MISSED' if name in wrong else 'met'}" if name in bars and figure is not None else "")
        for name, figure in figures.items()
        if not isinstance(figure, list | dict)
    ]
    curve = figures.get("curve")
    if isinstance(curve, list):
        lines += ["", *(throughput.format_point(throughput.Point(**each)) for each in curve)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        figures = measure_parts(args.parts, args.store, quick=args.quick)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError, CellProcessFailed) as problem:
        return report_problem("bench-cell", str(problem))
    except subprocess.TimeoutExpired as problem:
        return report_problem("bench-cell", f"a load generator did not exit in time: {problem}")
    except KeyboardInterrupt:
        return report_problem("bench-cell", "interrupted; all processes were stopped", status=130)
    print(table_of(figures))
    for sentence in noise_warnings(figures):
        print_progress(sentence)
    sentences = missed_thresholds(figures) if args.check else []
    for sentence in sentences:
        print_progress(sentence)
    print(json.dumps(figures), flush=True)
    return 1 if sentences else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench-cell", description="Measure a cell's added latency and throughput.")
    made.add_argument("--quick", action="store_true", help="use shorter windows, fewer rounds and fewer rates")
    made.add_argument("--store", choices=tuple(STORES), default="redis", help="store to use (default redis)")
    made.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"parts to run: {', '.join(PARTS)}"
    )
    made.add_argument("--assert", dest="check", action="store_true", help="exit 1 if a CI limit is missed")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
