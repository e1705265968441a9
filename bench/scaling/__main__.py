"""E6: what does the autoscaler pay on fourteen real days, beside simpler ways of scaling and one that knows the future?

    python -m bench.scaling [--whole] [--write] [--seed N] [--processes N]

Runs one trace at a cold start of 120 s, also with profiles that are wrong by 30 %. `--whole` takes all traces and cold
starts, a constant load, and hours request by request against the model; `--write` with it puts the page and its charts
into `docs/project/results/`. Progress goes to stderr. The last line is one JSON object. The exit status is 1 if a bar
is missed; a missed aim is only reported.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.command import stop_cleanly_on_sigterm, tell
from bench.policy.experiment import RESULTS, DataMissing, data
from bench.scaling import page
from bench.scaling.compare import (
    COLD_STARTS_S,
    PROFILE,
    TRACES,
    USUAL_COLD_START_S,
    Comparison,
    compared,
    read_days,
)
from bench.scaling.hour import HOURS, Both, Hour, checked
from bench.scaling.steady import Rest, at_rest, middling
from bench.scaling.wrong import Corrected, corrected

FIRST = next(iter(TRACES))


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    try:
        folder = data()
    except DataMissing as missing:
        tell(str(missing))
        return 2
    started = time.monotonic()
    if arguments.whole:
        comparisons, rests, hours, wrong = _whole(folder, seed=arguments.seed, processes=arguments.processes)
    else:
        comparisons, rests, hours = [_one(folder, FIRST, USUAL_COLD_START_S, arguments.seed)], {}, []
        wrong = _corrected(folder, FIRST, arguments.seed)
    told = next(each for each in comparisons if (each.trace, each.cold_start_s) == (FIRST, USUAL_COLD_START_S))
    missed = _tell(comparisons, rests, hours, wrong, told, command=_command(arguments), write=arguments.write)
    tell(f"took {time.monotonic() - started:.0f} s")
    print(json.dumps(page.figures(told, wrong)))
    return 1 if missed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--whole", action="store_true", help="all traces and cold starts, and the model checked")
    parser.add_argument(
        "--write", action="store_true", help="put page and charts into docs/project/results/; with --whole"
    )
    parser.add_argument("--seed", type=int, default=1, help="what chance makes of the rates (1)")
    parser.add_argument("--processes", type=int, default=1, help="how many runs at a time (1)")
    arguments = parser.parse_args(words)
    if arguments.write and not arguments.whole:
        parser.error("--write tells of all traces and cold starts; add --whole")
    return arguments


def _command(arguments: argparse.Namespace) -> str:
    return f"python -m bench.scaling --whole --write --seed {arguments.seed}"


def _whole(
    folder: Path, *, seed: int, processes: int
) -> tuple[list[Comparison], dict[str, Rest], list[Both], list[Corrected]]:
    with ProcessPoolExecutor(processes) as workers:
        runs = [workers.submit(_one, folder, trace, cold, seed) for trace in TRACES for cold in COLD_STARTS_S]
        resting = {trace: workers.submit(_rest, folder, trace, seed) for trace in TRACES}
        hours = [workers.submit(_hour, folder, hour, seed) for hour in HOURS]
        wrong = [workers.submit(_corrected, folder, trace, seed) for trace in TRACES]
        return (
            [each.result() for each in runs],
            {trace: each.result() for trace, each in resting.items()},
            [each.result() for each in hours],
            [found for each in wrong for found in each.result()],
        )


def _one(folder: Path, trace: str, cold_start_s: int, seed: int) -> Comparison:
    tell(f"{trace}, cold start {cold_start_s} s")
    return compared(read_days(folder, trace, seed=seed), cold_start_s)


def _corrected(folder: Path, trace: str, seed: int) -> list[Corrected]:
    tell(f"{trace}, profiles that are wrong by 30 %")
    return corrected(read_days(folder, trace, seed=seed))


def _rest(folder: Path, trace: str, seed: int) -> Rest:
    return at_rest(middling(read_days(folder, trace, seed=seed).windows), seed=seed)


def _hour(folder: Path, hour: Hour, seed: int) -> Both:
    tell(f"{hour.length_s} s of {hour.trace}, request by request")
    return checked(hour, folder, PROFILE, seed=seed)


def _tell(
    comparisons: Sequence[Comparison],
    rests: dict[str, Rest],
    hours: Sequence[Both],
    wrong: Sequence[Corrected],
    told: Comparison,
    *,
    command: str,
    write: bool,
) -> bool:
    """Whether a bar is missed."""
    print(f"{page.curves_table(told)}\n\n{page.compared_table(comparisons)}\n")
    print(f"{page.corrected_table(wrong)}\n")
    if hours:
        print(f"{page.hours_table(hours)}\n")
    must = page.must(comparisons, hours, rests, wrong)
    for bar in must:
        print(bar)
    for bar in page.aims(comparisons):
        print(f"aim {bar}")
    sys.stdout.flush()
    if write:
        page.write(RESULTS, comparisons, hours, rests, wrong, command=command)
    return not all(bar.met for bar in must)


if __name__ == "__main__":
    sys.exit(main())
