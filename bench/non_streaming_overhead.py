"""Measure the CPU cost of watching responses token by token for clients that do not stream.

    just bench-whole-answers [--quick]

Two gateways in front of one simulated engine share a core and are loaded in turn, in pairs of runs. The engine and the
load generator run on another core. One gateway requests streams and joins their chunks; the other requests complete
responses. The load generator requests 100-token responses without streaming. The main result is the median over all
pairs of the ratio of CPU time per request.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from bench.cli import FailedRequests, format_figures, print_progress, stop_cleanly_on_sigterm
from bench.cpu_cores import TooFewCores, started_on, two_cores
from bench.paired_cpu import Load, pairs_of
from bench.targets import gateway
from testing.processes import MissingProgram, ProcessFailedError
from testing.simulated_engines import simulated_engines

PAIRS, QUICK_PAIRS = 9, 1
SECONDS, QUICK_SECONDS = 4.0, 2.0
TOKENS: Final = 100
SPEED_UP: Final = 4
"""Highest speed at which the engine still sends tokens one by one; joining is cheaper when a read has more tokens."""
LOAD: Final = Load(connections=16, warm_up_s=1.0, tokens=TOKENS)


def measure(*, pairs: int, seconds: float) -> dict[str, float]:
    cores = two_cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        with started_on(cores.instruments):
            [url] = stack.enter_context(simulated_engines(1, "--speed-up", str(SPEED_UP)))
        on, off = (
            stack.enter_context(
                gateway(cores.target, url, folder / name, served_model="sim", watches_whole_answers=watches)
            )
            for name, watches in (("joined", True), ("whole", False))
        )
        found = pairs_of(on, off, "joined", LOAD, pairs=pairs, seconds=seconds, cores=cores)
    joined_us, whole_us = median(with_ for with_, _ in found), median(without for _, without in found)
    return {
        "cpu_us_joined": round(joined_us, 1),
        "cpu_us_whole": round(whole_us, 1),
        "cpu_ratio_joined_whole": round(median(with_ / without for with_, without in found), 3),
        "cpu_us_more_per_token": round((joined_us - whole_us) / TOKENS, 2),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bench-whole-answers", description="Measure the CPU cost of joining streams into complete responses."
    )
    parser.add_argument("--quick", action="store_true", help=f"Run {QUICK_PAIRS} pair of {QUICK_SECONDS:g} s.")
    args = parser.parse_args(arguments)
    stop_cleanly_on_sigterm()
    pairs, seconds = (QUICK_PAIRS, QUICK_SECONDS) if args.quick else (PAIRS, SECONDS)
    try:
        figures = measure(pairs=pairs, seconds=seconds)
    except (MissingProgram, TooFewCores, FailedRequests, ProcessFailedError) as problem:
        print_progress(str(problem))
        return 1
    print(format_figures(figures))
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
