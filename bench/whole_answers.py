"""Measures what it costs a gateway to watch whole answers token by token.

    just bench-whole-answers [--quick]

Two gateways before one simulated engine are loaded in turn, pair by pair, on one core; engine and load generator run on
another. One asks for streams and joins their chunks, the other asks for whole answers. Both are asked for answers of
100 tokens that are not streamed. The figure that counts is the ratio of their CPU per request within each pair, and of
all pairs the median.

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON.
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

from bench.command import WrongAnswers, listed, stop_cleanly_on_sigterm, tell
from bench.cores import TooFewCores, started_on, two_cores
from bench.pairs import Load, pairs_of
from bench.targets import gateway
from testing.processes import MissingPart, ProcessFailedError
from testing.simulated import simulated_engines

PAIRS, QUICK_PAIRS = 9, 1
SECONDS, QUICK_SECONDS = 4.0, 2.0
TOKENS: Final = 100
SPEED_UP: Final = 4
"""As fast as the engine can be before its tokens come several at a time, which would make joining cheaper."""
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
    parser = argparse.ArgumentParser(prog="bench-whole-answers", description="The cost of watching whole answers.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} pair of {QUICK_SECONDS:g} s")
    args = parser.parse_args(arguments)
    stop_cleanly_on_sigterm()
    pairs, seconds = (QUICK_PAIRS, QUICK_SECONDS) if args.quick else (PAIRS, SECONDS)
    try:
        figures = measure(pairs=pairs, seconds=seconds)
    except (MissingPart, TooFewCores, WrongAnswers, ProcessFailedError) as problem:
        tell(str(problem))
        return 1
    print(listed(figures))
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
