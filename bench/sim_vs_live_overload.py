"""Compare a live gateway under overload with the simulator's prediction.

    just sim-live-overload [--seconds S] [--load L] [--seed N] [--assert]

The same requests, one and a half times the capacity of four engines, run in the simulator and, in real time, through a
live gateway with four live simulated engines. bench/sim_vs_live_overload_workload.py defines the requests and their
objectives, bench/sim_vs_live_runs.py how they are sent. The events that the scheduler receives determine which requests
it rejects, and when. A live gateway delivers the same events slightly later.

Attainment is the share of a class's arrivals that completed within all objectives. Rejected requests and clients that
disconnect count as misses. Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cli import FailedRequests, print_progress, report_problem, stop_cleanly_on_sigterm
from bench.sim_vs_live import lag_warnings
from bench.sim_vs_live_overload_workload import CALLERS, INTERACTIVE, OverloadWorkload
from bench.sim_vs_live_runs import Machine, Side, live, simulated
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName
from headgate.simulation.report.latency_summary import LatencySummary
from headgate.simulation.report.tally import RequestTally, share
from headgate.simulation.workload.arrival import Arrival
from testing.processes import ProcessFailedError

POINTS_MAX = 5.0
SIDES = ("live", "simulated")

Figures = dict[str, Any]


def figures_of(side: Side, name: ClassName, seconds: float) -> Figures:
    """Return one side's results for one class."""
    tally = RequestTally()
    for story in side:
        if story.service_class == name:
            tally.add(story, CALLERS[name])
    ttft = LatencySummary.of(tally.ttft_ns)
    return {
        "arrivals": tally.arrivals,
        "completed": tally.completed,
        "attainment": share(tally.good, tally.arrivals),
        "goodput_per_s": round(tally.good / seconds, 3),
        "ttft_s_p50": None if ttft is None else ttft.percentiles[50] / SECOND,
        "ttft_s_p99": None if ttft is None else ttft.percentiles[99] / SECOND,
        "outcomes": {each.value: tally.outcomes[each] for each in Outcome if tally.outcomes[each]},
    }


def compare(lived: Side, imagined: Side, seconds: float) -> dict[ClassName, dict[str, Figures]]:
    """Return the results by class and side."""
    return {
        name: {which: figures_of(side, name, seconds) for which, side in zip(SIDES, (lived, imagined), strict=True)}
        for name in CALLERS
    }


def check_same_requests(asked: Sequence[Arrival], *sides: Side) -> None:
    """Raise an error unless both sides received exactly the listed requests and completed them in full."""
    for side in sides:
        if len(side) != len(asked):
            raise FailedRequests(f"{len(side)} requests were sent, expected {len(asked)}")
        for story, arrival in zip(side, asked, strict=True):
            was = (story.service_class, story.tenant, story.prompt_tokens, story.full_output_tokens)
            meant = (arrival.service_class, arrival.tenant, arrival.prompt_tokens, arrival.output_tokens)
            if was != meant or (story.outcome is Outcome.COMPLETED and story.output_tokens != arrival.output_tokens):
                raise FailedRequests(f"request {story.number} or its response differs from the list: {story}")


def as_data(classes: Mapping[ClassName, Mapping[str, Figures]], machine: Machine) -> Figures:
    shares = [100 * classes[INTERACTIVE][side]["attainment"] for side in SIDES]
    return {
        "interactive_attainment_live": round(shares[0] / 100, 4),
        "interactive_attainment_sim": round(shares[1] / 100, 4),
        "difference_points": round(abs(shares[0] - shares[1]), 2),
        "classes": classes,
        "machine": asdict(machine),
    }


def table_of(classes: Mapping[ClassName, Mapping[str, Figures]]) -> str:
    lines = [f"{'':31}{'live':>10}{'simulated':>12}"]
    for name, sides in classes.items():
        figures = [{**each, **each["outcomes"]} for each in sides.values()]
        rows = dict.fromkeys(key for each in figures for key in each if key != "outcomes")
        lines += [f"{name:12}{row:19}{_cell(figures[0], row):>10}{_cell(figures[1], row):>12}" for row in rows]
    return "\n".join(lines)


def _cell(figures: Figures, row: str) -> str:
    value = figures.get(row, 0)
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    stop_cleanly_on_sigterm()
    workload = OverloadWorkload(seconds=args.seconds, load=args.load, seed=args.seed)
    asked, stage = workload.requests(), workload.setup()
    print_progress(
        f"{len(asked)} requests in {args.seconds:g} s, {args.load:g} times the capacity of "
        f"{workload.engines} engines ({workload.profile.name}, {workload.in_flight_max} slots each)"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-sim-live-") as name:
            imagined = simulated(stage, asked, Path(name))
            lived, machine = live(stage, asked, Path(name))
        check_same_requests(asked, lived, imagined)
    except (FailedRequests, ProcessFailedError) as problem:
        return report_problem("sim-live-overload", str(problem))
    except KeyboardInterrupt:
        return report_problem("sim-live-overload", "interrupted; all processes were stopped", status=130)
    classes = compare(lived, imagined, args.seconds)
    data = as_data(classes, machine)
    print(table_of(classes))
    missed = args.check and data["difference_points"] > POINTS_MAX
    for sentence in lag_warnings(machine):
        print_progress(sentence)
    if missed:
        print_progress(
            f"missed: attainment differs by {data['difference_points']:g} points; the limit is {POINTS_MAX:g}"
        )
    print(json.dumps(data), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="sim-live-overload", description="Compare live overload with the simulator.")
    usual = OverloadWorkload()
    made.add_argument(
        "--seconds",
        type=_seconds,
        default=usual.seconds,
        metavar="S",
        help=f"duration of the arrivals (default {usual.seconds:g})",
    )
    made.add_argument(
        "--load",
        type=_load,
        default=usual.load,
        metavar="L",
        help=f"multiple of the engines' capacity (default {usual.load:g})",
    )
    made.add_argument("--seed", type=int, default=usual.seed, help=f"random seed (default {usual.seed})")
    made.add_argument(
        "--assert", dest="check", action="store_true", help=f"exit 1 if they differ by more than {POINTS_MAX:g} points"
    )
    return made


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 600:
        raise argparse.ArgumentTypeError("must be between 1 and 600 seconds")
    return seconds


def _load(text: str) -> float:
    load = float(text)
    if not 0.05 <= load <= 3:
        raise argparse.ArgumentTypeError("must be between 0.05 and 3")
    return load


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
