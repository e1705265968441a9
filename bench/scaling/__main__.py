"""E6: compares the autoscaler's GPU-hours over fourteen recorded days with those of simpler autoscalers and an oracle.

    python -m bench.scaling [--whole] [--write] [--seed N] [--processes N]

Runs one trace with a cold start of 120 s, both with correct engine profiles and with profiles that are off by 30 %.
`--whole` runs all traces and cold starts, a constant load, and a request-level check of the fluid model. With
`--whole`, `--write` writes the page and its charts to `docs/project/results/`. Progress goes to stderr. The last line
of stdout is one JSON object. The exit status is 1 if a required target is missed. Missed optional targets are only
printed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.cli import print_progress, stop_cleanly_on_sigterm
from bench.policy.experiment import RESULTS, DataMissing, data_folder
from bench.scaling import results_page
from bench.scaling.compare import (
    COLD_STARTS_S,
    PROFILE,
    TRACES,
    USUAL_COLD_START_S,
    Comparison,
    compare,
    read_days,
)
from bench.scaling.model_check import HOURS, Hour, ModelComparison, check_hour
from bench.scaling.stability import FleetRange, median_window, steady_range
from bench.scaling.wrong_profile import CorrectedRun, corrected_runs

FIRST = next(iter(TRACES))


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    try:
        folder = data_folder()
    except DataMissing as missing:
        print_progress(str(missing))
        return 2
    started = time.monotonic()
    if arguments.whole:
        comparisons, rests, hours, wrong = _compare_all(folder, seed=arguments.seed, processes=arguments.processes)
    else:
        comparisons, rests, hours = [_compare_one(folder, FIRST, USUAL_COLD_START_S, arguments.seed)], {}, []
        wrong = _corrected(folder, FIRST, arguments.seed)
    told = next(each for each in comparisons if (each.trace, each.cold_start_s) == (FIRST, USUAL_COLD_START_S))
    missed = _print_results(comparisons, rests, hours, wrong, told, command=_command(arguments), write=arguments.write)
    print_progress(f"took {time.monotonic() - started:.0f} s")
    print(json.dumps(results_page.figures(told, wrong)))
    return 1 if missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--whole", action="store_true", help="Run all traces and cold starts and check the fluid model."
    )
    parser.add_argument(
        "--write", action="store_true", help="Write the page and charts to docs/project/results/. Requires --whole."
    )
    parser.add_argument("--seed", type=int, default=1, help="Random seed (default 1).")
    parser.add_argument("--processes", type=int, default=1, help="Number of parallel runs (default 1).")
    arguments = parser.parse_args(words)
    if arguments.write and not arguments.whole:
        parser.error("--write requires --whole")
    return arguments


def _command(arguments: argparse.Namespace) -> str:
    return f"python -m bench.scaling --whole --write --seed {arguments.seed}"


def _compare_all(
    folder: Path, *, seed: int, processes: int
) -> tuple[list[Comparison], dict[str, FleetRange], list[ModelComparison], list[CorrectedRun]]:
    with ProcessPoolExecutor(processes) as workers:
        runs = [workers.submit(_compare_one, folder, trace, cold, seed) for trace in TRACES for cold in COLD_STARTS_S]
        resting = {trace: workers.submit(_rest, folder, trace, seed) for trace in TRACES}
        hours = [workers.submit(_hour, folder, hour, seed) for hour in HOURS]
        wrong = [workers.submit(_corrected, folder, trace, seed) for trace in TRACES]
        return (
            [each.result() for each in runs],
            {trace: each.result() for trace, each in resting.items()},
            [each.result() for each in hours],
            [found for each in wrong for found in each.result()],
        )


def _compare_one(folder: Path, trace: str, cold_start_s: int, seed: int) -> Comparison:
    print_progress(f"{trace}, cold start {cold_start_s} s")
    return compare(read_days(folder, trace, seed=seed), cold_start_s)


def _corrected(folder: Path, trace: str, seed: int) -> list[CorrectedRun]:
    print_progress(f"{trace}, profiles wrong by 30 %")
    return corrected_runs(read_days(folder, trace, seed=seed))


def _rest(folder: Path, trace: str, seed: int) -> FleetRange:
    return steady_range(median_window(read_days(folder, trace, seed=seed).windows), seed=seed)


def _hour(folder: Path, hour: Hour, seed: int) -> ModelComparison:
    print_progress(f"{hour.length_s} s of {hour.trace} at request level")
    return check_hour(hour, folder, PROFILE, seed=seed)


def _print_results(
    comparisons: Sequence[Comparison],
    rests: dict[str, FleetRange],
    hours: Sequence[ModelComparison],
    wrong: Sequence[CorrectedRun],
    told: Comparison,
    *,
    command: str,
    write: bool,
) -> bool:
    """Whether any required target was missed."""
    print(f"{results_page.curves_table(told)}\n\n{results_page.compared_table(comparisons)}\n")
    print(f"{results_page.corrected_table(wrong)}\n")
    if hours:
        print(f"{results_page.hours_table(hours)}\n")
    must = results_page.required_thresholds(comparisons, hours, rests, wrong)
    for bar in must:
        print(bar)
    for bar in results_page.goal_thresholds(comparisons):
        print(f"optional: {bar}")
    sys.stdout.flush()
    if write:
        results_page.write(RESULTS, comparisons, hours, rests, wrong, command=command)
    return not all(bar.met for bar in must)


if __name__ == "__main__":
    sys.exit(main())
