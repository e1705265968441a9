"""Does a cell keep its promises under faults of all kinds? As many seeds as one wants.

    python -m bench.cell [SEEDS] [--from N] [--processes N]
    python -m bench.cell --seed N [--trace]

Each seed is a cell of a few gateways, candidates and engines under load, with faults drawn from the seed, in virtual
time. A seed that breaks a promise is printed with what was broken, and is run again to the byte by `--seed N`;
`--trace` shows all that happened. Progress goes to stderr. The last line is one JSON object; the exit status is 1 if a
promise was broken.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.command import stop_cleanly_on_sigterm, tell
from testing.cell_world.world import World


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    violations: list[str]
    requests: int
    islands: int
    epochs: int
    worst_percent: int


def main(words: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(words)
    if arguments.seed is not None:
        return _one(arguments.seed, trace=arguments.trace)
    started = time.monotonic()
    results: list[Result] = []
    for result in _results(arguments):
        results.append(result)
        for violation in result.violations:
            print(f"seed {result.seed} {violation}", flush=True)
        if len(results) % 100 == 0:
            tell(f"{len(results)} of {arguments.seeds} seeds, {time.monotonic() - started:.0f} s")
    broken = [each.seed for each in results if each.violations]
    for seed in broken[:20]:
        print(f"run it again: just sim-cell --seed {seed} --trace")
    figures = {
        "seeds": len(results),
        "violations": sum(len(each.violations) for each in results),
        "requests": sum(each.requests for each in results),
        "epochs": sum(each.epochs for each in results),
        "islands": sum(each.islands for each in results),
        "worst_percent": max((each.worst_percent for each in results), default=0),
        "took_s": round(time.monotonic() - started, 1),
    }
    print(json.dumps(figures))
    return 1 if broken else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cell", description=str(__doc__).partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="?", default=200, help="how many (200)")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: all that happens")
    return parser.parse_args(words)


def run(seed: int) -> Result:
    findings = World(seed, hostile=True, doubles=True).run()
    return Result(
        seed, findings.violations, len(findings.stories), findings.islands, findings.epochs, findings.worst_percent
    )


def _results(arguments: argparse.Namespace) -> Iterator[Result]:
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.processes == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(arguments.processes) as workers:
        yield from workers.map(run, seeds, chunksize=10)


def _one(seed: int, *, trace: bool) -> int:
    findings = World(seed, hostile=True, doubles=True, told=print if trace else None).run()
    for violation in findings.violations:
        print(f"seed {seed} {violation}")
    print(json.dumps({"seeds": 1, "violations": len(findings.violations), "worst_percent": findings.worst_percent}))
    return 1 if findings.violations else 0


if __name__ == "__main__":
    sys.exit(main())
