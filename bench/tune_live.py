"""Try a better and a harmful setting on a live gateway with a simulated engine, under traffic.

    just tune-live [--runs N] [--block SECONDS] [--assert]

In each run, `headgate tune --live` first tries an in-flight limit of 32 on a gateway whose limit of 4 is too low for
the traffic, and then a limit of 1 on a gateway whose limit of 32 is right. The first should be kept and the second
reverted.

Progress goes to stderr, a table to stdout. The last line is the results as JSON: `kept` and `reverted` are numbers of
runs with the right result, and `revert_s` is the longest time in seconds for which the harmful value was in force.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cli import print_progress, report_problem, stop_cleanly_on_sigterm
from testing.live_trials import trial_world
from testing.processes import ProcessFailedError

RIGHT: Final = 32
TOO_LOW: Final = 4
HARMFUL: Final = 1
REVERT_S_MAX: Final = 5.0
RUNS: Final = 3


@dataclass(frozen=True, slots=True)
class TrialRun:
    result: str
    took_s: float
    """Length of the whole trial."""
    new_value_s: float
    """Time for which the new value was in force before the trial ended."""


async def run_trial(before: int, value: int, block_s: int) -> TrialRun:
    with tempfile.TemporaryDirectory() as folder:
        async with trial_world(Path(folder), in_flight_max=before) as world:
            began = asyncio.get_running_loop().time()
            await world.start(value, block_s=block_s, duration_s=60 * block_s)
            trial, new_value_s = await world.result(value, seconds_max=70 * block_s)
            return TrialRun(trial["result"], asyncio.get_running_loop().time() - began, new_value_s)


def figures_of(better: Sequence[TrialRun], harmful: Sequence[TrialRun]) -> dict[str, float]:
    return {
        "runs": len(harmful),
        "kept": sum(each.result == "improved" for each in better),
        "reverted": sum(each.result == "worse" for each in harmful),
        "revert_s": round(max(each.new_value_s for each in harmful), 1),
    }


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    stop_cleanly_on_sigterm()
    better: list[TrialRun] = []
    harmful: list[TrialRun] = []
    try:
        for number in range(arguments.runs):
            if not arguments.smoke:
                print_progress(f"run {number + 1} of {arguments.runs}: in_flight_max {TOO_LOW} -> {RIGHT}")
                better.append(asyncio.run(run_trial(TOO_LOW, RIGHT, arguments.block)))
            print_progress(f"run {number + 1} of {arguments.runs}: in_flight_max {RIGHT} -> {HARMFUL}")
            harmful.append(asyncio.run(run_trial(RIGHT, HARMFUL, arguments.block)))
    except (ProcessFailedError, TimeoutError) as problem:
        return report_problem("tune-live", str(problem) or "a trial did not end in time")
    print(f"{'change':<10}  {'result':<10}  {'trial':>8}  {'new value':>10}")
    for change, runs in ((f"{TOO_LOW} -> {RIGHT}", better), (f"{RIGHT} -> {HARMFUL}", harmful)):
        for each in runs:
            print(f"{change:<10}  {each.result:<10}  {each.took_s:>6.1f} s  {each.new_value_s:>8.1f} s")
    figures = figures_of(better, harmful)
    print(json.dumps(figures), flush=True)
    met = figures["kept"] == figures["reverted"] == arguments.runs and figures["revert_s"] <= REVERT_S_MAX
    return int(arguments.check and not met)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="just tune-live", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"Number of runs (default {RUNS}).")
    parser.add_argument("--block", type=int, default=3, metavar="SECONDS", help="Length of a block (default 3).")
    parser.add_argument("--smoke", action="store_true", help="Only try the harmful setting.")
    parser.add_argument("--assert", dest="check", action="store_true", help="Exit 1 if a result is wrong.")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
