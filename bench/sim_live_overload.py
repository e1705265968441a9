"""Does the live gateway do under overload what the simulator says of it?

    just sim-live-overload [--seconds S] [--load L] [--seed N] [--assert]

One list of requests, one and a half times what four engines can do, goes through the simulator and, in real time,
through a live gateway with four live simulated engines (bench/sim_live_overload_workload.py says which requests and
what is promised to them, bench/sim_live_sides.py how they go). Who is refused, and when, follows from what the
scheduler has been told; life tells it the same things, a little later.

Attainment is the share of all arrivals of a class that were completed within all targets; refusals and leavers are
misses. Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.command import WrongAnswers, stop_cleanly_on_sigterm, tell
from bench.sim_live import lagged
from bench.sim_live_overload_workload import CALLERS, INTERACTIVE, OverloadWorkload
from bench.sim_live_sides import Machine, Side, live, simulated
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, ClassName
from headgate.simulation.report.spread import Spread
from headgate.simulation.report.tally import Tally, share
from headgate.simulation.workload.arrival import Arrival
from testing.processes import ProcessFailedError

POINTS_MAX = 5.0
SIDES = ("live", "simulated")

Figures = dict[str, Any]


def figures_of(side: Side, name: ClassName, seconds: float) -> Figures:
    """What one side made of one class."""
    tally = Tally()
    for story in side:
        if story.service_class == name:
            tally.add(story, CALLERS[name])
    ttft = Spread.of(tally.ttft_ns)
    return {
        "arrivals": tally.arrivals,
        "completed": tally.completed,
        "attainment": share(tally.good, tally.arrivals),
        "goodput_per_s": round(tally.good / seconds, 3),
        "ttft_s_p50": None if ttft is None else ttft.at[50] / SECOND,
        "ttft_s_p99": None if ttft is None else ttft.at[99] / SECOND,
        "outcomes": {each.value: tally.outcomes[each] for each in Outcome if tally.outcomes[each]},
    }


def compare(lived: Side, imagined: Side, seconds: float) -> dict[ClassName, dict[str, Figures]]:
    """By class and side."""
    return {
        name: {which: figures_of(side, name, seconds) for which, side in zip(SIDES, (lived, imagined), strict=True)}
        for name in CALLERS
    }


def check_same_requests(asked: Sequence[Arrival], *sides: Side) -> None:
    """Both sides must have been asked what the list says, and have computed that much of what they completed."""
    for side in sides:
        if len(side) != len(asked):
            raise WrongAnswers(f"{len(asked)} requests were to be asked, and {len(side)} were")
        for story, arrival in zip(side, asked, strict=True):
            was = (story.service_class, story.tenant, story.prompt_tokens, story.answer_tokens)
            meant = (arrival.service_class, arrival.tenant, arrival.prompt_tokens, arrival.output_tokens)
            if was != meant or (story.outcome is Outcome.COMPLETED and story.output_tokens != arrival.output_tokens):
                raise WrongAnswers(f"request {story.number} was not asked or answered as the list says: {story}")


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
    asked, stage = workload.asked(), workload.stage()
    tell(
        f"{len(asked)} requests in {args.seconds:g} s, {args.load:g} of what {workload.engines} engines "
        f"({workload.profile.name}, {workload.in_flight_max} places each) complete"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-sim-live-") as name:
            imagined = simulated(stage, asked, Path(name))
            lived, machine = live(stage, asked, Path(name))
        check_same_requests(asked, lived, imagined)
    except (WrongAnswers, ProcessFailedError) as problem:
        return _problem(str(problem))
    except KeyboardInterrupt:
        return _problem("interrupted; nothing is left running", status=130)
    classes = compare(lived, imagined, args.seconds)
    data = as_data(classes, machine)
    print(table_of(classes))
    missed = args.check and data["difference_points"] > POINTS_MAX
    for sentence in lagged(machine):
        tell(sentence)
    if missed:
        tell(f"missed: attainment differs by {data['difference_points']:g} points, and {POINTS_MAX:g} are allowed")
    print(json.dumps(data), flush=True)
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="sim-live-overload", description="The policy in life and in the simulator.")
    usual = OverloadWorkload()
    made.add_argument(
        "--seconds",
        type=_seconds,
        default=usual.seconds,
        metavar="S",
        help=f"how long requests come ({usual.seconds:g})",
    )
    made.add_argument(
        "--load", type=_load, default=usual.load, metavar="L", help=f"1 is all that the engines can do ({usual.load:g})"
    )
    made.add_argument("--seed", type=int, default=usual.seed, help=f"which requests ({usual.seed})")
    made.add_argument(
        "--assert", dest="check", action="store_true", help=f"exit 1 when they differ by over {POINTS_MAX:g} points"
    )
    return made


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 600:
        raise argparse.ArgumentTypeError("give from 1 to 600 seconds")
    return seconds


def _load(text: str) -> float:
    load = float(text)
    if not 0.05 <= load <= 3:
        raise argparse.ArgumentTypeError("give from 0.05 to 3")
    return load


def _problem(text: str, *, status: int = 2) -> int:
    tell(f"sim-live-overload: {text}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
