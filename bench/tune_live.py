"""Try a better and a harmful setting on a live gateway with a simulated engine, under traffic.

    just tune-live [--runs N] [--assert]

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.cli import print_progress, stop_cleanly_on_sigterm
from testing.live_trials import trial_world

RIGHT: Final = 32
TOO_LOW: Final = 4
HARMFUL: Final = 1
REVERT_S_MAX: Final = 5.0


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="Number of runs (default 3).")
    parser.add_argument("--block", type=int, default=3, metavar="SECONDS", help="Length of a block (default 3).")
    parser.add_argument("--assert", action="store_true", dest="asserts", help="Exit with 1 if a target is missed.")
    args = parser.parse_args()
    stop_cleanly_on_sigterm()
    better: list[TrialRun] = []
    harmful: list[TrialRun] = []
    for number in range(args.runs):
        print_progress(f"run {number + 1} of {args.runs}: in_flight_max {TOO_LOW} -> {RIGHT}")
        better.append(asyncio.run(run_trial(TOO_LOW, RIGHT, args.block)))
        print_progress(f"run {number + 1} of {args.runs}: in_flight_max {RIGHT} -> {HARMFUL}")
        harmful.append(asyncio.run(run_trial(RIGHT, HARMFUL, args.block)))
    print(f"{'change':<10}  {'result':<10}  {'trial':>8}  {'new value':>10}")
    for change, runs in ((f"{TOO_LOW} -> {RIGHT}", better), (f"{RIGHT} -> {HARMFUL}", harmful)):
        for each in runs:
            print(f"{change:<10}  {each.result:<10}  {each.took_s:>6.1f} s  {each.new_value_s:>8.1f} s")
    revert_s = max(each.new_value_s for each in harmful)
    summary = {
        "runs": args.runs,
        "kept": sum(each.result == "improved" for each in better),
        "reverted": sum(each.result == "worse" for each in harmful),
        "revert_s": round(revert_s, 1),
        "trials": [asdict(each) for each in (*better, *harmful)],
    }
    met = summary["kept"] == summary["reverted"] == args.runs and revert_s <= REVERT_S_MAX
    print(json.dumps(summary))
    return int(args.asserts and not met)


if __name__ == "__main__":
    sys.exit(main())
