"""Compare this tree's speed with another commit's, side by side in one run.

    just compare-speed REV [--pairs N] [--seconds S] [--quick] [--skip PART] [--pure-command COMMAND]

REV is checked out in a temporary directory. Each tree starts its own gateway, scheduler and cell, and both run in
alternating order on the same core, so that the machine's speed and other load affect both. The load generator and the
upstream are this tree's and run on another core. Every figure is the median of the ratios of the pairs.

Progress goes to stderr, a table with the intervals to stdout. The last line is the ratios as JSON. A figure that was
skipped is null.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence

from bench.baseline_proxies import PROXIES, check_installed
from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm, window_seconds
from bench.compare_speed.measurements import LOADS, Effort, measure_cell, measure_core, measure_loads
from bench.compare_speed.ratios import PAIRS_MIN, Costs, as_json, figures_of, table_of
from bench.compare_speed.trees import Tree, UnknownRevision, other_tree, this_tree
from bench.cpu_cores import TooFewCores, two_cores
from testing.processes import MissingProgram, ProcessFailedError

PARTS = ("request", "chunk", "core", "cell", *(proxy.name for proxy in PROXIES))
PAIRS, QUICK_PAIRS = 8, 1
SECONDS, QUICK_SECONDS = 3.0, 0.3
SLICE_REQUESTS, QUICK_SLICE_REQUESTS = 1_000, 50
QUICK_CORE_SIZE = {"tenants": 20, "endpoints": 8, "queued": 300}
CELL_IN_FLIGHT, QUICK_CELL_IN_FLIGHT = 1_000, 200


def measure(args: argparse.Namespace) -> Costs:
    parts = [part for part in PARTS if part not in args.skip]
    proxies = [proxy for proxy in PROXIES if proxy.name in parts]
    check_installed(proxies)
    cores, costs, effort = two_cores(), Costs(), effort_of(args)
    # An unknown commit stops a comparison, but not a smoke test on a shallow clone.
    with other_tree(args.revision, or_head=args.quick) as there:
        here = this_tree()
        if loads := [load for load in LOADS if load in parts]:
            sides = gateway_sides(here, there, args.pure_command)
            measure_loads(costs, sides, cores, effort, loads=loads, proxies=proxies)
        if "core" in parts:
            measure_core(costs, (here, there), cores, effort)
        if "cell" in parts:
            measure_cell(costs, (here, there), cores, effort)
    return costs


def gateway_sides(here: Tree, there: Tree, pure_command: Sequence[str]) -> list[tuple[str, Tree, Sequence[str]]]:
    """Return the gateways to measure. A separate command for this tree's uncompiled build adds a third one."""
    sides: list[tuple[str, Tree, Sequence[str]]] = [("here", here, ()), ("there", there, ())]
    return [*sides, ("pure", here, pure_command)] if pure_command else sides


def effort_of(args: argparse.Namespace) -> Effort:
    return Effort(
        pairs=args.pairs or (QUICK_PAIRS if args.quick else PAIRS),
        seconds=args.seconds or (QUICK_SECONDS if args.quick else SECONDS),
        slice_requests=QUICK_SLICE_REQUESTS if args.quick else SLICE_REQUESTS,
        core_size=QUICK_CORE_SIZE if args.quick else {},
        cell_in_flight=QUICK_CELL_IN_FLIGHT if args.quick else CELL_IN_FLIGHT,
        short_warm_up=args.quick,
    )


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    try:
        costs = measure(args)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError, UnknownRevision) as problem:
        return report_problem("compare-speed", str(problem))
    except subprocess.CalledProcessError as problem:
        return report_problem("compare-speed", f"the load generator failed: {problem}")
    except KeyboardInterrupt:
        return report_problem("compare-speed", "interrupted; all processes were stopped", status=130)
    figures = figures_of(costs)
    print(table_of(costs, figures))
    if effort_of(args).pairs < PAIRS_MIN:
        print_progress(f"with fewer than {PAIRS_MIN} pairs, the intervals are only the range of the ratios")
    print(json.dumps(as_json(figures)), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="compare-speed", description="Compare this tree's speed with another commit's.")
    made.add_argument("revision", metavar="REV", help="commit to compare with")
    made.add_argument("--pairs", type=_pairs, metavar="N", help=f"pairs per figure (default {PAIRS})")
    made.add_argument(
        "--seconds", type=window_seconds, metavar="S", help=f"length of each window, in seconds (default {SECONDS:g})"
    )
    made.add_argument(
        "--quick", action="store_true", help="run one short pair as a smoke test; if REV is unknown, use HEAD"
    )
    made.add_argument(
        "--skip",
        action="append",
        choices=PARTS,
        default=[],
        metavar="PART",
        help=f"part to leave out: {', '.join(PARTS)}; may be repeated",
    )
    made.add_argument(
        "--pure-command",
        type=shlex.split,
        default=(),
        metavar="COMMAND",
        help="command that runs this tree's uncompiled build, if the installed build is compiled",
    )
    return made


def _pairs(text: str) -> int:
    pairs = int(text)
    if not 1 <= pairs <= 200:
        raise argparse.ArgumentTypeError("must be between 1 and 200")
    return pairs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
