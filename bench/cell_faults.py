"""Check a simulated cell's invariants under random faults, for any number of seeds.

    python -m bench.cell_faults [SEEDS] [--from N] [--processes N]
    python -m bench.cell_faults --seed N [--trace]

Each seed defines a cell with a few gateways, candidates and engines under load in virtual time, and draws the faults.
If a seed violates an invariant, the seed and the violation are printed. `--seed N` repeats that run exactly and
`--trace` prints every event. Progress goes to stderr. The last line is one JSON object. The exit status is 1 if an
invariant was violated.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.cli import print_progress, stop_cleanly_on_sigterm
from testing.cell_world.world import World


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    violations: list[str]
    requests: int
    islands: int
    epochs: int
    worst_percent: int


def main(argv: Sequence[str] | None = None) -> int:
    stop_cleanly_on_sigterm()
    arguments = _arguments(argv)
    if arguments.seed is not None:
        return _run_seed(arguments.seed, trace=arguments.trace)
    started = time.monotonic()
    results: list[Result] = []
    for result in _results(arguments):
        results.append(result)
        for violation in result.violations:
            print(f"seed {result.seed} {violation}", flush=True)
        if len(results) % 100 == 0:
            print_progress(f"{len(results)} of {arguments.seeds} seeds, {time.monotonic() - started:.0f} s")
    broken = [each.seed for each in results if each.violations]
    for seed in broken[:20]:
        print(f"To reproduce: just sim-cell --seed {seed} --trace")
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
    parser = argparse.ArgumentParser(prog="python -m bench.cell_faults", description=str(__doc__).partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="?", default=200, help="number of seeds (default 200)")
    parser.add_argument("--from", dest="first", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--processes", type=int, default=1, help="number of parallel processes (default 1)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print every event (with --seed)")
    return parser.parse_args(words)


def run(seed: int) -> Result:
    findings = World(seed, hostile=True, doubles=True).run()
    return Result(
        seed, findings.violations, len(findings.traces), findings.islands, findings.epochs, findings.worst_percent
    )


def _results(arguments: argparse.Namespace) -> Iterator[Result]:
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.processes == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(arguments.processes) as workers:
        yield from workers.map(run, seeds, chunksize=10)


def _run_seed(seed: int, *, trace: bool) -> int:
    findings = World(seed, hostile=True, doubles=True, told=print if trace else None).run()
    for violation in findings.violations:
        print(f"seed {seed} {violation}")
    print(json.dumps({"seeds": 1, "violations": len(findings.violations), "worst_percent": findings.worst_percent}))
    return 1 if findings.violations else 0


if __name__ == "__main__":
    sys.exit(main())
